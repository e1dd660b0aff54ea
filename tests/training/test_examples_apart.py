"""What a data set or a collator keeps of one example for another mixes them before the batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from decrescendo.errors import InvalidValue
from decrescendo.training import Checkpoints, Trainer, train
from decrescendo.training.data.examples import EXAMPLES_APART
from decrescendo.training.data.rows import ROWS_APART, Rows, table_of

from .conftest import ROWS, loss, make_model, make_plan, sgd

Pair = tuple[Tensor, Tensor]


class Items(Dataset[Any]):
    """Examples as `change` leaves them."""

    def __init__(self, data: Pair, change: Callable[[Tensor], Tensor] = torch.clone) -> None:
        self.data, self.change = data, change

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, index: int) -> Any:
        return self.change(self.data[0][index]), self.data[1][index]


def run_of(data: Any, collate_fn: Any = None, workers: int = 0) -> Any:
    model = make_model()
    trainer = Trainer(model, loss, make_plan(batch=6), sgd(model), seed=0)
    for batch in trainer.batches(data, collate_fn, workers):
        trainer.step(batch)
    return trainer.finish()


def running_mean() -> Callable[[Tensor], Tensor]:
    seen: list[Tensor] = []

    def centred(row: Tensor) -> Tensor:
        seen.append(row)
        return row - torch.stack(seen).mean(0)

    return centred


def counter() -> Callable[[Tensor], Tensor]:
    count = [0]

    def numbered(row: Tensor) -> Tensor:
        count[0] += 1
        return row * count[0]

    return numbered


def neighbour() -> Callable[[Tensor], Tensor]:
    last = [torch.zeros(3)]

    def mixed(row: Tensor) -> Tensor:
        mean, last[0] = (row + last[0]) / 2, row.clone()
        return mean

    return mixed


def generator() -> Callable[[Tensor], Tensor]:
    """One more example moves the masks of all that follow it."""
    own = np.random.default_rng(0)
    return lambda row: row * torch.from_numpy(own.integers(0, 2, 3)).float()


def buffer() -> Callable[[Tensor], Tensor]:
    """One tensor for all examples: each row of the batch is the last."""
    held = torch.zeros(3)
    return held.copy_


@pytest.mark.parametrize("make", [running_mean, counter, neighbour, generator, buffer])
@pytest.mark.parametrize("workers", some([2, 0], 1))
def test_state_between_examples_is_refused_in_the_data_set_and_in_the_collator(
    data: Pair, make: Callable[[], Callable[[Tensor], Tensor]], workers: int
) -> None:
    with pytest.raises(InvalidValue, match=r"from itself alone.*Keep nothing from one example"):
        run_of(Items(data, make()), workers=workers)
    change = make()

    def collate(items: list[Any]) -> Any:
        return default_collate([(change(x).clone() if make is not buffer else change(x), y) for x, y in items])

    if make is not buffer:  # `default_collate` copies what it is given
        with pytest.raises(InvalidValue, match="from itself alone"):
            run_of(data, collate, workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_global_generators_and_a_generator_begun_anew_are_accepted(data: Pair, workers: int) -> None:
    def drawn(row: Tensor) -> Tensor:
        own = np.random.default_rng(torch.initial_seed())
        return row + torch.randn(3) + float(np.random.rand()) + torch.from_numpy(own.standard_normal(3)).float()

    run = run_of(Items(data, drawn), workers=workers)
    assert run.assumptions == (EXAMPLES_APART,)
    assert run.rows_independent
    assert f"rows independent: yes, checked at every pass\n{EXAMPLES_APART}" in run.describe()


def test_a_cache_makes_no_difference_and_is_accepted(data: Pair) -> None:
    kept: dict[int, Any] = {}

    class Cached(Items):
        def __getitem__(self, index: int) -> Any:
            return kept.setdefault(index, super().__getitem__(index))

    assert run_of(Cached(data)).assumptions == (EXAMPLES_APART,)


def test_where_no_code_of_a_users_runs_nothing_is_supposed(data: Pair) -> None:
    inputs, labels = data
    pairs = [(x, y) for x, y in zip(inputs, labels, strict=True)]
    plain: list[Any] = [data, TensorDataset(*data), pairs, Subset(TensorDataset(*data), list(range(ROWS)))]
    for one in plain:
        assert not run_of(one).assumptions, type(one)
    assert run_of(Subset(Items(data), list(range(ROWS)))).assumptions
    assert run_of(pairs, default_collate).assumptions


def test_rows_of_a_users_own_are_compared_with_a_row_alone(data: Pair) -> None:
    inputs, labels = data

    def apart(indices: Any) -> Any:
        chosen = torch.from_numpy(indices)
        return inputs[chosen] @ torch.eye(3) * 2, labels[chosen]

    def centred(indices: Any) -> Any:
        chosen = inputs[torch.from_numpy(indices)]
        return chosen - chosen.mean(0), labels[torch.from_numpy(indices)]

    def random(indices: Any) -> Any:
        chosen = torch.from_numpy(indices)
        return inputs[chosen] + torch.randn(len(chosen), 3), labels[chosen]

    for take in (apart, random):
        assert run_of(Rows(ROWS, take)).assumptions == (ROWS_APART,)
    for workers in (0, 1):
        with pytest.raises(InvalidValue, match="taken alone"):
            run_of(Rows(ROWS, centred), workers=workers)


def test_a_tensor_class_of_the_users_is_named(data: Pair) -> None:
    class Image(torch.Tensor):
        pass

    run = run_of((data[0].as_subclass(Image), data[1]))
    assert [found.code for found in run.assumptions] == ["own-tensor-class"]
    assert "Image (your data class)" in run.assumptions[0].sentence


def test_what_was_supposed_is_kept_over_a_resume(data: Pair, tmp_path: Any) -> None:
    def trainer(*, resume: bool) -> Trainer:
        model, kept = make_model(), Checkpoints(tmp_path, every=1, resume=resume)
        return Trainer(model, loss, make_plan(), sgd(model), seed=0, checkpoints=kept)

    first = trainer(resume=False)
    for taken, batch in enumerate(first.batches(Items(data))):
        if taken == 2:
            break
        first.step(batch)
    second = trainer(resume=True)
    for batch in second.batches(data):
        second.step(batch)
    assert second.finish().assumptions == (EXAMPLES_APART,)


class Centred(Tensor):
    """Centres what is selected of it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.index_select:
            plain = found.as_subclass(Tensor)
            return plain - plain.mean(0)
        return found


