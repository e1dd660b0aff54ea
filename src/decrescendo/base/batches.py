"""Batches as nested containers of tensors: count, slice, select, copy and join their rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, cast, final

import torch
from torch import Tensor

from decrescendo.errors import InvalidType, InvalidValue

# Any pytree (dicts, tuples, lists, nested) whose leaves are tensors with one row per example.
Batch: TypeAlias = Any


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A batch of examples of several shapes, in parts of one shape each, without padding.

    An engine clips and sums one part after the other. `map_rows` changes all of them.

    >>> import torch
    >>> Ragged((torch.zeros(2, 7), torch.zeros(1, 9))).rows
    3
    """

    parts: tuple[Batch, ...]

    @property
    def rows(self) -> int:
        """The number of examples."""
        return count_rows(self)

    def pin_memory(self) -> "Ragged":
        """A copy in pinned memory, from which a GPU can copy; torch's `DataLoader` calls this."""
        return map_rows(Tensor.pin_memory, self)


@final
@dataclass(frozen=True, slots=True, eq=False)
class OneByOne:
    """A batch whose examples run one at a time: each is a batch of one, and may be anything that the loss takes (a
    list of images, a graph).

    >>> import torch
    >>> OneByOne(([torch.zeros(3, 8, 6)], [torch.zeros(3, 5, 9)])).rows
    2
    """

    examples: tuple[Any, ...]

    @property
    def rows(self) -> int:
        """The number of examples."""
        return len(self.examples)


def examples_of(batch: Batch) -> Iterator[Batch]:
    """The examples of a batch as batches of one: the elements of a `OneByOne`, the rows of any other batch."""
    if isinstance(batch, OneByOne):
        yield from batch.examples
        return
    for part in parts_of(batch):
        for row in range(count_rows(part)):
            yield slice_rows(part, row, row + 1)


def map_example(change: Callable[[Tensor], Tensor], other: Callable[[Any], Any], example: Any) -> Any:
    """``example`` with ``change`` applied to the tensors in its dicts, lists and tuples, and ``other`` to all else that
    is not a container.

    >>> map_example(torch.neg, str, {"x": [torch.tensor(1)], "size": 3})
    {'x': [tensor(-1)], 'size': '3'}
    """
    if isinstance(example, Tensor):
        return change(example)
    if isinstance(example, (list, tuple)):
        parts: Any = [map_example(change, other, value) for value in cast("list[Any]", example)]
        if type(example) is tuple:
            return tuple(parts)
        if hasattr(example, "_fields"):
            return type(example)(*parts)
    elif isinstance(example, Mapping):  # (asked last: an abstract class is slow to ask)
        values = cast("Mapping[Any, Any]", example).items()
        parts = {key: map_example(change, other, value) for key, value in values}
        if type(example) is dict:
            return parts
    else:
        return example if example is None else other(example)
    try:
        return _rebuilt(type(example), parts)
    except InvalidType:
        if other is _no_tensor:
            raise
        return other(example)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """``batch`` with its tensors, and other objects that have a method ``to`` (graphs), moved to ``device``."""

    def move(tensor: Any) -> Any:
        return tensor.to(device, non_blocking=True)

    if not isinstance(batch, OneByOne):
        return map_rows(move, batch)

    def other(value: Any) -> Any:
        return value.to(device) if hasattr(value, "to") else value

    return OneByOne(tuple(map_example(move, other, example) for example in batch.examples))


def parts_of(batch: Batch) -> tuple[Batch, ...]:
    """The parts of a `Ragged` batch; any other batch as its only part."""
    return batch.parts if isinstance(batch, Ragged) else (batch,)


def joined(examples: Sequence[Batch]) -> Batch:
    """Batches of one row each as one batch: `Ragged` where their shapes, dtypes or containers differ.

    >>> import torch
    >>> joined([{"x": torch.tensor([1])}, {"x": torch.tensor([2])}])
    {'x': tensor([1, 2])}
    >>> [len(part) for part in joined([torch.zeros(1, 2), torch.zeros(1, 3), torch.zeros(1, 2)]).parts]
    [2, 1]
    """
    groups: dict[object, list[Batch]] = {}
    for example in examples:
        groups.setdefault(form_of(example), []).append(example)
    parts = tuple(_together(group) for group in groups.values())
    return parts[0] if len(parts) == 1 else Ragged(parts)


def form_of(batch: Batch) -> object:
    """What batches must share for their rows to be concatenated: containers, and shapes and dtypes of a row."""
    if isinstance(batch, Tensor):
        return batch.shape[1:], batch.dtype
    if isinstance(batch, Mapping):
        items = cast("Mapping[Any, Batch]", batch).items()
        return type(cast("object", batch)), tuple((key, form_of(value)) for key, value in items)
    if isinstance(batch, (list, tuple)):
        return type(cast("object", batch)), *map(form_of, cast("list[Batch]", batch))
    return None


def _together(group: list[Batch]) -> Batch:
    """The rows of batches of one form, concatenated."""
    whole = iter([torch.cat(column) for column in zip(*map(leaves_of, group), strict=True)])
    return map_rows(lambda _: next(whole), group[0])


