"""Facts: numbers beside the gradients are within C with them, cost what they say, and are known as well as they say."""

import json
import math
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from broken_builds import BROKEN_TELEMETRY
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from decrescendo.accounting import RenyiFilter
from decrescendo.accounting.budget import Budget
from decrescendo.base import sealed
from decrescendo.base.rng import SecureStream, Streams
from decrescendo.clipping import Diagnostics, Engine, EngineSettings, Reference, Telemetry
from decrescendo.clipping.clipped import ClippedSum, clip_factors
from decrescendo.errors import (
    DecrescendoError,
    FileRefused,
    InvalidType,
    InvalidValue,
    PlanViolation,
    UnsupportedModel,
)
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.training import (
    Adaptive,
    Checkpoints,
    Run,
    Trainer,
    cross_entropy_and_accuracy,
    fit,
    smoothed,
    train,
)
from decrescendo.training.loop.releasing import reading_of
from decrescendo.training.steering import FromSchedule, Plateau, PolicyContext, Settings
from decrescendo.training.steering.reading import Estimate, Reading, remarks

from .conftest import ROWS, make_model, make_plan, sgd, stepped

Pair = tuple[Tensor, Tensor]
ALL = Telemetry(norms=5, loss=True, accuracy=True, loss_range=(0.2, 2.0))
ASKED = [
    Telemetry(norms=10),
    ALL,
    Telemetry(norms=0, loss=True),
    Telemetry(norms=3, accuracy=True, share=0.3),
]
loss = cross_entropy_and_accuracy


