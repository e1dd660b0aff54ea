"""Facts: noise decided during the run stays within a filter's budget, and ends without a trace if it does not fit."""

import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from decrescendo.accounting import Filter, GdpFilter, Pld, Rdp, RenyiFilter, ZcdpFilter
from decrescendo.accounting.budget import Budget
from decrescendo.accounting.filters.metered import MeteredFilter
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.base import sealed
from decrescendo.errors import (
    AccountingError,
    FileRefused,
    InvalidValue,
    PlanViolation,
    UnsupportedModel,
)
from decrescendo.optim.noise import privatise
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.training import Trainer, train
from decrescendo.training.loop.progress import Progress
from decrescendo.training.persistence.checkpoint.streams import stream_state
from decrescendo.training.run import Run
from decrescendo.training.steering import Adaptive, FromSchedule, PolicyContext, Settings, ValidationDecay
from decrescendo.training.steering.adaptive_run import OWN_FILTER

from .conftest import ROWS, loss, make_model, make_plan, sgd

Pair = tuple[torch.Tensor, torch.Tensor]
BUDGET = Budget(8.0, 1e-5)
SAMPLING = PoissonSampling(ROWS, 8)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def renyi() -> RenyiFilter:
    return RenyiFilter(BUDGET, 4)


def constant(z: float, clip: float = 1.0) -> Callable[[PolicyContext], Settings]:
    return lambda context: Settings(z, clip)


def adaptive(policy: Any = None, *, filter: Filter | None = None, steps: int = 50, batch: float = 8) -> Adaptive:
    return Adaptive(PoissonSampling(ROWS, batch), filter or renyi(), policy or constant(2.0), steps)


def trainer_for(plan: Any, model: nn.Module | None = None, seed: int = 0) -> Trainer:
    model = model or make_model()
    return Trainer(model, loss, plan, sgd(model), seed=seed)


def portrait(trainer: Trainer, model: nn.Module, filter: Filter) -> tuple[Any, ...]:
    return (
        weights(model).tolist(),
        trainer.ledger,
        stream_state(trainer._streams.noise),
        json.dumps(trainer._streams.sampling.bit_generator.state),
        filter.spent,
        filter.remaining,
    )


# --- the same loop ----------------------------------------------------------------------------------------------------


