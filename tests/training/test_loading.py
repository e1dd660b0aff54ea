"""Data as PyTorch people have it: the same batches, and the same transforms, whoever makes them and how far ahead."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import some
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from decrescendo.base.batches import Ragged, map_rows
from decrescendo.base.rng import Secure
from decrescendo.errors import DecrescendoError, InvalidType, InvalidValue, PlanViolation
from decrescendo.training import Checkpoints, Trainer, train
from decrescendo.training.data.examples import EXAMPLES_APART, Draw, Examples, bits
from decrescendo.training.data.rows import rows, table_of

from .conftest import ROWS, loss, make_model, make_plan, sgd

Pair = tuple[Tensor, Tensor]
PLAN = {"noise": (2.0, 1.5, 1.2, 1.0, 1.0, 1.0), "clip": (1.0, 0.8, 0.5, 0.5, 0.5, 0.5)}


class Noisy(Dataset[Any]):
    """Each access adds numbers of all three global generators, as augmentations do."""

    def __init__(self, data: Pair) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, index: int) -> Any:
        moved = torch.randn(3) * 0.1 + float(np.random.rand()) * 0.1 + random.random() * 0.1
        return self.data[0][index] + moved, self.data[1][index]


def shifted(items: list[Any]) -> Any:
    """A collator that draws, as that of masked language models does."""
    inputs, labels = default_collate(items)
    return inputs + torch.rand(len(items), 1), labels


def drawn(data: object, *, seed: Any = 0, batch: float = 4, **loading: Any) -> list[Any]:
    """The batches of a training."""
    model = make_model()
    trainer = Trainer(model, loss, make_plan(**PLAN, batch=batch), sgd(model), seed=seed)
    found: list[Any] = []
    for one in trainer.batches(data, **loading):
        found.append(one)
        trainer.step(one)
    return found


def same(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("collate_fn", some([None, shifted], 1), ids=["default", "drawing"])
def test_batches_and_transforms_do_not_depend_on_the_workers(data: Pair, collate_fn: Any) -> None:
    alone = drawn(Noisy(data), collate_fn=collate_fn)
    for workers in (1, 2):
        found = drawn(Noisy(data), collate_fn=collate_fn, num_workers=workers)
        assert all(map(same, alone, found))
    assert not all(map(same, alone, drawn(Noisy(data), collate_fn=collate_fn, seed=1)))


def test_an_empty_batch_is_a_step_with_workers_too(data: Pair) -> None:
    for workers in (0, 2):
        found = drawn(Noisy(data), batch=0.5, num_workers=workers)
        assert len(found) == 6
        assert any(batch is None for batch in found)
    assert len(drawn(Noisy(data), seed=Secure(), batch=0.5, num_workers=2)) == 6


@pytest.mark.slow
def test_columns_are_loaded_by_workers_too(data: Pair) -> None:
    assert all(map(same, drawn(data), drawn(data, num_workers=2)))
    assert all(map(same, drawn(data), drawn(TensorDataset(*data), collate_fn=default_collate)))
    assert all(map(same, drawn(data), drawn(data, collate_fn=default_collate, num_workers=1)))


@given(st.sets(st.integers(0, ROWS - 1), min_size=1), st.integers(0, 2**63 - 1))
def test_a_row_is_a_function_of_its_example_and_the_steps_key_alone(chosen: set[int], key: int) -> None:
    """Not of the others in the batch, of its place, or of what was drawn before."""
    table = Examples(Noisy((torch.zeros(ROWS, 3), torch.arange(ROWS))), shifted)
    inputs, labels = table.take(Draw(np.array(sorted(chosen)), key))
    for row, index in enumerate(sorted(chosen)):
        torch.rand(3)
        alone = table.take(Draw(np.array([index]), key))
        assert torch.equal(alone[0][0], inputs[row])
        assert labels[row] == index
    others = table.take(Draw(np.array(sorted(chosen)), key ^ 1))
    assert not torch.isclose(others[0], inputs).any()


@pytest.mark.slow
def test_transforms_are_spread_as_their_law_says(data: Pair) -> None:
    """Numbers that begin anew for every example follow no pattern: uniform, and uncorrelated between examples."""
    items = [None] * 4000
    table = Examples(items, lambda items: torch.rand(1, 2))
    found = torch.stack([table.take(Draw(np.arange(4000), key)) for key in range(4)])
    for column in found.flatten(0, 1).T:
        counts = torch.histc(column, 20, 0, 1)
        assert float(((counts - 800) ** 2 / 800).sum()) < 50.8  # chi-squared with 19 degrees, 1 in 10,000
        half = torch.histc(column * 0.97, 20, 0, 1)  # and the test has the power to see 3 %
        assert float(((half - 800) ** 2 / 800).sum()) > 50.8
    flat = found[..., 0].flatten()
    assert abs(float(torch.corrcoef(torch.stack([flat[1:], flat[:-1]]))[0, 1])) < 4 / len(flat) ** 0.5


def test_the_global_generators_are_neither_read_nor_moved(data: Pair) -> None:
    def state() -> tuple[Any, ...]:
        # (Python's too, but here the run-time type checker draws from it: see the next test.)
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]

    for workers in (0, 1):
        found: list[list[Any]] = []
        for number in (1, 2):
            model = make_model()
            trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
            torch.manual_seed(number)
            np.random.seed(number)
            random.seed(number)
            before = state()
            found.append([])
            for batch in trainer.batches(Noisy(data), shifted, workers):
                found[-1].append(batch)
                trainer.step(batch)
            assert state() == before
        assert all(map(same, *found))


UNHOOKED = """
import random
import torch
from torch.utils.data import TensorDataset
from decrescendo.errors import DecrescendoError
from decrescendo.training.data.rows import table_of
from decrescendo.training.data.examples import Draw
import numpy as np

