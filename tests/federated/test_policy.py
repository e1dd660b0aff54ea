"""What a client refuses, what it remembers, and what a round is as data."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from decrescendo.accounting import Gaussian
from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import FileRefused, InvalidValue, UnsupportedModel
from decrescendo.federated import (
    LocalSteps,
    Memory,
    Outcome,
    Placement,
    Policy,
    Round,
    client_update,
    clip_update,
    local_guarantee,
    prepare,
    run_id,
    server_guarantee,
)
from decrescendo.federated.summing import ExactSum, norm_of

from .conftest import NOISE, loss, make_model, make_plan, records, sgd
from .test_server import make_server

ASKED = Round("ab", 3, 9, clip_norm=1.0, noise_multiplier=2.0, placement=Placement.DISTRIBUTED, share_std=0.5)
POLICY = Policy(
    max_clip_norm=1.0,
    min_noise_multiplier=2.0,
    max_rounds=5,
    run="ab",
    placements=frozenset({Placement.DISTRIBUTED, Placement.LOCAL}),
    min_share_std=0.5,
)


def test_a_round_within_all_limits_is_answered() -> None:
    assert POLICY.refusal(ASKED, Memory()) is None
    assert POLICY.refusal(ASKED, Memory(4, {"ab": 2})) is None


@pytest.mark.parametrize(
    ("asked", "memory", "reason"),
    [
        (dataclasses.replace(ASKED, clip_norm=1.01), Memory(), "clip_norm must be <= 1"),
        (dataclasses.replace(ASKED, noise_multiplier=1.99), Memory(), "noise_multiplier must be >= 2"),
        (dataclasses.replace(ASKED, share_std=0.49), Memory(), "share_std must be >= 0.5"),
        (dataclasses.replace(ASKED, run="cd"), Memory(), "the run must be"),
        (
            dataclasses.replace(ASKED, placement=Placement.CENTRAL, share_std=0.0),
            Memory(),
            "the placement must be",
        ),
        (ASKED, Memory(5, {}), "at most 5 rounds"),
        (ASKED, Memory(1, {"ab": 3}), "must come after round 3"),
        (ASKED, Memory(1, {"ab": 4}), "must come after round 4"),
    ],
)
def test_a_round_outside_of_a_limit_is_refused(asked: Round, memory: Memory, reason: str) -> None:
    found = POLICY.refusal(asked, memory)
    assert found is not None
    assert reason in found


def test_only_a_round_without_own_noise_may_be_answered_again() -> None:
    """The same noise on two different updates would cancel in their difference."""
    policy = Policy(10.0, 0.0, 9)
    once = Memory().after(ASKED)
    assert policy.refusal(ASKED, once) is not None
    plain = dataclasses.replace(ASKED, placement=Placement.CENTRAL, share_std=0.0)
    assert policy.refusal(plain, Memory().after(plain)) is None
    assert policy.refusal(dataclasses.replace(plain, number=2), Memory().after(plain)) is not None


def test_memory_survives_as_text_and_nothing_else_is_taken_for_it() -> None:
    memory = Memory().after(ASKED).after(dataclasses.replace(ASKED, run="cd", number=1))
    assert memory == Memory(2, {"ab": 3, "cd": 1})
    assert Memory.from_json(memory.to_json()) == memory
    for text in ("", "[]", "{}", '{"taken": -1, "last": {}}', '{"taken": 1, "last": {"a": "b"}}'):
        with pytest.raises(FileRefused):
            Memory.from_json(text)


@given(
    c=st.floats(1e-6, 1e6),
    z=st.floats(1e-6, 1e6),
    cohort=st.integers(0, 10**6),
    placement=st.sampled_from(Placement),
)
def test_a_round_survives_json_bit_for_bit(c: float, z: float, cohort: int, placement: Placement) -> None:
    asked = Round("ab", 1, 2, c, z, placement, placement.share_std(z * c, cohort))
    assert Round.from_config(json.loads(json.dumps(asked.to_config()))) == asked


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": 10},
        {"clip_norm": 0.0},
        {"clip_norm": float("nan")},
        {"noise_multiplier": -1.0},
        {"placement": "nowhere"},
        {"placement": "central"},
        {"placement": "local"},
        {"share_std": 2.1},
        {"share_std": 0.0},
        {"more": 1},
    ],
)
def test_a_round_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(FileRefused):
        Round.from_config({**ASKED.to_config(), **change})
    with pytest.raises(FileRefused):
        Round.from_config({key: value for key, value in ASKED.to_config().items() if key != "run"})


def test_a_run_is_named_by_plan_placement_and_name() -> None:
    names = {
        run_id(make_plan(), Placement.CENTRAL),
        run_id(make_plan(), Placement.DISTRIBUTED),
        run_id(make_plan(), Placement.CENTRAL, "again"),
        run_id(make_plan([2.0, 1.5, 1.3]), Placement.CENTRAL),
    }
    assert len(names) == 4
    server = make_server()
    assert server.open().round.run == run_id(make_plan(), Placement.CENTRAL) == server.run


def test_guarantees_against_those_who_see_replies() -> None:
    """By hand: mu^2 is the sum of 1/z_t^2, with z_t sqrt(j/k) where only j of k shares are there."""
    plan = make_plan()
    mu = math.sqrt(sum(1 / z**2 for z in NOISE))
    assert local_guarantee(plan).epsilon == pytest.approx(Gaussian().epsilon(Ledger.of([1 / mu], 1.0), 1e-5).value)
    least = Gaussian().epsilon(Ledger.of([1.2, 1.5], 1.0), 1e-5).value
    assert local_guarantee(plan, rounds=2).epsilon == least
    attendance = [(4, 1), (5, 0), (2, 2)]
    mu = math.sqrt(4 / 2.0**2 + 1 / 1.2**2)
    assert server_guarantee(plan, attendance).epsilon == pytest.approx(
        Gaussian().epsilon(Ledger.of([1 / mu], 1.0), 1e-5).value
    )
    assert server_guarantee(plan, [(0, 0)]).epsilon == 0
    for wrong in ([(2, 3)], [(1, 1)] * 4):
        with pytest.raises(InvalidValue):
            server_guarantee(plan, wrong)


@pytest.mark.parametrize("placement", list(Placement))
def test_the_outcome_says_whom_it_protects_against(placement: Placement) -> None:
    server = make_server(placement)
    while not server.done:
        server.open()
        server.close()
    outcome = server.finish()
    assert isinstance(outcome, Outcome)
    assert placement.threat in outcome.statement()
    assert (outcome.against_server is not None) == (placement is Placement.DISTRIBUTED)
    if placement is Placement.LOCAL:
        assert outcome.guarantee == local_guarantee(make_plan())
        assert outcome.ledger == Ledger.of(NOISE, 1.0)
        with pytest.raises(InvalidValue, match="got the placement local"):
            outcome.to_run()
    else:
        assert outcome.to_run().guarantee.epsilon == pytest.approx(make_plan().guarantee.epsilon)


@given(
    size=st.sampled_from([0.0, 1e-30, 1e-6, 0.999999, 1.0, 1.000001, 1e6, 1e19, 1e30]),
    c=st.sampled_from([1e-6, 0.37, 1.0, 1e5]),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_clipped_update_is_never_longer_than_the_clip_norm(
    size: float, c: float, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    update = {"a": torch.randn(50, generator=generator, dtype=torch.float64), "b": torch.ones(3, 2).double()}
    scale = size * c / norm_of(update)
    update = {name: (value * scale).to(dtype) for name, value in update.items()}
    clipped = clip_update(update, c)
    assert norm_of(clipped) <= c
    assert all(value.dtype == dtype for value in clipped.values())
    if size < 0.9999:
        assert all(torch.equal(clipped[name], update[name]) for name in update)
    elif size > 1.001:
        assert norm_of(clipped) > c * (1 - 1e-5)


def test_an_update_that_is_not_finite_is_zero_and_noise_needs_a_secret() -> None:
    spoiled = {"w": torch.tensor([1.0, float("nan")])}
    assert not clip_update(spoiled, 1.0)["w"].any()
    with pytest.raises(InvalidValue, match="must have a secret stream"):
        prepare({"w": torch.ones(2)}, ASKED, None)


def test_local_steps_are_the_way_that_sgd_goes() -> None:
    inputs, targets = records(5)
    model, worker = make_model(), make_model()
    before = [p.detach().clone() for p in model.parameters()]
    found = client_update(model, loss, (inputs, targets), LocalSteps(0.3, epochs=2, batch_size=2))
    optimizer = sgd(worker, lr=0.3)
    for _ in range(2):
        for rows in ((0, 2), (2, 4), (4, 5)):
            optimizer.zero_grad()
            loss(worker, (inputs[slice(*rows)], targets[slice(*rows)])).mean().backward()
            optimizer.step()
    for (name, gone), old, now in zip(found.items(), before, worker.parameters(), strict=True):
        torch.testing.assert_close(gone, old - now.detach(), rtol=0, atol=1e-6, msg=name)
    assert all(torch.equal(old, now) for old, now in zip(before, model.parameters(), strict=True))
    nothing = client_update(model, loss, (inputs[:0], targets[:0]), LocalSteps(0.3))
    assert not any(value.any() for value in nothing.values())


def test_what_one_client_leaves_in_buffers_does_not_reach_its_neighbour() -> None:
    """Even with a layer that moves its buffers in the forward pass: an update depends on its own records only."""

    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("mean", torch.zeros(3), persistent=False)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.mean += rows.detach().mean(0)
            return (rows - self.mean) * self.weight

    model = Moving()
    value = lambda model, batch: model(batch).square().sum(1)  # noqa: E731
    alone = client_update(model, value, torch.ones(1, 3))
    client_update(model, value, 1e6 * torch.ones(1, 3))
    after = client_update(model, value, torch.ones(1, 3))
    assert torch.equal(alone["weight"], after["weight"])
    assert not model.mean.any()


def test_what_one_client_writes_to_a_code_book_does_not_reach_its_neighbour() -> None:
    """A frozen parameter and an attribute of a model without buffers, of which no copy was made."""

    class Coded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.book, self.last = nn.Parameter(torch.zeros(3), requires_grad=False), torch.zeros(3)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.book.data += rows.detach().mean(0)
            self.last = self.last + rows.detach().mean(0)
            return (rows - self.book - self.last) * self.weight

    model = Coded()
    value = lambda model, batch: model(batch).square().sum(1)  # noqa: E731
    alone = client_update(model, value, torch.ones(1, 3))
    client_update(model, value, 1e6 * torch.ones(1, 3))
    after = client_update(model, value, torch.ones(1, 3))
    assert torch.equal(alone["weight"], after["weight"])
    assert not model.book.any()
    assert not model.last.any()


def test_a_model_that_cannot_be_copied_is_refused_with_what_to_do() -> None:
    model = nn.Linear(3, 1)
    model.last = model(torch.ones(1, 3))  # as the deprecated weight norm does
    with pytest.raises(UnsupportedModel, match=r"one that can be copied, .*parametrizations"):
        client_update(model, lambda model, batch: model(batch).sum(1), torch.ones(1, 3))


def test_an_exact_sum_is_exact() -> None:
    """Many parts of very different sizes: the same bits in any order, and what integers say."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(7, generator=generator, dtype=torch.float64).clamp(-1, 1) * 10.0**-k for k in range(12)] * 20
    sums: list[torch.Tensor] = []
    for order in (parts, parts[::-1], sorted(parts, key=lambda p: float(p[0]))):
        total = ExactSum({"w": torch.Size([7])}, limit=1.0, parts=len(parts))
        for part in order:
            total.add({"w": part})
        sums.append(total.value()["w"])
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])
    exact = torch.tensor([math.fsum(float(p[i]) for p in parts) for i in range(7)], dtype=torch.float64)
    torch.testing.assert_close(sums[0], exact, rtol=0, atol=len(parts) * 2.0**-44)
    with pytest.raises(InvalidValue, match="fewer than 2"):
        ExactSum({"w": torch.Size([1])}, limit=1.0, parts=2**40)
