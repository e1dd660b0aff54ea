"""Rows that a loop takes out of its tensors by a mask or by numbers, `x[drawn], y[drawn]`, in each neighbouring data
set."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from decrescendo.base.torch_private import is_wrapped_by_transform
from decrescendo.doctor.events import wrap
from decrescendo.doctor.neighbours import SCALES

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch


class IndexedRows:
    """Changes one of the rows that are taken, in all tensors that they are taken out of.

    Args:
        watch: of the training.
    """

    def __init__(self, watch: TorchWatch) -> None:
        self._watch = watch
        self._chosen: Tensor | None = None  # the rows' numbers, of the batch that a neighbour differs in
        self._inside = False
        self._changed: set[int] = set()

    def start(self) -> None:
        """Put the observer in."""
        wrap(Tensor, "__getitem__", self._take)

    def _take(self, take: Callable[..., Any], rows: Tensor, index: Any) -> Any:
        if self._inside or not isinstance(index, Tensor) or self._watch.depth:
            return take(rows, index)
        self._inside = True
        try:
            return take(rows, self._seen(rows, index))
        finally:
            self._inside = False

    def _seen(self, rows: Tensor, index: Tensor) -> Tensor:
        """The index that a neighbour takes instead, in whose rows one is changed."""
        numbers = _numbers(rows, index)
        if numbers is None:
            return index
        neighbours = self._watch.neighbours
        if self._chosen is None or not neighbours.waiting:
            if (
                self._watch.fetched
                or self._watch.waits
                or not len(self._watch.unclipped)
                or neighbours.waiting
            ):
                return index
            if not neighbours.due(0):
                return index
            self._chosen = numbers
            self._watch.fork(0)
        if not torch.equal(numbers, self._chosen):
            return index
        if neighbours.role == "removed":
            return numbers[1:]
        if rows.data_ptr() not in self._changed:
            self._changed.add(rows.data_ptr())
            _change(neighbours.role, rows, numbers)
        return index


def _numbers(rows: Tensor, index: Tensor) -> Tensor | None:
    """The numbers of the rows, if these are two or more of a table that no gradient goes through."""
    if rows.requires_grad or not rows.dim() or index.dim() != 1 or is_wrapped_by_transform(rows):
        return None
    if is_wrapped_by_transform(index) or not (index.dtype == torch.bool or index.dtype == torch.int64):
        return None
    numbers = index.nonzero().flatten() if index.dtype == torch.bool else index
    return numbers if 2 <= len(numbers) < len(rows) else None


def _change(role: str, rows: Tensor, numbers: Tensor) -> None:
    """Change the first of the rows in place: it is the data of a process that ends with this step."""
    table, first = rows.detach(), int(numbers[0])
    others = torch.ones(len(rows), dtype=torch.bool)
    others[numbers] = False
    if role == "replaced":
        table[first] = table[int(others.nonzero()[0])]
    elif role in SCALES and table.is_floating_point():
        table[first] *= SCALES["large"] if role == "opposite" and table.dim() > 1 else SCALES[role]
    elif role == "opposite" and table.dim() == 1:
        unlike = (table != table[first]).nonzero()
        if len(unlike):
            table[first] = table[int(unlike[0])]
