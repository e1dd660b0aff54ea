"""`Memory`: the state that checks of one program keep between passes.

It has the lines that the user declared, the answers given to data-dependent branches, the assumptions made,
the constants whose size equals the batch size by coincidence, and the memory ranges of the training data.
"""

import bisect
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.assumption import Assumption
from decrescendo.base.storages import FUNCTIONS_OFF, key_of, parts_of
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.labels import RowLayout

# A constant with one dimension as long as the batch: index of the call, index of the argument, and the row
# layout that the constant would have if that were more than a coincidence.
SuspectConstant: TypeAlias = tuple[int, int, RowLayout]


# A memory range: the first byte, and the one after the last.
_Range: TypeAlias = tuple[int, int]

# Keys of storages that past passes computed from data. Each is held by a weak reference (`Labels.end`), which
# keeps the key from being used again.
ENDED_STORAGES: set[int] = set()


class Memory:
    """The state that checks of one program keep between passes."""

    def __init__(self, declared: Iterable[str] = ()) -> None:
        # Shared by all engines: a loss used by two engines may carry a tensor from one to the other.
        self.stale = ENDED_STORAGES
        # The fixed answer given to a data-dependent branch, by line of code.
        self.answers: dict[str, bool] = {}
        # Lines of code (or files) whose data reads the user declared harmless (assumed, not checked).
        self.declared = frozenset(declared)
        self.assumed: set[Assumption] = set()
        # Constants whose size equals the batch size by coincidence only.
        self.coincident: set[SuspectConstant] = set()
        self._data = _Withheld()

    def withhold(self, data: Iterable[Tensor | np.ndarray]) -> bool:
        """Forbid passes to read these data except through their batch. Returns whether any were new."""
        return self._data.add(part for value in data for part in parts_of(value))

    def withholds(self, value: Tensor | np.ndarray) -> bool:
        """Whether a tensor or array overlaps memory of the withheld data."""
        return bool(self._data) and any(map(self._data.overlaps, parts_of(value)))

    def check_apart(self, held: Iterable[tuple[str, Tensor]]) -> None:
        """Refuse parameters, buffers and optimizer state that share memory with the withheld data."""
        for name, tensor in held:
            if self.withholds(tensor):
                raise UnsupportedModel(
                    f"no part of a model or optimizer may hold the data, got {name} in memory that batches are drawn "
                    "from. It would be released with the weights, without noise: leave it out, or use public data"
                )


class _Withheld:
    """The memory ranges of the training data: absolute, and as offsets in a storage, which may move."""

    def __init__(self) -> None:
        # By storage key (0: an array) and absolute range. Tensors are held as detached aliases: user code may
        # replace the storage of its own tensor, and the old one still holds data.
        self._held: dict[tuple[int, _Range], Tensor | np.ndarray] = {}
        # Per storage key (0: absolute addresses) the sorted starts and ends of the merged ranges.
        self._ranges: dict[int, tuple[list[int], list[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, values: Iterable[Tensor | np.ndarray]) -> bool:
        before, found = {place for _, place in self._held}, _placed(values)
        with FUNCTIONS_OFF():
            new = [value.detach() if isinstance(value, Tensor) else value for value in found.values()]
        self._held = _placed([*self._held.values(), *new])
        places = [(0, start, end) for _, (start, end) in self._held]
        for (key, (start, end)), value in self._held.items():
            if isinstance(value, Tensor):
                base = value.untyped_storage().data_ptr()
                places.append((key, start - base, end - base))
        self._ranges = {}
        for space, start, end in sorted(places):
            starts, ends = self._ranges.setdefault(space, ([], []))
            if ends and start <= ends[-1]:
                ends[-1] = max(end, ends[-1])
            else:
                starts.append(start)
                ends.append(end)
        return {place for _, place in self._held} != before

    def overlaps(self, value: Tensor | np.ndarray) -> bool:
        found = _range_of(value)
        if found is None:
            return False
        if self._in(0, *found):
            return True
        if not isinstance(value, Tensor) or (key := key_of(value)) not in self._ranges:
            return False
        with FUNCTIONS_OFF():
            base = value.untyped_storage().data_ptr()
        return self._in(key, found[0] - base, found[1] - base)

    def _in(self, space: int, start: int, end: int) -> bool:
        starts, ends = self._ranges.get(space, ([], []))
        place = bisect.bisect_right(ends, start)
        return place < len(starts) and starts[place] < end


def _placed(values: Iterable[Tensor | np.ndarray]) -> "dict[tuple[int, _Range], Tensor | np.ndarray]":
    found = [(_range_of(value), value) for value in values]
    return {
        (key_of(value) if isinstance(value, Tensor) else 0, place): value for place, value in found if place is not None
    }


def _range_of(value: Tensor | np.ndarray) -> _Range | None:
    """The memory range that a value spans, gaps of strided views included; ``None`` without memory."""
    if isinstance(value, np.ndarray):
        if not value.size:
            return None
        jumps = [(size - 1) * step for size, step in zip(value.shape, value.strides, strict=True)]
        first = int(value.ctypes.data)
        return first + sum(min(0, jump) for jump in jumps), first + sum(max(0, jump) for jump in jumps) + value.itemsize
    if value.layout is not torch.strided or value.is_meta or not value.numel():
        return None
    try:
        with FUNCTIONS_OFF():
            first, width = value.data_ptr(), value.element_size()
            jumps = [(size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)]
    except (NotImplementedError, RuntimeError):  # a tensor without memory of its own
        return None
    return first, first + (sum(jumps) + 1) * width