def leaves_of(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, in the order of `map_rows`."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_rows(note, batch)
    return found


def map_rows(change: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """``batch`` with ``change`` applied to every tensor in it; ``None`` stays.

    >>> import torch
    >>> map_rows(lambda rows: rows[:1], {"x": torch.tensor([1, 2]), "y": (torch.tensor([3, 4]), None)})
    {'x': tensor([1]), 'y': (tensor([3]), None)}
    """
    if isinstance(batch, Ragged):
        return Ragged(tuple(map_rows(change, part) for part in batch.parts))
    if isinstance(batch, OneByOne):
        return OneByOne(tuple(map_example(change, lambda value: value, one) for one in batch.examples))
    return map_example(change, _no_tensor, batch)


def _no_tensor(leaf: object) -> NoReturn:
    raise InvalidType(
        f"a batch must be tensors in dicts, lists and tuples, got a {type(leaf).__name__} in it. "
        "Make it a tensor with one row per example, or give it to the loss in another way"
    )


def _rebuilt(kind: type, content: Any) -> Batch:
    items = list(content.items()) if isinstance(content, dict) else list(enumerate(content))
    why = "it has others then"
    try:
        made = kind(content)
        if len(made) == len(items) and all(made[key] is value for key, value in items):
            return made
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    raise InvalidType(
        f"a container in a batch must be made from its items alone, got {kind.__name__} ({why}). "
        "Use a dict, list or tuple"
    )


def count_rows(batch: Batch) -> int:
    """The number of examples: the common first dimension of all tensors in the batch.

    Raises:
        InvalidType: a leaf that is not a tensor.
        InvalidValue: no tensor at all, or first dimensions that differ.

    >>> import torch
    >>> count_rows((torch.zeros(3, 2), {"label": torch.zeros(3)}))
    3
    """
    if isinstance(batch, OneByOne):
        return batch.rows
    if isinstance(batch, Ragged):
        return sum(map(count_rows, batch.parts))
    sizes: list[int] = []

    def look(rows: Tensor) -> Tensor:
        if rows.is_meta:
            raise InvalidValue(
                "every tensor in a batch must have values, got one on the meta device. Load or make the data first"
            )
        if rows.layout is not torch.strided or rows.is_nested:
            kind = "a nested one" if rows.layout is torch.strided else f"layout={rows.layout}"
            raise InvalidValue(
                f"every tensor in a batch must be dense, got {kind}. Give rows.to_dense(), or indices and values "
                "padded to one length"
            )
        if rows.dim() == 0:
            raise InvalidValue(
                "every tensor in a batch must have one row per example, got a tensor without dimensions. "
                "Constants belong to the loss, not to the batch"
            )
        sizes.append(rows.shape[0])
        return rows

    map_rows(look, batch)
    if not sizes:
        raise InvalidValue("a batch must hold at least one tensor, got none. An empty batch is None")
    if min(sizes) != max(sizes):
        raise InvalidValue(
            f"every tensor in a batch must have the same first dimension, got sizes {sorted(set(sizes))}. "
            "Dimension 0 counts the examples"
        )
    return sizes[0]


def slice_rows(batch: Batch, start: int, stop: int) -> Batch:
    """Rows ``start`` to ``stop`` (views, not copies)."""
    return map_rows(lambda rows: rows[start:stop], batch)


def memory_order(rows: Tensor) -> tuple[int, ...]:
    """The dimensions of a copy of a tensor's rows, from the slowest to the fastest in memory.

    Rows come one after another, whatever their order in memory was; within a row a permuted memory format stays
    (`torch.channels_last`, the result of ``transpose(1, 2)``), and a dimension that was expanded stays where it is.

    >>> import torch
    >>> memory_order(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
    (0, 2, 3, 1)
    >>> memory_order(torch.zeros(3, 2).t())
    (0, 1)
    """
    steps, sizes = rows.stride(), rows.shape
    laid = [dim for dim in range(1, rows.dim()) if steps[dim]]
    order = list(range(rows.dim()))
    # The stride of a dimension of size one is arbitrary: as in torch, it comes after one with the same stride.
    for place, dim in zip(laid, sorted(laid, key=lambda dim: (-steps[dim], sizes[dim] == 1)), strict=True):
        order[place] = dim
    return tuple(order)


def copy_rows(rows: Tensor, index: Tensor | None = None) -> Tensor:
    """A copy of the rows, or of those at ``index``, in their `memory_order`, whatever their number.

    >>> import torch
    >>> copy_rows(torch.zeros(3, 2, 4).transpose(1, 2), torch.tensor([0, 0])).stride()
    (8, 1, 4)
    """
    order = memory_order(rows)
    source = rows.permute(order)
    source = source if index is None else source[index.to(rows.device)]
    # (Indexing and `contiguous` give dimensions of size one other strides.)
    found = source.new_empty(source.shape).copy_(source)
    return found.permute([order.index(dim) for dim in range(rows.dim())])


def select_rows(batch: Batch, index: Tensor) -> Batch:
    """The rows at ``index``, copied."""
    return map_rows(lambda rows: torch.index_select(rows, 0, index.to(rows.device)), batch)
