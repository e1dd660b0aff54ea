"""Statistics, with their power: the total noise of a round is the planned one, whoever takes part or drops out."""

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import nn

from decrescendo.accounting.release import Release
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.federated import Placement, Reply, Round, Server
from decrescendo.federated.simulation import client_streams
from decrescendo.federated.update import prepare
from decrescendo.optim.noise import NoisedSum, complete, privatise
from decrescendo.plans.sampling import PoissonSampling

from .conftest import make_plan

SAMPLING = PoissonSampling(dataset_size=1000, expected_batch_size=8)
SIZE, Z, C = 60_000, 1.7, 0.5
PATTERNS = [(k, j) for k in (0, 1, 2, 5, 12) for j in sorted({0, 1, k // 2, k}) if j <= k]
bare = getattr(NoisedSum, "__wrapped__", NoisedSum)


def total_noise(k: int, j: int, seed: int, placement: Placement = Placement.DISTRIBUTED) -> torch.Tensor:
    """Noise of a round of k members of which j replied, all with zero updates, over its planned deviation."""
    share = placement.share_std(Z * C, k)
    asked = Round("run", 1 + seed, 100, C, Z, placement, share)
    total = {"w": torch.zeros(SIZE, dtype=torch.float64)}
    for client in range(j):
        total["w"] += prepare({"w": torch.zeros(SIZE)}, asked, client_streams(seed, client))["w"]
    shares = None if placement is Placement.LOCAL else max(k, 1)
    noised = NoisedSum(total, C, Z, present=j, shares=shares)
    noisy = complete(noised, SAMPLING, torch.Generator().manual_seed(seed))
    assert noisy.noise_std is not None
    return noisy.gradients["w"] * SAMPLING.expected_batch_size / (Z * C)


def p_value(noise: torch.Tensor, variance: float = 1.0) -> float:
    """Two-sided chi-square test of the variance."""
    statistic = float(noise.square().sum()) / variance
    return 2 * min(stats.chi2.cdf(statistic, noise.numel()), stats.chi2.sf(statistic, noise.numel()))


@pytest.mark.parametrize(("k", "j"), PATTERNS)
def test_the_total_variance_is_the_planned_one(k: int, j: int) -> None:
    noise = total_noise(k, j, seed=3)
    assert p_value(noise) > 1e-4
    assert abs(float(noise.mean())) < 4.5 / math.sqrt(SIZE)
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(SIZE))


def released_noise(placement: Placement, seed: int, answers: str, cohort: float = 8) -> tuple[torch.Tensor, int, int]:
    """What a whole `Server` moves its weights by, over the planned deviation; cohort, and replies that it took.

    Updates are zero. ``answers``: how the members answer, in turn: h(onest), s(ilent), d(eclined), n(aN), w(rong
    shape), t(wice), l(ong).
    """
    plan = make_plan([Z], [C], cohort=cohort)
    model = Flat()
    server = Server(model, plan, torch.optim.SGD(model.parameters(), lr=1.0), seed=seed, placement=placement)
    opened = server.open()
    for client, answer in zip(opened.cohort, itertools.cycle(answers), strict=False):
        secret = None if placement is Placement.CENTRAL else client_streams(seed, client)
        part = prepare({"w": torch.zeros(SIZE)}, opened.round, secret)["w"]
        changed = {"n": part * math.nan, "w": part[1:], "l": part + 1e9}.get(answer, part)
        if answer == "d":
            server.declined(client, "no")
        for _ in range({"s": 0, "d": 0, "t": 2}.get(answer, 1)):
            server.receive(Reply(client, 1, opened.round.run, {"w": changed}))
    report = server.close()
    assert server.ledger.steps == 1
    return -server.weights()["w"].double() * cohort / (Z * C), len(opened.cohort), report.taken


@pytest.mark.parametrize("answers", ["h", "s", "hs", "hhhs", "hdnwtl", "ssh", "nl"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_whole_round_has_the_planned_noise_whoever_answers(answers: str, seed: int) -> None:
    """A reply that is refused brought no noise: the server adds its share too."""
    noise, cohort, taken = released_noise(Placement.DISTRIBUTED, seed, answers)
    assert 3 <= cohort <= 16  # a share is 6 % of the variance or more: far beyond what the test can miss
    assert taken == sum(answer in "ht" for _, answer in zip(range(cohort), itertools.cycle(answers), strict=False))
    assert p_value(noise) > 1e-4


@pytest.mark.parametrize("placement", list(Placement))
def test_an_empty_cohort_is_released_with_the_planned_noise(placement: Placement) -> None:
    noise, cohort, _ = released_noise(placement, 3, "h", cohort=1e-9)
    assert cohort == 0
    assert p_value(noise) > 1e-4
    silent, cohort, taken = released_noise(placement, 3, "s")
    assert cohort > 0 == taken
    assert p_value(silent) > 1e-4


@pytest.mark.parametrize("answers", ["s", "nw", "d"])
def test_a_trusted_server_adds_all_of_the_noise_whoever_answers(answers: str) -> None:
    noise, _, taken = released_noise(Placement.CENTRAL, 5, answers)
    assert taken == 0
    assert p_value(noise) > 1e-4


@pytest.mark.parametrize("k", [2, 5, 12, 25])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_one_share_too_many_or_too_few_is_seen(k: int, wrong: int) -> None:
    """The power of the test above: an error of 1/k of the variance, for a cohort twice as large as any of it."""
    noise = total_noise(2, 1, seed=4) * math.sqrt(1 + wrong / k)
    assert p_value(noise) < 1e-6


@pytest.mark.parametrize(("k", "j"), [(0, 0), (1, 1), (4, 1), (4, 4)])
def test_local_noise_is_one_whole_noise_for_each_reply_and_one_for_none(k: int, j: int) -> None:
    noise = total_noise(k, j, seed=5, placement=Placement.LOCAL)
    assert p_value(noise, variance=max(j, 1)) > 1e-4


def test_noise_of_members_of_rounds_and_of_the_server_is_independent() -> None:
    def share(client: int, number: int, run: str = "run") -> torch.Tensor:
        asked = Round(run, number, 9, C, Z, Placement.LOCAL, Z * C)
        return prepare({"w": torch.zeros(SIZE)}, asked, client_streams(1, client))["w"]

    server = total_noise(0, 0, seed=1)
    draws = torch.stack([share(0, 1), share(1, 1), share(0, 2), share(0, 1, "other"), server])
    correlations = torch.corrcoef(draws) - torch.eye(len(draws))
    assert float(correlations.abs().max()) < 4.5 / math.sqrt(SIZE)
    assert torch.equal(share(0, 1), share(0, 1))


def test_what_is_complete_draws_nothing_and_the_gate_says_what_it_released() -> None:
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    full = complete(NoisedSum({"w": torch.ones(3)}, C, Z, present=4, shares=4), SAMPLING, generator)
    assert torch.equal(generator.get_state(), state)
    assert full.gradients["w"].tolist() == [0.125] * 3
    assert full.release == Release(SAMPLING.sample_rate, Z)
    assert full.noise_std == pytest.approx(Z * C / 8)
    local = complete(NoisedSum({"w": torch.ones(3)}, C, Z, present=4, shares=None), SAMPLING, generator)
    assert torch.equal(generator.get_state(), state)
    assert local.release == Release(1.0, Z)
    assert local.noise_std == pytest.approx(2 * Z * C / 8)
    none = complete(NoisedSum({"w": torch.ones(3)}, C, Z, present=0, shares=4), SAMPLING, generator)
    assert not torch.equal(generator.get_state(), state)
    assert none.release == full.release


def test_the_two_kinds_of_sums_do_not_go_through_each_others_gate() -> None:
    noised = NoisedSum({"w": torch.ones(3)}, C, Z, present=1, shares=4)
    with pytest.raises(InvalidType, match="clipped must be a ClippedSum"):
        getattr(privatise, "__wrapped__", privatise)(noised, Z, SAMPLING, torch.Generator())
    with pytest.raises(InvalidType, match="noised must be a NoisedSum"):
        getattr(complete, "__wrapped__", complete)(torch.ones(1), SAMPLING, torch.Generator())
    with pytest.raises(InvalidValue, match="at most as many parts as there are shares"):
        bare({"w": torch.ones(3)}, C, Z, 5, 4)
    unbounded = NoisedSum({"w": torch.ones(3)}, math.inf, Z, present=0, shares=1)
    with pytest.raises(InvalidValue, match="finite sensitivity"):
        complete(unbounded, SAMPLING, torch.Generator())
