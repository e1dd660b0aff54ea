"""Whether a record has several rows in the data: a plan for examples draws each row by itself, so that a record with
several rows has several shares of the budget. Told by row numbers and memory; equal copies, and rows that overlap,
are not found."""

import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from decrescendo.errors import InvalidType, InvalidValue

# Of each row the numbers that it is told by: where it lies, or its number and of what.
Identities = Int[np.ndarray, "rows columns"]


def check_distinct(data: object, *, columns: bool = False) -> None:
    """That no record of a known container is in it several times, as rows: each is drawn by itself.

    Args:
        data: what `train` takes.
        columns: a list of it is one of columns, and not of records.

    Raises:
        InvalidValue: a record that has several rows.

    >>> check_distinct([torch.zeros(2), torch.zeros(2)])
    >>> check_distinct([torch.zeros(2)] * 2)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a plan for examples must be given each record once, got a list with 1 rows ...
    """
    records = type(data) is list and not columns
    if records or isinstance(data, (Subset, ConcatDataset, StackDataset)) or is_hugging_face(data):
        _check_none(max(map(_repeated, _views(data)), default=0), type(data).__name__)
    elif (found := list(columns_of(data))) and all(map(_is_expanded, found)):
        _check_none(len(cast("Any", found[0])) - 1, "tensor expanded from one row,")


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


def is_hugging_face(data: object) -> bool:
    """Whether it is a `datasets.Dataset`."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(data, cast("Any", datasets).Dataset)


def columns_of(data: object) -> Iterator[object]:
    """Tensors and arrays in data of columns."""
    if type(data) is TensorDataset:
        yield from data.tensors
    elif isinstance(data, (Mapping, tuple)) or type(data) is list:
        for part in _parts(data):
            yield from columns_of(part)
    else:
        yield data


def _parts(held: Any) -> list[Any]:
    return list(held.values() if isinstance(held, Mapping) else held)


def _views(data: object) -> Iterator[Identities]:
    """What rows are told by, one way after another: each column of a `datasets.Dataset` may be another's, too."""
    if not is_hugging_face(data):
        yield _identities(data)
        return
    chosen = _identities(data)
    yield chosen
    for column in cast("Any", data).data.columns:
        where = [
            np.stack([np.full(len(chunk), held.address), chunk.offset + np.arange(len(chunk))], 1)
            for chunk in column.chunks
            if (held := next(filter(None, chunk.buffers()), None)) is not None
        ]
        if sum(map(len, where)) == len(column) > 0:  # (of nulls alone there is no memory)
            yield np.concatenate(where)[chosen[:, 1]]


def _identities(data: object) -> Identities:
    """What known containers lead to, row by row."""
    held: Any = data
    if isinstance(data, Subset):
        return _identities(held.dataset)[_numbers_of(held.indices) % max(len(held.dataset), 1)]
    if isinstance(data, ConcatDataset):
        return _together(map(_identities, held.datasets))
    if isinstance(data, StackDataset):
        return np.hstack([_identities(part)[: len(held)] for part in _parts(held.datasets)])
    rows = np.arange(len(held))
    if type(data) is list:
        marks = map(_mark_of, cast("list[object]", data))
        found = [(id(held), at) if mark is None else (0, hash(mark)) for at, mark in enumerate(marks)]
        return np.array(found, dtype=np.int64).reshape(-1, 2)
    if type(data) is TensorDataset and data.tensors and all(map(_is_plain, data.tensors)):
        # (Two data sets may be of one memory.)
        where = [value.data_ptr() + rows * value.stride(0) * value.element_size() for value in data.tensors]
        return np.stack(
            [np.full(len(rows), hash(tuple(value.shape[1:] for value in data.tensors))), *where], 1
        )
    if is_hugging_face(data) and held._indices is not None:
        rows = held._indices.column(0).to_numpy().astype(np.int64)
    return np.stack([np.full(len(rows), id(held.data if is_hugging_face(data) else held)), rows], 1)


def _together(parts: Iterable[Identities]) -> Identities:
    """Those of several containers; what has fewer columns is like nothing that has more."""
    found = list(parts)
    wide = max((part.shape[1] for part in found), default=1)
    padded = [np.pad(part, ((0, 0), (0, wide - part.shape[1])), constant_values=-1) for part in found]
    return np.concatenate(padded) if padded else np.zeros((0, wide), dtype=np.int64)


def _repeated(where: Identities) -> int:
    """How many rows are there already."""
    ordered = where[np.lexsort(where.T)]
    return int((ordered[1:] == ordered[:-1]).all(1).sum())


def _numbers_of(indices: Any) -> Int[np.ndarray, " rows"]:
    try:
        return np.array([operator.index(index) for index in indices], dtype=np.int64)
    except TypeError as error:
        raise InvalidType(
            f"a Subset must have a row's number for each record, got another index: {error}. Of records with several "
            "rows give a Dataset of your own, whose [i] is record i"
        ) from None


def _mark_of(record: object) -> object:
    """What two records in a list have in common if they are one; ``None`` of numbers and texts, which may be alike."""
    if isinstance(record, (tuple, dict)) or (type(record) is list and any(map(_is_array, record[:9]))):
        marks = [_memory_of(part) for part in _parts(record)]
        if any(map(_is_array, _parts(record))):  # made anew for each row, perhaps, of the same tensors
            return tuple(marks)
    return None if isinstance(record, (int, float, complex, str, bytes, np.generic)) else _memory_of(record)


def _memory_of(value: Any) -> object:
    """Where a tensor or an array lies; numbers and texts by what they say, other objects by which they are."""
    if isinstance(value, Tensor) and _is_plain(value):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    if isinstance(value, np.ndarray) and value.size:
        return value.ctypes.data, value.shape, value.strides, str(value.dtype)
    return repr(value) if isinstance(value, (int, float, complex, str, bytes, np.generic)) else id(value)


def _is_array(value: object) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _is_plain(value: Tensor) -> bool:
    return value.layout == torch.strided and not value.is_nested and not value.is_meta and value.numel() > 0


def _is_expanded(column: Any) -> bool:
    """Whether all rows of it are one memory."""
    if isinstance(column, Tensor) and _is_plain(column):
        return column.stride(0) == 0 and len(column) > 1 if column.dim() else False
    return isinstance(column, np.ndarray) and column.ndim > 0 and column.strides[0] == 0 and len(column) > 1


def _check_none(again: int, name: str) -> None:
    if again:
        raise InvalidValue(
            f"a plan for examples must be given each record once, got a {name} with {again} rows that are there "
            "already. Each row is drawn by itself, so that record would have more than one share of the budget: weigh "
            "losses, or make a plan for people (examples_per_person=, people=), whose rows may be alike"
        )
