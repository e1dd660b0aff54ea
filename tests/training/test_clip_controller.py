"""Facts: a clip norm that follows the gradients costs nothing beyond the plan, and its count is never without noise."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decrescendo.training.steering.quantile import COUNT_KEY, ClipNormTracker
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decrescendo.base.rng import Streams
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.clipped import ClippedSum, Diagnostics, clip_factors, within_norm
from decrescendo.errors import InvalidValue, PlanViolation
from decrescendo.optim.noise import privatise
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Checkpoints, Run, Trainer, train
from decrescendo.training.steering import QuantileClip

from .conftest import ROWS, loss, make_model, make_plan, sgd

Pair = tuple[Tensor, Tensor]
STEADY = {"noise": (2.0, 1.5, 1.2, 1.0), "clip": (0.5,) * 4}


def quantile_clip(**changes: Any) -> QuantileClip:
    return QuantileClip(make_plan(**STEADY), **changes)


def test_each_step_is_sum_and_count_under_the_plans_one_noise(data: Pair) -> None:
    """Written out by hand: the reference's sum at a C_t, the count beside it, one noise, and the next C_t."""
    given_, seed = quantile_clip(quantile=0.4, rate=0.3, share=0.2), 5
    model, slow = make_model(), make_model()
    trainer = Trainer(model, loss, given_, sgd(model), seed=seed)
    stream, optimizer = Streams(seed).keyed("noise"), sgd(slow)
    clip = 0.5
    for step, batch in enumerate(trainer.batches(data)):
        trainer.step(batch)
        part = math.sqrt(1 - 0.2**2)
        found = Reference(slow, loss).clipped_sum(batch, part * clip)
        rows = 0 if batch is None else len(batch[0])
        weight = 2 * 0.2 * clip
        count = torch.tensor([weight * (found.diagnostics.within - rows / 2)], dtype=torch.float64)
        both = ClippedSum({**found.gradients, COUNT_KEY: count}, clip, found.diagnostics)
        noisy = privatise(both, STEADY["noise"][step], given_.plan.sampling, stream)
        for name, parameter in slow.named_parameters():
            parameter.grad = noisy.gradients[name]
        optimizer.step()
        share = min(max(0.5 + float(noisy.gradients[COUNT_KEY]) / weight, 0), 1)
        clip *= math.exp(-0.3 * (share - 0.4))
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, dict(slow.named_parameters())[name], rtol=1e-5, atol=1e-6)
        assert trainer._source.decided_clip_norm[-1] == pytest.approx(clip, rel=1e-5)
    run = trainer.finish()
    assert run.ledger == given_.plan.ledger
    plain = make_model()
    assert run.guarantee == train(plain, loss, data, given_.plan, sgd(plain), seed=1).guarantee
    assert run.clip_norm[0] == 0.5
    assert len(run.clip_norm) == 4


@given(
    st.lists(st.one_of(st.floats(0, 10), st.just(math.inf)), max_size=12),
    st.one_of(st.floats(0, 10), st.just(math.inf)),
    st.floats(0.01, 0.5),
    st.floats(1e-3, 1e3),
)
def test_one_example_moves_sum_and_count_together_by_at_most_the_clip_norm(
    others: list[float], own: float, share: float, clip: float
) -> None:
    """In one dimension, with all gradients in one direction; norms that are infinite count as zero."""
    tracker = ClipNormTracker(quantile_clip(share=share))

    def released(norms: list[float]) -> Tensor:
        lengths = torch.tensor(norms, dtype=torch.float64) * clip
        limit = tracker.gradient_part * clip
        parts = torch.where(lengths.isfinite(), lengths, torch.zeros(())) * clip_factors(lengths, limit)
        seen = Diagnostics(len(norms), 0, 0, 0.0, float(within_norm(lengths, limit)))
        total = tracker.with_count(ClippedSum({"w": parts.sum().reshape(1)}, limit, seen), clip)
        assert total.sensitivity == clip
        return torch.cat([total.gradients["w"], total.gradients[COUNT_KEY]])

    moved = released([*others, own]) - released(others)
    assert float(moved.norm()) <= clip * (1 + 1e-12)


def test_the_worst_example_moves_it_by_nearly_all_of_that() -> None:
    tracker = ClipNormTracker(quantile_clip(share=0.3))
    limit = tracker.gradient_part
    seen = Diagnostics(1, 0, 1, 0.0, 0.0)
    total = tracker.with_count(
        ClippedSum({"w": torch.tensor([limit], dtype=torch.float64)}, limit, seen), 1.0
    )
    assert float(torch.cat(list(total.gradients.values())).norm()) == pytest.approx(1.0, abs=1e-8)


