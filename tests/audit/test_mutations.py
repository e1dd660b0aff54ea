"""Facts: each deliberately broken build is caught, the healthy one passes the same audits.

Everything runs by the real `Trainer`, `PoissonSampling`, `Engine` and `privatise`; `broken_builds` swaps one part.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pytest
import torch
from broken_builds import BROKEN, BROKEN_BANDS, BROKEN_EPOCHS, BROKEN_TELEMETRY, healthy
from torch import nn

from decrescendo.accounting import Budget, Ledger
from decrescendo.accounting.overflow import overflow_of
from decrescendo.audit import Attack, AuditResult, PrivacyCurve, curve, many_runs, one_run
from decrescendo.audit.attacks import batch_size, counted, crowded, once, one_canary, opposed, padded, told
from decrescendo.audit.probe import Probed, probed_loss, with_canaries
from decrescendo.audit.watch import watch
from decrescendo.base.rng import Secure
from decrescendo.clipping import Batch, EngineSettings, Reference
from decrescendo.errors import InvalidValue
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import constant, sensitivity_decay
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Trainer

ROWS, CANARIES = 2000, 1500
DATA = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound by the curve to 10 % of the noise, not 2 %: lower, so never a verdict more, and quicker."""
    monkeypatch.setattr(curve, "_REFINEMENTS", 3)


def squares(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch).square().sum(dim=1)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@cache
def make_plan(epsilon: float, rows: int, batch: float, steps: int) -> Plan:
    return calibrate(
        Budget(epsilon, 1e-5), PoissonSampling(rows, batch), steps=steps, privacy=constant(1.0),
        clip=sensitivity_decay(1.5, rho_c=3.3),
    )  # fmt: skip


@cache
def canaries(build: str) -> AuditResult:
    """A small training with 1,500 canaries at epsilon 4."""
    # One step is judged in closed form; a clip norm that moves needs two.
    plan = make_plan(4.0, ROWS, ROWS / 2, 2 if "next" in build else 1)
    with (healthy if build == "healthy" else BROKEN[build])(plan):
        return one_run(nn.Linear(4, 1), squares, DATA, plan, sgd, canaries=CANARIES, seed=1)


class TestOneRun:
    def test_the_healthy_build_is_not_caught(self) -> None:
        result = canaries("healthy")
        assert result.caught_by == ()
        assert result.lower < result.certified
        # An attack with power: of what is there, eight seeds show 0.8 to 2.4.
        assert 0.5 < result.lower_by_curve < result.certified

    @pytest.mark.parametrize(
        ("build", "by"),
        [
            ("no noise", "noise"),
            ("noise for the next clip norm", "noise"),
            ("clipped at twice the norm", "curve"),
        ],
    )
    def test_a_broken_build_is_caught(self, build: str, by: str) -> None:
        assert by in canaries(build).caught_by

    def test_more_is_shown_of_a_leak_than_of_the_healthy_build_by_the_plain_bound(self) -> None:
        assert canaries("no noise").lower > canaries("healthy").lower + 0.5

    @pytest.mark.slow
    def test_unpredictable_noise_is_audited_too(self) -> None:
        plan = make_plan(4.0, ROWS, 200, 10)
        result = one_run(nn.Linear(4, 1), squares, DATA, plan, sgd, canaries=CANARIES, seed=Secure(), confidence=0.9999)
        # 1 in 10,000 of healthy runs may fail here.
        assert result.caught_by == ()
        with BROKEN["noise for the next clip norm"](plan):
            broken = one_run(nn.Linear(4, 1), squares, DATA, plan, sgd, canaries=CANARIES, seed=Secure())
        assert "noise" in broken.caught_by


@cache
def attack_of(make: Callable[[Budget], Attack], epsilon: float) -> Attack:
    return make(Budget(epsilon, 1e-5))


def one_among_ordinary_rows(budget: Budget) -> Attack:
    plan = make_plan(budget.epsilon, 20, 18, 1)
    return one_canary(plan, DATA[:20], lambda: nn.Linear(4, 1), squares)


def one_long_text(budget: Budget) -> Attack:
    return padded(budget, steps=1)


def opposed_rows(budget: Budget) -> Attack:
    return opposed(budget, steps=8)


def opposed_bins(budget: Budget) -> Attack:
    return opposed(budget, steps=2, allocated=True)


def moving_batch(budget: Budget) -> Attack:
    return batch_size(budget, moving=True)


def by_turns(seen: np.ndarray, plan: Plan, groups: int) -> float:
    """The log-likelihood ratio of a canary that pulls by C at every turn of one of so many groups."""
    steps = plan.steps
    bands = [np.diag(row[: steps - k], -k) for k, row in enumerate(plan.strategy)]
    strategy = np.sum(bands, axis=0)
    shifts = [strategy @ (np.arange(steps) % groups == group) for group in range(groups)]
    ratios = np.array([(strategy @ seen) @ shift - shift @ shift / 2 for shift in shifts])
    return float(np.logaddexp.reduce(ratios) - np.log(groups))