@pytest.fixture(autouse=True)
def _python_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's type checker draws random numbers of Python's."""
    monkeypatch.setattr("decrescendo.clipping.checker.drawn_by_python", lambda held: ())


# --- what is beside the sum -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [1e-9, 0.4, 50.0])
def test_the_engine_puts_beside_the_sum_what_the_reference_does(data: Pair, clip_norm: float) -> None:
    inputs, classes = data[0].clone(), data[1]
    inputs[3] = math.nan  # counts as zero
    ways = {
        "plain": EngineSettings(),
        "parts": EngineSettings(microbatch_size=7, accumulate="float64"),
        "captured": EngineSettings(capture=True),
        "automatic": EngineSettings(gamma=0.1),
    }
    model = make_model()
    for telemetry, (name, settings) in [
        *product([ALL], ways.items()),
        *zip(ASKED, ways.items(), strict=True),
    ]:
        engine = Engine(model, loss, settings, telemetry=telemetry)
        slow = Reference(model, loss, settings.gamma, telemetry).clipped_sum((inputs, classes), clip_norm)
        for _ in range(4 if name == "captured" else 1):  # the fourth is replayed
            fast = engine.clipped_sum((inputs, classes), clip_norm)
        assert fast.sensitivity == slow.sensitivity == clip_norm
        assert fast.extra_coordinates is not None
        torch.testing.assert_close(fast.extra_coordinates, slow.extra_coordinates, rtol=1e-4, atol=3e-4 * clip_norm)
        for key, gradient in slow.gradients.items():
            found = fast.gradients[key].to(gradient.dtype)
            torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-5 * clip_norm)
        for empty in (None, (inputs[:0], classes[:0])):
            nothing = engine.clipped_sum(empty, clip_norm).extra_coordinates
            assert nothing is not None
            assert nothing.tolist() == [0.0] * telemetry.size


@given(
    st.one_of(st.floats(0, 1e30), st.sampled_from([0.0, 1e-30, 1.0, 1 - 1e-7, 1 + 1e-7, math.inf, math.nan])),
    st.one_of(st.floats(allow_nan=True, allow_infinity=True, width=32)),
    st.floats(0, 1),
    st.floats(1e-9, 1e9),
    st.sampled_from(ASKED),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([None, 0.5]),
)
def test_gradient_and_numbers_of_one_example_are_together_at_most_the_clip_norm_long(
    norm: float,
    value: float,
    score: float,
    clip: float,
    telemetry: Telemetry,
    dtype: torch.dtype,
    gamma: float | None,
) -> None:
    """``norm`` in parts of C. A stored product is at most one rounding of its dtype longer than what was measured."""
    norms = torch.tensor([norm * clip], dtype=torch.float64)
    factor = clip_factors(norms, telemetry.gradient_limit(clip), dtype, gamma=gamma).double()
    counted = torch.isfinite(norms)
    length = factor * norms
    row = telemetry.coordinates(
        length, torch.tensor([value]), torch.tensor([score]), counted, clip
    )[0].tolist()  # fmt: skip
    stored = float(length) * (1 + torch.finfo(dtype).eps) if bool(counted) else 0.0
    assert math.fsum(x * x for x in (stored, *row)) <= clip * clip
    if not bool(counted):
        assert row[: telemetry.norms] == [0.0] * telemetry.norms
        worst = telemetry.units(clip)[1] / 2
        wanted = [worst] * telemetry.loss + [-worst] * telemetry.accuracy
        assert row[telemetry.norms :] == pytest.approx(wanted)


def test_the_room_is_used_and_no_more(data: Pair) -> None:
    """An example without gradient fills the room, one at the clip norm leaves none: the test above has power."""
    one, nothing = torch.ones(1, dtype=torch.float64), torch.zeros(1)
    for telemetry in ASKED:
        for length, left in ((0.0, 1.0), (1.0, 0.0)):
            row = telemetry.coordinates(
                length * one * telemetry.gradient_limit(1.0), nothing + 99, nothing + 1, one.bool(), 1.0
            )[0]
            room = left * (telemetry.norms > 0) * telemetry.gradient_limit(1.0) ** 2
            room += 1 - telemetry.gradient_limit(1.0) ** 2
            assert float(row.square().sum()) == pytest.approx(room, rel=1e-5)
    assert Telemetry(loss=True, accuracy=True).gradient_limit(1.0) == 0.995
    assert Telemetry(norms=10).gradient_limit(0.3) == 0.3


def test_what_a_whole_example_of_the_engine_adds_is_within_the_clip_norm(data: Pair) -> None:
    model = make_model()
    norms = Reference(model, loss).per_example_norms(data)
    for telemetry in ASKED:
        engine = Engine(model, loss, EngineSettings(accumulate="float64"), telemetry=telemetry)
        for row in range(0, ROWS, 5):
            for clip in (float(norms[row]) * factor for factor in (0.3, 1.0, 3.0)):
                one = engine.clipped_sum((data[0][row : row + 1], data[1][row : row + 1]), clip)
                assert one.extra_coordinates is not None
                parts = torch.cat([*(g.flatten() for g in one.gradients.values()), one.extra_coordinates]).tolist()
                assert math.fsum(part * part for part in parts) <= clip * clip


def test_numbers_add_up_over_examples_so_that_none_decides_what_another_adds(data: Pair) -> None:
    """Which a bound taken from the data does not: the same test catches it."""

    def apart(telemetry: Telemetry) -> float:
        model = make_model()
        engine = Engine(model, loss, telemetry=telemetry)
        whole = engine.clipped_sum(data, 0.5).extra_coordinates
        rows = [
            engine.clipped_sum((data[0][i : i + 1], data[1][i : i + 1]), 0.5).extra_coordinates for i in range(ROWS)
        ]
        assert whole is not None
        return float((whole - torch.stack([row for row in rows if row is not None]).sum(0)).abs().max())

    assert apart(ALL) < 1e-5
    with BROKEN_TELEMETRY["loss bound from the batch"](make_plan()):
        assert apart(ALL) > 1e-3


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (
            lambda outputs, targets: (outputs.argmax(1) == targets).float().mean().expand(len(targets)),
            "put together",
        ),
        (lambda outputs, targets: torch.full((len(targets),), float(outputs[0, 0])), "in Python"),
        (lambda outputs, targets: (outputs.argmax(1) == targets).float().mean(), "one score in"),
    ],
    ids=["mean of the batch", "number of one row", "one for all"],
)
def test_scores_must_be_each_examples_own(data: Pair, scores: Any, words: str) -> None:
    def mixed(model: nn.Module, batch: Pair) -> tuple[Tensor, Tensor]:
        outputs = model(batch[0])
        return nn.functional.cross_entropy(outputs, batch[1], reduction="none"), scores(outputs, batch[1])

    with pytest.raises(UnsupportedModel, match=words):
        Engine(make_model(), mixed, telemetry=ALL).clipped_sum(data, 1.0)


def test_a_score_that_a_truth_value_of_the_data_decides_is_refused(data: Pair) -> None:
    def steered(model: nn.Module, batch: Pair) -> tuple[Tensor, Tensor]:
        outputs = model(batch[0])
        right = torch.ones_like(outputs[:, 0]) if bool((batch[0] > 1).any()) else torch.zeros_like(outputs[:, 0])
        return nn.functional.cross_entropy(outputs, batch[1], reduction="none"), right

    with pytest.raises(UnsupportedModel, match="must not steer"):
        Engine(make_model(), steered, telemetry=ALL).clipped_sum(data, 1.0)


# --- what it costs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capture", [False, True])
def test_norms_alone_change_neither_a_bit_of_the_weights_nor_a_digit_of_epsilon(data: Pair, capture: bool) -> None:
    plan = make_plan((2.0, 1.5, 1.2, 1.0), (1.0, 0.8, 0.5, 0.4))
    settings = EngineSettings(capture=capture)

    def run(telemetry: Telemetry | None) -> Run:
        model = make_model()
        return train(model, loss, data, plan, sgd(model), seed=3, telemetry=telemetry, settings=settings)

    plain, told, more = run(None), run(Telemetry(norms=10)), run(ALL)
    assert told.guarantee == plain.guarantee == more.guarantee
    assert told.ledger == plain.ledger == more.ledger
    for name, weight in plain.weights.items():
        assert torch.equal(told.weights[name], weight)
        assert not torch.equal(more.weights[name], weight)
    assert len(told.telemetry) == 4
    assert plain.telemetry == ()


def test_norms_beside_correlated_noise_change_no_bit_either(data: Pair) -> None:
    plan = calibrate(Budget(8.0, 1e-3), PoissonSampling(ROWS, 8), steps=6, clip=0.5, bands=3)

    def run(telemetry: Telemetry | None) -> Run:
        model = make_model()
        return train(model, loss, data, plan, sgd(model), seed=3, telemetry=telemetry)

    plain, told, more = run(None), run(Telemetry(norms=10)), run(ALL)
    assert told.guarantee == plain.guarantee == more.guarantee
    assert all(torch.equal(told.weights[name], weight) for name, weight in plain.weights.items())
    # The noise is that of the release, not that of the gradients, of which later steps take a part away.
    for reading, z in zip(more.telemetry, plan.noise_multiplier, strict=True):
        assert reading.noise_multiplier == z
        assert reading.loss is not None
        # Of all examples, not of the group whose turn it is: its standard error is about all.
        assert reading.sample_rate == pytest.approx(8 / ROWS)


def test_noise_beside_is_of_the_same_release_and_of_a_stream_of_its_own() -> None:
    sampling, zero = PoissonSampling(100, 10), torch.zeros(4000)

    def draw(size: int, stream: Any) -> Any:
        extra = torch.zeros(size, dtype=torch.float64) if size else None
        return privatise(ClippedSum({"w": zero}, 0.5, Diagnostics(0, 0, 0, 0.0), extra), 2.0, sampling, stream)

    plain, told = Streams(1).keyed("noise"), Streams(1).keyed("noise")
    before: list[Tensor] = []
    for _ in range(3):
        one, two = draw(0, plain), draw(4000, told)
        assert torch.equal(one.gradients["w"], two.gradients["w"])
        assert one.release == two.release
        for other in (one.gradients["w"].double(), *before):
            assert abs(float(torch.corrcoef(torch.stack([two.extra_coordinates, other]))[0, 1])) < 0.08
        assert float(two.extra_coordinates.std()) == pytest.approx(2.0 * 0.5 / 10, rel=0.06)
        before.append(two.extra_coordinates)
    assert plain.position == told.position
    for stream in (torch.Generator().manual_seed(0), SecureStream.fresh()):
        assert float(draw(4000, stream).extra_coordinates.std()) == pytest.approx(0.1, rel=0.06)


# --- what it says ---------------------------------------------------------------------------------------------------


def readings(
    batch: float, noise: float, *, rate: float, count: int, telemetry: Telemetry, more: float = 1.0
) -> tuple[list[Reading], Tensor, Tensor, Tensor]:
    """Readings of batches that are drawn from fixed examples; the examples' lengths, losses and scores. ``more``: noise
    in multiples of what is told."""
    sampling = PoissonSampling(round(batch / rate), batch)
    rng = np.random.default_rng(0)
    lengths = torch.from_numpy(rng.gamma(4.0, 0.15, sampling.dataset_size)).clamp(max=1.0)
    losses = torch.from_numpy(rng.choice([0.0, 3.0], sampling.dataset_size))
    scores = torch.from_numpy(rng.random(sampling.dataset_size) < 0.7)
    limit = telemetry.gradient_limit(1.0)
    rows = telemetry.coordinates(lengths * limit, losses, scores, torch.ones_like(scores), 1.0).numpy()
    stream, found = Streams(7).keyed("noise"), list[Reading]()
    for drawn in sampling.batches(count, Streams(5).numpy("sampling")):
        total = torch.from_numpy(rows[drawn].sum(0))
        clipped = ClippedSum({"w": torch.zeros(1)}, 1.0, Diagnostics(0, 0, 0, 0.0), total)
        noisy = privatise(clipped, noise * more, sampling, stream)
        assert noisy.extra_coordinates is not None
        about = (len(found) + 1, 1.0, noise, sampling.sample_rate, batch, 0, 0.0)
        found.append(Reading(telemetry, *about, tuple(noisy.extra_coordinates.tolist())))
    return found, lengths, losses, scores


def shares(lengths: Tensor, bins: int) -> list[float]:
    """The distribution function averaged over each bin, by a fine grid."""
    grid = (torch.arange(bins * 200) + 0.5) / (bins * 200)
    below = torch.searchsorted(lengths.sort().values, grid.double(), right=True) / len(lengths)
    return below.reshape(bins, 200).mean(1).tolist()


@pytest.mark.parametrize("batch", [250.0, 1000.0, 4000.0])
@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0])
def test_the_distribution_of_norms_is_known_as_well_as_it_says(batch: float, noise: float) -> None:
    """Of full batches the standard error is z sqrt(K) / B, of drawn ones that of the draw is in it: within 5 %, and
    never too small. (Errors of one draw's bins go together, so 400 draws measure a deviation to 3.5 %.)"""
    bins = 10
    for rate, count in ((1.0, 400), (0.25, 400)):
        found, lengths, _, _ = readings(batch, noise, rate=rate, count=count, telemetry=Telemetry(norms=bins))
        true = shares(lengths, bins)
        errors = np.array([[e.value - t for e, t in zip(r.norms, true, strict=True)] for r in found])
        said = np.array([[e.standard_error for e in r.norms] for r in found])
        assert abs(errors.mean()) < 4 * said.mean() / math.sqrt(count)
        edges = torch.arange(1, bins + 1) / bins
        parts = ((edges - lengths[:, None]) * bins).clamp(0, 1).numpy()  # of each bin, above the example's norm
        exact = noise**2 * bins / batch**2 + (1 - rate) * (parts**2).mean() / batch
        if rate == 1.0:
            assert said == pytest.approx(noise * math.sqrt(bins) / batch, rel=1e-5)
        assert 0.999 < math.sqrt((said**2).mean() / exact) < 1.05, rate
        assert math.sqrt((errors**2).mean() / exact) == pytest.approx(1.0, abs=0.04 if rate == 1.0 else 0.12), rate


def test_the_test_of_the_standard_error_has_power() -> None:
    found, lengths, _, _ = readings(1000, 1.0, rate=1.0, count=400, telemetry=Telemetry(norms=10), more=1.1)
    true = shares(lengths, 10)
    errors = np.array([[e.value - t for e, t in zip(r.norms, true, strict=True)] for r in found])
    said = np.array([[e.standard_error for e in r.norms] for r in found])
    assert math.sqrt((errors**2).mean() / (said**2).mean()) > 1.05


@pytest.mark.parametrize(("batch", "noise"), [(250.0, 0.7), pytest.param(1000.0, 3.0, marks=pytest.mark.slow)])
def test_loss_and_accuracy_are_known_as_well_as_they_say(batch: float, noise: float) -> None:
    telemetry = Telemetry(norms=4, loss=True, accuracy=True, loss_range=(1.0, 3.0))
    found, _, losses, scores = readings(batch, noise, rate=0.2, count=1500, telemetry=telemetry)
    for name, true in (("loss", losses.clamp(1.0, 3.0).mean()), ("accuracy", scores.double().mean())):
        estimates: list[Estimate] = [getattr(reading, name) for reading in found]
        said = estimates[0].standard_error
        errors = np.array([estimate.value for estimate in estimates]) - float(true)
        assert abs(errors.mean()) < 4 * said / math.sqrt(len(errors))
        assert errors.std() == pytest.approx(said, rel=0.06)  # 1,500 draws: 1.8 %
        over = smoothed(found, name, window=25)
        assert over is not None
        assert over.steps == 25
        assert over.standard_error == pytest.approx(said / 5, rel=1e-6)
        means = errors.reshape(-1, 25).mean(1)
        assert means.std() == pytest.approx(over.standard_error, rel=0.3)


def test_a_quantile_of_the_norms_is_between_its_bins() -> None:
    found, lengths, _, _ = readings(20_000.0, 0.1, rate=1.0, count=1, telemetry=Telemetry(norms=20))
    for share in (0.2, 0.5, 0.8):
        assert found[0].quantile(share) == pytest.approx(float(lengths.quantile(share)), abs=0.02)
    clipped = found[0].clipped
    assert clipped is not None
    assert clipped.value == pytest.approx(float((lengths > 0.975).double().mean()), abs=0.01)
    assert replace(found[0], sums=(0.0,) * 20).quantile(0.5) == math.inf


def test_steps_with_less_noise_count_for_more_in_a_mean_over_steps() -> None:
    one = Reading(Telemetry(norms=0, loss=True, loss_range=(0, 1)), 1, 1.0, 1.0, 1.0, 100.0, 0, 0.0, (0.0,))
    told = [replace(one, noise_multiplier=2.0, sums=(0.01,)), one]
    found, first, last = smoothed(told, "loss"), told[0].loss, one.loss
    assert found is not None
    assert first is not None
    assert last is not None
    assert found.value == pytest.approx((first.value + 4 * last.value) / 5)
    assert found.standard_error == pytest.approx(last.standard_error * math.sqrt(0.8))
    assert smoothed([], "loss") is smoothed(told, "accuracy") is None


# --- where it is ----------------------------------------------------------------------------------------------------


def test_readings_are_in_steps_progress_run_statement_and_folder(data: Pair, tmp_path: Path) -> None:
    model, plan = make_model(), make_plan()
    seen: list[Reading] = []
    trainer = Trainer(model, loss, plan, sgd(model), seed=1, telemetry=ALL)
    for batch in trainer.batches(data):
        result = trainer.step(batch)
        assert result.telemetry is not None
        assert result.telemetry == trainer.progress().telemetry
        assert result.telemetry.step == result.step
        seen.append(result.telemetry)
    run = trainer.finish()
    assert run.telemetry == tuple(seen)
    assert [reading.clip_norm for reading in seen] == plan.clip_norm.tolist()
    assert [reading.noise_multiplier for reading in seen] == plan.noise_multiplier.tolist()
    run.save(tmp_path / "run")
    again = Run.load(tmp_path / "run")
    assert again.telemetry == run.telemetry
    text = (tmp_path / "run" / "statement.md").read_text(encoding="utf-8")
    assert f"Beside the gradients of each step, in one vector with them and under the same noise: {ALL}." in text
    assert again.check_statement(tmp_path / "run")
    model = make_model()
    plain = train(model, loss, data, plan, sgd(model), seed=1)
    assert "Beside the gradients" not in plain.statement().to_markdown()


def test_nothing_private_is_read_by_looking_at_telemetry(data: Pair) -> None:
    model = make_model()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=1, telemetry=ALL)
    for batch in trainer.batches(data):
        result = trainer.step(batch)
        assert result.telemetry is not None
        assert isinstance(result.telemetry.loss, Estimate)
        assert smoothed(trainer.progress().readings) is not None
        break
    assert "ended-early" in [assumption.code for assumption in trainer.finish().assumptions]


