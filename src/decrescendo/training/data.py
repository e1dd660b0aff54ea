"""What training draws batches from: columns of tensors, or anything with a length and items, as numbered rows."""

import functools
import hashlib
import random
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from decrescendo.clipping.batches import Ragged, count_rows, joined, map_rows, select_rows
from decrescendo.clipping.clipped import Batch
from decrescendo.errors import InvalidType, InvalidValue

# From a list of examples (always of one) to a batch of them, as torch's ``collate_fn``.
Collate = Callable[[list[Any]], Batch]


@dataclass(frozen=True, slots=True)
class Rows:
    """A number of rows, and how to take some of them as one batch.

    Args:
        count: number of rows.
        take: from ascending indices (never none) to the batch of these rows, a copy.

    >>> squares = Rows(5, lambda indices: torch.from_numpy(indices) ** 2)
    >>> squares.take(np.array([1, 3]))
    tensor([1, 9])
    """

    count: int
    take: Callable[[Int[np.ndarray, " batch"]], Batch]


@dataclass(frozen=True, slots=True)
class Draw:
    """Who is in a batch: ascending indices, and the key of the random numbers that making the batch takes."""

    indices: Int[np.ndarray, " batch"]
    key: int = 0


@runtime_checkable
class Items(Protocol):
    """Examples by number: a list, a map-style ``torch`` or ``datasets`` data set, an array, a memory map."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Examples:
    """Items that ``collate_fn`` makes batches of, each example by itself.

    Guarantee:
        where the data and ``collate_fn`` keep nothing of one example for another (a running mean would; nothing looks
        for it), row i of a batch is a function of example i, and of random numbers (torch's, NumPy's and Python's
        global ones) that begin anew for each example, at a place that hangs on the step and the example alone.
        So no example is padded to the length of another: `joined` puts examples of one shape together, others apart.
        The process's own generators are afterwards where they were.
    """

    def __init__(self, items: Items, collate_fn: Collate | None) -> None:
        self._items, self._collate = items, collate_fn
        self.count = len(items)

    def take(self, draw: Draw) -> Batch:
        """The batch of a draw, which is not empty."""
        with _own_numbers() as begin:
            made = [self._one(int(index), begin, draw.key) for index in draw.indices]
        return _stacked(made) if self._collate is None else joined(made)

    def _one(self, index: int, begin: Callable[[int, int], None], key: int) -> Any:
        """The batch of one example; without a collator its item."""
        begin(key, index)
        item = self._items[index]
        if self._collate is None:
            _check_numbers(item)
            return item
        batch = self._collate([item])
        found = count_rows(batch)
        if found != 1:
            raise InvalidValue(
                f"collate_fn must make one row of one example, got {found} rows. Leave packing and padding-free "
                "batches out; several views of an example are a dimension after the first"
            )
        return batch


def rows(data: object) -> Rows:
    """``data`` as numbered rows.

    Args:
        data: a tensor, a list of tensors, or a tuple or mapping of tensors (nested as deep as you like) with equal
            length along dimension 0; or examples by number, anything with ``len`` and ``[i]`` (a map-style
            `torch.utils.data.Dataset`, a ``datasets.Dataset``, a list of dicts, an array, the rows of a data frame),
            of which torch's ``default_collate`` makes rows; or `Rows`, which are returned as they are.

    Raises:
        InvalidType: something else.
        InvalidValue: tensors of different lengths, or none.

    >>> toy = rows({"x": torch.arange(8.0).reshape(4, 2), "y": torch.tensor([0, 1, 2, 3])})
    >>> toy.count, toy.take(np.array([1, 3]))["y"].tolist()
    (4, [1, 3])
    >>> rows([{"x": 0.5, "y": 1}, {"x": 1.5, "y": 0}]).take(np.array([1]))
    {'x': tensor([1.5000], dtype=torch.float64), 'y': tensor([0])}
    """
    found = table_of(data)
    if isinstance(found, Rows):
        return found
    return Rows(found.count, lambda indices: found.take(Draw(indices)))


def table_of(data: object, collate_fn: Collate | None = None) -> Rows | Examples:
    """``data`` as `Rows`, or as `Examples` where they are made one by one; see `rows`.

    With a ``collate_fn`` all data are examples: those of tensors, tuples and mappings are their rows.
    """
    if isinstance(data, Rows):
        if collate_fn is not None:
            raise InvalidType("Rows must come without collate_fn, got both. Rows make batches by themselves")
        return data
    if collate_fn is not None and not callable(collate_fn):  # pyright: ignore[reportUnnecessaryComparison]
        raise InvalidType(
            f"collate_fn must be a function from a list of examples to a batch, got {type(collate_fn).__name__}"
        )
    if isinstance(data, TensorDataset):  # the same rows without a Python call for each
        data = data.tensors
    if _are_columns(data, listed=collate_fn is None):
        count = count_rows(data)
        if collate_fn is None:
            return Rows(count, functools.partial(_selected, data))
        return Examples(_ColumnRows(data, count), collate_fn)
    if hasattr(data, "iloc"):
        data = _FrameRows(data)
    return Examples(_items_of(data), collate_fn)


def _selected(columns: Any, indices: Int[np.ndarray, " batch"]) -> Batch:
    return select_rows(columns, torch.from_numpy(indices))


def _are_columns(data: object, *, listed: bool) -> bool:
    """Whether rows lie along the first dimension of tensors; ``listed``: of a list of tensors too."""
    if isinstance(data, list):
        return listed and all(isinstance(column, Tensor) for column in cast("list[object]", data))
    if isinstance(data, Mapping):
        splits = [
            key for key, value in cast("Mapping[Any, object]", data).items() if hasattr(value, "column_names")
        ]
        if splits:
            raise InvalidType(
                f"data must be one data set, got {len(splits)} by name. Give one of them: data[{splits[0]!r}]"
            )
    return isinstance(data, (Tensor, Mapping, tuple))


def _items_of(data: object) -> Items:
    if isinstance(data, IterableDataset) or (hasattr(data, "__iter__") and not hasattr(data, "__getitem__")):
        is_loader = hasattr(data, "dataset")
        raise InvalidType(
            f"data must have items by number, data[i], got {type(data).__name__}. Poisson sampling must be able to "
            "draw any record at any step: give "
            + ("the loader's dataset, collate_fn and num_workers" if is_loader else "a map-style data set")
        )
    if not isinstance(data, Items) or isinstance(data, (str, bytes)):
        raise InvalidType(
            "data must be tensors in a tuple, list or mapping, or have examples by number (len(data) and data[i]), "
            f"got {type(data).__name__}"
        )
    return data


@dataclass(frozen=True, slots=True)
class _ColumnRows:
    """Row i of every column."""

    columns: Any
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> Any:
        return map_rows(lambda column: column[index], self.columns)


@dataclass(frozen=True, slots=True)
class _FrameRows:
    """The rows of a data frame, as dicts."""

    frame: Any

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int, /) -> Any:
        row = self.frame.iloc[index]
        return row.to_dict() if hasattr(row, "to_dict") else row


def _stacked(items: list[Any]) -> Batch:
    """By torch's ``default_collate``, which stacks rows: those of one kind together."""
    groups: dict[object, list[Any]] = {}
    for item in items:
        groups.setdefault(_kind(item), []).append(item)
    parts = tuple(default_collate(group) for group in groups.values())
    for part in parts:
        count_rows(part)
    return parts[0] if len(parts) == 1 else Ragged(parts)


