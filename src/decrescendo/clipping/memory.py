"""Chooses how many examples run at once: within a memory limit, and fewer after an out-of-memory error."""

import gc
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from decrescendo.base.batches import leaves_of, memory_order
from decrescendo.base.storages import DispatchMode
from decrescendo.base.torch_private import tree_leaves
from decrescendo.clipping.clipped import Batch
from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import InvalidValue

# What memory depends on, apart from the number of rows: shapes, dtypes and memory formats of a row, and the model's
# mode. Never values.
Signature: TypeAlias = tuple[object, ...]

# The first pass of a shape that is measured has `_FIRST` rows; each later one at most `_GROWTH` times as many.
_FIRST, _GROWTH = 2, 8
# Linear extrapolation is near, not exact: allocators round, and a rule may change its form with the size.
_USABLE = 0.95

_MESSAGES = (
    "DefaultCPUAllocator", "not enough memory", "can't allocate memory", "std::bad_alloc", "out of memory",
    "ALLOC_FAILED", "could not create a memory",
)  # fmt: skip


def too_large(error: BaseException) -> str:
    """The message of `OutOfMemory` for an example that does not fit into memory by itself."""
    failure = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        f"one example alone must fit into memory, got: {failure}. Make the model or the example smaller, use "
        "checkpointing, or lower cache_bytes"
    )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this error, or one that it was raised from, says that memory ran out.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."))
    True
    >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    while error is not None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES):
            return True
        error = error.__cause__
    return False


def signature(held: Inventory, batch: Batch) -> Signature:
    """The facts, other than the number of rows, that decide the memory of a model's pass over rows of
    ``batch``."""
    leaves = [(tuple(rows.shape[1:]), rows.dtype, memory_order(rows)) for rows in leaves_of(batch)]
    return (*leaves, held.mode[0], sum(p.requires_grad for p in held.parameters.values()))


@dataclass(slots=True)
class Known:
    """What was measured for one signature: bytes by number of rows, and the most rows that fit."""

    bytes: dict[int, int] = field(default_factory=dict)
    most: int | None = None
    settled: bool = False


@dataclass(slots=True)
class Sizes:
    """How many rows the next micro-batch has.

    Args:
        microbatch_size: upper limit in rows.
        memory_limit: bytes that a `clipped_sum` may take at its peak beyond the model and the batch.
        held: bytes of the running sum and the gradient cache.
        parts: the least number of micro-batches for a batch.

    >>> sizes = Sizes(None, 1000, 100)
    >>> sizes.next((), 64, 64)
    2
    >>> sizes.learn((), 2, 50)                # 25 bytes per example at most: 34 of them fit into 0.95 * 900
    >>> sizes.next((), 64, 64)
    16
    >>> sizes.learn((), 16, 330)              # 20 an example, and 10 whatever the number: 42 fit
    >>> sizes.next((), 64, 64)
    32
    """

    microbatch_size: int | None
    memory_limit: int | None
    held: int
    parts: int = 1
    known: dict[Signature, Known] = field(default_factory=dict)

    def at_once(self, rows: int) -> int:
        """The most rows of one micro-batch of a batch of ``rows``, before its memory is measured.

        >>> Sizes(None, None, 0, parts=2).at_once(25), Sizes(8, None, 0).at_once(25)
        (13, 8)
        """
        # (1 row is padded to 2.)
        return min(self.microbatch_size or rows, max(-(-rows // self.parts), 2))

    def next(self, key: Signature, remaining: int, at_once: int) -> int:
        """Size of the next micro-batch if ``remaining`` rows are split evenly, with ``at_once`` rows at most."""
        most = min(remaining, at_once)
        known = self.known.get(key, Known())
        if known.most is not None:
            most = min(most, known.most)
        if self.memory_limit is not None and not known.settled:
            grown = max(known.bytes, default=0) * _GROWTH or _FIRST
            most = min(most, grown)
        parts = -(-remaining // most)
        return -(-remaining // parts)

    def most(self, key: Signature) -> int | None:
        """The most rows that a micro-batch may have; ``None`` if no limit is known."""
        found = self.known.get(key, Known()).most, self.microbatch_size
        return min((most for most in found if most is not None), default=None)

    def measures(self, key: Signature, rows: int) -> bool:
        """Whether the memory of this micro-batch is still to be learned."""
        known = self.known.get(key, Known())
        return self.memory_limit is not None and not known.settled and rows > max(known.bytes, default=0)

    def are_one(self, key: Signature, rows: int) -> bool:
        """Whether so many rows are one micro-batch, of which nothing is to be learned."""
        return self.next(key, rows, self.at_once(rows)) == rows and not self.measures(key, rows)

    def learn(self, key: Signature, rows: int, peak: int) -> None:
        """Estimate how many rows fit from a micro-batch of ``rows`` that took ``peak`` bytes.

        Raises:
            InvalidValue: one example alone takes more than the limit.
        """
        if self.memory_limit is None:
            return
        known = self.known.setdefault(key, Known())
        room = int((self.memory_limit - self.held) * _USABLE)
        if peak > self.memory_limit - self.held:
            if rows == 1:
                raise InvalidValue(
                    "memory_limit must hold one example and the sum, got "
                    f"memory_limit={self.memory_limit} for {peak + self.held} bytes. "
                    "Raise it, make the model or the example smaller, or use checkpointing"
                )
            known.most = max(1, min(rows - 1, rows * room // peak))
            return
        smaller = max((size for size in known.bytes if size < rows), default=0)
        slope = (peak - known.bytes.get(smaller, 0)) / (rows - smaller)
        known.bytes[rows] = peak
        more = int((room - peak) / slope) if slope > 0 else rows * (_GROWTH - 1)
        fits = max(rows, rows + more)
        known.most = fits if known.most is None or smaller else min(fits, known.most)
        # An extrapolation by less than a factor of two is final.
        known.settled = fits < 2 * rows

    def failed(self, key: Signature, rows: int) -> None:
        """Note that memory ran out with that many rows: from now on half of them are used."""
        known = self.known.setdefault(key, Known())
        known.most = max(1, rows // 2)
        known.settled = True


class Peak(DispatchMode):
    """The peak of the bytes taken by tensors made inside `metered`.

    On CUDA the allocator says so. Elsewhere the storages of what each operation returns are added up, and taken off
    when they are freed; what an operation allocates and frees within itself is not seen there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._now = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if _plain(leaf)}
        for leaf in tree_leaves(output):
            if _plain(leaf) and id(leaf.untyped_storage()) not in given:
                self._add(leaf.untyped_storage())
        return output

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)  # torch keeps one Python object a storage as long as the storage lives
        if key in self._alive:
            return
        size = storage.nbytes()

        def freed(_: object) -> None:
            if self._alive.pop(key, None) is not None:
                self._now -= size

        self._alive[key] = weakref.ref(storage, freed)
        self._now += size
        self.bytes = max(self.bytes, self._now)


@contextmanager
def metered(device: torch.device) -> Generator[Peak]:
    """Measure peak bytes of tensors made inside (resets CUDA's peak)."""
    peak = Peak()
    if device.type != "cuda":
        with peak:
            yield peak
        return
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    base = torch.cuda.memory_allocated(device)
    yield peak
    torch.cuda.synchronize(device)
    peak.bytes = max(0, torch.cuda.max_memory_allocated(device) - base)


def _plain(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided and leaf.device.type != "meta"


def release() -> None:
    """Free what a failed pass has left, before a smaller one is tried."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