def counts(noise: float, trials: int) -> np.ndarray:
    """Noisy counts of empty batches, in units of z C / B."""
    tracker, stream = ClipNormTracker(quantile_clip(share=0.1)), Streams(3).keyed("noise")
    sampling = PoissonSampling(ROWS, 8)
    empty = ClippedSum({"w": torch.zeros(2)}, tracker.gradient_part, Diagnostics(0, 0, 0, 0.0))
    found = [
        float(privatise(tracker.with_count(empty, 0.7), noise, sampling, stream).gradients[COUNT_KEY])
        for _ in range(trials)
    ]
    return np.array(found) / (2.0 * 0.7 / 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trials", "share"), [(2_000, 0.9), pytest.param(20_000, 0.97, marks=pytest.mark.slow)]
)
def test_the_count_has_all_of_the_noise(trials: int, share: float) -> None:
    """Its variance is (z C)^2 to within chance; a build with a part of the noise only, or none, would be seen."""
    found = counts(2.0, trials)
    tolerance = 4.5 * math.sqrt(2 / trials)  # 4.5 deviations of a chi-squared
    assert abs(found.var() - 1) < tolerance
    assert abs((share * found).var() - 1) > tolerance
    assert counts(0.0, 3).var() == 0


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [0.3, pytest.param(0.8, marks=pytest.mark.slow)])
def test_it_follows_the_quantile(data: Pair, quantile: float) -> None:
    """With little noise, C_t ends where the asked share of gradients is within it."""
    model = make_model()
    norms = Reference(model, loss).per_example_norms(data)
    steps = 300
    plan = make_plan((0.1,) * steps, (0.01,) * steps, batch=30, judge=False)
    still = torch.optim.SGD(model.parameters(), lr=1e-12)
    given_ = QuantileClip(plan, quantile=quantile, rate=0.2)
    trainer = Trainer(model, loss, given_, still, seed=2)
    for batch in trainer.batches(data):
        trainer.step(batch)
    ends = np.mean(trainer._source.decided_clip_norm[-100:]) * given_.gradient_part
    assert float(norms.quantile(quantile - 0.12)) < ends < float(norms.quantile(quantile + 0.12))


def test_a_run_that_is_resumed_has_the_same_clip_norms_and_the_same_bits(data: Pair, tmp_path: Path) -> None:
    def trainer(folder: str, *, resume: bool, plan: Any = None) -> Trainer:
        model, kept = make_model(), Checkpoints(tmp_path / folder, every=1, resume=resume)
        return Trainer(model, loss, plan or quantile_clip(), sgd(model), seed=4, checkpoints=kept)

    def go(one: Trainer, steps: int) -> Trainer:
        for batch in one.batches(data):
            one.step(batch)
            steps -= 1
            if not steps:
                break
        return one

    whole = go(trainer("whole", resume=False), 9).finish()
    go(trainer("cut", resume=False), 3)
    cut = go(trainer("cut", resume=True), 9).finish()
    assert cut.clip_norm == whole.clip_norm
    assert all(torch.equal(cut.weights[name], weight) for name, weight in whole.weights.items())
    with pytest.raises(PlanViolation, match="QuantileClip it began with"):
        trainer("cut", resume=True, plan=make_plan(**STEADY))


def test_the_run_and_its_statement_say_how_the_clip_norm_was_decided(data: Pair, tmp_path: Path) -> None:
    model = make_model()
    run = train(model, loss, data, quantile_clip(), sgd(model), seed=0)
    run.save(tmp_path / "run")
    again = Run.load(tmp_path / "run")
    assert again.clip_norm == run.clip_norm
    text = (tmp_path / "run" / "statement.md").read_text(encoding="utf-8")
    assert "C_t followed the lengths of the gradients" in text
    assert f"{run.clip_norm[-1]:.5g}" in text
    model = make_model()
    plain = train(model, loss, data, make_plan(**STEADY), sgd(model), seed=0)
    assert "followed" not in plain.statement().to_markdown()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: QuantileClip(make_plan()), "one clip norm, where C_t begins, got 1 to 0.5"),
        (lambda: quantile_clip(quantile=1.0), "quantile must be > 0 and < 1"),
        (lambda: quantile_clip(rate=0), "rate must be > 0"),
        (lambda: quantile_clip(share=0.7), "share must be > 0 and <= 0.5"),
        (
            lambda: QuantileClip(Plan.without_privacy(PoissonSampling(ROWS, 8), steps=3, clip=[1.0] * 3)),
            "must have noise at every step",
        ),
    ],
)
def test_what_could_not_be_kept_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        make()


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


@given(
    st.floats(0, 1e30), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.sampled_from(["float32", "float64"])
)
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


def test_the_smallest_clip_norm_is_where_it_ends(data: Pair) -> None:
    plan = make_plan((1.0,) * 9, (1.2e-12,) * 9, batch=38)
    model = make_model()
    follow = QuantileClip(plan, quantile=0.01, rate=1.0, share=0.5)
    trainer = Trainer(model, lambda model, batch: 0 * loss(model, batch), follow, sgd(model), seed=0)
    for batch in trainer.batches(data):
        trainer.step(batch)
    assert min(trainer.finish().clip_norm) < 1.16e-12
