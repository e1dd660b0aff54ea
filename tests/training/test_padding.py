"""Rows of different lengths: padding them to the longest of a batch would let one change another's gradient."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.utils.data import Dataset

import decrescendo as dc
from decrescendo.audit.probe import with_canaries
from decrescendo.base.batches import Ragged
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import InvalidValue, UnsupportedModel
from decrescendo.training import Task, Trainer, train_task
from decrescendo.training.data.examples import EXAMPLES_APART, Draw
from decrescendo.training.data.rows import rows, table_of
from decrescendo.training.search import tuning
from decrescendo.training.search.space import default_space

from .conftest import make_plan

LENGTHS = (3, 7, 3, 5, 7, 7, 2, 3)


class Texts(Dataset[Any]):
    """Token ids, some rows longer than others."""

    def __init__(self, lengths: tuple[int, ...] = LENGTHS) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return {"ids": torch.arange(self.lengths[index]) * (index + 1) % 11, "y": index % 2}


class Reader(nn.Module):
    """Attention with a mask, and the mean over what is there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(12, 8, padding_idx=11)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.top = nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        there = ids != 11
        found = self.layer(self.words(ids), src_key_padding_mask=~there) * there[..., None]
        return self.top(found.sum(1) / there.sum(1, keepdim=True))


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch["ids"]), batch["y"], reduction="none")


