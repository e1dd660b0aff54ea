"""Rows of a batch: how many there are, and a slice or selection of them through any nesting."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.clipping.clipped import Batch
from decrescendo.errors import InvalidType, InvalidValue


def map_rows(change: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """``batch`` with ``change`` applied to every tensor in it; ``None`` stays.

    >>> import torch
    >>> map_rows(lambda rows: rows[:1], {"x": torch.tensor([1, 2]), "y": (torch.tensor([3, 4]), None)})
    {'x': tensor([1]), 'y': (tensor([3]), None)}
    """
    if isinstance(batch, Tensor):
        return change(batch)
    if batch is None:
        return None
    if isinstance(batch, Mapping):
        items = {key: map_rows(change, value) for key, value in cast("Mapping[Any, Batch]", batch).items()}
        return items if type(batch) is dict else _rebuilt(type(batch), items)
    if isinstance(batch, (list, tuple)):
        parts = [map_rows(change, value) for value in cast("list[Batch]", batch)]
        if hasattr(batch, "_fields"):
            return type(batch)(*parts)
        return _rebuilt(type(batch), parts)
    raise InvalidType(
        f"a batch must be tensors in dicts, lists and tuples, got a {type(batch).__name__} in it. "
        "Make it a tensor with one row an example, or give it to the loss in another way"
    )


def _rebuilt(kind: type, content: Any) -> Batch:
    try:
        return kind(content)
    except TypeError as error:
        raise InvalidType(
            f"a container in a batch must be made from its items alone, got {kind.__name__} ({error}). "
            "Use a dict, list or tuple"
        ) from None


def count_rows(batch: Batch) -> int:
    """The number of examples: the common first dimension of all tensors in the batch.

    Raises:
        InvalidType: a leaf that is no tensor.
        InvalidValue: no tensor at all, or first dimensions that differ.

    >>> import torch
    >>> count_rows((torch.zeros(3, 2), {"label": torch.zeros(3)}))
    3
    """
    sizes: list[int] = []

    def look(rows: Tensor) -> Tensor:
        if rows.layout is not torch.strided:
            raise InvalidValue(
                f"every tensor in a batch must be dense, got layout={rows.layout}. Give rows.to_dense(), or indices "
                "and values padded to one length"
            )
        if rows.dim() == 0:
            raise InvalidValue(
                "every tensor in a batch must have one row an example, got a tensor without dimensions. "
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


def select_rows(batch: Batch, index: Tensor) -> Batch:
    """The rows at ``index``, copied."""
    return map_rows(lambda rows: torch.index_select(rows, 0, index.to(rows.device)), batch)
