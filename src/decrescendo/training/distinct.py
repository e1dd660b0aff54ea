"""That each record is one row: a plan for examples draws each row by itself, and a record with several has several
shares of the budget. What known containers take twice, and rows that are one memory, are told; copies are not."""

import operator
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from decrescendo.errors import InvalidType, InvalidValue

# What is written alike where it is alike.
_WRITTEN = (int, float, complex, str, bytes, type(None), np.generic)


def check_distinct(data: object, *, columns: bool = False) -> None:
    """That no record of a known container is in it several times, as rows: each is drawn by itself.

    Args:
        data: what `train` takes.
        columns: a list of it is one of columns, and not of records.

    Raises:
        InvalidValue: a record that has several rows.
    """
    if isinstance(data, (Subset, ConcatDataset)):
        places: dict[object, list[Int[np.ndarray, "rows columns"]]] = {}
        for held, taken in _drawn_from(data):
            key, where = _places(held, taken)
            places.setdefault(key, []).append(where)
            check_distinct(held)
        again = sum(map(_repeated, map(np.concatenate, places.values())))
        _check_none(again, type(cast("object", data)).__name__)
    elif type(data) is list and not columns:
        marks = [_mark_of(item) for item in cast("list[object]", data)]
        known = [mark for mark in marks if mark is not None]
        _check_none(len(known) - len(set(known)), "list")
    elif (found := _columns_of(data)) and all(_is_expanded(column) for column in found):
        _check_none(len(cast("Any", found[0])) - 1, "tensor expanded from one row,")


def _columns_of(data: object) -> list[object]:
    if type(data) is TensorDataset:
        return list(data.tensors)
    if isinstance(data, Mapping):
        data = tuple(cast("Mapping[object, object]", data).values())
    if isinstance(data, tuple) or type(data) is list:
        return [column for value in cast("tuple[object, ...]", data) for column in _columns_of(value)]
    return [data]


def _is_expanded(column: object) -> bool:
    """Whether all rows of it are one memory."""
    if isinstance(column, Tensor):
        return (
            column.layout == torch.strided and column.dim() > 0 and len(column) > 1 and column.stride(0) == 0
        )
    return isinstance(column, np.ndarray) and column.ndim > 0 and len(column) > 1 and column.strides[0] == 0


def _places(held: object, taken: Int[np.ndarray, " rows"]) -> tuple[object, Int[np.ndarray, "rows columns"]]:
    """Where rows lie: of tensors in memory, which two data sets may share; else in which data set, and as which row."""
    tensors = held.tensors if type(held) is TensorDataset else ()
    if not tensors or not all(value.layout == torch.strided and value.numel() for value in tensors):
        return id(held), taken[:, None]
    where = [value.data_ptr() + taken * value.stride(0) * value.element_size() for value in tensors]
    kinds = tuple((value.device, value.dtype, value.shape[1:], value.stride()) for value in tensors)
    return kinds, np.stack(where, 1)


def _repeated(where: Int[np.ndarray, "rows columns"]) -> int:
    """How many rows are there already."""
    ordered = where[np.lexsort(where.T)]
    return int((ordered[1:] == ordered[:-1]).all(1).sum())


def _drawn_from(data: object) -> list[tuple[object, Int[np.ndarray, " rows"]]]:
    """The data sets that known containers lead to, each once, and the numbers of all rows that are taken of it."""
    found: dict[int, tuple[object, list[Int[np.ndarray, " rows"]]]] = {}

    def take(held: Any, wanted: Int[np.ndarray, " rows"]) -> None:
        if isinstance(held, Subset):
            own = _numbers_of(cast("Any", held).indices)
            take(held.dataset, own[wanted] % max(len(cast("Any", held.dataset)), 1))
        elif isinstance(held, ConcatDataset):
            ends = np.array(held.cumulative_sizes)
            which = np.searchsorted(ends, wanted, side="right")
            for number, part in enumerate(cast("ConcatDataset[Any]", held).datasets):
                inside = wanted[which == number]
                take(part, inside - (int(ends[number - 1]) if number else 0))
        else:
            found.setdefault(id(held), (held, []))[1].append(wanted)

    take(data, np.arange(len(cast("Any", data))))
    return [(held, np.concatenate(parts)) for held, parts in found.values()]


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
    if isinstance(record, tuple) or type(record) is dict or _holds_memory(record):
        parts = list(
            cast("Any", record).values() if type(record) is dict else cast("tuple[object, ...]", record)
        )
        marks = [_mark_of(item) for item in parts]
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


def _holds_memory(record: object) -> bool:
    """A list of tensors or arrays: not one of numbers, which may be long."""
    return type(record) is list and any(
        isinstance(item, (Tensor, np.ndarray)) for item in cast("list[object]", record)[:9]
    )


def _check_none(again: int, name: str) -> None:
    if again:
        raise InvalidValue(
            f"a plan for examples must be given each record once, got a {name} with {again} rows that are there "
            "already. Each row is drawn by itself, so that record would have more than one share of the budget: weigh "
            "losses, or make a plan for people (examples_per_person=, people=), whose rows may be alike"
        )
