"""Whether rows lie in one another's memory, as windows over one series do: told by addresses and strides."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset


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
        return any(map(rows_overlap, held.values() if isinstance(held, dict) else held))
    if type(data) is list:
        return _records_overlap(cast("list[object]", data))
    return type(data) is TensorDataset and columns_overlap(list(data.tensors))


def _records_overlap(records: list[object]) -> bool:
    """Whether memory of one record of a list is another's too; of tensors and arrays that are each in one piece."""
    pieces = {
        (start, start + size, at)
        for at, record in enumerate(records)
        for start, size in map(_piece, _arrays_in(record))
        if size
    }
    often = Counter(piece[:2] for piece in pieces)
    pieces = {
        piece for piece in pieces if often[piece[:2]] < len(records)
    }  # (what all have is no record's own)
    if not pieces:
        return False
    ends = np.array(sorted(pieces), dtype=np.int64)
    furthest = np.maximum.accumulate(ends[:, 1])
    return bool((ends[1:, 0] < furthest[:-1]).any())


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


def _piece(value: object) -> tuple[int, int]:
    """Where it lies, and how many bytes; none where these are not all its own."""
    if isinstance(value, Tensor) and value.layout == torch.strided and value.is_contiguous():
        return value.data_ptr(), value.numel() * value.element_size()
    if isinstance(value, np.ndarray) and value.flags.c_contiguous:
        return value.ctypes.data, value.nbytes
    return 0, 0


def columns_overlap(columns: list[object]) -> bool:
    """Whether two rows of columns may share memory; layouts without that are told by their strides."""
    known = [found for found in map(_layout, columns) if found is not None]
    return any(map(_overlap, known)) or any(itertools.starmap(_shifted, itertools.combinations(known, 2)))


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
    if one.step != other.step or max(one.extent, other.extent) > step:
        return False
    apart = other.start - one.start
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
    return _Layout(start, strides[0], rows, item, moving)
