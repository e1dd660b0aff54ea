"""A batch is exactly the rows that were drawn, in the shape the data came in; rows in memory are told from what they
were."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from decrescendo.clipping.batches import map_rows
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training.data import rows
from decrescendo.training.examples import FrameRows
from decrescendo.training.held import Held

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


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "numbers": (lambda: [{"a": np.float32(1), "b": None, "c": "x"}], lambda rows: rows[0].update(b=0)),
    "texts": (lambda: np.array(["a", "bb"]), lambda rows: rows.__setitem__(0, "b")),
    "dates": (
        lambda: np.array(["2020-01-01"], "datetime64[D]"),
        lambda rows: rows.__setitem__(0, "2020-01-02"),
    ),
    "records": (lambda: np.zeros(3, [("a", "f4"), ("b", "i8")]), lambda rows: rows["b"].__setitem__(2, 1)),
    "every second": (lambda: np.arange(10.0)[::2], lambda rows: rows.__setitem__(4, 0)),
    "deep": (lambda: [[(1, {"a": [np.arange(3)]})]], lambda rows: rows[0][0][1]["a"][0].__setitem__(2, 7)),
    "order": (lambda: [torch.zeros(2), torch.ones(2)], lambda rows: rows.reverse()),
    "past the counters": (lambda: [(torch.zeros(2), 1)], lambda rows: rows[0][0].data.add_(1)),
    "sparse": (lambda: [(torch.eye(3).to_sparse(), 1)], lambda rows: rows[0][0]._values().mul_(2)),
    "half": (lambda: [torch.zeros(2, dtype=torch.bfloat16)], lambda rows: rows[0].neg_()),
    "columns": (lambda: TensorDataset(torch.zeros(3, 2)), lambda rows: rows.tensors[0].add_(1)),
    "which": (lambda: Subset([(1, 2)] * 4, [0, 2]), lambda rows: rows.indices.__setitem__(0, 1)),
    "of which": (lambda: Subset([[1, 2], [3, 4]], [0]), lambda rows: rows.dataset[0].append(3)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen_and_none_is_not(name: str) -> None:
    make, change = CASES[name]
    rows = make()
    held = Held(rows)
    before = held.look()
    assert held.look() == before == Held(make()).look()
    change(rows)
    assert held.look() != before


def test_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"a": [1, 2], "b": ["x", None], "c": pandas.Categorical(["u", "v"]), "d": [[1], "y"]}
    )
    for column, value in (("a", 3), ("b", "z"), ("c", "v"), ("d", "n")):
        changed = frame.copy()
        held = Held(FrameRows(changed))
        before = held.look()
        assert before == held.look()
        changed.loc[0, column] = value
        assert held.look() != before
    series = pandas.Series([1.0, 2.0])
    assert Held(FrameRows(series)).look() != Held(FrameRows(series + 1)).look()


def test_maps_of_files_are_left_alone(tmp_path: Path) -> None:
    """A look would read all of the file."""
    rows = np.memmap(tmp_path / "rows", dtype="f4", mode="w+", shape=(3,))
    held = Held(rows)
    before = held.look()
    rows[0] = 1
    assert held.look() == before