def test_a_run_that_is_resumed_has_the_same_readings_and_bits(data: Pair, tmp_path: Path) -> None:
    plan = make_plan((2.0, 1.5, 1.2, 1.0), (1.0, 0.8, 0.5, 0.4))

    def trainer(folder: str, *, resume: bool, telemetry: Telemetry | None = ALL) -> Trainer:
        model, kept = make_model(), Checkpoints(tmp_path / folder, every=1, resume=resume)
        return Trainer(model, loss, plan, sgd(model), seed=4, checkpoints=kept, telemetry=telemetry)

    whole = stepped(trainer("whole", resume=False), data, 9).finish()
    stepped(trainer("cut", resume=False), data, 2)
    for other in (None, Telemetry(norms=5)):
        with pytest.raises(PlanViolation, match="go on with the telemetry it began with"):
            trainer("cut", resume=True, telemetry=other)
    cut = stepped(trainer("cut", resume=True), data, 9).finish()
    assert cut.telemetry == whole.telemetry
    assert all(torch.equal(cut.weights[name], weight) for name, weight in whole.weights.items())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Telemetry(norms=0), "something to release"),
        (lambda: Telemetry(norms=-1), "norms must be"),
        (lambda: Telemetry(norms=10**6), "norms must be at most"),
        (lambda: Telemetry(loss=True, share=0.0), "share must be"),
        (lambda: Telemetry(loss=True, loss_range=(2.0, 1.0)), r"loss_range\[1\] must be > 2"),
        (lambda: Telemetry(loss=True, loss_range=(0.0, math.inf)), r"loss_range\[1\]"),
        (lambda: Telemetry(loss=True, loss_range=3.0), "two numbers"),  # type: ignore[arg-type]
    ],
)
def test_what_says_nothing_or_has_no_bound_is_refused(make: Any, words: str) -> None:
    with pytest.raises((InvalidValue, InvalidType), match=words):
        make()


