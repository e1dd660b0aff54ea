"""Gradients of lookups: output gradients summed over equal ids within an example, and their weighted sum.

The compiled form (segments.c) is optional, and built and switched off as `compiled` is: torch sorts ids and adds rows
by index, which takes about ten times as long as what is read and written.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decrescendo.base.native import BEST
from decrescendo.clipping.rules.compiled import call, is_captured, loaded
from decrescendo.clipping.rules.rule import square_rows, zero_rows
from decrescendo.errors import InvalidValue

SOURCE = Path(__file__).with_name("segments.c")


class Sizes(ctypes.Structure):
    """The struct of sizes in segments.c."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("batch", "places", "dim", "words", "padding", "d_example", "d_place", "slots")
    ]


@functools.cache
def library() -> Callable[..., None] | None:
    """The function of segments.c; ``None`` where it was not built from that source, or is switched off."""
    return loaded(SOURCE, 9)


@dataclass(frozen=True, slots=True)
class Segments:
    """Sums of output gradients over equal ids within an example: one row for each (example, id) pair; on a GPU, or
    captured, also rows of zeros for the last pair."""

    sums: Float[Tensor, "pairs dim"]
    example: Int[Tensor, " pairs"]
    identity: Int[Tensor, " pairs"]

    def squared_norms(self, batch: int) -> Float[Tensor, " batch"]:
        """|g_i|^2 of each of ``batch`` examples, never below the exact value."""
        squares = square_rows(self.sums)
        total = torch.zeros(batch, dtype=squares.dtype, device=squares.device)
        return total.index_add_(0, self.example, squares)

    def scaled_sum(self, shape: tuple[int, ...], factors: Tensor) -> Float[Tensor, "words dim"]:
        """sum_i w_i g_i in the shape of the weight."""
        total = torch.zeros(shape, dtype=self.sums.dtype, device=self.sums.device)
        scaled = self.sums * factors.to(self.sums.dtype)[self.example].unsqueeze(1)
        return total.index_add_(0, self.identity, scaled)

    def per_example(self, batch: int, shape: tuple[int, ...]) -> Float[Tensor, "batch words dim"]:
        """g_i of each example."""
        total = torch.zeros(batch, *shape, dtype=self.sums.dtype, device=self.sums.device)
        return total.index_put_((self.example, self.identity), self.sums, accumulate=True)

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "Segments":
        """A copy with the sums of these examples zero."""
        return replace(self, sums=zero_rows(self.sums, rows[self.example]))


@dataclass(frozen=True, slots=True)
class Blocks:
    """`Segments` in the compiled form: of each example's ``places`` rows the first ``counts`` are used."""

    sums: Float[Tensor, "batch places dim"]
    identity: Int[Tensor, "batch places"]
    counts: Int[Tensor, " batch"]
    squares: Float[Tensor, " batch"]

    def squared_norms(self, batch: int) -> Float[Tensor, " batch"]:  # noqa: ARG002 (it has them)
        """|g_i|^2 of each example, never below the exact value."""
        # Squares of float32 are exact in float64, and their sums rounded.
        terms = self.sums.shape[1] * self.sums.shape[2] + 4
        return self.squares * (1 + terms * 2.0**-53)

    def scaled_sum(self, shape: tuple[int, ...], factors: Tensor) -> Float[Tensor, "words dim"]:
        """sum_i w_i g_i in the shape of the weight."""
        batch, places, dim = self.sums.shape
        total = torch.zeros(shape, dtype=torch.float32, device="cpu")
        factors = factors.to(torch.float32).contiguous()
        if tuple(total.shape) != (shape[0], dim) or tuple(factors.shape) != (batch,):
            raise InvalidValue(f"one factor for each of {batch} examples, got {tuple(factors.shape)} and {shape}")
        sizes = Sizes(batch, places, dim, shape[0], -1, 0, 0, 0)
        function = library()
        assert function is not None
        sums = (factors, self.sums, self.identity, self.counts)
        call(function, (None, None, *sums, None, total, None), sizes, BEST)
        return total

    def per_example(self, batch: int, shape: tuple[int, ...]) -> Float[Tensor, "batch words dim"]:
        """g_i of each example."""
        places = torch.arange(self.sums.shape[1], device="cpu")
        example, place = (places < self.counts.unsqueeze(1)).nonzero().unbind(1)
        return Segments(self.sums[example, place], example, self.identity[example, place]).per_example(batch, shape)

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "Blocks":
        """A copy with the sums of these examples zero."""
        return replace(self, sums=zero_rows(self.sums, rows), squares=self.squares.masked_fill(rows, 0))


