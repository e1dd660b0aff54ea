"""Rows that the steps of a training draw, and other content for them."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from decrescendo.doctor.events import user_frame

_FEWER = 8  # the other rows are the last eighth, over and over


@dataclass
class TrainedRows:
    """Rows that steps are made of.

    Args:
        sets: data sets, by their identity, with the indices that were drawn, or nothing where all are drawn from.
        tables: tensors, by their address, with numbers of rows.
        seen: the same of what a model was given.
    """

    sets: dict[int, tuple[Any, set[int] | None]] = field(default_factory=dict)
    tables: dict[int, tuple[Tensor, list[Tensor]]] = field(default_factory=dict)
    seen: dict[int, tuple[Tensor, list[Tensor]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.sets or self.tables or self.seen)

    def is_clear(self, before: TrainedRows) -> bool:
        """Whether these, of one step, are all private: one loader's, or one batch of tables, or parts of one tensor."""
        lasting = self.tables.keys() & before.tables.keys()  # (others are parts of a batch)
        if self.sets:
            return len(self.sets) == 1 and not lasting
        batches = [numbers for _, each in self.tables.values() for numbers in each]
        same = all(torch.equal(numbers, batches[0]) for numbers in batches)
        return same if batches else len(self.seen) == 1

    def add(self, window: TrainedRows) -> None:
        """The rows of one more step."""
        for key, (data, drawn) in window.sets.items():
            known = self.sets.get(key, (data, set[int]()))[1]
            self.sets[key] = data, None if drawn is None or known is None else known | drawn
        for own, new in ((self.tables, window.tables), (self.seen, window.seen)):
            for key, (rows, numbers) in new.items():
                own.setdefault(key, (rows, []))[1].extend(numbers)

    def exchange(self) -> None:
        """Give them other content, of others of them.

        Raises:
            TypeError: the class of a data set cannot be exchanged for one below it.
        """
        for data, drawn in self.sets.values():
            exchange(data, drawn)
        for rows, numbers in () if self.sets else (self.tables or self.seen).values():
            exchange_rows(rows, torch.cat(numbers))


def exchange(data: Any, drawn: Collection[int] | None = None) -> None:
    """Give rows of a data set, or all of them, the content of others of them: of the last ones, over and over.

    Raises:
        TypeError: its class cannot be exchanged for one below it.
    """
    places = sorted(drawn) if drawn is not None else list(range(len(data)))
    base, numbers = data, torch.tensor(places)
    while isinstance(base, Subset):
        numbers, base = torch.as_tensor(base.indices)[numbers], base.dataset
    order = dict(zip(places, (places[i] for i in _others(len(places))), strict=True))
    if isinstance(base, TensorDataset):
        for tensor in base.tensors:
            exchange_rows(tensor, numbers)
    elif isinstance(data, Subset):
        data.indices = [int(data.indices[order.get(i, i)]) for i in range(len(data))]
    else:
        _exchange_class(data, order)


def _others(size: int) -> list[int]:
    few = max(2, size // _FEWER)
    return [max(0, size - 1 - i % few) for i in range(size)]


def exchange_rows(rows: Tensor, numbers: Tensor) -> None:
    """Give rows of a tensor, and of its copies among the user's variables, the content of others of them."""
    numbers = numbers.unique()
    order = numbers[_others(len(numbers))]
    own = rows[numbers].detach().clone()
    copies = [held for held in _variables() if held is not rows and _is_copy(held, rows, own)]
    # (Not in place: its memory may be that of a file.)
    exchanged = rows.detach().clone()
    exchanged[numbers] = exchanged[order]
    rows.data = exchanged
    for held in copies:
        new = (exchanged[numbers] if len(held) == len(numbers) else exchanged).reshape(held.shape)
        if isinstance(held, Tensor):
            held.data = new.to(held.dtype)
        else:
            held[...] = new


def _variables() -> Iterator[Any]:
    """Arrays and tensors in the user's frames, and in the modules of these."""
    frame, seen = user_frame(), set[int]()
    while frame is not None:
        for space in (frame.f_locals, frame.f_globals):
            for held in [*space.values()] if id(space) not in seen else ():
                if isinstance(held, Tensor | np.ndarray) and id(held) not in seen:
                    seen.add(id(held))
                    yield held
        seen.add(id(frame.f_globals))
        frame = frame.f_back


def _is_copy(held: Any, rows: Tensor, own: Tensor) -> bool:
    """Whether something else has the numbers of all these rows."""
    if isinstance(held, np.ndarray) and not (held.flags.writeable and held.flags.owndata and held.dtype.kind == "f"):
        return False
    # (Labels of other rows may be the same.)
    if getattr(held, "requires_grad", False) or len(held.shape) < 2 or len(held) not in (len(rows), len(own)):
        return False
    other = torch.as_tensor(held).detach().double().flatten()
    whole = rows.detach() if len(held) == len(rows) else own
    return other.numel() == whole.numel() and torch.allclose(other, whole.double().flatten(), equal_nan=True)


def _exchange_class(data: Any, order: Mapping[int, int]) -> None:
    kind: Any = type(data)

    def other(key: Any) -> Any:
        if isinstance(key, list):
            return [order.get(i, i) for i in key]
        with contextlib.suppress(TypeError):
            return order.get(operator.index(key), key)
        return key

    def taking(inner: Any) -> Callable[[Any, Any], Any]:
        return lambda held, key: inner(held, other(key))

    methods = {name: taking(getattr(kind, name)) for name in ("__getitem__", "__getitems__") if hasattr(kind, name)}
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # which its repr may have
    data.__class__ = type(kind.__name__, (kind,), {**methods, **names})