def test_telemetry_without_noise_is_refused(data: Pair) -> None:
    model, bare = make_model(), Plan.without_privacy(PoissonSampling(ROWS, 8), steps=3, clip=[1.0] * 3)
    with pytest.raises(InvalidValue, match="must have noise at every step"):
        Trainer(model, loss, bare, sgd(model), seed=0, telemetry=ALL)
    with pytest.raises(DecrescendoError, match="clip_norm with telemetry"):
        Engine(model, loss, telemetry=ALL).clipped_sum(data, math.inf)
    with pytest.raises(InvalidType, match="telemetry must be"):
        Trainer(model, loss, make_plan(), sgd(model), seed=0, telemetry=10)  # type: ignore[arg-type]


def test_a_training_that_a_policy_decides_has_telemetry_too(data: Pair) -> None:
    model = make_model()
    seen: list[int] = []

    def policy(context: PolicyContext) -> Settings:
        seen.append(len(context.readings))
        return Settings(3.0, 0.5)

    adaptive = Adaptive(PoissonSampling(ROWS, 8), RenyiFilter(Budget(3.0, 1e-3), order=8), policy, 3)
    run = train(model, loss, data, adaptive, sgd(model), seed=0, telemetry=ALL)
    assert seen == [0, 1, 2]
    assert [reading.clip_norm for reading in run.telemetry] == [0.5] * 3
    fixed = replace(adaptive, policy=FromSchedule(make_plan().schedule))
    assert fixed.plan.steps == 3