def padded_to(multiple: int) -> Any:
    def collate(items: list[Any]) -> Any:
        longest = max(len(item["ids"]) for item in items)
        width = -(-longest // multiple) * multiple
        ids = [nn.functional.pad(item["ids"], (0, width - len(item["ids"])), value=11) for item in items]
        return {"ids": torch.stack(ids), "y": torch.tensor([item["y"] for item in items])}

    return collate


def test_no_row_is_as_long_as_another_makes_it() -> None:
    batch = rows(Texts()).take(np.arange(8))
    assert isinstance(batch, Ragged)
    assert [tuple(part["ids"].shape) for part in batch.parts] == [(3, 3), (3, 7), (1, 5), (1, 2)]
    assert batch.rows == 8


@pytest.mark.parametrize("multiple", [1, 4, 16])
def test_a_collator_pads_each_example_by_itself(multiple: int) -> None:
    """torch calls it with a whole batch, and then one long row pads all others."""
    together, alone = table_of(Texts(), padded_to(multiple)), Texts()
    for key, chosen in enumerate([(0, 1), (0, 3), (0, 1, 2, 3, 4, 5, 6, 7)]):
        batch = together.take(Draw(np.array(chosen), key))
        parts = batch.parts if isinstance(batch, Ragged) else (batch,)
        found = [row for part in parts for row in part["ids"]]
        widths = sorted(len(row) for row in found)
        assert widths == sorted(-(-alone.lengths[i] // multiple) * multiple for i in chosen)
    if multiple == 16:
        assert not isinstance(batch, Ragged)


@pytest.mark.parametrize("multiple", some([4, 1, 16], 1))
def test_the_clipped_sum_of_a_ragged_batch_is_that_of_its_examples(multiple: int) -> None:
    """Whatever they are padded to, as this model has a mask: against autograd on one unpadded example at a time."""
    model = Reader()
    plain = table_of(Texts(), padded_to(1)).take(Draw(np.arange(8)))
    batch = table_of(Texts(), padded_to(multiple)).take(Draw(np.arange(8)))
    engine = Engine(model, loss)
    for clip_norm in (0.3, 5.0):
        found, slow = (
            engine.clipped_sum(batch, clip_norm),
            Reference(model, loss).clipped_sum(plain, clip_norm),
        )
        for name in slow.gradients:
            torch.testing.assert_close(found.gradients[name], slow.gradients[name], rtol=2e-4, atol=2e-5)
        assert found.diagnostics.examples == slow.diagnostics.examples == 8
        assert found.diagnostics.clipped == slow.diagnostics.clipped
    assert len(engine.per_example_norms(batch)) == 8


def test_one_more_example_moves_the_sum_by_at_most_the_clip_norm_and_the_others_not_at_all() -> None:
    model, data = Reader(), rows(Texts())
    engine = Engine(model, loss)
    with_it, without = (engine.clipped_sum(data.take(chosen), 0.5) for chosen in (np.arange(8), np.arange(7)))
    alone = engine.clipped_sum(data.take(np.array([7])), 0.5)
    moved = {name: with_it.gradients[name] - without.gradients[name] for name in with_it.gradients}
    assert torch.cat([gap.flatten() for gap in moved.values()]).norm() <= 0.5 * (1 + 1e-6)
    for name, gap in moved.items():
        torch.testing.assert_close(gap, alone.gradients[name], rtol=1e-4, atol=1e-6)


def test_each_shape_is_proven_once_and_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = Reader(), rows(Texts())
    engine = Engine(model, loss)
    engine.clipped_sum(data.take(np.arange(8)), 1.0)
    passes: list[int] = []
    monkeypatch.setattr("decrescendo.clipping.program.run", _counted(passes))
    engine.clipped_sum(data.take(np.arange(8)), 1.0)
    assert passes == [3, 3, 2, 2]  # one a shape (one row is passed twice), and no small ones beside
    engine.clipped_sum(data.take(np.array([6])), 1.0)
    assert passes[4:] == [2]


def _counted(passes: list[int]) -> Any:
    from decrescendo.clipping import passes as module

    real = module.run

    def run(*args: Any, scored: bool) -> Any:
        passes.append(args[-1].count)
        return real(*args, scored=scored)

    return run


def test_a_shape_that_mixes_is_refused_after_others_that_do_not() -> None:
    def mixes_long_ones(model: nn.Module, batch: Any) -> Tensor:
        losses = loss(model, batch)
        return losses + losses.mean() if batch["ids"].shape[1] > 5 else losses

    engine, data = Engine(Reader(), mixes_long_ones), rows(Texts())
    engine.clipped_sum(data.take(np.array([0, 2, 3])), 1.0)
    with pytest.raises(UnsupportedModel):
        engine.clipped_sum(data.take(np.array([0, 1, 2])), 1.0)


@pytest.mark.slow
def test_more_shapes_than_are_remembered_are_proven_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decrescendo.clipping.comparison._SHAPES", 4)
    engine, data = Engine(Reader(), loss), rows(Texts(tuple(range(1, 8)) * 2))
    with pytest.warns(UserWarning, match="more than 4 shapes"):
        engine.clipped_sum(data.take(np.arange(14)), 1.0)
    assert len(engine._checker.comparison.by_shape) == 4
    assert engine.assumptions == ()


@pytest.mark.slow
def test_a_run_over_ragged_rows_is_the_run_over_padded_ones() -> None:
    plan = make_plan(rows=8, batch=4, noise=(2.0, 1.5, 1.2, 1.0), clip=(1.0, 0.8, 0.5, 0.5))
    found: list[Tensor] = []
    for multiple in (1, 4, 16):
        model = Reader()
        trainer = Trainer(model, loss, plan, torch.optim.Adam(model.parameters(), lr=0.01), seed=4)
        for batch in trainer.batches(Texts(), collate_fn=padded_to(multiple)):
            trainer.step(batch)
        run = trainer.finish()
        assert run.assumptions == (EXAMPLES_APART,)  # and nothing else: the engine proved them apart
        found.append(torch.cat([w.flatten() for w in run.weights.values()]))
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], found[2], rtol=1e-4, atol=1e-5)


def padded_task(multiple: int = 4, **changes: Any) -> Task:
    def score(model: nn.Module) -> dict[str, float]:
        batch = rows(Texts((4, 6)), padded_to(8)).take(np.arange(2))
        return {"loss": loss(model, batch).mean().item()}

    made = {"rows": 8, "batch": 4, "epochs": 2, "score": score, "learning_rate": 0.5, **changes}
    return Task(model=lambda seed: Reader(), loss=loss, data=lambda: Texts(), collate_fn=padded_to(multiple), **made)


def test_a_task_of_texts_trains_as_the_loop_does() -> None:
    plan = make_plan(rows=8, batch=4, noise=(2.0, 1.5), clip=(1.0, 0.8))
    run = train_task(padded_task(), plan, seed=3)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    same = dc.train(model, loss, Texts(), plan, optimizer, seed=3, collate_fn=padded_to(4))
    assert run.assumptions == same.assumptions == (EXAMPLES_APART,)
    assert all(torch.equal(run.weights[name], value) for name, value in same.weights.items())


def test_a_task_of_texts_knows_its_rows() -> None:
    task = Task(model=Reader(), loss=loss, data=Texts(), collate_fn=padded_to(4))
    assert (task.count, task.expected_batch) == (8, 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("public", [5, 11])
def test_settings_for_texts_are_searched_on_texts(public: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    kept = tuning.fit

    def look(*arguments: Any, **named: Any) -> Any:
        seen.append((arguments[2], named["collate_fn"]))
        return kept(*arguments, **named)

    monkeypatch.setattr(tuning, "fit", look)
    task, lengths = padded_task(), tuple(2 + index % 6 for index in range(public))
    free = replace(padded_task(), data=lambda: Texts(lengths), rows=public)
    space = default_space(task).changed({}, {"steps": 2})
    found = tuning.tune(task, free, dc.Budget(8.0, 1e-3), space, trials=1)
    assert math.isfinite(found.score)
    [(data, collate)] = seen
    # As many examples as the task has, and its noise; each padded by itself.
    assert len(data) == 8
    assert collate is free.collate_fn
    assert [len(data[i]["ids"]) for i in range(8)] == [lengths[i % public] for i in range(8)]


def test_the_audit_of_texts_wants_one_length() -> None:
    one_length = rows(Texts(), padded_to(8))
    inner, *_ = with_canaries(one_length, torch.tensor([True, False]), 1.0)
    assert inner["ids"].shape == (8, 8)
    assert torch.equal(inner["ids"][2], one_length.take(np.array([2]))["ids"][0])
    with pytest.raises(InvalidValue, match="Pad them to one length"):
        with_canaries(rows(Texts(), padded_to(1)), torch.tensor([True, False]), 1.0)


def test_noise_moves_the_row_of_padding() -> None:
    """A known limit (pitfalls.md): no example has a gradient there, and plain training leaves it as it is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(6, 4, padding_idx=2), nn.Linear(4, 2))
    before = model[0].weight[2].detach().clone()
    plan = dc.calibrate(dc.Budget(4.0, 1e-5), dc.PoissonSampling(60, 12), steps=2, clip=1.0)
    rows = torch.randint(6, (60, 5)), torch.arange(60) % 2

    def each(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    dc.train(model, each, rows, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
    assert (model[0].weight[2] != before).all()