@given(
    schedule=st.lists(st.tuples(st.floats(0.8, 5), st.floats(0.01, 5)), min_size=1, max_size=4),
    batch=st.floats(0.2, 30),
    seed=st.integers(0, 2**40),
)
def test_a_fixed_schedule_under_a_filter_is_the_plan_bit_for_bit(
    schedule: list[tuple[float, float]], batch: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(ROWS, 3, generator=generator), torch.arange(ROWS) % 2
    noise, clip = zip(*schedule, strict=True)
    plan = make_plan(noise, clip, batch=batch, judge=False)
    planned, steered = make_model(), make_model()
    with pytest.MonkeyPatch.context() as patch:  # judging costs more than the rest
        patch.setattr("decrescendo.training.loop.source.certify", lambda *_: plan.guarantee)
        trainer = trainer_for(plan, planned, seed)
    for drawn in trainer.batches(data):
        trainer.step(drawn)
    wide = RenyiFilter(Budget(1e4, 1e-5), 2)
    run = train(
        steered,
        loss,
        data,
        Adaptive(plan.sampling, wide, FromSchedule(plan.schedule), 100),
        sgd(steered),
        seed=seed,
    )
    assert torch.equal(weights(planned), weights(steered))
    assert run.ledger == plan.ledger
    assert run.clip_norm == tuple(plan.clip_norm.tolist())
    assert run.stopped.startswith(f"the policy ended the training after {plan.steps} steps")


def test_every_step_has_the_noise_that_was_decided_on_the_way() -> None:
    # 10 steps of 20,100 numbers: the deviation of one step is known to 0.5 %, of all to 0.16 %.
    def found(scale: float) -> torch.Tensor:
        model = nn.Linear(200, 100)
        zero = lambda model, batch: model(batch).sum(dim=1) * 0.0  # noqa: E731
        # Noise that depends on what was released: a function of the noisy weights themselves.
        policy = lambda context: Settings(  # noqa: E731
            1.0 + float(context.model.weight.detach()[0, 0]) % 1.0, 2.0 * 0.9**context.step
        )
        plan = Adaptive(PoissonSampling(ROWS, 0.5), RenyiFilter(Budget(1e4, 1e-5), 2), policy, 10)
        trainer = Trainer(model, zero, plan, torch.optim.SGD(model.parameters(), lr=1.0), seed=5)
        rows = []
        for batch in trainer.batches(torch.ones(ROWS, 200)):
            before = weights(model)
            release = trainer.step(batch).release
            std = release.noise_multiplier * 2.0 * 0.9 ** len(rows) / 0.5 * scale
            rows.append((before - weights(model)) / std)
        assert len(set(trainer.ledger.noise_multiplier)) == 10
        return torch.stack(rows)

    torch.manual_seed(0)
    noise = found(1.0)
    assert ((noise.std(dim=1) - 1).abs() < 0.025).all()
    assert abs(float(noise.std()) - 1) < 0.007
    assert abs(float(noise.mean())) < 0.01
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.04
    # The same test must fail for noise 3 % off.
    assert abs(float(found(1.03).std()) - 1) > 0.02


# --- the budget holds -------------------------------------------------------------------------------------------------


@given(data=st.data(), kind=st.sampled_from(["zcdp", "gdp", "renyi"]))
def test_no_policy_releases_more_than_the_budget(data: st.DataObject, kind: str) -> None:
    """The policy answers as it likes after seeing weights and what is left; the ledger is judged independently."""
    budget = Budget(data.draw(st.floats(0.5, 20)), 1e-3)
    filter: Filter = {"zcdp": ZcdpFilter, "gdp": GdpFilter, "renyi": lambda b: RenyiFilter(b, 16)}[kind](budget)
    batch = ROWS if kind != "renyi" else data.draw(st.sampled_from([4.0, ROWS]))

    def policy(context: PolicyContext) -> Settings | None:
        assert 0 <= context.share_left <= 1
        smallest = min(context.smallest_noise_multiplier(), 1e6)
        looked = 1 + float(weights(context.model).square().sum()) % 1.0
        move = data.draw(st.sampled_from(["smallest", "share", "weights", "any", "stop"]))
        if move == "stop":
            return None
        z = {
            "smallest": smallest,
            "share": smallest * data.draw(st.floats(0.9, 3)),
            "weights": smallest * looked,
            "any": data.draw(st.floats(0.05, 50)),
        }[move]
        return Settings(z, data.draw(st.floats(0.1, 2)))

    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(ROWS, 3, generator=generator), torch.arange(ROWS) % 2
    model = make_model()
    plan = Adaptive(PoissonSampling(ROWS, batch), filter, policy, 12)
    run = train(model, loss, rows, plan, sgd(model), seed=data.draw(st.integers(0, 99)))
    assert run.guarantee == filter.guarantee
    assert run.stopped
    squares = sum((1 / Fraction(z) ** 2 for z in run.ledger.noise_multiplier.tolist()), Fraction(0))
    if kind == "zcdp":
        assert squares / 2 <= Fraction(filter.limit)
    elif kind == "gdp":
        assert squares <= Fraction(filter.limit)
    elif run.steps:
        # All orders together say no more than this one.
        assert Rdp().epsilon(run.ledger, 1e-3).value <= budget.epsilon * (1 + 1e-6)


def test_a_refusal_ends_the_training_without_a_trace(data: Pair) -> None:
    filter, model = renyi(), make_model()
    policy = lambda context: Settings(2.0 if context.step < 2 else 0.1, 1.0)  # noqa: E731
    trainer = trainer_for(adaptive(policy, filter=filter), model)
    batches = trainer.batches(data)
    for _ in range(2):
        trainer.step(next(batches))
    before = portrait(trainer, model, filter)
    seen: list[object] = []
    trainer._engine.clipped_sum = lambda *given: seen.append(given)  # type: ignore[method-assign]
    assert list(batches) == []
    assert list(trainer.batches(data)) == []
    assert seen == []
    assert portrait(trainer, model, filter) == before
    assert trainer.stopped.startswith("RenyiFilter(order=4) refused step 3: a release with noise_multiplier=0.1 costs")
    assert trainer.stopped.endswith("% of the budget left")
    with pytest.raises(PlanViolation, match="must end where its filter or policy ended it"):
        trainer.step(None)


def test_a_refusal_is_reported_by_train_and_not_raised(data: Pair) -> None:
    filter, model = renyi(), make_model()
    run = train(model, loss, data, adaptive(constant(1.0), filter=filter, steps=10_000), sgd(model), seed=0)
    expected = 0
    again = renyi()
    while again.request(Release(0.2, 1.0)):
        expected += 1
    assert run.steps == expected > 3
    assert f"refused step {expected + 1}" in run.stopped
    assert run.guarantee == filter.guarantee
    assert filter.spent == again.spent
    assert f"stopped: {run.stopped}" in run.describe()
    assert "decided during the run by" in run.describe()


def test_a_refusal_is_final_even_if_a_smaller_wish_would_fit(data: Pair) -> None:
    wishes = iter([2.0, 0.01, 5.0])
    run = train(
        make := make_model(),
        loss,
        data,
        adaptive(lambda context: Settings(next(wishes), 1.0)),
        sgd(make),
        seed=0,
    )
    assert run.steps == 1


def test_the_guarantee_is_the_budget_however_little_was_spent(data: Pair) -> None:
    model = make_model()
    run = train(model, loss, data, adaptive(constant(50.0), steps=2), sgd(model), seed=0)
    spent = Pld().epsilon(run.ledger, 1e-5).value
    assert spent < 0.1 * run.guarantee.epsilon
    assert (run.guarantee.epsilon, run.guarantee.kind) == (8.0, "upper")
    assert run.stopped.startswith("all 2 steps were taken")


def test_nothing_granted_is_a_run_of_no_steps(data: Pair, tmp_path: Path) -> None:
    model = make_model()
    before = weights(model)
    run = train(model, loss, data, adaptive(constant(0.0)), sgd(model), seed=0)
    assert run.steps == 0
    assert torch.equal(weights(model), before)
    run.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").steps == 0


@pytest.mark.slow
def test_two_trainings_may_share_one_budget(data: Pair) -> None:
    alone = renyi()
    fits = sum(bool(alone.request(Release(0.2, 1.5))) for _ in range(1000))
    most = 2 * fits // 3
    filter = renyi()
    ledgers = []
    for seed in (1, 2):
        model = make_model()
        run = train(model, loss, data, adaptive(constant(1.5), filter=filter, steps=most), sgd(model), seed=seed)
        ledgers.append(run.ledger)
    assert (ledgers[0].steps, ledgers[1].steps) == (most, fits - most)
    together = renyi()
    assert all(together.request(release) for release in ledgers[0] + ledgers[1])
    assert not together.request(Release(0.2, 1.5))


# --- crashes: spent, never unspent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["draw", "gradient", "noise", "optimizer"])
def test_an_error_after_the_grant_leaves_it_spent(data: Pair, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def power_cut(*_: Any, **__: Any) -> None:
        raise RuntimeError("power cut")

    filter, model = renyi(), make_model()
    trainer = trainer_for(adaptive(filter=filter), model)
    cost = filter.cost(Release(0.2, 2.0))
    released = 0
    if where == "draw":
        monkeypatch.setattr("decrescendo.training.loop.drawing.to_device", power_cut)
    elif where == "gradient":
        trainer._engine.clipped_sum = power_cut  # type: ignore[method-assign]
    elif where == "noise":
        monkeypatch.setattr("decrescendo.training.loop.releasing.privatise", power_cut)
    else:
        monkeypatch.setattr("decrescendo.training.loop.trainer.apply", power_cut)
        released = 1
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.step(next(trainer.batches(data)))
    assert filter.spent == cost
    assert trainer.ledger.steps == released


def test_an_error_in_the_policy_spends_nothing(data: Pair) -> None:
    def broken(context: PolicyContext) -> Settings:
        raise KeyError("policy")

    filter = renyi()
    trainer = trainer_for(adaptive(broken, filter=filter))
    with pytest.raises(KeyError):
        next(trainer.batches(data))
    assert filter.spent == 0
    assert trainer.ledger == Ledger()


def test_a_run_that_released_something_else_has_no_guarantee(data: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def weaker(clipped: Any, noise_multiplier: float, *others: Any) -> Any:
        return privatise(clipped, noise_multiplier / 2, *others)

    monkeypatch.setattr("decrescendo.training.loop.releasing.privatise", weaker)
    model = make_model()
    with pytest.raises(PlanViolation, match="These weights have no guarantee"):
        train(model, loss, data, adaptive(steps=2), sgd(model), seed=0)


# --- the rules of the loop hold here too ------------------------------------------------------------------------------


def test_a_grant_is_asked_for_once_a_batch_and_none_may_be_skipped(data: Pair) -> None:
    filter = renyi()
    trainer = trainer_for(adaptive(filter=filter))
    cost = filter.cost(Release(0.2, 2.0))
    first = next(trainer.batches(data))
    with pytest.raises(PlanViolation, match="every drawn batch must be given to step"):
        next(trainer.batches(data))
    assert filter.spent == cost  # the refused draw asked for nothing
    trainer.step(first)
    with pytest.raises(PlanViolation, match="a batch of its own"):
        trainer.step(first)


def test_running_statistics_are_refused_here_too(data: Pair) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with pytest.raises(UnsupportedModel):
        train(model, loss, data, adaptive(batch=20), sgd(model), seed=0)


def test_rows_must_be_those_declared(data: Pair) -> None:
    with pytest.raises(InvalidValue, match="plan's 40 rows, got 39"):
        next(trainer_for(adaptive()).batches((data[0][1:], data[1][1:])))


def test_the_callback_may_end_the_run_and_sees_the_whole_budget(data: Pair) -> None:
    seen: list[Progress] = []

    def callback(progress: Progress) -> bool:
        seen.append(progress)
        return progress.step == 2

    model = make_model()
    run = train(model, loss, data, adaptive(), sgd(model), seed=0, callback=callback, progress=True)
    assert [(p.step, p.steps, p.epsilon_spent) for p in seen] == [(1, 50, 8.0), (2, 50, 8.0)]
    assert run.stopped.startswith("ended from outside after 2 steps")
    assert run.guarantee.epsilon == 8.0


def test_a_policy_is_shown_releases_and_weights_and_nothing_of_the_data(data: Pair) -> None:
    shown: list[PolicyContext] = []

    def policy(context: PolicyContext) -> Settings:
        shown.append(context)
        return Settings(2.0 + context.step, 1.0)

    model = make_model()
    trainer = trainer_for(adaptive(policy, steps=3), model)
    for batch in trainer.batches(data):
        trainer.step(batch)
        assert all(parameter.grad is None for parameter in model.parameters())
    assert [context.step for context in shown] == [0, 1, 2]
    assert shown[2].past == (Settings(2.0, 1.0), Settings(3.0, 1.0))
    assert shown[0].share_left == 1 > shown[1].share_left > shown[2].share_left
    assert set(PolicyContext.__dataclass_fields__) == {"past", "model", "share_left", "readings", "_smallest"}


def test_the_rest_of_a_budget_can_be_spent_exactly(data: Pair) -> None:
    filter = renyi()
    policy = lambda context: Settings(context.smallest_noise_multiplier(5 - context.step), 1.0)  # noqa: E731
    model = make_model()
    run = train(model, loss, data, adaptive(policy, filter=filter, steps=5), sgd(model), seed=0)
    assert run.steps == 5
    assert filter.remaining < 1e-9 * filter.limit


# --- validation decay -------------------------------------------------------------------------------------------------


def decays(scores: list[float], *, steps: int, period: int, window: int, threshold: float = 0.05) -> list[float]:
    left = iter(scores)
    policy = ValidationDecay(
        lambda model: next(left), noise_multiplier=8.0, clip_norm=1.0, decay=0.5, threshold=threshold,
        period=period, window=window,
    )  # fmt: skip
    past: tuple[Settings, ...] = ()
    for _ in range(steps):
        past += (policy(PolicyContext(past, nn.Linear(1, 1), 1.0)),)
    return [settings.noise_multiplier for settings in past]


def test_noise_falls_when_the_mean_gain_is_below_the_threshold() -> None:
    # Checks before steps 1, 3, 5, 7; gains .3, .01, .2; a window of one.
    assert decays([0.1, 0.4, 0.41, 0.61], steps=8, period=2, window=1) == [8, 8, 8, 8, 4, 4, 4, 4]
    # Means of two gains: .155, then .105: never below.
    assert decays([0.1, 0.4, 0.41, 0.61], steps=8, period=2, window=2) == [8] * 8
    # A fall is a gain below zero.
    assert decays([0.5, 0.4], steps=2, period=1, window=1, threshold=0.0) == [8, 4]
    # A gain at the threshold is not below it.
    assert decays([0.5, 0.75], steps=2, period=1, window=1, threshold=0.25) == [8, 8]


@given(
    scores=st.lists(st.floats(0, 1), min_size=12, max_size=12),
    period=st.integers(1, 4),
    window=st.integers(1, 4),
    threshold=st.floats(-0.5, 0.5),
)
def test_it_is_the_rule_written_out(scores: list[float], period: int, window: int, threshold: float) -> None:
    found = decays(scores, steps=12, period=period, window=window, threshold=threshold)
    z, taken, expected = 8.0, [], []
    for step in range(12):
        if step % period == 0:
            taken.append(scores[len(taken)])
            if len(taken) > window:
                # The mean of the gains one by one, as it is defined.
                gains = [Fraction(b) - Fraction(a) for a, b in pairwise(taken[-window - 1 :])]
                mean = sum(gains, Fraction(0)) / window
                if abs(mean - Fraction(threshold)) < 1e-12:
                    return  # a tie within rounding
                z = z / 2 if mean < Fraction(threshold) else z
        expected.append(z)
    assert found == expected


def test_a_policy_starts_afresh_with_each_training(data: Pair) -> None:
    policy = ValidationDecay(
        lambda model: 0.5, noise_multiplier=4.0, clip_norm=1.0, decay=0.9, threshold=0.01, period=1
    )
    runs = []
    for _ in range(2):
        model = make_model()
        runs.append(train(model, loss, data, adaptive(policy, steps=4), sgd(model), seed=0))
    assert runs[0].ledger == runs[1].ledger
    assert runs[0].ledger.noise_multiplier == pytest.approx([4.0, 3.6, 3.24, 2.916])
    assert "ValidationDecay(noise_multiplier=4" in runs[0].describe()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decay": 1.0}, "decay must be > 0 and < 1"),
        ({"decay": 0.0}, "decay must be"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be > 0"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"period": 0}, "period must be >= 1"),
        ({"window": 0}, "window must be >= 1"),
        ({"threshold": float("nan")}, "threshold must be finite"),
    ],
)  # fmt: skip
def test_wrong_decays_are_one_clear_error(change: dict[str, Any], words: str) -> None:
    given = {"noise_multiplier": 4.0, "clip_norm": 1.0, "decay": 0.5, "threshold": 0.0, "period": 1} | change
    with pytest.raises(InvalidValue, match=words):
        ValidationDecay(lambda model: 0.0, **given)


def test_a_score_that_is_not_a_number_is_named(data: Pair) -> None:
    policy = ValidationDecay(
        lambda model: float("nan"), noise_multiplier=4.0, clip_norm=1.0, decay=0.5, threshold=0.0, period=1
    )
    filter = renyi()
    with pytest.raises(InvalidValue, match="score must be finite"):
        next(trainer_for(adaptive(policy, filter=filter)).batches(data))
    assert filter.spent == 0


# --- what may be given ------------------------------------------------------------------------------------------------

WRONG = """
import torch
from decrescendo.accounting import GdpClt, Pld
from decrescendo.accounting.budget import Budget
from decrescendo.errors import InvalidType
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training.steering import Adaptive, Settings
from decrescendo.accounting import RenyiFilter
from decrescendo.training import train

policy = lambda context: Settings(1.0, 1.0)
sampling, filter = PoissonSampling(40, 8), RenyiFilter(Budget(8.0, 1e-5), 4)
model = torch.nn.Linear(3, 2)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.zeros(40, 3)
loss = lambda model, batch: model(batch).sum(dim=1)
cases = [
    lambda: Adaptive(sampling, Pld(), policy, 5),
    lambda: Adaptive(sampling, GdpClt(), policy, 5),
    lambda: Adaptive(sampling, 8.0, policy, 5),
    lambda: Adaptive(sampling, filter, 2.0, 5),
    lambda: train(model, loss, data, Pld(), sgd, seed=0),
    lambda: train(model, loss, data, Adaptive(sampling, filter, lambda context: (1.0, 1.0), 5), sgd, seed=0),
]
for case in cases:
    try:
        case()
    except InvalidType as error:
        print(error)
print(filter.spent)
"""


@pytest.mark.slow
def test_wrong_types_teach_without_the_test_hook() -> None:
    done = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "filter must be a Filter, got Pld. Pld composition needs noise multipliers fixed in advance; use RenyiFilter"
    )
    assert lines[1].startswith("filter must be a Filter, got GdpClt. GdpClt composition needs")
    assert lines[2] == "filter must be a Filter, got float. RenyiFilter(budget, order) is one"
    assert lines[3].startswith("policy must be a function from PolicyContext to Settings (or None to stop), got float")
    assert lines[4].startswith("plan must be a Plan, got Pld")
    assert "give an Adaptive" in lines[4]
    assert lines[5].startswith("policy's answer must be a Settings, got tuple")
    assert lines[6] == "0.0"


def test_a_filter_that_cannot_judge_sampled_steps_says_so_before_the_training() -> None:
    with pytest.raises(AccountingError, match="sample_rate=1 only"):
        Adaptive(SAMPLING, GdpFilter(BUDGET), constant(2.0), 5)
    Adaptive(PoissonSampling(ROWS, ROWS), GdpFilter(BUDGET), constant(2.0), 5)


def test_steps_must_be_at_least_one() -> None:
    with pytest.raises(InvalidValue, match="steps must be >= 1"):
        adaptive(steps=0)


def test_noise_that_would_overflow_is_refused_before_it_is_paid_for(data: Pair) -> None:
    filter = renyi()
    with pytest.raises(InvalidValue, match="noise_multiplier times clip_norm"):
        next(trainer_for(adaptive(constant(1e200, 1e200), filter=filter)).batches(data))
    assert filter.spent == 0


# --- the run on disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(data: Pair) -> Run:
    model = make_model()
    policy = FromSchedule(Schedule([3.0, 2.5, 2.0, 0.01], [1.0, 0.9, 0.8, 0.7]))
    run = train(model, loss, data, adaptive(policy), sgd(model), seed=7)
    return run.with_metrics({"public_accuracy": 0.5})


def test_an_adaptive_run_is_loaded_as_it_was_saved(finished: Run, tmp_path: Path) -> None:
    finished.save(tmp_path / "run", include_diagnostics=True)
    back = Run.load(tmp_path / "run")
    assert isinstance(back.plan, AdaptivePlan)
    assert (back.plan, back.ledger, back.guarantee) == (finished.plan, finished.ledger, finished.guarantee)
    assert (back.clip_norm, back.stopped) == ((1.0, 0.9, 0.8), finished.stopped)
    assert (back.metrics, back.diagnostics) == (finished.metrics, finished.diagnostics)
    assert back.covered == back.ledger == Ledger.of([3.0, 2.5, 2.0], 0.2)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted(
        [
            "run.json",
            "adaptive_plan.json",
            "weights.safetensors",
            "diagnostics-private.json",
            "statement.json",
            "statement.md",
        ]
    )


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "run.json"
    content = json.loads(path.read_text())
    content.pop("sha256")
    change(content)
    content["sha256"] = sealed.digest(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["ledger"]["noise_multiplier"].__setitem__(0, 0.05), "within its budget"),
        (lambda c: c["ledger"]["sample_rate"].__setitem__(0, 0.01), "keep to its plan"),
        (lambda c: c["guarantee"].update(epsilon=0.1), "its filter's budget"),
        (lambda c: c["guarantee"].update(accountant="Pld"), "its filter's budget"),
        (lambda c: c["clip_norm"].pop(), "clip_norm"),
        (lambda c: c.pop("stopped"), "stopped"),
        (lambda c: c.update(version=1), "exactly the entries"),
        (lambda c: c.update(version=3), "newer"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_its_filter_is_refused(finished: Run, tmp_path: Path, change: Any, words: str) -> None:
    finished.save(tmp_path / "run")
    rewrite(tmp_path / "run", change)
    with pytest.raises(FileRefused, match=words):
        Run.load(tmp_path / "run")


@pytest.mark.parametrize("damage", ["cut", "flip", "missing"])
def test_a_damaged_plan_is_refused(finished: Run, tmp_path: Path, damage: str) -> None:
    finished.save(tmp_path / "run")
    path = tmp_path / "run" / "adaptive_plan.json"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if damage == "cut" else content.replace(b"8.0", b"7.0"))
    with pytest.raises(FileRefused):
        Run.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.replace("decrescendo-adaptive-plan", "another"), "foreign"),
        (lambda t: t.replace('"version": 1', '"version": 2'), "newer"),
        (lambda t: t.replace('"steps": 50', '"steps": 51'), "checksum"),
        (lambda t: t.replace('"steps"', '"stairs"'), "difference in"),
        (lambda t: t[:-9], "JSON"),
    ],
)  # fmt: skip
def test_an_adaptive_plan_is_checked_on_its_own(finished: Run, change: Any, words: str) -> None:
    assert isinstance(finished.plan, AdaptivePlan)
    with pytest.raises(FileRefused, match=words):
        AdaptivePlan.from_json(change(finished.plan.to_json()))


