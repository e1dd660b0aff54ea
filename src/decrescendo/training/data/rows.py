"""`Rows`: data as numbered rows, from columns of tensors or anything with a length and items."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import count_rows, leaves_of, select_rows
from decrescendo.clipping.clipped import Batch
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training.data.examples import Collate, Draw, Examples, bits
from decrescendo.training.data.items import ColumnRows, FrameRows, Items, is_plain

ROWS_APART = assumed("own-rows")
# The codes of assumptions about rows that are not made one by one.
OWN_ROWS = ("own-rows", "own-tensor-class")


@dataclass(frozen=True, slots=True)
class Rows:
    """A data set of numbered rows: their count, and a function that returns some of them as one batch.

    Args:
        count: number of rows.
        take: from ascending indices (at least one) to the batch of these rows, a copy. It gets all indices of a batch
            at once: a run lists the assumption that each row is made from its own example.

    >>> squares = Rows(5, lambda indices: torch.from_numpy(indices) ** 2)
    >>> squares.take(np.array([1, 3]))
    tensor([1, 9])
    """

    count: int
    take: Callable[[Int[np.ndarray, " batch"]], Batch]


def assumption_of(table: Rows | Examples) -> Assumption | None:
    """What is assumed about user code that makes examples; `None` if there is no such code."""
    if isinstance(table, Examples):
        return table.assumption
    if (classes := _classes_in(table)) is None:
        return ROWS_APART
    return assumed("own-tensor-class", ", ".join(sorted(classes))) if classes else None


def taken(table: Rows | Examples, indices: Int[np.ndarray, " batch"]) -> Batch:
    """The rows at ``indices`` as one batch, outside of a training (no random numbers of a step are used)."""
    return table.take(indices) if isinstance(table, Rows) else table.take(Draw(indices))


def held_by(table: Rows | Examples) -> object:
    """The objects in memory that rows are read from; ``None`` if user code makes the rows."""
    if isinstance(table, Examples):
        return table.held
    return leaves_of(cast("Any", table.take).args[0]) if _is_ours(table) else None


def check_apart(table: Rows, indices: Int[np.ndarray, " batch"]) -> None:
    """Check that the first of several rows is the same if taken alone. Skipped if taking the batch twice
    gives two results.

    Raises:
        InvalidValue: the row differs by more than rounding.
    """
    if _is_ours(table):
        return
    batch = table.take(indices)
    if bits(batch) != bits(table.take(indices)):
        return
    first, alone = leaves_of(batch), leaves_of(table.take(indices[:1]))
    if len(alone) != len(first) or not all(map(_close, (value[:1] for value in first), alone)):
        raise InvalidValue(
            "Rows.take must make each row from its own example, got another row when it was taken alone. "
            "Centre, scale and pad by numbers that are fixed before"
        )


def _is_ours(table: Rows) -> bool:
    return _classes_in(table) == set()


def _classes_in(table: Rows) -> set[str] | None:
    """Names of user-defined classes among the columns; ``None`` if the rows are not taken from columns."""
    take = table.take
    if not isinstance(take, functools.partial) or take.func is not _selected:
        return None
    found, left = set[str](), [cast("Any", take.args[0])]
    while left:
        value = left.pop()
        if not is_plain(value):
            inner = list(value.values() if isinstance(value, Mapping) else value)
            inner = [] if isinstance(value, Tensor) else inner
            found |= {type(value).__name__} if type(value) not in (dict, list, tuple) else set()
            left += inner
    return found


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    scale = float(one.abs().max()) if one.is_floating_point() and one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


def rows(data: object, collate_fn: Collate | None = None) -> Rows:
    """``data`` as numbered rows.

    Args:
        data: a tensor, a list of tensors, or a tuple or mapping of tensors (nested as deep as you like) with equal
            length along dimension 0; or examples by index, anything with ``len`` and ``[i]`` (a map-style
            `torch.utils.data.Dataset`, a ``datasets.Dataset``, a list of dicts, an array, the rows of a data frame),
            of which torch's ``default_collate`` makes rows; or `Rows`, which are returned as they are.
        collate_fn: from a list of one example to a batch of one row, in place of ``default_collate``.

    Raises:
        InvalidType: something else.
        InvalidValue: tensors of different lengths, or none.

    >>> toy = rows({"x": torch.arange(8.0).reshape(4, 2), "y": torch.tensor([0, 1, 2, 3])})
    >>> toy.count, toy.take(np.array([1, 3]))["y"].tolist()
    (4, [1, 3])
    >>> rows([{"x": 0.5, "y": 1}, {"x": 1.5, "y": 0}]).take(np.array([1]))
    {'x': tensor([1.5000], dtype=torch.float64), 'y': tensor([0])}
    """
    found = table_of(data, collate_fn)
    return found if isinstance(found, Rows) else Rows(found.count, functools.partial(taken, found))


def table_of(data: object, collate_fn: Collate | None = None, *, one_by_one: bool = False) -> Rows | Examples:
    """``data`` as `Rows`, or as `Examples` if examples are made one at a time (see `rows`; ``one_by_one``:
    see `Examples`).

    With a ``collate_fn`` all data are examples: those of tensors, tuples and mappings are their rows.
    """
    if isinstance(data, Rows):
        if collate_fn is not None:
            raise InvalidType("Rows must come without collate_fn, got both. Rows make batches by themselves")
        return data
    if collate_fn is not None and not callable(collate_fn):
        raise InvalidType(
            f"collate_fn must be a function from a list of examples to a batch, got {type(collate_fn).__name__}"
        )
    if type(data) is TensorDataset:  # the same rows without a Python call for each
        data = data.tensors
    data = _with_tensors(data)
    if _are_columns(data, listed=collate_fn is None):
        count = count_rows(data)
        if collate_fn is None:
            return Rows(count, functools.partial(_selected, data))
        return Examples(ColumnRows(data, count), collate_fn, one_by_one=one_by_one)
    if hasattr(data, "iloc"):
        data = FrameRows(data)
    return Examples(_items_of(data), collate_fn, one_by_one=one_by_one)


def _selected(columns: Any, indices: Int[np.ndarray, " batch"]) -> Batch:
    return select_rows(columns, torch.from_numpy(indices))


def _with_tensors(data: object) -> object:
    """Numeric NumPy columns as tensors that share their memory, if torch allows it."""
    if type(data) is tuple:
        return tuple(map(_column, cast("tuple[object, ...]", data)))
    if type(data) is dict:
        return {name: _column(value) for name, value in cast("dict[Any, object]", data).items()}
    return data


def _column(value: object) -> object:
    if type(value) is np.ndarray and value.dtype.kind in "fiub" and value.ndim:
        plain = value.flags.writeable and value.dtype.isnative and min(value.strides) >= 0
        return torch.from_numpy(value if plain else value.astype(value.dtype.newbyteorder("=")))
    return _with_tensors(value)


def _are_columns(data: object, *, listed: bool) -> bool:
    """Whether the data are tensors with rows along dimension 0; ``listed``: a list of tensors counts, too."""
    if isinstance(data, list):
        return listed and all(isinstance(column, Tensor) for column in cast("list[object]", data))
    check_one_data_set(data)
    return isinstance(data, (Tensor, Mapping, tuple))


def check_one_data_set(data: object) -> None:
    """Refuse a mapping of several data sets by name, as ``datasets`` loads the splits of one."""
    if isinstance(data, Mapping):
        splits = [key for key, value in cast("Mapping[Any, object]", data).items() if hasattr(value, "column_names")]
        if splits:
            raise InvalidType(
                f"data must be one data set, got {len(splits)} by name. Give one of them: data[{splits[0]!r}]"
            )


def check_by_number(data: object) -> None:
    """Refuse iterable data sets, from which no single example can be drawn."""
    if isinstance(data, IterableDataset) or (hasattr(data, "__iter__") and not hasattr(data, "__getitem__")):
        is_loader = hasattr(data, "dataset")
        raise InvalidType(
            f"data must have items by number, data[i], got {type(data).__name__}. Poisson sampling must be able to "
            "draw any record at any step: give "
            + ("the loader's dataset, collate_fn and num_workers" if is_loader else "a map-style data set")
        )


def _items_of(data: object) -> Items:
    check_by_number(data)
    if type(data).__module__.split(".")[0] == "pyarrow":
        raise InvalidType(
            f"data must have examples by number, data[i], got {type(data).__name__} of pyarrow, of which data[i] is a "
            "column. Give datasets.Dataset(data)"
        )
    if not isinstance(data, Items) or isinstance(data, (str, bytes)):
        raise InvalidType(
            "data must be tensors in a tuple, list or mapping, or have examples by number (len(data) and data[i]), "
            f"got {type(data).__name__}"
        )
    return data
