"""|sum_s d_s a_s^T|^2 from the Gram matrices of a and d: never below the exact value, in any precision.

With G = a a^T and H = d d^T it is sum_{s,t} G_st H_st. Where positions cancel, the rounding of G and H can be larger
than what is left, and an example would pass for shorter than it is. So a bound on that rounding is added, from the
matrices that were computed: |G_st - exact| <= g_s g_t with g_s = sqrt(k u) |a_s| for k terms and unit u, and h_s
likewise for H, give

    |sum G H - exact|  <=  sum_{s,t} g_s g_t |H_st| + sum_{s,t} h_s h_t |G_st| + (sum_s g_s h_s)^2.

For positions without much in common this is about k u times the norm itself: far below what the lengths alone say.

The compiled form (grams.c), where it was built, writes no matrix and computes one half of each: a third of the time.
"""

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from decrescendo.base.native import BEST
from decrescendo.clipping.clipped import norm_dtype
from decrescendo.clipping.rules.compiled import call, loaded
from decrescendo.clipping.workspace import MOVED, chunk_on, chunks, product_cost
from decrescendo.errors import InvalidValue

# The most features of one matrix product; more are added in blocks: rounding grows with the number of terms.
_BLOCK = 256
# A factor for the rounding of the bound itself.
_ROOM = 1.01
# How often each entry of two Gram matrices is read or written.
_PASSES = 16
SOURCE = Path(__file__).with_name("grams.c")
# Costs of the compiled form: of one multiplication, and what each inner product costs besides.
_COST, _EACH = 1.6, 200.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Upper bounds: ``sizes`` of |a_s|; ``errors`` g_s, with g_s g_t at least the error of a_s . a_t."""

    sizes: Float[Tensor, "batch positions"]
    errors: Float[Tensor, "batch positions"]

    def rows(self, part: slice) -> "Lengths":
        """The same of some positions."""
        return Lengths(self.sizes[:, part], self.errors[:, part])


def lengths_of(vectors: Float[Tensor, "batch positions features"]) -> Lengths:
    """The `Lengths` of rows whose Gram matrix `products_of` made.

    >>> lengths_of(torch.tensor([[[3.0, 4.0]]])).sizes.round(decimals=4)
    tensor([[5.]])
    """
    features = vectors.shape[2]
    squares = torch.linalg.vector_norm(vectors, dim=2).square()
    # (The length itself has the rounding of one sum over all features, not that of products in blocks.)
    return lengths_of_squares(squares * (1 + features * torch.finfo(squares.dtype).eps), _terms(features), features)


def _terms(features: int) -> int:
    """How many numbers are added one after another for an inner product, at most."""
    return features if features <= 2 * _BLOCK else _BLOCK - (-features // _BLOCK)


def products_of(
    left: Float[Tensor, "batch rows features"], right: Float[Tensor, "batch positions features"]
) -> Float[Tensor, "batch rows positions"]:
    """Inner products of rows, added in blocks of features: `lengths_of` bounds their rounding.

    >>> a = torch.ones(1, 2, 600)
    >>> products_of(a, a)[0, 0]
    tensor([600., 600.])
    """
    features = left.shape[2]
    if features <= 2 * _BLOCK:
        return torch.bmm(left, right.transpose(1, 2))
    total = torch.bmm(left[..., :_BLOCK], right[..., :_BLOCK].transpose(1, 2))
    for start in range(_BLOCK, features, _BLOCK):
        part = slice(start, start + _BLOCK)
        total.baddbmm_(left[..., part], right[..., part].transpose(1, 2))
    return total


def lengths_of_squares(squares: Float[Tensor, "batch positions"], terms: int, products: int) -> Lengths:
    """`Lengths` from squares that were rounded ``terms`` times, as the inner products were, and are sums of
    ``products``.

    >>> found = lengths_of_squares(torch.tensor([[25.0]]), 2, 2)
    >>> bool(found.sizes >= 5), bool(found.errors ** 2 >= 25 * 2 * 2.0**-24)
    (True, True)
    """
    unit, vanished = _rounding(terms, products, squares.dtype)
    sizes = (squares.clamp(min=0) * (1 + 2 * unit) + vanished).sqrt()
    return Lengths(sizes, sizes * math.sqrt(unit) + math.sqrt(vanished))


def _rounding(terms: int, products: int, dtype: torch.dtype) -> tuple[float, float]:
    """The relative error of sums of so many terms; and what products below the smallest normal number may lose."""
    unit = (terms + 4) * torch.finfo(dtype).eps / 2
    return unit / max(1 - unit, 0.5), products * torch.finfo(dtype).tiny


def gram_cost(places: int, features: int, outputs: int, *, quick: bool = False) -> float:
    """The cost of `gram_norms` for one example, in multiplications; ``quick``: of the compiled form.

    >>> gram_cost(8, 512, 512) < 512 * 8 * 512 < gram_cost(512, 512, 512)
    True
    """
    if quick:
        return places * (places + 4) / 2 * (_COST * (features + outputs) + _EACH)
    products = product_cost(places, features, places) + product_cost(places, outputs, places)
    return products + _PASSES * MOVED * places**2


def gram_norms(
    a: Float[Tensor, "batch positions features"], d: Float[Tensor, "batch positions outputs"], slack: float
) -> Float[Tensor, " batch"]:
    """|sum_s d_s a_s^T|^2 from Gram matrices, at least the exact value, in float64.

    Args:
        a, d: inputs and output gradients.
        slack: `slack_of` the inputs as they were stored: the sum that is weighed afterwards has errors of its
            own in proportion to sum_s |a_s||d_s|.

    Edge cases:
        infinite or not a number where squares overflow the dtype of ``a`` and ``d``.

    >>> a, d = torch.ones(1, 2, 3), torch.tensor([[[1.0], [1.0]]])
    >>> round(gram_norms(a, d, 0.0).item(), 3)
    12.0
    """
    if covers(a, d):
        return _compiled_norms(a, d, slack)
    batch, places = a.shape[:2]
    # Rows of the Gram matrices at once, so that long sequences take no more memory than short ones.
    rows = max(1, min(places, chunk_on(a.device) // places))
    norms: list[Tensor] = []
    for part in chunks(batch, rows * places, a.device):
        left, right = a[part], d[part]
        lengths, sizes = lengths_of(left), lengths_of(right)
        found = torch.zeros(left.shape[0], dtype=norm_dtype(a.device), device=a.device)
        for start in range(0, places, rows):
            some = slice(start, min(start + rows, places))
            first = products_of(left[:, some], left)
            second = products_of(right[:, some], right)
            found = found + _inner(first, second, lengths, sizes, some)
        norms.append(_upwards(found, lengths, sizes, slack))
    return torch.cat(norms)


class _Side(ctypes.Structure):
    """The struct of one side in grams.c: sizes, strides and bounds."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("features", "example", "place")),
        *((name, ctypes.c_double) for name in ("grown", "vanished", "error", "least")),
    ]  # fmt: skip

    @classmethod
    def of(cls, vectors: Tensor) -> "_Side":
        """The struct of ``vectors``, with the bounds of `lengths_of`."""
        features = vectors.shape[2]
        unit, vanished = _rounding(_terms(features), features, torch.float32)
        grown = (1 + features * torch.finfo(torch.float32).eps) * (1 + 2 * unit)
        return cls(features, *vectors.stride()[:2], grown, vanished, math.sqrt(unit), math.sqrt(vanished))


