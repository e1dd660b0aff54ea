"""Facts: a clip norm that follows released norms costs nothing, and goes to where its rule says from far away."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import some
from torch import Tensor

from decrescendo.clipping import Engine, EngineSettings, Reference, Telemetry
from decrescendo.clipping.clipped import clip_factors
from decrescendo.errors import InvalidType, InvalidValue, PlanViolation
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Checkpoints, Run, Trainer, train
from decrescendo.training.steering import ClipController
from decrescendo.training.steering.reading import Reading

from .conftest import ROWS, loss, make_model, make_plan, sgd, stepped

Pair = tuple[Tensor, Tensor]
MOVING = {"noise": (2.0, 1.5, 1.2, 1.0), "clip": (0.5, 0.4, 0.3, 0.2)}


def controller(*rule: Any, **changes: Any) -> ClipController:
    return ClipController(make_plan(**MOVING), *rule, **changes)


def test_each_clip_norm_is_the_curve_times_a_factor_by_what_was_released_before(data: Pair) -> None:
    given_ = controller("quantile", target=0.4, rate=0.3)
    model = make_model()
    trainer = Trainer(model, loss, given_, sgd(model), seed=5)
    factor = 1.0
    for step, batch in enumerate(trainer.batches(data)):
        told = trainer.step(batch).telemetry
        assert told is not None
        assert told.clip_norm == MOVING["clip"][step] * factor
        assert trainer.progress().clip_norm == told.clip_norm
        factor *= math.exp(0.3 * (0.4 - min(max(told.norms[-1].value, 0), 1)))
    run = trainer.finish()
    assert run.clip_norm == tuple(reading.clip_norm for reading in run.telemetry)
    assert run.ledger == given_.plan.ledger
    plain = make_model()
    fixed = train(plain, loss, data, given_.plan, sgd(plain), seed=5)
    assert run.guarantee == fixed.guarantee
    # (The first step is the same, of all bits: nothing of the gradients was taken for the norms.)
    assert fixed.clip_norm == ()


def test_steps_of_unit_norm_are_the_release_divided_by_factor_and_first_clip_norm(data: Pair) -> None:
    means: dict[bool, list[Tensor]] = {False: [], True: []}
    for unit, found in means.items():
        model = make_model()
        still = torch.optim.SGD(model.parameters(), lr=1e-12)
        trainer = Trainer(model, loss, controller(rate=1.0, rescale_to_unit_norm=unit), still, seed=5)
        for batch in trainer.batches(data):
            trainer.fill_gradients(batch)
            found.append(torch.cat([weights.grad.flatten() for weights in model.parameters()]))  # type: ignore[union-attr]
            still.step()
            still.zero_grad()
        run = trainer.finish()
    for step, (plain, divided) in enumerate(zip(means[False], means[True], strict=True)):
        factor = run.clip_norm[step] / MOVING["clip"][step]
        torch.testing.assert_close(divided * factor * MOVING["clip"][0], plain, rtol=1e-5, atol=1e-9)
    assert abs(factor - 1) > 0.1  # or nothing would have been compared


def test_steps_of_unit_norm_do_not_depend_on_where_the_clip_norm_begins(data: Pair) -> None:
    """As long as every gradient is clipped, a ten times smaller C_1 trains the same weights."""
    ended: list[Tensor] = []
    for start in (1e-3, 1e-4):
        model, plan = make_model(), make_plan(**{**MOVING, "clip": (start,) * 4})
        run = train(model, loss, data, ClipController(plan, rate=0.01, rescale_to_unit_norm=True), sgd(model), seed=2)
        ended.append(torch.cat([weights.flatten() for weights in run.weights.values()]))
    torch.testing.assert_close(*ended, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rule", "target"), some([("quantile", 0.3), ("clipped", 0.2), ("quantile", 0.8)], 1))
def test_it_goes_to_the_quantile_from_ten_times_too_far(data: Pair, rule: Any, target: float) -> None:
    """With little noise, C_t ends where the asked share of gradients is within it."""
    model = make_model()
    norms = Reference(model, loss).per_example_norms(data)
    asked = target if rule == "quantile" else 1 - target
    goal = float(norms.quantile(asked))
    for start in (goal / 10, goal * 10):
        plan = make_plan((0.1,) * 80, (start,) * 80, batch=ROWS, judge=False)
        still = torch.optim.SGD(model.parameters(), lr=1e-12)
        trainer = Trainer(model, loss, ClipController(plan, rule, target=target, rate=0.5), still, seed=2)
        for batch in trainer.batches(data):
            trainer.step(batch)
        ends = np.mean(trainer.finish().clip_norm[-20:])
        assert float(norms.quantile(asked - 0.12)) < ends < 1.1 * float(norms.quantile(asked + 0.12)), start


@pytest.mark.parametrize("start", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("coordinates", [100, 10_000])
def test_the_least_error_of_exponential_norms_is_found(start: float, coordinates: int) -> None:
    """By the rule, without noise in what is read, against a search: bias^2 + noise is least where it ends."""
    noise, batch, mean = 1.0, 200.0, 0.7

    def error(clip: float) -> float:
        return (mean * math.exp(-clip / mean)) ** 2 + coordinates * (noise * clip / batch) ** 2

    grid = np.geomspace(1e-3, 50, 4000)
    best = float(grid[np.argmin([error(clip) for clip in grid])])
    given_, factor = ClipController(make_plan((noise,) * 3, (start,) * 3, judge=False), "error"), 1.0
    telemetry = Telemetry(norms=100)
    for _ in range(200):
        clip = start * factor
        unit, _ = telemetry.units(clip)
        edges = [clip * (k + 0.5) / 100 for k in range(100)][::-1]
        sums = tuple(unit * (1 - math.exp(-edge / mean)) for edge in edges)
        factor = given_.next_factor(factor, Reading(telemetry, 1, clip, noise, 1.0, batch, 0, 0.0, sums), coordinates)
    assert error(start * factor) < 1.02 * error(best)
    assert start * factor == pytest.approx(best, rel=0.1)


def test_a_run_that_is_resumed_has_the_same_clip_norms_and_the_same_bits(data: Pair, tmp_path: Path) -> None:
    def trainer(folder: str, *, resume: bool, plan: Any = None) -> Trainer:
        model, kept = make_model(), Checkpoints(tmp_path / folder, every=1, resume=resume)
        return Trainer(
            model,
            loss,
            plan or controller(rescale_to_unit_norm=True),
            sgd(model),
            seed=4,
            checkpoints=kept,
            telemetry=Telemetry(norms=10),
        )

    whole = stepped(trainer("whole", resume=False), data, 9).finish()
    stepped(trainer("cut", resume=False), data, 3)
    changes = (
        {"target": 0.9},
        {"rescale_to_unit_norm": False},
        {"min_clip_norm": 1e-9},
        {"max_clip_norm": 9.0},
    )
    usual = {"rescale_to_unit_norm": True}
    for other in (make_plan(**MOVING), *(controller(**{**usual, **change}) for change in changes)):
        with pytest.raises(PlanViolation, match="ClipController it began with"):
            trainer("cut", resume=True, plan=other)
    cut = stepped(trainer("cut", resume=True), data, 9).finish()
    assert cut.clip_norm == whole.clip_norm
    assert all(torch.equal(cut.weights[name], weight) for name, weight in whole.weights.items())
    assert cut.provenance.optimizer.endswith("on mean gradients rescaled to unit norm")


def test_the_run_and_its_statement_say_how_the_clip_norm_was_decided(data: Pair, tmp_path: Path) -> None:
    model = make_model()
    run = train(model, loss, data, controller(), sgd(model), seed=0)
    run.save(tmp_path / "run")
    again = Run.load(tmp_path / "run")
    assert again.clip_norm == run.clip_norm
    text = (tmp_path / "run" / "statement.md").read_text(encoding="utf-8")
    assert "C_t followed the norms of the gradients" in text
    assert f"{run.clip_norm[-1]:.5g}" in text
    model = make_model()
    plain = train(model, loss, data, make_plan(**MOVING), sgd(model), seed=0)
    assert "followed" not in plain.statement().to_markdown()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: controller("median"), "rule must be one of quantile, clipped, error"),
        (lambda: controller(target=1.0), "target must be > 0 and < 1"),
        (lambda: controller(rate=0), "rate must be > 0"),
        (lambda: controller(min_clip_norm=-1.0), "min_clip_norm must be >= 0"),
        (lambda: controller(min_clip_norm=1.0, max_clip_norm=0.5), "max_clip_norm must be >= 1"),
        (lambda: controller(rescale_to_unit_norm=1), "rescale_to_unit_norm must be a bool"),
        (
            lambda: ClipController(Plan.without_privacy(PoissonSampling(ROWS, 8), steps=3, clip=[1.0] * 3)),
            "must have noise at every step",
        ),
        (
            lambda: Trainer(
                make_model(), loss, controller(), sgd(make_model()), seed=0, telemetry=Telemetry(0, loss=True)
            ),
            "must have norms >= 2",
        ),
    ],
)
def test_what_could_not_be_kept_is_refused(make: Any, words: str) -> None:
    with pytest.raises((InvalidValue, InvalidType), match=words):
        make()


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.sampled_from(["quantile", "clipped", "error"]))
def test_no_noise_carries_the_clip_norm_to_where_there_is_none(value: float, factor: float, rule: Any) -> None:
    given_ = ClipController(make_plan((9.0,) * 3, (1.2e-12, 1.0, 1.0), judge=False), rule, rate=1.0)
    reading = Reading(Telemetry(norms=2), 1, 1.0, 9.0, 0.1, 10.0, 0, 0.0, (value, -value))
    for _ in range(3):
        factor = given_.next_factor(factor, reading, 1000)
        assert 0.5 <= factor <= 1e6  # times 1.2e-12 it is a clip norm still


def test_no_clip_norm_falls_below_the_least_one(data: Pair) -> None:
    model = make_model()
    asked = controller("clipped", target=0.999, rate=1.0, min_clip_norm=0.25)
    run = train(model, loss, data, asked, sgd(model), seed=0)
    # (The plan's own last C_t is 0.2.)
    assert run.clip_norm[0] == 0.5
    assert min(run.clip_norm[:3]) >= 0.25 - 1e-12
    assert run.clip_norm[3] == pytest.approx(0.2)
    model = make_model()
    free = train(model, loss, data, replace(asked, min_clip_norm=0.0), sgd(model), seed=0)
    assert free.clip_norm[3] < 0.15


def test_norms_near_zero_do_not_make_error_raise_the_clip_norm() -> None:
    """Where nothing is clipped, C_t falls; where everything is, it rises: also if noise is all that is read."""
    asked = ClipController(make_plan((1.0,) * 3, (1.0,) * 3, judge=False), "error")
    told = Telemetry(norms=10)
    unit, _ = told.units(1.0)
    for share, rises in ((1.0, False), (0.0, True)):
        for seed in range(20):
            noise = 0.003 * np.random.default_rng(seed).standard_normal(10)
            sums = tuple(float(unit * (share + one)) for one in noise)
            reading = Reading(told, 1, 1.0, 1.0, 0.1, 1000.0, 0, 0.0, sums)
            assert (asked.next_factor(1.0, reading, 1000) > 1) == rises


def test_no_release_is_left_out_of_the_ledger_where_the_step_fails_behind_it(
    data: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    trainer = Trainer(model, loss, controller(rescale_to_unit_norm=True), sgd(model), seed=5)

    def fail(*_: object) -> None:
        raise MemoryError

    batches = trainer.batches(data)
    with monkeypatch.context() as patched:
        patched.setattr("decrescendo.optim.noise.NoisyMean.divided", fail)
        batch = next(batches)
        with pytest.raises(MemoryError):
            trainer.step(batch)
    assert trainer.ledger.steps == 1
    with pytest.raises(PlanViolation, match="each step must take a batch of its own"):
        trainer.step(batch)
    for batch in batches:
        trainer.step(batch)
    assert trainer.ledger == trainer.finish().ledger == controller().plan.ledger


def test_other_numbers_may_stand_beside_the_norms(data: Pair) -> None:
    model = make_model()
    told = Telemetry(norms=4, loss=True)
    run = train(model, loss, data, controller("error"), sgd(model), seed=0, telemetry=told)
    assert run.telemetry[0].loss is not None
    assert replace(controller(), rate=0.1).steps == 4


# --- automatic clipping ---------------------------------------------------------------------------------------------


def test_automatic_clipping_is_the_reference_with_every_gradient_scaled(data: Pair) -> None:
    for gamma in (0.01, 1.0, 100.0):
        model = make_model()
        fast = Engine(model, loss, EngineSettings(gamma=gamma)).clipped_sum(data, 0.7)
        slow = Reference(model, loss, gamma).clipped_sum(data, 0.7)
        by_hand: dict[str, Tensor] = {}
        for row in range(ROWS):
            model.zero_grad()
            loss(model, (data[0][row : row + 1], data[1][row : row + 1])).sum().backward()
            own = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            norm = torch.cat([g.flatten() for g in own.values()]).norm()
            for name, gradient in own.items():
                by_hand[name] = by_hand.get(name, 0) + 0.7 * gradient / (norm + gamma)
        for name, gradient in fast.gradients.items():
            torch.testing.assert_close(gradient, slow.gradients[name], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(gradient, by_hand[name], rtol=1e-4, atol=1e-5)
        assert fast.sensitivity == 0.7


@given(st.floats(0, 1e30), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.sampled_from(["float32", "float64"]))
def test_no_automatically_clipped_gradient_is_longer_than_the_clip_norm(
    norm: float, clip: float, gamma: float, name: str
) -> None:
    dtype = getattr(torch, name)
    factor = clip_factors(torch.tensor([norm], dtype=torch.float64), clip, dtype, gamma=gamma)
    assert float(factor.double()) * norm <= clip
    longer = clip_factors(torch.tensor([norm * 2], dtype=torch.float64), clip, dtype, gamma=gamma)
    assert float(longer) <= float(factor)


def test_a_gamma_that_divides_by_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue, match="gamma must be >="):
        EngineSettings(gamma=0.0)
