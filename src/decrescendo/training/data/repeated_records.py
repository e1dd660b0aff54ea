"""Detects records that occur as several rows of the data.

A plan for examples samples each row independently, so a record with several rows would exceed its privacy
budget. Rows are identified by index and memory address: copies with equal values, and rows that overlap in
part, are not detected.
"""

import operator
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from decrescendo.errors import InvalidType, InvalidValue

# One identifier per row, as a row of integers: its memory address, or the id of its container and its index
# there.
Identities = Int[np.ndarray, "rows columns"]
# The columns in which `datasets.Dataset.from_pandas` keeps the index of a frame.
_INDEX = re.compile(r"__index_level_\d+__")
# How many entries of a list are searched for a tensor, to tell a list of tensors from a long list of numbers.
_SEARCHED = 9


def check_distinct(data: object, *, columns: bool = False) -> None:
    """Check that no record of a known container type occurs as more than one row.

    Args:
        data: what `train` takes.
        columns: treat a list as a list of columns, not of records.

    Raises:
        InvalidValue: a record occurs as several rows.

    >>> check_distinct([torch.zeros(2), torch.zeros(2)])
    >>> check_distinct([torch.zeros(2)] * 2)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a plan for examples must be given each record once, got a list ...
    """
    records = type(data) is list and not columns
    if records or isinstance(data, (Subset, ConcatDataset, StackDataset)) or is_hugging_face(data):
        _refuse_repeats(_repeats(data), type(data).__name__)
    elif (found := list(columns_of(data))) and all(map(_is_expanded, found)):
        _refuse_repeats(len(cast("Any", found[0])) - 1, "tensor expanded from one row,")
    _refuse_repeated_labels(data)


def check_one_person_each(data: object, person_of_row: Int[np.ndarray, " rows"]) -> None:
    """Check that no record of a known container type is in rows of several people.

    Raises:
        InvalidValue: one is.

    >>> rows = [torch.zeros(2)] * 2
    >>> check_one_person_each(rows, np.array([4, 4]))
    >>> check_one_person_each(rows, np.array([4, 5]))
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a record must be in rows of one person, got a list in which 1 row(s) ...
    """
    if not (isinstance(data, (list, Subset, ConcatDataset, StackDataset)) or is_hugging_face(data)):
        return
    if again := _repeats(data, person_of_row):
        raise InvalidValue(
            f"a record must be in rows of one person, got a {type(data).__name__} in which {again} row(s) are another "
            "person's too: it would have a share of the budget for each. Let people= follow from the record"
        )


def index_of(column: object) -> Any:
    """The index of a data frame of pandas, or of a column of one; ``None`` of anything else."""
    index = getattr(column, "index", None)
    return index if type(index).__module__.split(".")[0] == "pandas" else None


def indices_of(data: object) -> Iterator[Any]:
    """The index of a data frame, or those of the columns of frames in a dict, tuple or list."""
    held = cast("Any", data)
    parts = held.values() if isinstance(data, Mapping) else held[:16] if isinstance(data, (tuple, list)) else ()
    for column in (data, *parts):
        if (index := index_of(column)) is not None:
            yield index


def _refuse_repeated_labels(data: object) -> None:
    again = any(index.has_duplicates for index in indices_of(data))
    if is_hugging_face(data):
        held = cast("Any", data)
        if kept := list(filter(_INDEX.fullmatch, held.column_names)):
            labels = held.with_format("arrow", columns=kept)[:]  # whatever format the rows have
            again = labels.group_by(kept).aggregate([]).num_rows < len(labels)
    if again:
        raise InvalidValue(
            "a plan for examples must be given each record once, got a data frame whose index has labels several "
            "times, as where rows were sampled with replacement or added again to balance classes: such a record would "
            "have more than one share of the budget. Weight the losses, or make a plan for people; if all rows are "
            "different records, say so with reset_index(drop=True); of a datasets.Dataset remove the columns "
            "__index_level_..__"
        )


def share_records(one: object, other: object) -> bool:
    """Whether some row of one data set is known to be a row of the other, too.

    >>> rows = [torch.zeros(2), torch.ones(2)]
    >>> share_records(rows, rows[1:]), share_records(rows, [torch.ones(2)])
    (True, False)
    """
    first, second = (_marked(data)[0] for data in (one, other))
    if first.shape[1] != second.shape[1]:
        first, second = np.split(_concatenated([first, second]), [len(first)])
    return _repeated(np.concatenate([np.unique(first, axis=0), np.unique(second, axis=0)])) > 0


def most_repeated(data: object) -> int:
    """How often the row that is in ``data`` most often is in it; 0 if there is none.

    >>> most_repeated(Subset(TensorDataset(torch.ones(3)), [0, 2, 2]))
    2
    """
    return int(np.unique(_kinds(data)[0], axis=0, return_counts=True)[1].max(initial=0))


def _repeats(data: object, groups: Int[np.ndarray, " rows"] | None = None) -> int:
    """How many rows repeat one of another group; ``None``: each row is a group."""
    marks, owners = _marked(data)
    owners = owners if groups is None else groups[owners]
    order = np.lexsort((owners, *marks.T))
    ordered, owners = marks[order], owners[order]
    again = (ordered[1:] == ordered[:-1]).all(1) & (owners[1:] != owners[:-1])
    return np.unique(owners[1:][again]).size if groups is None else int(again.sum())


def _marked(data: object) -> tuple[Identities, Int[np.ndarray, " marks"]]:
    """The identifiers of all rows, each kind of them, and whose each is: a row may have several."""
    kinds = _kinds(data)
    return _concatenated(kinds), np.concatenate([np.arange(len(kind)) for kind in kinds])


