"""Rows that a loop takes out of its tensors by a mask or by numbers, `x[drawn], y[drawn]`, in each neighbouring data
set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.torch_private import is_wrapped_by_transform
from decrescendo.doctor.events import wrap
from decrescendo.doctor.neighbours import GOING_ON, SCALES

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch


class IndexedRows:
    """Changes one of the rows that are taken, in all tables that they are taken out of; never the tables themselves.

    One index into several tables of one length (inputs and labels) is how a batch is drawn; into a single one it may be
    a look-up, if it is not of coins. So the first batch shows which tables belong together; a later one is compared.

    Args:
        watch: of the training.
    """

    def __init__(self, watch: TorchWatch) -> None:
        self._watch = watch
        self._chosen: Tensor | None = None  # the rows' numbers, of the batch that a neighbour differs in
        self._last: tuple[int, Tensor] | None = None  # the table and the numbers that were taken last
        self._tables = set[int]()
        self._inside = False
        self.rate: float | None = None  # at which coins drew the first rows that were taken since the last step

    def start(self) -> None:
        """Put the observer in."""
        wrap(Tensor, "__getitem__", self._take)

    def _take(self, take: Callable[..., Any], rows: Tensor, index: Any) -> Any:
        if torch.compiler.is_compiling() or self._inside or self._watch.depth:
            return take(rows, index)
        if type(index) is not Tensor and not isinstance(index, (list, np.ndarray)):
            return take(rows, index)
        self._inside = True
        try:
            taken = take(rows, index)
            with contextlib.suppress(TypeError, ValueError):  # (a list of slices and the like)
                return self._changed(rows, torch.as_tensor(index), taken)
            return taken
        finally:
            self._inside = False

    def _changed(self, rows: Tensor, index: Tensor, taken: Tensor) -> Tensor:
        """The rows that were taken, or in a neighbour with the first of them changed."""
        numbers = _numbers(rows, index)
        if numbers is None:
            return taken
        self._learn(rows, numbers)
        if self.rate is None:
            self.rate = self._watch.draws.rate_of(len(rows), numbers)
        if rows.dim() > 1 and self._watch.draws.are_coins(index):
            self._tables.add(rows.data_ptr())
        if rows.data_ptr() not in self._tables:
            return taken
        self._watch.twins.taken(rows, numbers)
        watch, neighbours = self._watch, self._watch.neighbours
        if not neighbours.waiting and neighbours.role not in GOING_ON:
            self._chosen = None
            optimised = len(watch.unclipped) or watch.by_hand
            if watch.fetched or watch.waits or not optimised or not neighbours.due(0):
                return taken
            self._chosen = numbers
            watch.fork(0)
        if self._chosen is None or not torch.equal(numbers, self._chosen):
            return taken
        return _neighbour(neighbours.change, rows, numbers, taken)

    def see(self, batch: Tensor) -> None:
        """A batch that a model is given with a gradient, which may be a part of a table: `x[i : i + 1]`."""
        base = batch if batch._base is None else batch._base
        unlike = base.requires_grad or base.shape[1:] != batch.shape[1:] or len(base) < 2 or not base.stride(0)
        if not self._watch.fetched and not unlike:
            start = (batch.storage_offset() - base.storage_offset()) // base.stride(0)
            self._watch.twins.taken(base, torch.arange(start, start + len(batch)), by_a_model=True)

    def _learn(self, rows: Tensor, numbers: Tensor) -> None:
        """Two tables of one length that the same rows are taken of, one after the other."""
        last, self._last = self._last, (rows.data_ptr(), numbers)
        if last is not None and last[0] != rows.data_ptr() and torch.equal(last[1], numbers):
            self._tables |= {last[0], rows.data_ptr()}


def _numbers(rows: Tensor, index: Tensor) -> Tensor | None:
    """The numbers of the rows, if these are two or more of a table that no gradient goes through."""
    if type(rows) is not Tensor or rows.requires_grad or rows.is_meta or not rows.dim() or index.dim() != 1:
        return None
    if is_wrapped_by_transform(rows) or is_wrapped_by_transform(index):
        return None
    if index.dtype == torch.bool:
        numbers = index.nonzero().flatten()
    elif index.dtype == torch.int64:
        numbers = index
    else:
        return None
    return numbers if 2 <= len(numbers) < len(rows) else None


def _neighbour(role: str, rows: Tensor, numbers: Tensor, taken: Tensor) -> Tensor:
    """The rows with the first replaced or enlarged. (One row less would change masks that are counted elsewhere.)"""
    if role != "replaced" and role not in SCALES:
        return taken
    changed = taken.clone()
    others = torch.ones(len(rows), dtype=torch.bool)
    others[numbers] = False
    if role == "replaced":
        changed[0] = rows[int(others.nonzero()[0])]
    elif changed.is_floating_point():
        changed[0] *= SCALES["large"] if role == "opposite" and changed.dim() > 1 else SCALES[role]
    elif role == "opposite" and changed.dim() == 1 and len(unlike := (rows != changed[0]).nonzero()):
        changed[0] = rows[int(unlike[0])]
    return changed