def test_a_filter_of_ones_own_is_kept_by_name(finished: Run) -> None:
    plan = AdaptivePlan(BUDGET, SAMPLING, "MyFilter", 5, "mine")
    assert plan.replay(finished.ledger) is None
    with pytest.raises(AccountingError, match="must grant every release"):
        AdaptivePlan(Budget(0.1, 1e-5), SAMPLING, "ZcdpFilter", 5, "mine").replay(finished.ledger)


def test_a_filter_of_a_users_class_is_listed(data: Pair) -> None:
    class Generous(RenyiFilter):
        pass

    found = []
    for kind in (RenyiFilter, Generous):
        model = make_model()
        plan = Adaptive(SAMPLING, kind(Budget(8.0, 1e-3), order=8), lambda context: Settings(4.0, 1.0), 2)
        run = train(model, loss, data, plan, sgd(model), seed=0)
        found.append(any("Generous" in one.sentence for one in run.assumptions))
    assert found == [False, True]


def test_a_filter_with_a_price_of_its_own_is_listed(data: Pair) -> None:
    """It lies in the library, and anybody can make one."""
    cheap = MeteredFilter(Budget(0.1, 1e-5), "RenyiFilter(order=10)", 1.0, lambda rate, noise: 1e-9)
    model = make_model()
    plan = Adaptive(SAMPLING, cheap, FromSchedule(Schedule([0.5, 0.5], [1.0, 1.0])), 2)
    run = train(model, loss, data, plan, sgd(model), seed=0)
    assert OWN_FILTER.format("MeteredFilter") in run.assumptions
