"""Rows that lie in memory are told from what they were, whatever they are made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from decrescendo.training.examples import FrameRows
from decrescendo.training.held import Held

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