# --- who reads it ---------------------------------------------------------------------------------------------------


def test_a_training_that_released_numbers_end_assumes_nothing_of_its_end(data: Pair) -> None:
    plan = make_plan((0.5,) * 12, (1.0,) * 12, batch=ROWS, judge=False)

    def run(*callbacks: Any, rate: float = 0.0) -> Run:
        model = make_model()
        told = Telemetry(norms=0, accuracy=True, share=0.5)
        with patch("decrescendo.training.loop.source.check_promise"):
            return train(model, loss, data, plan, sgd(model, rate), seed=3, telemetry=told, callback=callbacks)

    stalls = Plateau("accuracy", patience=3, window=2, errors=0.0, least=9.0)  # weights do not move
    ended = run(stalls)
    assert ended.steps == 5
    assert not [a for a in ended.assumptions if a.code.startswith("ended")]
    # Whatever else was looked at did not end it.
    assert "ended-after-diagnostics" not in [
        a.code for a in run(lambda p: bool(p.diagnostics) and None, stalls).assumptions
    ]
    by_hand = run(lambda progress: stalls(progress))
    assert by_hand.steps == 5
    assert "ended-early" in [a.code for a in by_hand.assumptions]
    seen: list[int] = []
    with pytest.raises(InvalidValue, match="must release its loss"):
        run(Plateau("loss", patience=3, window=2), lambda progress: seen.append(progress.step))
    assert seen == []  # before anything was released
    for wrong in ({"of": "norms"}, {"window": 30, "patience": 20}, {"errors": -1}, {"least": -1}):
        with pytest.raises(InvalidValue):
            Plateau(**wrong)