class _Sizes(ctypes.Structure):
    """The struct of sizes in grams.c."""

    _fields_ = [("batch", ctypes.c_int64), ("places", ctypes.c_int64), ("a", _Side), ("d", _Side)]


@functools.cache
def library() -> Callable[..., None] | None:
    """The function of grams.c; ``None`` where it was not built from that source, or is switched off."""
    return loaded(SOURCE, 3)


def covers(a: Tensor, d: Tensor) -> bool:
    """Whether `gram_norms` has a compiled form for these: float32 on a CPU.

    >>> covers(torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, dtype=torch.float64))
    False
    """
    return (
        a.dtype == d.dtype == torch.float32
        and a.device.type == d.device.type == "cpu"
        and min(a.numel(), d.numel()) > 0
        and library() is not None
    )


def _compiled_norms(a: Tensor, d: Tensor, slack: float) -> Float[Tensor, " batch"]:
    if a.dim() != 3 or d.dim() != 3 or a.shape[:2] != d.shape[:2]:
        raise InvalidValue(f"sides must fit together, got {tuple(a.shape)} and {tuple(d.shape)}")
    a, d = (
        side if side.stride(2) == 1 or side.shape[2] == 1 else side.contiguous()
        for side in (a.resolve_neg(), d.resolve_neg())
    )
    # (A dtype and a device of our own: a user may have set others as torch's defaults.)
    found = torch.empty(a.shape[0], 4, dtype=torch.float64, device="cpu")
    function = library()
    assert function is not None
    call(function, (found, a, d), _Sizes(a.shape[0], a.shape[1], _Side.of(a), _Side.of(d)), BEST)
    squares, bound, both, whole = found.unbind(1)
    return _raised(squares + _ROOM * bound, both, whole, slack)