# Which data set shows which break, at which epsilon and with how many runs.
CASES = [
    pytest.param(one_among_ordinary_rows, 4.0, 100, "no noise", marks=pytest.mark.slow),
    (batch_size, 4.0, 80, "divided by the realised batch size"),
    pytest.param(moving_batch, 4.0, 80, "divided by the realised batch size", marks=pytest.mark.slow),
    pytest.param(one_long_text, 4.0, 100, "padded to the longest of the batch", marks=pytest.mark.slow),
    # (Beside `test_a_cap_that_the_accountant_ignores_is_caught_and_costs_noise`.)
    pytest.param(crowded, 8.0, 300, "truncated to a buffer, accounted as whole", marks=pytest.mark.slow),
    pytest.param(counted, 4.0, 100, "count without its noise", marks=pytest.mark.slow),
    (told, 4.0, 60, "telemetry without its noise"),
    pytest.param(told, 4.0, 100, "loss bound from the batch", marks=pytest.mark.slow),
    pytest.param(opposed_rows, 8.0, 120, "shuffled, accounted as Poisson", marks=pytest.mark.slow),
    pytest.param(opposed_bins, 4.0, 1500, "shuffled, sold as random allocation", marks=pytest.mark.slow),
]


class TestManyRuns:
    @pytest.mark.slow
    @pytest.mark.parametrize(("make", "epsilon", "runs", "build"), CASES)
    def test_the_broken_build_is_caught_and_the_healthy_one_is_not(
        self, make: Callable[[Budget], Attack], epsilon: float, runs: int, build: str
    ) -> None:
        attack = attack_of(make, epsilon)
        with healthy(attack.plan):
            whole = many_runs(attack, runs=runs, seed=3)
        assert whole.caught_by == ()
        with {**BROKEN, **BROKEN_EPOCHS, **BROKEN_TELEMETRY}[build](attack.plan):
            broken = many_runs(attack, runs=runs, seed=3)
        assert "curve" in broken.caught_by

    @pytest.mark.slow
    def test_the_plain_bound_goes_beyond_a_small_epsilon(self) -> None:
        attack = attack_of(batch_size, 1.0)
        with BROKEN["divided by the realised batch size"](attack.plan):
            assert "bound" in many_runs(attack, runs=160, seed=3).caught_by

    @pytest.mark.slow
    def test_a_cap_that_the_accountant_ignores_is_caught_and_costs_noise(self) -> None:
        """The library as it is, but for accounting that takes cut batches for whole ones."""
        budget, cap = Budget(8.0, 1e-5), 371
        paid = crowded(budget, max_batch_size=cap).plan
        with mock.patch.object(Ledger, "cut", lambda ledger, *_: ledger):
            broken = crowded(budget, max_batch_size=cap)
            assert broken.plan.guarantee.epsilon <= 8
            assert (paid.noise_multiplier > 1.2 * broken.plan.noise_multiplier).all()
            assert "curve" in many_runs(broken, runs=300, seed=3).caught_by

    @pytest.mark.slow
    def test_allocation_that_is_counted_as_poisson_is_caught_and_allocation_is_not(self) -> None:
        """The library as it is, but for a ledger that forgets that everybody takes part."""
        honest = many_runs(once(Budget(4.0, 1e-5)), runs=120, seed=3)
        assert honest.caught_by == ()
        assert honest.lower_by_curve > 0.5
        with mock.patch.object(Ledger, "allocated", lambda ledger, _: ledger):
            broken = once(Budget(60.0, 1e-5))
            assert broken.plan.guarantee.accountant == "Pld"
            assert broken.plan.guarantee.epsilon <= 60
            assert "curve" in many_runs(broken, runs=240, seed=3).caught_by

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("build", "turns", "bands", "epsilon", "runs"),
        [
            ("records of every group at every turn", 1, 4, 8.0, 100),
            ("one band more than groups", 1, 2, 4.0, 400),
            ("rate not multiplied by the bands", 4, 4, 12.0, 100),
        ],
    )
    def test_broken_correlated_noise_is_caught_and_the_healthy_one_is_not(
        self, build: str, turns: int, bands: int, epsilon: float, runs: int
    ) -> None:
        """Every record of a group is drawn at each of its turns, and the canary looks for ``turns`` groups."""

        def attack() -> Attack:
            plan = calibrate(
                Budget(epsilon, 1e-5), PoissonSampling(20, 20 / bands), steps=4 * turns + 4, clip=1.0, bands=bands,
                workload=constant(1.0),
            )  # fmt: skip
            canary = one_canary(
                plan, DATA[:20], lambda: nn.Linear(4, 1), squares, settings=EngineSettings(capture=False)
            )
            return replace(canary, evidence=lambda seen, _: by_turns(seen[:, 0], plan, turns))

        assert many_runs(attack(), runs=runs, seed=3).caught_by == ()
        healthy_plan = attack().plan
        with BROKEN_BANDS[build](healthy_plan):
            assert "curve" in many_runs(attack(), runs=runs, seed=3).caught_by

    @pytest.mark.slow
    def test_a_cut_that_is_paid_for_is_not_caught(self) -> None:
        """One batch in fifty is cut, for half of a large delta; the curve has the price at every epsilon."""
        attack = crowded(Budget(1.0, 0.1), max_batch_size=389)
        assert 0.01 < overflow_of(attack.plan.ledger) < 0.03
        result = many_runs(attack, runs=100, seed=3)
        assert result.caught_by == ()
        whole = PrivacyCurve(attack.plan.ledger.cut(1, None))
        assert PrivacyCurve(attack.plan.ledger).excess(0.1, 0.2) < whole.excess(0.1, 0.2)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "make",
        [
            one_among_ordinary_rows,
            batch_size,
            moving_batch,
            one_long_text,
            opposed_rows,
            opposed_bins,
            once,
            crowded,
            counted,
            told,
        ],
    )
    def test_the_models_of_the_attacks_are_proven(self, make: Callable[[Budget], Attack]) -> None:
        attack = attack_of(make, 4.0)
        for present in (False, True):
            assert np.isfinite(attack.play(present=present, seed=0))

    def test_an_attack_repeats_and_its_worlds_differ_in_one_row(self) -> None:
        attack = attack_of(one_long_text, 4.0)
        assert attack.play(present=True, seed=5) == attack.play(present=True, seed=5)
        with pytest.raises(InvalidValue, match="the plan's 40 rows"):
            replace(attack, data=attack.data[:-1])