def _improving(by: float, *, noise: float, steps: int) -> list[Reading]:
    """Readings of a loss that falls by so much a step from 2, with so much standard noise each."""
    telemetry = Telemetry(norms=0, loss=True, loss_range=(0.0, 3.0))
    unit = telemetry.units(1.0)[1]
    batch = 3.0 / (noise * unit)
    draws = torch.randn(steps, generator=torch.Generator().manual_seed(1)).double() * noise
    found = []
    for step in range(steps):
        loss = 2.0 - by * step + float(draws[step])
        found.append(Reading(telemetry, step + 1, 1.0, 1.0, 1.0, batch, 0, 0.0, ((loss / 3.0 - 0.5) * unit,)))
    return found


@pytest.mark.parametrize(
    ("by", "noise", "ends"),
    [(6e-4, 0.2, False), (6e-4, 0.005, False), (1e-5, 0.005, True), (0.0, 0.2, False)],
)
def test_a_plateau_ends_what_has_stopped_and_not_what_still_improves(by: float, noise: float, ends: bool) -> None:
    """Asked at each of 700 steps, of which 100 improve the loss by 0.06, 0.001 or nothing."""
    readings, rule = _improving(by, noise=noise, steps=700), Plateau("loss", patience=100)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        ended = [step for step in range(1, 701) if rule(SimpleNamespace(readings=readings[:step]))]
    assert bool(ended) is ends
    assert len(warned) == (noise == 0.2)
    if warned:
        assert "Plateau will hardly end this training" in str(warned[0].message)