def places_of(first: Bool[Tensor, " all"]) -> Int[Tensor, " some"]:
    """The indices where ``first`` is true, in order. On a GPU, or captured, their number is not read: the result is
    as long as ``first``, and what is left of it is the index past the end, at which no bag begins.

    >>> places_of(torch.tensor([True, False, True]))
    tensor([0, 2])
    """
    if first.device.type != "cpu" or is_captured():
        return padded_places_of(first)
    return first.nonzero().squeeze(1)


def padded_places_of(first: Bool[Tensor, " all"]) -> Int[Tensor, " all"]:
    """`places_of` where the number of indices is not read.

    >>> padded_places_of(torch.tensor([True, False, True]))
    tensor([0, 2, 3])
    """
    many = len(first)
    found = torch.full((many + 1,), many, device=first.device)
    target = torch.where(first, first.cumsum(0) - 1, many)
    return found.scatter_(0, target, torch.arange(many, device=first.device))[:many]


def covers(ids: Tensor, d: Tensor) -> bool:
    """Whether `blocks_of` supports these: float32 on a CPU.

    >>> covers(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, 1, dtype=torch.float64))
    False
    """
    return (
        d.dtype == torch.float32
        and ids.dtype == torch.int64
        and d.device.type == ids.device.type == "cpu"
        and min(d.numel(), ids.numel()) > 0
        and library() is not None
    )


def blocks_of(
    ids: Int[Tensor, "batch places"],
    d: Float[Tensor, "batch places dim"],
    words: int,
    padding: int | None = None,
) -> Blocks:
    """The sum of ``d`` over the places of each distinct id of each example.

    Args:
        ids: each at least 0 and below ``words``.
        d: output gradients.
        words: rows of the table that was looked up in.
        padding: an id whose gradients count for nothing.

    Errors:
        InvalidValue: sizes that do not fit together, or an id that is no row of the table.

    >>> ids, d = torch.tensor([[5, 2, 5]]), torch.tensor([[[1.0], [2.0], [4.0]]])
    >>> if covers(ids, d):
    ...     found = blocks_of(ids, d, 6)
    ...     print(found.identity[0, :2].tolist(), found.sums[0, :2].flatten().tolist(), found.counts.tolist())
    ... else:
    ...     print("[5, 2] [5.0, 2.0] [2]")
    [5, 2] [5.0, 2.0] [2]
    """
    function = library()
    if function is None or not covers(ids, d) or ids.dim() != 2 or d.dim() != 3:
        raise InvalidValue("there is no compiled form of these lookups here: ask covers() first")
    batch, places, dim = d.shape
    if tuple(ids.shape) != (batch, places):
        raise InvalidValue(f"each id needs a gradient, got {tuple(ids.shape)} ids and {tuple(d.shape)}")
    d, ids = d.resolve_neg(), ids.contiguous()
    if d.stride(2) != 1 and dim > 1:
        d = d.contiguous()
    slots = 1 << (2 * places - 1).bit_length()
    # (Dtypes and a device of our own: a user may have set others as torch's defaults.)
    sums = torch.empty(batch, places, dim, dtype=torch.float32, device="cpu")
    identity = torch.empty(batch, places, dtype=torch.int64, device="cpu")
    counts = torch.empty(batch, dtype=torch.int64, device="cpu")
    squares = torch.empty(batch, dtype=torch.float64, device="cpu")
    tables = torch.empty(torch.get_num_threads(), 2 * slots, dtype=torch.int64, device="cpu")
    sizes = Sizes(batch, places, dim, words, -1 if padding is None else padding, d.stride(0), d.stride(1), slots)
    call(function, (ids, d, None, sums, identity, counts, squares, None, tables), sizes, BEST)
    if not is_captured() and bool((counts < 0).any()):
        raise InvalidValue(f"ids must be rows of a table of {words}, got {int(ids.min())} to {int(ids.max())}")
    return Blocks(sums, identity, counts, squares)