def _kinds(data: object) -> list[Identities]:
    """One array for each way to identify the rows. Parts that have fewer ways repeat their last one."""
    held: Any = data
    if isinstance(data, Subset):
        chosen = _numbers_of(held.indices) % max(len(held.dataset), 1)
        return [kind[chosen] for kind in _kinds(held.dataset)]
    if isinstance(data, ConcatDataset):
        parts = [_kinds(part) for part in held.datasets]
        ways = range(max(map(len, parts)))
        return [_concatenated(part[min(way, len(part) - 1)] for part in parts) for way in ways]
    return list(_identifiers(data))


def is_hugging_face(data: object) -> bool:
    """Whether ``data`` is a `datasets.Dataset` of Hugging Face."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(data, cast("Any", datasets).Dataset)


def columns_of(data: object) -> Iterator[object]:
    """The columns (tensors and arrays) in a `TensorDataset` or any nesting of mappings, tuples and lists."""
    if type(data) is TensorDataset:
        yield from data.tensors
    elif isinstance(data, (Mapping, tuple)) or type(data) is list:
        for part in _parts(data):
            yield from columns_of(part)
    else:
        yield data


def _parts(held: Any) -> list[Any]:
    return list(held.values() if isinstance(held, Mapping) else held)


def _identifiers(data: object) -> Iterator[Identities]:
    """The identifiers of the rows, one array for each way to identify them.

    Rows of a `datasets.Dataset` are also identified by the buffer of each column, since two data sets can
    share it.
    """
    if not is_hugging_face(data):
        yield _identities(data)
        return
    chosen = _identities(data)
    yield chosen
    for column in cast("Any", data).data.columns:
        where: list[Identities] = []
        for chunk in column.chunks:
            buffer = next(filter(None, chunk.buffers()), None)
            if buffer is not None:
                rows = chunk.offset + np.arange(len(chunk))
                where.append(np.stack([np.full(len(chunk), buffer.address), rows], 1))
        if sum(map(len, where)) == len(column) > 0:  # (an all-null chunk has no buffer)
            yield np.concatenate(where)[chosen[:, 1]]


def _identities(data: object) -> Identities:
    """The identifier of the underlying row, for each row of (nested) known containers."""
    held: Any = data
    if isinstance(data, StackDataset):
        return np.hstack([_kinds(part)[0][: len(held)] for part in _parts(held.datasets)])
    rows = np.arange(len(held))
    if type(data) is list:
        marks = map(_record_key, cast("list[object]", data))
        found = [(id(held), at) if mark is None else (0, hash(mark)) for at, mark in enumerate(marks)]
        return np.array(found, dtype=np.int64).reshape(-1, 2)
    if type(data) is TensorDataset and data.tensors and all(map(_is_plain, data.tensors)):
        # (Two data sets may share the memory of one tensor.)
        where = [value.data_ptr() + rows * value.stride(0) * value.element_size() for value in data.tensors]
        return np.stack([np.full(len(rows), hash(tuple(value.shape[1:] for value in data.tensors))), *where], 1)
    if (isinstance(held, Tensor) and _is_plain(held) and held.dim()) or (isinstance(held, np.ndarray) and held.size):
        is_tensor = isinstance(held, Tensor)
        first = held.data_ptr() if is_tensor else held.ctypes.data
        step = held.stride(0) * held.element_size() if is_tensor else held.strides[0]
        inner = (
            tuple(held.shape[1:]),
            tuple(held.stride()[1:] if is_tensor else held.strides[1:]),
            str(held.dtype),
        )
        return np.stack([np.full(len(rows), hash(inner)), first + rows * step], 1)
    if is_hugging_face(data) and held._indices is not None:
        rows = held._indices.column(0).to_numpy().astype(np.int64)
    return np.stack([np.full(len(rows), id(held.data if is_hugging_face(data) else held)), rows], 1)


def _concatenated(parts: Iterable[Identities]) -> Identities:
    """Concatenate identifiers. Rows of different width never compare equal (padded with -1)."""
    found = list(parts)
    wide = max((part.shape[1] for part in found), default=1)
    padded = [np.pad(part, ((0, 0), (0, wide - part.shape[1])), constant_values=-1) for part in found]
    return np.concatenate(padded) if padded else np.zeros((0, wide), dtype=np.int64)


def _repeated(where: Identities) -> int:
    """The number of rows that repeat an earlier row."""
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


def _record_key(record: object) -> object:
    """A key that is equal for two entries that are the same record.

    ``None`` for numbers and strings, which may be equal by chance.
    """
    if isinstance(record, (tuple, dict)) or (type(record) is list and any(map(_is_array, record[:_SEARCHED]))):
        parts = _parts(record)
        if any(map(_is_array, parts)):  # each row may be a new tuple over the same tensors
            return tuple(map(_memory_of, parts))
    return None if isinstance(record, (int, float, complex, str, bytes, np.generic)) else _memory_of(record)


def _memory_of(value: Any) -> object:
    """A key: the memory of tensors and arrays, the value of numbers and strings, else the identity."""
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
    """Whether all rows of a column are the same memory (stride 0)."""
    if isinstance(column, Tensor) and _is_plain(column):
        return column.stride(0) == 0 and len(column) > 1 if column.dim() else False
    return isinstance(column, np.ndarray) and column.ndim > 0 and column.strides[0] == 0 and len(column) > 1


def _refuse_repeats(again: int, name: str) -> None:
    if again:
        raise InvalidValue(
            f"a plan for examples must be given each record once, got a {name} in which {again} row(s) repeat an "
            "earlier one. Each row is drawn by itself, so that record would have more than one share of the budget: "
            "weight the losses, or make a plan for people (examples_per_person=, people=), whose rows may repeat"
        )
