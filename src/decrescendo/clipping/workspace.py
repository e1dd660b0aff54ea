"""What a pass may spend on the way from output gradients to clipped sums: memory, and which of several methods.

One gradient often has several closed forms: Gram matrices, or the product itself, kept for the sum or computed
twice. Which one is taken follows from shapes by a count of operations, the same on every machine that has the compiled
forms, or has not.
"""

import itertools
import math
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

# Elements of one temporary: fits a cache of a few megabytes, and the allocator gives the same block again. Blocks
# above 32 MB come fresh from the operating system each time, which can cost ten times what is done with them.
CHUNK = 2**20

# Bytes: where a kept tensor may start.
_ALIGNED = 64

# What it costs to read or write one number, in multiplications of a large matrix product.
MOVED = 16
# Kernels multiply in tiles: each side of a product costs as if it were longer by about one tile.
_TILE = 16


@dataclass(slots=True, weakref_slot=True)
class Workspace:
    """Bytes of per-example gradients that may still be kept between norm and sum, and how methods are chosen.

    Args:
        left: bytes; of all operations of one pass together.
        wide: output gradients are widened to float64 before anything is made of them.

    >>> workspace = Workspace(100).fresh()
    >>> first, second = (workspace.take((2, 8), torch.zeros(1)) for _ in range(2))
    >>> first.shape, second, workspace.left
    (torch.Size([2, 8]), None, 36)
    """

    left: int
    wide: bool = False
    _pool: list[Tensor] = field(default_factory=list)
    _block: Tensor | None = None

    def fresh(self) -> "Workspace":
        """The workspace of one pass; the memory of passes that have ended is used again, and not asked for anew."""
        made = replace(self, _block=self._pool.pop() if self._pool else None)
        if made._block is not None:
            made._give_back(made._block)
        return made

    def reserved(self, device: torch.device) -> Tensor:
        """The memory of the next pass, before it begins."""
        if not self._pool:
            self._pool.append(torch.empty(self.left, dtype=torch.uint8, device=device))
        return self._pool[-1]

    def borrow(self, block: Tensor) -> bool:
        """Take that memory, if no pass has it, until `return_to`."""
        for at, own in enumerate(self._pool):
            if own is block:
                del self._pool[at]
                return True
        return False

    def return_to(self, block: Tensor) -> None:
        """It is anybody's again."""
        self._pool.append(block)

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

    def choose(self, cost: Mapping[str, float]) -> str:
        """The method that takes the fewest operations.

        >>> Workspace(0).choose({"slow": 10.0, "quick": 3.0})
        'quick'
        """
        return min(cost, key=cost.__getitem__)


def product_cost(rows: int, inner: int, columns: int) -> float:
    """Multiplications of one matrix product, and what those of a small one cost more.

    >>> product_cost(1000, 1000, 1000) / 1000**3 < 1.05, product_cost(16, 16, 16) / 16**3
    (True, 8.0)
    """
    return float((rows + _TILE) * (inner + _TILE) * (columns + _TILE))


def chunks(batch: int, elements: int, most: int = CHUNK) -> Iterator[slice]:
    """Slices of the batch whose temporaries, ``elements`` an example, are at most ``most``; equal up to one example.

    >>> [(part.start, part.stop) for part in chunks(5, CHUNK // 2)]
    [(0, 1), (1, 3), (3, 5)]
    """
    count = max(1, -(-batch * elements // most))
    edges = [batch * index // min(count, batch) for index in range(min(count, batch) + 1)]
    for start, stop in itertools.pairwise(edges):
        yield slice(start, stop)