def test_a_rule_ends_a_training_by_names_likewise(data: Pair) -> None:
    rule = Plateau("loss", patience=1, window=1, errors=0.0, least=99.0)
    run, _ = fit(
        make_model(), loss, data, make_plan(), seed=3, optimizer="sgd", learning_rate=0.1, telemetry=ALL,
        callback=[lambda progress: None, rule],
    )  # fmt: skip
    assert run.steps == 2
    assert not [a for a in run.assumptions if a.code.startswith("ended")]


def test_a_loop_of_ones_own_asks_the_same_rule(data: Pair) -> None:
    model, rule = make_model(), Plateau("loss", patience=1, window=1, errors=0.0, least=99.0)
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=3, telemetry=ALL)
    for batch in trainer.batches(data):
        trainer.step(batch)
        if trainer.ends(rule):
            break
    run = trainer.finish()
    assert run.steps == 2
    assert not [a for a in run.assumptions if a.code.startswith("ended")]


def test_a_training_of_noise_and_one_that_clips_everything_say_so() -> None:
    telemetry = Telemetry(norms=4)
    unit, _ = telemetry.units(1.0)

    def told(energy: float, within: float, noise: float = 0.5) -> tuple[str, ...]:
        one = Reading(telemetry, 1, 1.0, noise, 0.1, 1000.0, 500, energy, (unit * within,) * 4)
        assert remarks([one] * 19) == ()
        return remarks([one] * 20)

    assert told(1.5, 0.4) == ()
    (noise,) = told(1.01, 0.4)
    assert noise.startswith("nothing is learned any more")
    (clipped,) = told(1.5, 0.0)
    assert clipped.startswith("everything is clipped")
    assert told(1.5, 0.0, noise=50.0) == ()  # with so much noise nobody can tell


def test_losses_beyond_their_range_are_said() -> None:
    assert remarks(_improving(0.0, noise=0.05, steps=20)) == ()
    (beyond,) = remarks(_improving(-0.1, noise=0.05, steps=40)[-20:])
    assert beyond.startswith("losses are near or beyond the end of loss_range")


