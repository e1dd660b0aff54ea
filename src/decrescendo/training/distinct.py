"""That each record is one row: a plan for examples draws each row by itself, and a record with several has several
shares of the budget. What known containers take twice, and rows that are one memory, are told; copies are not."""

import itertools
import operator
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training.overlap import columns_of, columns_overlap, holds_memory, rows_overlap

SAME_OBJECT = (
    "texts or numbers that are in the list several times, as one object, are those of as many different records "
    "(Python keeps some that are equal once)"
)

OVERLAPPING = (
    "what lies in several rows of the data (rows overlap in memory, as windows over one series do) is protected as a "
    "part of each of these rows alone"
)

# What is written alike where it is alike.
_WRITTEN = (int, float, complex, str, bytes, type(None), np.generic)

_ODD = 0x5851F42D4C957F2D


# Of each row what it is told by: where it lies, or its number and of what.
Identities = Int[np.ndarray, "rows columns"]


def check_distinct(data: object, *, columns: bool = False) -> str:
    """That no record of a known container is in it several times, as rows: each is drawn by itself.

    Args:
        data: what `train` takes.
        columns: a list of it is one of columns, and not of records.

    Returns:
        What is supposed: empty, `SAME_OBJECT` or `OVERLAPPING`.

    Raises:
        InvalidValue: a record that has several rows.
    """
    own = type(data) is list and not columns
    if own or isinstance(data, (Subset, ConcatDataset, StackDataset)) or is_hugging_face(data):
        _check_none(max(map(_repeated, _views(data)), default=0), type(data).__name__)
        if own and _share_objects(cast("list[object]", data)):
            return SAME_OBJECT
        return OVERLAPPING if rows_overlap(data) else ""
    if (found := columns_of(data)) and all(_is_expanded(column) for column in found):
        _check_none(len(cast("Any", found[0])) - 1, "tensor expanded from one row,")
    return OVERLAPPING if columns_overlap(found) else ""


def share_records(one: object, other: object) -> bool:
    """Whether a row of one is known to be a row of the other, too.

    >>> rows = [torch.zeros(2), torch.ones(2)]
    >>> share_records(rows, rows[1:]), share_records(rows, [torch.ones(2)])
    (True, False)
    """
    first, second = list(_views(one)), list(_views(other))
    return any(
        mine.shape[1] == its.shape[1]
        and _repeated(np.concatenate([np.unique(mine, axis=0), np.unique(its, axis=0)])) > 0
        for mine in first
        for its in second
    )


def _views(data: object) -> Iterator[Identities]:
    """What rows are told by, one way after another: of a `datasets.Dataset` each column may be another's, too."""
    if is_hugging_face(data):
        held: Any = data
        chosen, files = _chosen(held), _files(held)
        for column in held.data.columns:
            rows, known = _in_column(column, files)
            rows, known = (rows, known) if chosen is None else (rows[chosen], known[chosen])
            yield rows[known]
        if chosen is not None:
            yield np.stack([np.full(len(chosen), id(data)), chosen], 1)
        return
    yield _identities(data)


def _share_objects(records: list[object]) -> bool:
    written = [id(record) for record in records if isinstance(record, _WRITTEN)]
    return len(set(written)) < len(written)


def _is_expanded(column: object) -> bool:
    """Whether all rows of it are one memory."""
    if isinstance(column, Tensor):
        return (
            column.layout == torch.strided and column.dim() > 0 and len(column) > 1 and column.stride(0) == 0
        )
    return isinstance(column, np.ndarray) and column.ndim > 0 and len(column) > 1 and column.strides[0] == 0


def _identities(data: object) -> Identities:
    """What known containers lead to, row by row."""
    if isinstance(data, Subset):
        held: Any = data.dataset
        return _identities(held)[_numbers_of(cast("Any", data).indices) % max(len(held), 1)]
    if isinstance(data, ConcatDataset):
        return _together(map(_identities, cast("ConcatDataset[Any]", data).datasets))
    if isinstance(data, StackDataset):
        held = cast("Any", data).datasets
        parts = [_identities(part) for part in (held.values() if isinstance(held, dict) else held)]
        return np.hstack([part[: len(cast("Any", data))] for part in parts])
    if is_hugging_face(data):
        return _in_table(data)
    rows = np.arange(len(cast("Any", data)))
    if type(data) is list:
        own, marks = id(cast("object", data)), map(_mark_of, cast("list[object]", data))
        found = [(own, at) if mark is None else (0, hash(mark)) for at, mark in enumerate(marks)]
        return np.array(found, dtype=np.int64).reshape(-1, 2)
    tensors = data.tensors if type(data) is TensorDataset else ()
    if not tensors or not all(value.layout == torch.strided and value.numel() for value in tensors):
        return np.stack([np.full(len(rows), id(data)), rows], 1)
    # (Two data sets may share their memory.)
    kinds = hash(tuple((value.device, value.dtype, value.shape[1:], value.stride()) for value in tensors))
    where = [value.data_ptr() + rows * value.stride(0) * value.element_size() for value in tensors]
    return np.stack([np.full(len(rows), kinds), *where], 1)


