"""Finds rows with NaN or infinity before the first step, for data held in memory."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from decrescendo.base.batches import leaves_of
from decrescendo.clipping.clipped import Batch
from decrescendo.errors import InvalidValue
from decrescendo.training.data.data_memory import columns_of_frame
from decrescendo.training.data.examples import Examples
from decrescendo.training.data.items import ColumnRows, FrameRows, Items
from decrescendo.training.data.rows import Rows, held_by, taken

# Rows that are read at a time; and rows with NaN or infinity of which at most so many gradients are computed.
_READ, _TRIED = 1_024, 32


def check_finite(table: Rows | Examples, asked: bool | None, norms: Callable[[Batch], Tensor] | None = None) -> None:
    """Check that no row has NaN or infinity that makes its gradient not finite.

    A row whose gradient is not finite counts as zero at every step, and a run cannot report how many there are: that
    is private. So the data are read once, before anything is drawn. The refusal tells that there is such a row, not
    which or how many; a training that begins tells that there is none. ``require_finite=False`` tells neither.

    Args:
        table: the data.
        asked: ``None``: data in memory alone (columns of tensors or arrays, data frames, lists of plain examples),
            whose numbers are there to be read; ``True``: all data, of which each example is then made once; ``False``:
            none.
        norms: the gradient norms of a batch's rows at the initial weights. A model may fill in missing values itself:
            if the norms of the rows with NaN or infinity are finite (a few are tried), nothing is refused.

    Raises:
        InvalidValue: there is a row with NaN or infinity, and its gradient is not finite (or ``norms`` is not given).

    >>> from decrescendo.training.data.rows import table_of
    >>> check_finite(table_of((torch.tensor([1.0, 2.0]),)), None)
    >>> check_finite(table_of((torch.tensor([1.0, float("nan")]),)), None)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: data must have no NaN and no infinity in them, got a row that has. ...
    """
    if asked is False:
        return
    found = _in_table(table)
    if found is None:
        if not asked:
            return
        found = _in_batches(table)
    some = np.flatnonzero(found)[:_TRIED]
    if not len(some):
        return
    if norms is not None and bool(torch.isfinite(norms(taken(table, some))).all()):
        return
    raise InvalidValue(
        "data must have no NaN and no infinity in them, got a row that has. Its gradient is not finite and would count "
        "as zero in every step: fill missing values in with public constants and add a column that says where they "
        "were, let the model do so, or set require_finite=False to train without such rows"
    )


def _in_table(table: Rows | Examples) -> np.ndarray | None:
    """Which rows have NaN or infinity, if this can be seen without making examples; ``None`` for other
    data."""
    held = held_by(table)
    if isinstance(held, FrameRows):
        columns = [_array(column) for column in columns_of_frame(held.frame)]
    elif isinstance(held, ColumnRows):
        columns = leaves_of(held.columns)
    elif isinstance(table, Rows) and held is not None:
        columns = cast("list[Tensor]", held)
    elif isinstance(held, np.ndarray) and not isinstance(held, np.memmap):
        columns = [_array(held)]
    elif type(held) in (list, tuple) or (type(held) is Subset and not isinstance(held.dataset, np.memmap)):
        items = cast("Items", held)
        return np.array([_has_nonfinite(items[row]) for row in range(table.count)], dtype=bool)
    else:
        return None
    found = np.zeros(table.count, dtype=bool)
    for column in columns:
        for start in range(0, len(column), _READ):
            found[start : start + _READ] |= _nonfinite_rows(column[start : start + _READ])
    return found


def _in_batches(table: Rows | Examples) -> np.ndarray:
    """Which rows have NaN or infinity, by making each example once."""
    found = np.zeros(table.count, dtype=bool)
    for row in range(table.count):
        found[row] = not all(map(_is_finite, leaves_of(taken(table, np.array([row])))))
    return found


def _nonfinite_rows(value: Tensor) -> np.ndarray:
    """Which rows of a tensor have a number that is not finite."""
    if not (value.is_floating_point() or value.is_complex()):
        return np.zeros(len(value), dtype=bool)
    return (~torch.isfinite(value)).reshape(len(value), -1).any(1).cpu().numpy()


def _is_finite(value: Tensor) -> bool:
    """Whether all numbers of a tensor are finite; of a sparse one, those that it stores."""
    if value.layout is not torch.strided:
        value = value.coalesce().values() if value.layout is torch.sparse_coo else value.values()
    return not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())


def _has_nonfinite(item: object) -> bool:
    """Whether an example has a number that is not finite."""
    if isinstance(item, Tensor):
        return not _is_finite(item)
    if isinstance(item, (np.ndarray, np.generic, float)):
        return bool(_nonfinite_rows(_array(item)[None]).any())
    if isinstance(item, Mapping):
        item = list(cast("Mapping[object, object]", item).values())
    return isinstance(item, (list, tuple)) and any(map(_has_nonfinite, cast("list[object]", item)))


def _array(values: Any) -> Tensor:
    """A numeric NumPy array as a tensor; an empty tensor for other arrays, which have no NaN."""
    found = np.asarray(values)
    return torch.from_numpy(np.array(found)) if found.dtype.kind == "f" else torch.zeros(*found.shape[:1], 0)
