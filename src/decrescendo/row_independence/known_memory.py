"""What outlives a pass: lines that were declared, guesses about constants, and the memory of the training set."""

import bisect
from collections.abc import Iterable
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.assumption import Assumption
from decrescendo.base.storages import FUNCTIONS_OFF, key_of, parts_of, storage_key
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.labels import RowLayout

# Where a constant occurs: the call, the argument, and where the examples would be in it.
Guess: TypeAlias = tuple[int, int, RowLayout]


_Bytes: TypeAlias = tuple[int, int]


# Weak references to storages that passes have made from data: a weak reference stops reuse of the address.
ENDED_STORAGES: set[int] = set()


class Memory:
    """What outlives a pass: tensors made from data that are still alive, answers to looks at the data, declarations."""

    def __init__(self, declared: Iterable[str] = ()) -> None:
        # Of all engines: a loss that two of them have may carry from one to the other.
        self.stale = ENDED_STORAGES
        # What is answered instead of a truth value of the data, by line of code.
        self.answers: dict[str, bool] = {}
        # Lines of code (or files) whose looks at the data the user has declared harmless.
        self.declared = frozenset(declared)
        self.assumed: set[Assumption] = set()
        # Constants that are as long as a batch by coincidence alone.
        self.coincident: set[Guess] = set()
        self._data = _Withheld()

    def withhold(self, data: Iterable[Tensor | np.ndarray]) -> bool:
        """No pass may use these, of which it is given its batch; whether some were not withheld before."""
        return self._data.add(part for value in data for part in parts_of(value))

    def withholds(self, value: Tensor | np.ndarray) -> bool:
        """Whether a tensor or array lies, with a part at least, in memory that holds the data."""
        return bool(self._data) and any(map(self._data.overlaps, parts_of(value)))

    def check_apart(self, held: Iterable[tuple[str, Tensor]]) -> None:
        """Refuse what lies in the data's memory and is trained, or trains: it would be released with the weights."""
        for name, tensor in held:
            if self.withholds(tensor):
                raise UnsupportedModel(
                    f"no part of a model or optimizer may hold the data, got {name} in memory that batches are drawn "
                    "from. It would be released with the weights, without noise: leave it out, or use public data"
                )


class _Withheld:
    """Stretches of memory: by address, and by their place in a storage, whose address may become another."""

    def __init__(self) -> None:
        # By the address of the first byte and of the one after the last; tensors as tensors of our own, for a program
        # may exchange the memory of its own, and what it had then still holds data.
        self._held: dict[_Bytes, Tensor | np.ndarray] = {}
        # Of each storage (0: of all memory) where the stretches begin, and where they end.
        self._stretches: dict[int, tuple[list[int], list[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, values: Iterable[Tensor | np.ndarray]) -> bool:
        before, found = self._held.keys(), _placed(values)
        with FUNCTIONS_OFF():
            new = [value.detach() if isinstance(value, Tensor) else value for value in found.values()]
        self._held = _placed([*self._held.values(), *new])
        places = [(0, start, end) for start, end in self._held]
        for (start, end), value in self._held.items():
            if isinstance(value, Tensor):
                base = value.untyped_storage().data_ptr()
                places.append((storage_key(value), start - base, end - base))
        self._stretches = {}
        for space, start, end in sorted(places):
            starts, ends = self._stretches.setdefault(space, ([], []))
            if ends and start <= ends[-1]:
                ends[-1] = max(end, ends[-1])
            else:
                starts.append(start)
                ends.append(end)
        return self._held.keys() != before

    def overlaps(self, value: Tensor | np.ndarray) -> bool:
        found = _bytes_of(value)
        if found is None:
            return False
        if self._in(0, *found):
            return True
        key = key_of(value) if isinstance(value, Tensor) else 0
        if key not in self._stretches:
            return False
        with FUNCTIONS_OFF():
            base = cast("Tensor", value).untyped_storage().data_ptr()
        return self._in(key, found[0] - base, found[1] - base)

    def _in(self, space: int, start: int, end: int) -> bool:
        starts, ends = self._stretches.get(space, ([], []))
        place = bisect.bisect_right(ends, start)
        return place < len(starts) and starts[place] < end


def _placed(values: Iterable[Tensor | np.ndarray]) -> "dict[_Bytes, Tensor | np.ndarray]":
    found = {_bytes_of(value): value for value in values}
    return {place: value for place, value in found.items() if place is not None}


def _bytes_of(value: Tensor | np.ndarray) -> _Bytes | None:
    """The first byte of what is in memory, and the one after the last; of a view with gaps these too."""
    if isinstance(value, np.ndarray):
        if not value.size:
            return None
        jumps = [(size - 1) * step for size, step in zip(value.shape, value.strides, strict=True)]
        first = int(value.ctypes.data)
        return first + sum(min(0, jump) for jump in jumps), first + sum(
            max(0, jump) for jump in jumps
        ) + value.itemsize
    if value.layout is not torch.strided or value.is_meta or not value.numel():
        return None
    try:
        with FUNCTIONS_OFF():
            first, width = value.data_ptr(), value.element_size()
            jumps = [(size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)]
    except (NotImplementedError, RuntimeError):  # a tensor without memory of its own
        return None
    return first, first + (sum(jumps) + 1) * width
