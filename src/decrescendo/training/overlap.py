"""Whether rows lie in one another's memory, as windows over one series do: told by addresses and strides."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

# Columns that are compared with one another, each pair: of tables with more, the first.
_PAIRED = 200


class _Layout(NamedTuple):
    """How rows lie in memory, in bytes: the first, how far it is to the next, and what a row takes."""

    start: int
    step: int
    rows: int
    item: int
    moving: list[tuple[int, int]]

    @property
    def extent(self) -> int:
        return self.item + sum((size - 1) * stride for stride, size in self.moving)


def columns_of(data: object) -> list[object]:
    """What lies in data of columns, however deep."""
    if type(data) is TensorDataset:
        return list(data.tensors)
    if isinstance(data, Mapping):
        data = tuple(cast("Mapping[object, object]", data).values())
    if isinstance(data, tuple) or type(data) is list:
        return [column for value in cast("tuple[object, ...]", data) for column in columns_of(value)]
    return [data]


def rows_overlap(data: object) -> bool:
    """Whether rows of what known containers lead to may share memory with one another."""
    if isinstance(data, Subset):
        return rows_overlap(cast("Subset[Any]", data).dataset)
    if isinstance(data, ConcatDataset):
        return any(map(rows_overlap, cast("ConcatDataset[Any]", data).datasets))
    if isinstance(data, StackDataset):
        held = cast("Any", data).datasets
        parts = list(held.values() if isinstance(held, dict) else held)
        columns = [column for part in parts if _has_columns(part) for column in columns_of(part)]
        return columns_overlap(columns) or any(rows_overlap(part) for part in parts if not _has_columns(part))
    if type(data) is list:
        return _records_overlap(cast("list[object]", data))
    return _has_columns(data) and columns_overlap(columns_of(data))


def _has_columns(data: object) -> bool:
    return isinstance(data, (Tensor, np.ndarray)) or type(data) is TensorDataset


def _records_overlap(records: list[object]) -> bool:
    """Whether a part of one record of a list is a part of another's; of tensors and arrays that are each in one piece.
    What records have as a whole, like a label's tensor, is none."""
    pieces = {piece for record in records for piece in _merged(filter(None, map(_piece, _arrays_in(record))))}
    if not pieces:
        return False
    ends = np.array(sorted(pieces), dtype=np.int64)
    furthest = np.maximum.accumulate(ends[:, 1])
    return bool((ends[1:, 0] < furthest[:-1]).any())


def _merged(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pieces of one record, those that overlap as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(pieces):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _arrays_in(record: object) -> Iterator[object]:
    """Tensors and arrays in it; lists of numbers, which may be long, are not gone through."""
    if isinstance(record, (Tensor, np.ndarray)):
        yield record
    elif type(record) is dict or isinstance(record, tuple) or holds_memory(record):
        parts = cast("Any", record).values() if type(record) is dict else cast("tuple[object, ...]", record)
        for part in parts:
            yield from _arrays_in(part)


def holds_memory(record: object) -> bool:
    """A list of tensors or arrays: not one of numbers, which may be long."""
    return type(record) is list and any(
        isinstance(item, (Tensor, np.ndarray)) for item in cast("list[object]", record)[:9]
    )


def _piece(value: object) -> tuple[int, int] | None:
    """Where it begins and ends; ``None`` where what is between is not all its own."""
    if (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_nested
        and value.is_contiguous()
    ):
        start, size = value.data_ptr(), value.numel() * value.element_size()
    elif isinstance(value, np.ndarray) and value.flags.c_contiguous:
        start, size = value.ctypes.data, value.nbytes
    else:
        return None
    return (start, start + size) if size else None


def columns_overlap(columns: list[object]) -> bool:
    """Whether two rows of columns may share memory; layouts without that are told by their strides."""
    known = [found for found in map(_layout, columns) if found is not None]
    pairs = itertools.combinations(known[:_PAIRED], 2)
    return any(map(_overlap, known)) or any(itertools.starmap(_shifted, pairs))


def _overlap(layout: _Layout) -> bool:
    """Whether two rows of a column may share memory."""
    if abs(layout.step) >= layout.extent:
        return False
    end = layout.item
    for stride, size in sorted([*layout.moving, (abs(layout.step), layout.rows)]):
        if stride < end:
            return True
        end += (size - 1) * stride
    return False


def _shifted(one: _Layout, other: _Layout) -> bool:
    """Whether a row of one column is another row of the other's memory: tomorrow's values as targets of today's."""
    step = abs(one.step)
    apart = other.start - one.start
    if one.step != other.step:
        return False
    if (
        max(one.extent, other.extent) > step
    ):  # rows within one another, as those of columns that are transposed
        return one.moving == other.moving and not apart % step and 0 < abs(apart // step) < one.rows
    shifts = (shift for shift in range(apart // step - 1, apart // step + 3) if 0 < abs(shift) < one.rows)
    return any(-other.extent < apart - shift * step < one.extent for shift in shifts)


def _layout(column: object) -> "_Layout | None":
    """How the rows of a column lie in memory; ``None`` where they hold nothing of their own, or that is not known."""
    if (
        isinstance(column, Tensor)
        and column.layout == torch.strided
        and not column.is_nested
        and column.device.type != "meta"
    ):
        item = column.element_size()
        strides, start = [stride * item for stride in column.stride()], column.data_ptr()
    elif isinstance(column, np.ndarray):
        item, strides, start = column.itemsize, list(column.strides), column.ctypes.data
    else:
        return None
    rows = column.shape[0] if column.ndim else 1
    if rows < 2 or not strides[0] or 0 in column.shape:  # (what is expanded over all rows is no record's own)
        return None
    # (What is expanded within a row is one memory of that row.)
    moving = [
        (abs(stride), size)
        for size, stride in zip(column.shape[1:], strides[1:], strict=True)
        if size > 1 and stride
    ]
    # (Reversed within a row, it begins at its end.)
    start += sum(
        (size - 1) * min(stride, 0) for size, stride in zip(column.shape[1:], strides[1:], strict=True)
    )
    return _Layout(start, strides[0], rows, item, moving)