def _together(parts: Iterable[Identities]) -> Identities:
    """Those of several containers; what has fewer columns is like nothing that has more."""
    found = list(parts)
    wide = max((part.shape[1] for part in found), default=1)
    padded = [np.pad(part, ((0, 0), (0, wide - part.shape[1])), constant_values=-1) for part in found]
    return np.concatenate(padded) if padded else np.zeros((0, wide), dtype=np.int64)


def is_hugging_face(data: object) -> bool:
    """Whether it is a `datasets.Dataset`."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(data, cast("Any", datasets).Dataset)


def _in_table(data: Any) -> Identities:
    """Where the columns of a `datasets.Dataset` lie, of which other such data sets may be made; two numbers for all."""
    rows, held, files = np.zeros((len(data.data), 2), dtype=np.int64), False, _files(data)
    for column in data.data.columns:
        found, known = _in_column(column, files)
        rows[known] *= _ODD  # (numbers of 64 bits, which go round)
        rows[known] += found[known]
        held = held or bool(known.any())
    if not held:
        rows = np.stack([np.full(len(rows), id(data)), np.arange(len(rows))], 1)
    chosen = _chosen(data)
    return rows if chosen is None else rows[chosen]


def _in_column(column: Any, files: dict[int, int]) -> tuple[Identities, Bool[np.ndarray, " rows"]]:
    """Where each value of a column lies: its buffer, or its file and the buffer's place there, and its number; and
    which have a place (nulls have none)."""
    rows, known = np.zeros((len(column), 2), dtype=np.int64), np.zeros(len(column), dtype=bool)
    end = 0
    for chunk in column.chunks:
        start, end = end, end + len(chunk)
        if buffers := [buffer for buffer in chunk.buffers() if buffer is not None]:
            base = _whole(buffers[0]).address
            where = buffers[0].address
            if base in files:  # one file may be mapped several times
                where = hash((files[base], where - base))
            rows[start:end] = np.stack([np.full(len(chunk), where), chunk.offset + np.arange(len(chunk))], 1)
            known[start:end] = True
    return rows, known


def _files(data: Any) -> dict[int, int]:
    """Of memory-mapped parts of a `datasets.Dataset`: which file (a number) lies at which address."""
    found: dict[int, int] = {}
    for part in itertools.chain(*getattr(data.data, "blocks", [[data.data]])):
        path = getattr(part, "path", None)
        if path is not None:
            for column in part.columns:
                for chunk in column.chunks:
                    for buffer in filter(None, chunk.buffers()):
                        found[_whole(buffer).address] = hash(os.path.realpath(path))
    return found


def _whole(buffer: Any) -> Any:
    """What a buffer is a part of."""
    while buffer.parent is not None:
        buffer = buffer.parent
    return buffer


def _chosen(data: Any) -> Int[np.ndarray, " rows"] | None:
    """Which rows of its table a `datasets.Dataset` has; ``None`` for all."""
    indices = getattr(data, "_indices", None)
    return None if indices is None else indices.column(0).to_numpy().astype(np.int64)


def _repeated(where: Identities) -> int:
    """How many rows are there already."""
    ordered = where[np.lexsort(where.T)]
    return int((ordered[1:] == ordered[:-1]).all(1).sum())


def _numbers_of(indices: Any) -> Int[np.ndarray, " rows"]:
    if type(indices) in (np.ndarray, Tensor, range):
        found = np.asarray(indices)
        if found.ndim == 1 and found.dtype.kind in "iu":
            return found.astype(np.int64)
    return np.array([_number_of(index) for index in indices], dtype=np.int64)


def _number_of(index: object) -> int:
    try:
        return operator.index(cast("Any", index))
    except TypeError:
        raise InvalidType(
            f"a Subset must have a row's number for each record, got a {type(index).__name__} among its indices. Of "
            "records with several rows give a Dataset of your own, whose [i] is record i"
        ) from None


def _mark_of(record: object) -> object:
    """What two records in a list have in common if they are one; ``None`` where that cannot be told."""
    mark = _memory_of(record)
    return id(record) if mark is None and not isinstance(record, _WRITTEN) else mark


def _memory_of(record: object) -> object:
    if isinstance(record, tuple) or type(record) is dict or holds_memory(record):
        parts = list(
            cast("Any", record).values() if type(record) is dict else cast("tuple[object, ...]", record)
        )
        marks = [_memory_of(item) for item in parts]
        # (Of other objects no code is run.)
        rest = [
            repr(item) if isinstance(item, _WRITTEN) else id(item)
            for item, mark in zip(parts, marks, strict=True)
            if mark is None
        ]
        if len(rest) < len(marks):
            return (*filter(None, marks), *rest)
    if isinstance(record, Tensor) and record.layout == torch.strided and record.numel():
        return record.data_ptr(), record.shape, record.stride(), record.dtype
    if isinstance(record, np.ndarray) and record.size:
        return record.ctypes.data, record.shape, record.strides, str(record.dtype)
    return id(record) if isinstance(record, (Tensor, np.ndarray, dict, list)) else None


def _check_none(again: int, name: str) -> None:
    if again:
        raise InvalidValue(
            f"a plan for examples must be given each record once, got a {name} with {again} rows that are there "
            "already. Each row is drawn by itself, so that record would have more than one share of the budget: weigh "
            "losses, or make a plan for people (examples_per_person=, people=), whose rows may be alike"
        )