table = table_of(TensorDataset(torch.arange(9.0)), lambda items: torch.tensor([random.random()]))
before = random.getstate()
one = table.take(Draw(np.arange(3), 1))
random.random()
print(torch.equal(one, table.take(Draw(np.arange(3), 1))), len(set(one.tolist())))
random.setstate(before)
table.take(Draw(np.arange(3), 1))
print(random.getstate() == before)
try:
    table_of([1.0], 3)
except DecrescendoError as error:
    print(error)
"""


@pytest.mark.slow
def test_pythons_own_numbers_and_wrong_types_without_the_test_hook() -> None:
    done = subprocess.run([sys.executable, "-c", UNHOOKED], capture_output=True, text=True, check=True)
    same, untouched, wrong = done.stdout.splitlines()
    assert (same, untouched) == ("True 3", "True")
    assert wrong == "collate_fn must be a function from a list of examples to a batch, got int"


@pytest.mark.slow
def test_a_loop_that_pauses_draws_again_what_was_made_ahead(data: Pair) -> None:
    whole, found = drawn(Noisy(data)), []
    model = make_model()
    trainer = Trainer(model, loss, make_plan(**PLAN, batch=4), sgd(model), seed=0)
    for workers in (2, 0, 2):
        for batch in trainer.batches(Noisy(data), num_workers=workers):
            found.append(batch)
            if trainer.step(batch).step % 2 == 0:
                break
    assert all(map(same, whole, found))
    assert len(whole) == len(found)


def test_two_iterators_at_once_would_draw_the_same_batches(data: Pair) -> None:
    model = make_model()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    first, second = trainer.batches(data), trainer.batches(data)
    trainer.step(next(first))
    trainer.step(next(second))
    with pytest.raises(PlanViolation, match="one iterator at a time"):
        next(first)
    trainer.step(next(second))


@pytest.mark.parametrize("seed", [0, Secure()], ids=["seeded", "secure"])
def test_a_resumed_run_has_the_same_batches_whatever_was_made_ahead(data: Pair, tmp_path: Path, seed: Any) -> None:
    """The checkpoint says where the drawing is of the steps taken, not of what workers have made."""
    seen: list[Any] = []

    def life(until: int, workers: int, kept: Checkpoints) -> None:
        model = make_model()
        trainer = Trainer(model, loss, make_plan(**PLAN), sgd(model), seed=seed, checkpoints=kept)
        for batch in trainer.batches(Noisy(data), num_workers=workers):
            step = trainer.step(batch).step
            seen.append((step, batch, [p.detach().clone() for p in model.parameters()]))
            if step == until:
                break  # a crash: the checkpoint is of the step before

    life(4, 2, Checkpoints(tmp_path, 2, resume=True))
    life(6, 0, Checkpoints(tmp_path, 2, resume=True))
    by_step: dict[int, list[Any]] = {}
    for step, *rest in seen:
        by_step.setdefault(step, []).append(rest)
    assert [len(by_step[step]) for step in range(1, 7)] == [1, 1, 2, 2, 1, 1]
    for step in (3, 4):
        (one, weights), (two, others) = by_step[step]
        assert same(one, two)
        assert all(map(torch.equal, weights, others))


def test_views_of_an_example_are_averaged_before_clipping(data: Pair) -> None:
    """Four views are a dimension after the first: one gradient per example, of their mean loss."""

    def views(items: list[Any]) -> Any:
        ((inputs, label),) = items
        return torch.stack([inputs + 0.1 * torch.randn(3) for _ in range(4)])[None], label[None]

    def mean(model: nn.Module, batch: Pair) -> Tensor:
        views, labels = batch
        each = loss(model, (views.flatten(0, 1), labels.repeat_interleave(4)))
        return each.unflatten(0, (-1, 4)).mean(1)

    from decrescendo.clipping import Engine, Reference

    batch = table_of(TensorDataset(*data), views).take(Draw(np.arange(6), 7))
    assert batch[0].shape == (6, 4, 3)
    model = make_model()
    engine, slow = Engine(model, mean), Reference(model, mean)
    torch.testing.assert_close(engine.clipped_sum(batch, 0.2).gradients, slow.clipped_sum(batch, 0.2).gradients)
    one = Engine(model, loss).clipped_sum((batch[0][0], batch[1][:1].repeat(4)), float("inf"))
    averaged = engine.clipped_sum((batch[0][:1], batch[1][:1]), float("inf"))
    for name, gradient in averaged.gradients.items():
        torch.testing.assert_close(gradient, one.gradients[name] / 4)
    assert engine.assumptions == ()
    plan = make_plan()
    run = train(model, mean, TensorDataset(*data), plan, sgd(model), seed=0, collate_fn=views)
    assert run.assumptions == (EXAMPLES_APART,)


def test_lists_arrays_memory_maps_and_data_frames_are_rows(data: Pair, tmp_path: Path) -> None:
    inputs, labels = data[0].numpy(), data[1].numpy()
    chosen = np.array([1, 4, 9])
    mapped = np.memmap(tmp_path / "rows", dtype="float32", mode="w+", shape=inputs.shape)
    mapped[:] = inputs
    for array in (inputs, mapped):
        assert torch.equal(rows(array).take(chosen), data[0][chosen])
    dicts = [{"x": x, "y": y} for x, y in zip(inputs, labels, strict=True)]
    batch = rows(dicts).take(chosen)
    assert torch.equal(batch["x"], data[0][chosen])
    assert torch.equal(batch["y"], data[1][chosen])
    pairs = list(zip(inputs, labels.tolist(), strict=True))
    assert same(rows(pairs).take(chosen), [data[0][chosen], data[1][chosen]])
    texts = [torch.arange(3), torch.arange(4)]  # with a collate_fn a list is examples, as torch has it
    assert isinstance(table_of(texts, lambda items: items[0][None]), Examples)


def test_the_rows_of_a_data_frame_and_of_datasets(data: Pair) -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    frame = pandas.DataFrame({"a": [0.5, 1.5, 2.5], "b": [1.0, 2.0, 3.0]}, index=[7, 8, 9])
    assert rows(frame).count == 3
    assert rows(frame).take(np.array([0, 2]))["b"].tolist() == [1.0, 3.0]
    assert rows(frame["a"]).take(np.array([1])).tolist() == [1.5]
    table = datasets.Dataset.from_dict({"x": data[0].tolist(), "y": data[1].tolist()})
    batch = rows(table.with_format("torch")).take(np.array([3, 5]))
    assert torch.equal(batch["x"], data[0][[3, 5]])
    with pytest.raises(InvalidType, match=r'got a list in x.*with_format\("torch"\)'):
        rows(table).take(np.array([0]))
    with pytest.raises(InvalidType, match=r"one data set, got 1 by name.*data\['train'\]"):
        rows(datasets.DatasetDict({"train": table}))
    with pytest.raises(InvalidType, match=r"items by number, data\[i\], got IterableDataset"):
        rows(table.to_iterable_dataset())


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


WRONG: list[tuple[str, Any, dict[str, Any], type[DecrescendoError], str]] = [
    ("a stream", Endless(), {}, InvalidType, "must have items by number"),
    ("a loader", DataLoader(TensorDataset(torch.zeros(ROWS, 3))), {}, InvalidType, "the loader's dataset, collate_fn"),
    ("a generator", (row for row in range(3)), {}, InvalidType, "must have items by number"),
    ("a text", "digits", {}, InvalidType, "got str"),
    ("a set", {1, 2}, {}, InvalidType, "must have items by number|got set"),
    ("texts", ["a", "b"] * 20, {}, InvalidType, "got a str in it. Give a collate_fn"),
    ("dicts of texts", [{"text": "a"} for _ in range(ROWS)], {}, InvalidType, "got a str in text. Give a collate_fn"),
    ("too few", [{"x": 1.0}] * 3, {}, InvalidValue, "must have the plan's 40 rows, got 3"),
    ("no workers", [1.0] * ROWS, {"num_workers": -1}, InvalidValue, "num_workers must be >= 0"),
    (
        "packed", [1.0] * ROWS, {"collate_fn": lambda items: torch.zeros(3, 2)}, InvalidValue,
        "collate_fn must make one row of one example, got 3 rows",
    ),
    (
        "no row", [1.0] * ROWS, {"collate_fn": lambda items: torch.zeros(0, 2)}, InvalidValue,
        "one row of one example, got 0 rows",
    ),
    (
        "lengths beside", [1.0] * ROWS, {"collate_fn": lambda items: (torch.zeros(1, 2), torch.tensor([0, 2]))},
        InvalidValue, "same first dimension",
    ),
    (
        "a number", [1.0] * ROWS, {"collate_fn": lambda items: {"x": torch.zeros(1), "size": 1}}, InvalidType,
        "got a int in it",
    ),
    ("a scalar", [1.0] * ROWS, {"collate_fn": lambda items: torch.tensor(3.0)}, InvalidValue, "one row per example"),
    ("nothing", [1.0] * ROWS, {"collate_fn": lambda items: None}, InvalidValue, "at least one tensor"),
    (
        "rows and a collator", rows((torch.zeros(ROWS, 3),)), {"collate_fn": default_collate}, InvalidType,
        "Rows must come without collate_fn",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("data", "loading", "error", "words"), [case[1:] for case in WRONG], ids=[c[0] for c in WRONG])
@pytest.mark.parametrize("workers", [0, 1])
def test_wrong_data_are_one_clear_sentence(
    data: Any, loading: dict[str, Any], error: type[Exception], words: str, workers: int
) -> None:
    model = make_model()
    trainer = Trainer(model, loss, make_plan(batch=20), sgd(model), seed=0)
    with pytest.raises(error, match=words) as caught:
        next(trainer.batches(data, **{"num_workers": workers, **loading}))
    assert "\n" not in str(caught.value)
    assert trainer.ledger.steps == 0


def test_a_ragged_batch_may_be_transformed(data: Pair) -> None:
    texts = [torch.arange(2.0), torch.arange(3.0)] * 20
    batch = table_of(texts, lambda items: items[0][None]).take(Draw(np.arange(4)))
    assert isinstance(batch, Ragged)
    doubled = map_rows(lambda part: part * 2, batch)
    assert [part.tolist() for part in doubled.parts] == [[[0, 2]] * 2, [[0, 2, 4]] * 2]


class Halved(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x / 2, y


def test_a_tensor_data_sets_own_items_are_trained_on() -> None:
    model, kept = make_model(), Halved(torch.ones(ROWS, 3), torch.zeros(ROWS).long())
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    batch = next(batch for batch in trainer.batches(kept) if batch is not None)
    assert isinstance(batch, (list, tuple))
    assert float(batch[0].max()) == 0.5


def test_of_a_data_frame_each_column_keeps_its_dtype() -> None:
    pandas = pytest.importorskip("pandas")
    large = 2**53 + 1
    frame = pandas.DataFrame({"x": np.ones(ROWS, "float32"), "id": np.full(ROWS, large)})
    model = nn.Linear(1, 1)
    trainer = Trainer(model, lambda m, b: m(b["x"][:, None])[:, 0], make_plan(), sgd(model), seed=0)
    batch: Any = next(batch for batch in trainer.batches(frame) if batch is not None)
    assert (batch["x"].dtype, batch["id"].dtype, int(batch["id"][0])) == (torch.float32, torch.int64, large)
    twice = pandas.DataFrame(np.ones((ROWS, 2)), columns=["x", "x"])
    with pytest.raises(InvalidValue, match="names of their own"):
        trainer.batches(twice)


def test_columns_may_be_arrays_and_many_tensors_in_a_list_must_say_what_they_are() -> None:
    x, y = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32"), np.arange(ROWS) % 2
    x.flags.writeable = False
    for data in ((x, y), {"x": x, "y": y}):

        def of(m: nn.Module, batch: Any) -> Tensor:
            return loss(m, tuple(batch.values()) if isinstance(batch, dict) else batch)

        found, wanted = (make_model() for _ in range(2))
        train(found, of, data, make_plan(), sgd(found), seed=0)
        train(wanted, loss, (torch.tensor(x), torch.tensor(y)), make_plan(), sgd(wanted), seed=0)
        for one, other in zip(found.parameters(), wanted.parameters(), strict=True):
            assert torch.equal(one, other)
    model = make_model()
    with pytest.raises(InvalidValue, match=r"torch\.stack"):
        train(model, loss, [torch.randn(3) for _ in range(ROWS)], make_plan(), sgd(model), seed=0)


@pytest.mark.parametrize("change", [list[Any].pop, lambda items: items.append(items[0])])
def test_data_that_change_their_length_in_a_run_are_refused(data: Pair, change: Callable[[list[Any]], object]) -> None:
    items = list(zip(*data, strict=True))
    model = make_model()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    batches = trainer.batches(items)
    trainer.step(next(batches))
    change(items)
    with pytest.raises(InvalidValue, match=r"keep their number of examples .*, 40, got (39|41)"):
        next(batches)


def test_rows_that_are_written_in_a_run_are_refused(data: Pair) -> None:
    columns = data[0].clone(), data[1].clone()
    model = make_model()
    trainer = Trainer(model, loss, make_plan(**PLAN, batch=4), sgd(model), seed=0)
    batches = trainer.batches(columns)
    trainer.step(next(batches))
    columns[0].copy_(columns[0].flip(0))
    with pytest.raises(InvalidValue, match="data must stay as they are"):
        next(batches)


def test_a_list_that_is_shuffled_in_a_run_is_refused(data: Pair) -> None:
    listed = list(zip(*data, strict=True))
    model = make_model()
    trainer = Trainer(model, loss, make_plan(**PLAN, batch=4), sgd(model), seed=0)
    batches = trainer.batches(listed)
    trainer.step(next(batches))
    listed.reverse()
    with pytest.raises(InvalidValue, match="data must stay as they are"):
        next(batches)


def test_rows_beside_others_that_are_written_are_not_refused(data: Pair) -> None:
    """Parts of one tensor count each other's writes."""
    both = torch.cat([data[0], data[0]])
    rows, others = both.split(ROWS)
    model = make_model()
    trainer = Trainer(model, loss, make_plan(**PLAN, batch=4), sgd(model), seed=0)
    for batch in trainer.batches((rows, data[1])):
        trainer.step(batch)
        others.zero_()