class TestCanaries:
    def test_a_canary_pulls_by_the_clip_norm_along_its_own_weight_and_the_others_not_at_all(self) -> None:
        model = Probed(nn.Linear(4, 1), 3)
        data = with_canaries(DATA[:8], torch.tensor([True, False, True]), 2.0)
        sums = Reference(model, probed_loss(squares)).clipped_sum(data, 2.0).gradients
        np.testing.assert_allclose(sums["probe"][:, 0], [2.0, 0.0, 2.0], rtol=2e-6)
        # What ordinary rows give is what they give without canaries.
        assert model.model is not None
        plain = Reference(model.model, squares).clipped_sum(DATA[:5], 2.0).gradients
        for name, gradient in plain.items():
            torch.testing.assert_close(sums[f"model.{name}"], gradient)

    def test_the_adversary_sees_the_sum_in_units_of_the_clip_norm(self) -> None:
        """Without noise: exactly which of the canaries that are in were drawn, in steps with different clip norms."""
        plan = make_plan(4.0, ROWS, 200, 10)
        coins = torch.arange(CANARIES) % 2 == 0
        model = Probed(nn.Linear(4, 1), CANARIES)
        optimizer = sgd(model)
        seen: list[np.ndarray] = []
        watch(optimizer, model.probe, plan, lambda t, sums: seen.append(sums))
        with BROKEN["no noise"](plan):
            trainer = Trainer(model, probed_loss(squares), plan, optimizer, seed=0)
            for batch in trainer.batches(with_canaries(DATA, coins, 1.5)):
                drawn = np.zeros(CANARIES)
                if batch is not None:
                    _, _, pull, slot = batch
                    drawn[slot[pull > 0]] = 1
                trainer.step(batch)
                np.testing.assert_allclose(seen[-1], drawn, atol=1e-5)
        assert len(seen) == plan.steps
        assert sum(step.sum() for step in seen) > 500

    @pytest.mark.parametrize("count", [0, ROWS])
    def test_canaries_take_the_places_of_some_rows_not_of_all(self, count: int) -> None:
        with pytest.raises(InvalidValue, match="fewer than the 2000 rows"):
            with_canaries(DATA, torch.ones(count, dtype=torch.bool), 1.0)

    def test_examples_of_several_shapes_are_refused_in_words(self) -> None:
        texts = [(torch.arange(2 + at % 3), torch.tensor(0)) for at in range(10)]
        with pytest.raises(InvalidValue, match=r"must all have one shape.*Pad them"):
            with_canaries(texts, torch.ones(4, dtype=torch.bool), 1.0)


@pytest.mark.parametrize("frozen", [False, True])
def test_runs_of_an_attack_are_of_models_of_their_own(frozen: bool) -> None:
    """Of one model they are one long training: 3.1 was stated, with confidence, where the truth was 0."""
    plan = make_plan(4.0, ROWS, ROWS / 2, 1)
    shared = nn.Linear(4, 3).requires_grad_(not frozen)
    attack = one_canary(plan, DATA, lambda: nn.Sequential(shared, nn.Linear(3, 1)), squares)
    attack.play(present=True, seed=0)
    if frozen:
        attack.play(present=False, seed=1)
    else:
        with pytest.raises(InvalidValue, match="a new model for each run"):
            attack.play(present=False, seed=1)
