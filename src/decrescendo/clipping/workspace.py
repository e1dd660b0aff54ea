"""`Workspace`: the memory that a pass may use between output gradients and clipped sums, and the choice of
methods.

One gradient often has several closed forms: Gram matrices, or the product itself, kept for the sum or computed
twice. The choice follows from shapes by a count of operations: the same on all machines with the compiled kernels,
and on all without.
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
# On other devices, whose many units want large products.
_CHUNK_THERE = 2**24

# The alignment of kept tensors, in bytes.
_ALIGNED = 64
# Defaults of the bytes that passes keep: on a CPU; on a GPU, its memory divided by this.
_KEPT_BYTES, _KEPT_SHARE = 2**27, 8
# Room for larger batches: a block is so many times what was needed.
_SPARE = 1.25

# What it costs to read or write one number, in multiplications of a large matrix product.
MOVED = 16
# Kernels multiply in tiles: each side of a product costs as if it were longer by about one tile.
_TILE = 16


@dataclass(slots=True)
class _Block:
    """The block of memory that the passes of one engine use in turn.

    Args:
        own: the block; ``None`` before the first pass, and after a pass that needed more.
        free: the block, while no pass uses it; else empty. (A list, as ``pop`` is atomic for threads.)
        most: the most bytes that a pass took.
    """

    own: Tensor | None = None
    free: list[Tensor] = field(default_factory=list)
    most: int = 0


@dataclass(slots=True, weakref_slot=True)
class Workspace:
    """Memory for per-example gradients that are kept from the norm to the sum, and the choice of methods.

    The host commits memory only when it is written to, so on a CPU one block of all that may be kept is allocated;
    elsewhere the first pass allocates piece by piece, and the next ones a block of what that needed.

    Args:
        left: bytes that may still be kept, by all operations of one pass together.
        wide: output gradients are widened to float64 before anything is made of them.

    >>> workspace = Workspace(100).fresh()
    >>> first, second = (workspace.take((2, 8), torch.zeros(1)) for _ in range(2))
    >>> first.shape, second, workspace.left
    (torch.Size([2, 8]), None, 36)
    """

    left: int
    wide: bool = False
    _shared: _Block = field(default_factory=_Block)
    _block: Tensor | None = None
    _taken: int = 0

    def fresh(self) -> "Workspace":
        """A workspace for one pass, which reuses the engine's block if no other pass has it."""
        made = replace(self)
        self._forget_small()
        if self._shared.free:
            made._use_block(self._shared.free.pop())
        return made

    def reserved(self, device: torch.device) -> Tensor | None:
        """The block of the next pass, before it begins; ``None`` while another pass has it."""
        shared = self._shared
        self._forget_small()
        if shared.own is None:
            shared.own = self._asked(device)
            shared.free.append(shared.own)
        return shared.free[0] if shared.free else None

    def shrink(self) -> bool:
        """As memory ran out, keep no more than the default of a CPU; returns whether that is less than before."""
        less = self.left > _KEPT_BYTES
        self.left = min(self.left, _KEPT_BYTES)
        self._shared = _Block()
        return less

    def outgrown(self, block: Tensor) -> bool:
        """Whether ``block`` was too small, and the engine's block is another one now."""
        return block is not self._shared.own

    def borrow(self, block: Tensor) -> bool:
        """Take the engine's block until `return_to`; returns whether it was ``block``, and no pass had it."""
        return block is self._shared.own and bool(self._shared.free) and self._shared.free.pop() is block

    def return_to(self, block: Tensor) -> None:
        """Free a borrowed block for other passes."""
        if block is self._shared.own:
            self._shared.free.append(block)

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """An uninitialised tensor of that shape, or ``None`` where too few bytes are left."""
        size = math.prod(shape) * like.element_size()
        start = -(-self._taken // _ALIGNED) * _ALIGNED
        if start - self._taken + size > self.left:
            return None
        if self._block is None:
            self._use_block(self._asked(like.device))
        assert self._block is not None
        if self._block.device != like.device:
            return None
        self.left -= start - self._taken + size
        self._taken = start + size
        self._shared.most = max(self._shared.most, self._taken)
        if self._taken > self._block.numel():  # more than any pass before
            return like.new_empty(shape)
        return self._block[start : self._taken].view(like.dtype).reshape(shape)

    def _forget_small(self) -> None:
        if self._shared.own is not None and self._shared.own.numel() < self._shared.most:
            self._shared.own = None
            self._shared.free.clear()

    def _asked(self, device: torch.device) -> Tensor:
        size = self.left if device.type == "cpu" else min(self.left, int(_SPARE * self._shared.most))
        return torch.empty(size, dtype=torch.uint8, device=device)

    def _use_block(self, block: Tensor) -> None:
        """Use ``block`` until this workspace is freed; the engine's block is then free for the next pass."""
        self._block, shared = block, self._shared
        if shared.own is None:
            shared.own = block
        if block is shared.own:
            weakref.finalize(self, shared.free.append, block).atexit = False

    def choose(self, cost: Mapping[str, float]) -> str:
        """The method that takes the fewest operations.

        >>> Workspace(0).choose({"slow": 10.0, "quick": 3.0})
        'quick'
        """
        return min(cost, key=cost.__getitem__)


def product_cost(rows: int, inner: int, columns: int) -> float:
    """The cost of one matrix product in multiplications, with each side longer by a tile.

    >>> product_cost(1000, 1000, 1000) / 1000**3 < 1.05, product_cost(16, 16, 16) / 16**3
    (True, 8.0)
    """
    return float((rows + _TILE) * (inner + _TILE) * (columns + _TILE))


def kept_on(device: torch.device) -> int:
    """The default of ``cache_bytes`` on a device: 128 MiB, on a GPU an eighth of its memory, if that is more.

    >>> kept_on(torch.device("cpu"))
    134217728
    """
    if device.type != "cuda":
        return _KEPT_BYTES
    return max(_KEPT_BYTES, torch.cuda.get_device_properties(device).total_memory // _KEPT_SHARE)


def chunk_on(device: torch.device) -> int:
    """The number of elements of one temporary on a device."""
    return CHUNK if device.type == "cpu" else _CHUNK_THERE


def chunks(batch: int, elements: int, device: torch.device, times: float = 1.0) -> Iterator[slice]:
    """Slices of the batch, equal up to one example, whose temporaries (``elements`` an example) have about ``times``
    `chunk_on` elements at most.

    >>> [(part.start, part.stop) for part in chunks(5, CHUNK // 2, torch.device("cpu"))]
    [(0, 1), (1, 3), (3, 5)]
    """
    count = max(1, -(-batch * elements // int(times * chunk_on(device))))
    edges = [batch * index // min(count, batch) for index in range(min(count, batch) + 1)]
    for start, stop in itertools.pairwise(edges):
        yield slice(start, stop)