def _kind(item: object) -> object:
    """What a row of it looks like: shapes, dtypes and types, no values."""
    if isinstance(item, (Tensor, np.ndarray, np.generic)):
        return item.shape, item.dtype
    if isinstance(item, Mapping):
        return tuple((key, _kind(value)) for key, value in cast("Mapping[Any, object]", item).items())
    if isinstance(item, (list, tuple)):
        return type(item), *map(_kind, cast("list[object]", item))
    return type(item)


def _check_numbers(item: object) -> None:
    """Refuse lists and texts, of which ``default_collate`` makes something else than rows."""
    values = cast("Mapping[str, object]", item).items() if isinstance(item, Mapping) else [("", item)]
    for name, value in values:
        if isinstance(value, (str, bytes)) or (isinstance(value, list) and isinstance(item, Mapping)):
            raise InvalidType(
                f"an example without collate_fn must hold numbers, arrays and tensors, got a {type(value).__name__} "
                f'in {name or "it"}. Give a collate_fn; for a datasets.Dataset also .with_format("torch") makes tensors'
            )


@contextmanager
def _own_numbers() -> Generator[Callable[[int, int], None]]:
    """Inside, global generators that the function given begins anew, at a key and a number; afterwards as they were."""
    # The CPU's alone: `torch.manual_seed` would move those of GPUs as well.
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield _begin
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])


def _begin(key: int, index: int) -> None:
    digest = hashlib.sha256(f"decrescendo:example:{key}:{index}".encode()).digest()
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    np.random.seed(int.from_bytes(digest[8:12], "big"))
    random.seed(digest[12:])
