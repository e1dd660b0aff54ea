"""A pass done before its step: the same sum to the bit, and none other than that of its batch, norm and weights."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from decrescendo.clipping import Engine, EngineSettings
from decrescendo.clipping.byproducts import note_byproducts
from decrescendo.clipping.captured import Captured


@pytest.fixture(autouse=True)
def _python_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's type checker draws random numbers of Python's."""
    monkeypatch.setattr("decrescendo.clipping.checker.drawn_by_python", lambda held: ())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))) * self.scale


def loss(model: nn.Module, batch: Any) -> Tensor:
    outputs = model(batch[0])
    note_byproducts([outputs])
    return nn.functional.cross_entropy(outputs, batch[1], reduction="none")


def batch_of(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(rows, 5), torch.randint(3, (rows,))


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one.gradients[name], other.gradients[name]) for name in one.gradients) and (
        one.diagnostics == other.diagnostics
    )


# What happens between the pass and the step of its batch.
CHANGES = (
    "nothing",
    "other batch",
    "equal batch",
    "other norm",
    "weights",
    "buffer",
    "frozen",
    "norms",
    "eval",
)


@settings(deadline=None)
@given(changes=st.lists(st.sampled_from(CHANGES), min_size=6, max_size=10), rows=st.integers(2, 40))
def test_the_sum_is_that_of_a_pass_in_python_whatever_happens_before_the_step(changes: list[str], rows: int) -> None:
    model = Net()
    quick = Engine(model, loss, EngineSettings(capture=True))
    plain = Engine(model, loss, EngineSettings(capture=False))
    for seed in range(4):
        quick.clipped_sum(batch_of(rows, seed), 0.1)
    for seed, change in enumerate(changes):
        batch, norm = batch_of(rows, seed), 0.1
        made = quick.before_step(batch, norm)
        if made:
            assert torch.allclose(made[0], model(batch[0]), atol=1e-6)
            assert made[0].shape == (rows, 3)
        with torch.no_grad():
            if change == "other batch":
                batch = batch_of(rows, seed + 100)
            if change == "equal batch":
                batch = batch_of(rows, seed)
            if change == "other norm":
                norm = 0.07
            if change == "weights":
                model.first.weight.mul_(0.9)
            if change == "buffer":
                model.scale.add_(0.5)
        if change == "frozen":
            model.first.bias.requires_grad_(not model.first.bias.requires_grad)
        if change == "norms":
            quick.per_example_norms(batch_of(rows, seed + 200))
        if change == "eval":
            model.train(not model.training)
        assert same(quick.clipped_sum(batch, norm), plain.clipped_sum(batch, norm)), change


def test_a_captured_pass_is_done_once_and_its_byproducts_are_the_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, replays = Net(), list[int]()
    engine = Engine(model, loss, EngineSettings(capture=True))
    own = Captured.replay
    monkeypatch.setattr(Captured, "replay", lambda self, *given: (replays.append(1), own(self, *given))[1])
    used = 0
    for seed in range(20):
        batch = batch_of(12, seed)
        made, before = engine.before_step(batch, 0.1), len(replays)
        engine.clipped_sum(batch, 0.1)
        assert not made or (engine.replayed and len(replays) == before)
        used += bool(made)
    assert used > 12
    assert len(replays) == used


class Dropped(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.dropout(super().forward(x), 0.5, True)


def test_a_pass_that_draws_random_numbers_has_the_seed_of_its_step() -> None:
    seeds, others = iter(range(1000)), iter(range(1000))
    engine = Engine(Dropped(), loss, EngineSettings(capture=True), seeds=lambda: next(seeds))
    plain = Engine(Dropped(), loss, EngineSettings(capture=False), seeds=lambda: next(others))
    ahead = 0
    for seed in range(10):
        batch = batch_of(12, seed)
        made = engine.before_step(batch, 0.1)
        ahead += bool(made)
        if made:
            zeros = float((made[0] == 0).double().mean())
            assert 0.1 < zeros < 0.9
        given = batch_of(12, seed + 100) if seed == 8 else batch  # what was done before is of another batch
        assert same(engine.clipped_sum(given, 0.1), plain.clipped_sum(given, 0.1))
    assert ahead > 3
    assert next(seeds) == next(others) == 10


@pytest.mark.parametrize("kind", ["microbatches", "one row", "not rows"])
def test_nothing_is_done_before_a_step_of_several_passes(kind: str) -> None:
    def odd(model: nn.Module, batch: Any) -> Tensor:
        found = loss(model, batch)
        note_byproducts([found.sum()] if kind == "not rows" else [])
        return found

    chosen = EngineSettings(capture=True, microbatch_size=5 if kind == "microbatches" else None)
    engine = Engine(Net(), odd, chosen)
    for seed in range(6):
        batch = batch_of(1 if kind == "one row" else 10, seed)
        assert engine.before_step(batch, 0.1) == []
        engine.clipped_sum(batch, 0.1)


def test_no_seed_of_masks_is_in_the_sums_of_two_batches() -> None:
    seeds = iter(range(1000))
    engine = Engine(Dropped(), loss, EngineSettings(capture=True), seeds=lambda: next(seeds))
    for seed in range(6):
        engine.clipped_sum(batch_of(12, seed), 0.1)
    batch = batch_of(12, 7)
    assert engine.before_step(batch, 0.1)  # seed 6
    engine.clipped_sum(batch_of(5, 8), 0.1)  # takes it, and is not replayed
    own = Engine(Dropped(), loss, EngineSettings(capture=False), seeds=lambda: 7)
    assert same(engine.clipped_sum(batch, 0.1), own.clipped_sum(batch, 0.1))


def test_rows_that_are_written_before_the_step_count() -> None:
    model = Net()
    engine, plain = (
        Engine(model, loss, EngineSettings(capture=True)),
        Engine(model, loss, EngineSettings(capture=False)),
    )
    done = 0
    for seed in range(8):
        batch = batch_of(12, seed)
        done += bool(engine.before_step(batch, 0.1))
        batch[0].mul_(2.0)
        assert same(engine.clipped_sum(batch, 0.1), plain.clipped_sum(batch, 0.1))
    assert done


def test_memory_that_runs_out_before_a_step_is_left_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, failing = Engine(Net(), loss, EngineSettings(capture=True)), list[int]()
    own = Captured.replay

    def replay(self: Captured, *given: Any) -> Any:
        if failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return own(self, *given)

    monkeypatch.setattr(Captured, "replay", replay)
    for seed in range(6):
        engine.clipped_sum(batch_of(12, seed), 0.1)
    failing.append(1)
    batch = batch_of(12, 7)
    assert engine.before_step(batch, 0.1) == []
    failing.clear()
    assert engine.clipped_sum(batch, 0.1).diagnostics.examples == 12
