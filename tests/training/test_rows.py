"""A batch is exactly the rows that were drawn, in the shape the data came in; rows in memory are told from what they
were."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from decrescendo.base.batches import map_rows
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training.data.rows import rows

X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
CHOSEN = np.array([1, 4, 5])


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index)]), "y": index**2}


class Endless(IterableDataset[Any]):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("data", "look"),
    [
        ((X, Y), lambda b: b),
        ([X, Y], lambda b: b),
        ({"x": X, "y": Y}, lambda b: (b["x"], b["y"])),
        ({"x": {"deep": X}, "y": (Y,)}, lambda b: (b["x"]["deep"], b["y"][0])),
        (Pair(X, Y), lambda b: (b.inputs, b.targets)),
        (TensorDataset(X, Y), lambda b: b),
    ],
)
def test_rows_of_a_pytree(data: Any, look: Any) -> None:
    found = rows(data)
    x, y = look(found.take(CHOSEN))
    assert found.count == 6
    assert torch.equal(x, X[[1, 4, 5]])
    assert torch.equal(y, Y[[1, 4, 5]])


def test_rows_of_a_map_style_data_set() -> None:
    found = rows(Squares())
    batch = found.take(CHOSEN)
    assert found.count == 6
    assert batch["y"].tolist() == [1, 16, 25]
    assert batch["x"].shape == (3, 1)


def test_a_batch_is_a_copy() -> None:
    # An in-place transform of a batch must not change the data set.
    data = X.clone()
    rows((data,)).take(CHOSEN)[0].zero_()
    assert torch.equal(data, X)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((X, Y[:5]), InvalidValue, r"same first dimension, got sizes \[5, 6\]"),
        ((), InvalidValue, "at least one tensor"),
        ((X, torch.tensor(1.0)), InvalidValue, "without dimensions"),
        ("digits", InvalidType, "got str"),
        ((X, [1, 2]), InvalidType, "got a int in it"),
        (Endless(), InvalidType, "map-style"),
    ],
)
def test_what_is_not_rows_is_refused(data: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rows(data)


def test_items_of_which_no_rows_are_made_are_refused() -> None:
    with pytest.raises(InvalidType, match=r"got another thing: .*NoneType.*Give a collate_fn"):
        rows([None] * 6).take(CHOSEN)


def test_a_table_whose_items_are_columns_is_refused() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(InvalidType, match=r"Table of pyarrow, of which data\[i\] is a column"):
        rows(pyarrow.table({"x": [1.0, 2.0], "y": [0, 1]}))


class Record(Mapping[str, Any]):
    """A row of columns; made from its number, not from what is in it."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __getitem__(self, key: str) -> Any:
        return {"x": X, "y": Y}[key][self.index]

    def __iter__(self) -> Iterator[str]:
        return iter("xy")

    def __len__(self) -> int:
        return 2


def test_mappings_of_a_kind_of_ones_own_are_rows() -> None:
    found: Any = rows([Record(i) for i in range(6)]).take(CHOSEN)
    assert torch.equal(found["x"], X[CHOSEN])
    assert torch.equal(found["y"], Y[CHOSEN])


def test_a_batch_of_a_kind_that_is_not_made_from_its_items_is_refused() -> None:
    with pytest.raises(InvalidType, match=r"made from its items alone, got Record \("):
        map_rows(lambda column: column[None], Record(0))