def test_tables_of_datasets_are_read_at_once_with_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(
        {"ids": [list(range(3 + i % 3)) for i in range(12)], "y": [i / 7 for i in range(12)]}
    )
    single, own = list[int](), datasets.Dataset.__getitem__

    def noting(self: Any, index: Any) -> Any:
        single.extend([index] if isinstance(index, int) else [])
        return own(self, index)

    monkeypatch.setattr(datasets.Dataset, "__getitem__", noting)

    def padded(items: list[Any]) -> Pair:
        ids, noise = torch.as_tensor(items[0]["ids"]), torch.rand(1, 1)
        return nn.functional.pad(ids, (0, 5 - len(ids)))[None] + noise, torch.as_tensor(items[0]["y"]).reshape(1)

    of_table, of_list = Examples(table, padded), Examples([table[i] for i in range(12)], padded)
    for indices in ([0, 1, 5], [2, 3, 4, 7], [11]):
        draw = Draw(np.array(indices), key=5)
        single.clear()
        found = of_table.take(draw)
        assert bits(found) == bits(of_list.take(draw))
    assert single == [11]  # made again, to be compared
    table.set_transform(lambda rows: rows)
    assert Examples(table, padded)._at_once is False


def test_a_row_of_a_formatted_table_is_the_same_beside_a_missing_value() -> None:
    """Read at once, the number of row 0 would be rounded to float32 because row 1 has none."""
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"n": [2**24 + 1, None, 2**24 + 3]}).with_format("torch")

    def numbers(items: list[Any]) -> torch.Tensor:
        return torch.nan_to_num(items[0]["n"].double()).reshape(1)

    examples = Examples(table, numbers)
    assert examples.take(Draw(np.array([0, 2]))).tolist() == [2**24 + 1, 2**24 + 3]
    assert examples.take(Draw(np.array([0, 1]))).tolist() == [2**24 + 1, 0]