class Shifting(list[int]):
    """Other indices each time."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__((index + self.reads) % ROWS)


class Frame:
    """Looks like a data frame, and mixes neighbours."""

    def __init__(self, data: Pair) -> None:
        self.data, self.iloc, self.last = data, self, torch.zeros(3)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        mixed, self.last = (self.data[0][index] + self.last) / 2, self.data[0][index]
        return mixed, self.data[1][index]


def test_code_that_hides_in_a_container_is_a_users_code(data: Pair) -> None:
    inputs, labels = data
    for mixing in (
        (inputs.as_subclass(Centred), labels),
        Subset(TensorDataset(*data), Shifting(range(ROWS))),
        Frame(data),
    ):
        with pytest.raises(InvalidValue, match=r"from itself alone|taken alone"):
            run_of(mixing)
    rows = [(x.as_subclass(Centred), y) for x, y in zip(inputs, labels, strict=True)]
    assert run_of(rows).assumptions == (EXAMPLES_APART,)


def frame(column: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"x": column, "y": np.arange(ROWS) % 2})


def of_frame(model: nn.Module, batch: Any) -> Tensor:
    x = batch["x"].float().reshape(len(batch["y"]), -1)
    return nn.functional.cross_entropy(model(x), batch["y"], reduction="none")


def listed(column: Any, features: int = 1) -> tuple[Any, ...]:
    model = nn.Linear(features, 2)
    return train(model, of_frame, frame(column), make_plan(), sgd(model), seed=0).assumptions


def test_columns_of_objects_and_of_a_users_class_are_assumed_to_keep_rows_apart() -> None:
    api = pytest.importorskip("pandas.api.extensions")

    class Share(Tensor):
        pass

    class MeanDtype(api.ExtensionDtype):
        name, type = "mean", float

        @classmethod
        def construct_array_type(cls) -> Any:
            return Shares

    class Shares(api.ExtensionArray):
        """Centred by its mean when it is read."""

        dtype, nbytes = MeanDtype(), 0

        def __init__(self, values: Any) -> None:
            self.values = np.asarray(values, float)

        def __len__(self) -> int:
            return len(self.values)

        def __getitem__(self, index: Any) -> Any:
            one = isinstance(index, (int, np.integer))
            return float(self.values[index] - self.values.mean()) if one else Shares(self.values[index])

        def copy(self) -> Any:
            return Shares(self.values.copy())

        def isna(self) -> Any:
            return np.isnan(self.values)

        @classmethod
        def _from_sequence(cls, values: Any, dtype: Any = None, copy: bool = False) -> Any:
            return cls(values)

    objects = np.empty(ROWS, dtype=object)
    objects[:] = [row.as_subclass(Share) for row in torch.randn(ROWS, 3)]
    assert EXAMPLES_APART in listed(objects, 3)
    assert EXAMPLES_APART in listed(Shares(np.random.default_rng(0).normal(size=ROWS)))


@pytest.mark.parametrize("dtype", ["float32", "int8", "Float64", "Int32", "bool", "boolean"])
def test_columns_of_numbers_assume_nothing(dtype: str) -> None:
    pandas = pytest.importorskip("pandas")
    assert listed(pandas.Series(np.ones(ROWS), dtype="float64").astype(dtype)) == ()


def test_categories_that_are_objects_are_not_held_as_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    for categories, held in (([1.0, 2.0], True), ([1.0, object()], False)):
        column = pandas.Categorical([1.0] * ROWS, categories=categories)
        assert (table_of(frame(column)).held is not None) is held
