"""What a pass may spend on the way from output gradients to clipped sums: memory, and which of several methods.

One gradient often has several closed forms: Gram matrices, or the product itself, kept for the sum or computed
twice. Which is fastest depends on the machine, so it is measured where it first matters and remembered by shape.
"""

import itertools
import math
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Choice: TypeAlias = Literal["measured", "counted"]

# Elements of one temporary: fits a cache of a few megabytes, and the allocator gives the same block again. Blocks
# above 32 MB come fresh from the operating system each time, which can cost ten times what is done with them.
CHUNK = 2**20

# Bytes: where a kept tensor may start.
_ALIGNED = 64

_FASTEST: dict[Hashable, str] = {}


@dataclass(slots=True, weakref_slot=True)
class Means:
    """Bytes of per-example gradients that may still be kept between norm and sum, and how methods are chosen.

    Args:
        left: bytes; of all operations of one pass together.
        choice: "measured": by time on first use; "counted": by operations, the same on every machine.
        precise: output gradients are widened to float64 before anything is made of them.

    >>> means = Means(100, "counted").fresh()
    >>> first, second = (means.take((2, 8), torch.zeros(1)) for _ in range(2))
    >>> first.shape, second, means.left
    (torch.Size([2, 8]), None, 36)
    """

    left: int
    choice: Choice = "measured"
    precise: bool = False
    _pool: list[Tensor] = field(default_factory=list)
    _block: Tensor | None = None

    def fresh(self) -> "Means":
        """The means of one pass; the memory of passes that have ended is used again, and not asked for anew."""
        made = replace(self, _block=self._pool.pop() if self._pool else None)
        if made._block is not None:
            made._give_back(made._block)
        return made

    def counted(self) -> "Means":
        """The same, for a pass over few rows that comes once: nothing is measured for it."""
        return replace(self, choice="counted")

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """An uninitialised tensor of that shape, or ``None`` where it is not to be had any more."""
        size = math.prod(shape) * like.element_size()
        if size > self.left or (block := self._memory(like.device)) is None:
            return None
        start = -(-(block.numel() - self.left) // _ALIGNED) * _ALIGNED
        if start + size > block.numel():
            return None
        self.left = block.numel() - start - size
        return block[start : start + size].view(like.dtype).reshape(shape)

    def _memory(self, device: torch.device) -> Tensor | None:
        if self._block is not None and self._block.device != device:
            return None
        if self._block is None:
            self._block = torch.empty(self.left, dtype=torch.uint8, device=device)
            self._give_back(self._block)
        return self._block

    def _give_back(self, block: Tensor) -> None:
        weakref.finalize(self, self._pool.append, block).atexit = False

    def choose(
        self, key: Hashable, cost: Mapping[str, float], run: Callable[[str], object], device: torch.device
    ) -> str:
        """The method to use, one of ``cost``.

        Args:
            key: what the times depend on: operation, shapes, dtype.
            cost: multiplications each method takes. Those that take over three times the fewest are not tried.
            run: does the work by a method.
            device: where the work is.

        >>> Means(0, "counted").choose("key", {"slow": 10.0, "quick": 3.0}, print, torch.device("cpu"))
        'quick'
        """
        least = min(cost.values())
        likely = sorted((name for name, count in cost.items() if count <= 3 * least), key=cost.__getitem__)
        if len(likely) == 1 or self.choice == "counted":
            return likely[0]
        whole = (key, tuple(likely), str(device))
        found = _FASTEST.get(whole)
        if found is None:
            times = {name: _time(run, name, device) for name in likely}
            found = _FASTEST[whole] = min(likely, key=times.__getitem__)
        return found


def bucket(batch: int) -> int:
    """Batch sizes that share a measurement: Poisson batches all differ.

    >>> bucket(250) == bucket(240), bucket(250) == bucket(16)
    (True, False)
    """
    return batch.bit_length()


def chunks(batch: int, elements: int, most: int = CHUNK) -> Iterator[slice]:
    """Slices of the batch whose temporaries, ``elements`` an example, are at most ``most``; equal up to one example.

    >>> [(part.start, part.stop) for part in chunks(5, CHUNK // 2)]
    [(0, 1), (1, 3), (3, 5)]
    """
    count = max(1, -(-batch * elements // most))
    edges = [batch * index // min(count, batch) for index in range(min(count, batch) + 1)]
    for start, stop in itertools.pairwise(edges):
        yield slice(start, stop)


def _time(run: Callable[[str], object], name: str, device: torch.device) -> float:
    """Seconds of the better of two runs."""
    best = float("inf")
    for _ in range(2):
        _synchronise(device)
        start = time.perf_counter()
        run(name)
        _synchronise(device)
        best = min(best, time.perf_counter() - start)
    return best


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