def test_the_energy_of_noise_alone_is_one(data: Pair) -> None:
    model = make_model()

    def nothing(model: nn.Module, batch: Pair) -> tuple[Tensor, Tensor]:
        losses, right = loss(model, batch)
        return 0 * losses, right

    plan = make_plan((2.0,) * 30, (1.0,) * 30, judge=False)
    for what, is_signal in ((nothing, False), (loss, True)):
        clip = make_plan((0.02,) * 30, (1.0,) * 30, batch=ROWS, judge=False) if is_signal else plan
        with patch("decrescendo.training.loop.source.check_promise"):
            run = train(model, what, data, clip, sgd(model, 1e-9), seed=1, telemetry=ALL)
        signals = [reading.signal for reading in run.telemetry]
        assert all(signal is not None for signal in signals)
        mean = np.mean([signal.value for signal in signals if signal is not None])
        error = math.sqrt(2 / (run.telemetry[0].coordinates * 30))
        assert (mean > 10 * error) if is_signal else abs(mean) < 4 * error


@pytest.mark.parametrize(
    "sampling",
    [
        StratifiedPoissonSampling({"a": (100, 100), "b": (2_000, 200)}),
        PoissonSampling(2_000, 100, max_batch_size=95),
    ],
    ids=["strata", "truncated batches"],
)
def test_of_uneven_rates_and_cut_batches_numbers_are_as_far_off_as_they_say(sampling: Any) -> None:
    """Every score is 1, nearly without noise: what is left is how many rows were drawn, against the true mean."""
    told = Telemetry(norms=4, accuracy=True)
    rng, found = np.random.default_rng(0), list[Reading]()
    strata = np.repeat(["a", "b"], [100, 2_000])
    members = (sampling.members(strata),) if isinstance(sampling, StratifiedPoissonSampling) else ()
    for batch in sampling.batches(400, rng, *members):
        rows = len(batch)
        one = told.coordinates(*torch.zeros(2, 1), torch.ones(1), torch.ones(1, dtype=torch.bool), 1.0)
        extra = rows * one.double().sum(0) / sampling.expected_batch_size
        noisy = NoisyMean({}, sampling.release(1e-6), extra_coordinates=extra)
        found.append(reading_of(noisy, told, 1, 1.0, 1e-6, sampling))
    for values in ([one.accuracy for one in found], [one.norms[-1] for one in found]):
        got = torch.tensor([value.value for value in values if value is not None], dtype=torch.float64)
        said = np.mean([value.standard_error for value in values if value is not None])
        error = float(got.std()) / math.sqrt(len(got))
        assert abs(float(got.mean()) - 1) < 4 * max(error, 1e-4)
        if isinstance(sampling, StratifiedPoissonSampling):
            assert float(got.std()) == pytest.approx(said, rel=0.15)  # 4 deviations; the largest rate gave 0


def test_a_run_whose_file_has_the_telemetry_of_other_steps_is_refused(data: Pair, tmp_path: Path) -> None:
    model = make_model()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0, telemetry=ALL)
    for batch in trainer.batches(data):
        trainer.step(batch)
    trainer.finish().save(tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    for change in (
        lambda rows: rows.append(rows[-1]),
        lambda rows: rows[0].__setitem__(0, 2.5),
        lambda rows: rows[0].__setitem__(1, 2.5),
        lambda rows: rows[0].__setitem__(0, 10**400),
    ):
        content = json.loads(path.read_text(encoding="utf-8"))
        del content["sha256"]
        change(content["telemetry"]["rows"])
        (tmp_path / "bad").mkdir(exist_ok=True)
        for file in (tmp_path / "run").iterdir():
            (tmp_path / "bad" / file.name).write_bytes(file.read_bytes())
        (tmp_path / "bad" / "run.json").write_text(sealed.seal(content, indent=1, finite=False), encoding="utf-8")
        with pytest.raises(FileRefused):
            Run.load(tmp_path / "bad")
    assert len(Run.load(tmp_path / "run").telemetry) == make_plan().steps


def test_a_range_of_losses_that_is_too_wide_for_numbers_is_refused() -> None:
    with pytest.raises(InvalidValue, match="width of loss_range"):
        Telemetry(loss=True, loss_range=(-1e308, 1e308))
