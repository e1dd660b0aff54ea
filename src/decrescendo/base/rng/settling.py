"""Rounds the coordinates that the fast code of `rounded` leaves open, with as many random bits as it takes.

64 random bits and float64 give an interval that contains the sum x + std N. Where it leaves open which multiple of the
grid is nearest, more bits of the coordinate are drawn, and the interval is computed with more digits, until nothing is
open.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

# Bound on float64's error of the quantile, in units of 1 + |N|; SciPy's is at most 2^-50 (tests measure it).
QUANTILE_ERROR = 2.0**-45
# Bits of precision of the slow path, beyond those of the random number.
_MORE_DIGITS = 256
# In multiples of the grid: with an error up to this, float64 says between which two multiples a sum lies.
_NEAR = 0.25


@runtime_checkable
class Further(Protocol):
    """A source of more random words for a coordinate."""

    def further(self, index: int) -> Iterator[int]:
        """More words of one coordinate, without end, used for nothing else."""
        ...


def nearest_of(
    values: Float[np.ndarray, " size"], std: float, step: float, drawn: UInt64[np.ndarray, " size"]
) -> tuple[Float[np.ndarray, " size"], Bool[np.ndarray, " size"]]:
    """The multiples of ``step`` nearest to the noisy sums, in units of ``step``; and where float64 leaves them open."""
    scaled, error = _scaled(values, std, step, drawn)
    with np.errstate(invalid="ignore"):
        nearest = np.rint(scaled)
        return nearest, ~(np.abs(scaled - nearest) + error < 0.5)


def _scaled(
    values: Float[np.ndarray, " size"], std: float, step: float, drawn: UInt64[np.ndarray, " size"]
) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
    """The noisy sums in units of ``step``, and bounds on float64's error in them."""
    from scipy.special import ndtri  # slow to load, for `decrescendo --help` too

    # One bit is the sign; 63 are the first bits of a tail probability below one half; its others are not drawn yet.
    negative, tail = drawn >> np.uint64(63) == 1, drawn & np.uint64(2**63 - 1)
    probability = (tail + 0.5) * 2.0**-64
    size = -ndtri(probability)
    with np.errstate(over="ignore", invalid="ignore"):
        total = values + np.where(negative, -std, std) * size
        # |dN/du| <= 1.26/u: half a unit of the last bit drawn, and the rounding of u, become an error of N.
        error = std * (2.0**-64.5 / probability + QUANTILE_ERROR * (1 + size)) + 2.0**-52 * np.abs(total)
        return total / step, error / step


def rounded_exactly(
    values: Float[np.ndarray, " some"], std: float, step: float, inverse: float, drawn: UInt64[np.ndarray, " some"],
    words: Further, indices: Int[np.ndarray, " some"],
) -> Float[np.ndarray, " some"]:  # fmt: skip
    """The results of the coordinates ``indices``, with more bits and digits for what float64 leaves open."""
    nearest, is_open = nearest_of(values, std, step, drawn)
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.where(np.isfinite(values), nearest * (step * inverse), values)
    open_ones = np.flatnonzero(np.isfinite(values) & is_open)
    if not len(open_ones):
        return result
    scaled, error = _scaled(values[open_ones], std, step, drawn[open_ones])
    for place, near, off in zip(open_ones, scaled, error, strict=True):
        further = words.further(int(indices[place]))
        below = math.floor(near) if off < _NEAR else None
        result[place] = _decide(float(values[place]), std, step, int(drawn[place]), further, below) * inverse
    return result


def _decide(value: float, std: float, step: float, word: int, further: Iterator[int], below: int | None) -> float:
    """The nearest multiple of ``step``, with as many more random bits and digits as it takes.

    ``below``: if the sum is close to the middle between two multiples, the index of the lower one: then only the side
    must be decided.
    """
    import mpmath  # rarely needed, and slow to load

    signed, tail, bits = (-std if word >> 63 else std), word % 2**63, 64
    while True:
        for _ in range(2):
            tail, bits = (tail << 64) | next(further), bits + 64
        with mpmath.workprec(2 * bits + _MORE_DIGITS):
            if below is not None:
                # N = Q(tail) falls with the tail: it is beyond the middle where less is left than there.
                middle = ((below + mpmath.mpf(0.5)) * step - value) / signed
                left = mpmath.ldexp(mpmath.erfc(middle / mpmath.sqrt(2)), bits - 1)
                beyond, last = tail < left, tail + 1 < left
                if beyond == last:
                    return float((below + (beyond == (signed > 0))) * step)
                continue
            first, last = (mpmath.nint((value + signed * _quantile(end, bits)) / step) for end in (tail, tail + 1))
            if first == last:
                return float(first * step)


def _quantile(tail: int, bits: int) -> Any:
    """The N with P(Z > N) = tail / 2^bits, an mpmath number."""
    import mpmath

    probability = mpmath.ldexp(mpmath.mpf(tail), -bits)
    if not probability:
        return mpmath.mpf("inf")
    return mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * probability)