def norms_of_grams(
    first: Float[Tensor, "batch positions positions"],
    second: Float[Tensor, "batch positions positions"],
    lengths: Lengths,
    sizes: Lengths,
    slack: float,
) -> Float[Tensor, " batch"]:
    """`gram_norms` from Gram matrices and the `Lengths` of their rows; overwrites the matrices.

    >>> first, second = torch.full((1, 2, 2), 3.0), torch.ones(1, 2, 2)
    >>> lengths, sizes = (lengths_of_squares(torch.full((1, 2), float(n)), n, n) for n in (3, 1))
    >>> round(norms_of_grams(first, second, lengths, sizes, 0.0).item(), 3)
    12.0
    """
    found = _inner(first, second, lengths, sizes, slice(0, first.shape[1]))
    return _upwards(found, lengths, sizes, slack)


def slack_of(stored: Tensor) -> float:
    """What is added to |g|^2, times (sum_s |a_s||d_s|)^2, where the sum computes g again with other rounding.

    >>> slack_of(torch.zeros(1)) == 2.0**-22
    True
    """
    return 2 * torch.finfo(torch.float64 if stored.dtype == torch.float64 else torch.float32).eps


def _inner(first: Tensor, second: Tensor, lengths: Lengths, sizes: Lengths, rows: slice) -> Tensor:
    """sum G H over some rows, plus a bound on its rounding."""
    wide = norm_dtype(first.device)
    squares = (first * second).sum((1, 2), dtype=wide)
    bound = _between(second.abs_(), lengths, rows) + _between(first.abs_(), sizes, rows)
    return squares + _ROOM * bound


def _between(grams: Tensor, lengths: Lengths, rows: slice) -> Tensor:
    """sum_{s,t} g_s g_t |H_st| over some rows s."""
    weighted = torch.bmm(grams, lengths.errors.unsqueeze(2)).squeeze(2)
    return (weighted.to(norm_dtype(grams.device)) * lengths.rows(rows).errors).sum(1)


def _upwards(squares: Tensor, lengths: Lengths, sizes: Lengths, slack: float) -> Tensor:
    both = (lengths.errors.to(squares.dtype) * sizes.errors).sum(1)
    whole = (lengths.sizes.to(squares.dtype) * sizes.sizes).sum(1)
    return _raised(squares, both, whole, slack)


def _raised(squares: Tensor, both: Tensor, whole: Tensor, slack: float) -> Tensor:
    """The squares plus what is left of the bound; ``both``: sum_s g_s h_s; ``whole``: sum_s |a_s||d_s|."""
    # (NaN stays: an overflow must not pass for zero.)
    return squares.clamp(min=0) + _ROOM * (both.square() + slack * whole.square())
