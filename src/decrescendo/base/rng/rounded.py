"""A sum plus an exact real Gaussian, rounded once to a public grid.

Gaussian noise made of floating-point numbers is not Gaussian: which outputs are possible at all depends on the sum, and
an output that one neighbour can give and the other cannot betrays it (Mironov, "On significance of the least
significant bits for differential privacy", 2012; for Gaussians Jin et al., "Are we there yet? Timing and floating-point
attacks on differential privacy systems", 2022). Here each coordinate is

    gamma * round((x + std N) / gamma),    gamma a power of two near std 2^-20

of the exact sum x and an ideal real N ~ N(0, 1): rounding is post-processing of the mechanism that accountants count,
and the outputs are the multiples of gamma whatever x is. N is never known exactly, nor need it be: 64 random bits and
float64 say in which interval it lies. Where the interval leaves open which multiple is nearest (one coordinate in a few
million), more bits are drawn and the interval is computed with more digits, until nothing is open.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, UInt64
from scipy.special import ndtri

from decrescendo.errors import InvalidValue, check_instance, check_real

Words = Callable[[int], UInt64[np.ndarray, " count"]]

# gamma is this many powers of two below the largest one that is at most std.
_FINENESS = 20
# What float64 may be wrong by in the quantile, in units of 1 + |N|; SciPy's is at most 2^-50 (tests measure it).
_QUANTILE_ERROR = 2.0**-45
# Coordinates worked on at once: what is between them stays in the cache.
_CHUNK = 2**15
# Digits, in bits, of the slow path, beyond those of the random number.
_MORE_DIGITS = 256
_STD_RANGE = (2.0**-900, 2.0**900)


def add_gaussian(values: np.ndarray, std: float, words: Words) -> Float[np.ndarray, " size"]:
    """``values`` plus independent N(0, std^2) on each, rounded to the nearest multiple of `grid` (std).

    Args:
        values: float64; what must be protected.
        std: in [2^-900, 2^900]; public.
        words: called with a number, gives as many independent uniform 64-bit words. It is called again only where
            rounding is open.

    Guarantee:
        the law of the result is exactly that of an ideal real Gaussian added to ``values`` and rounded, if the words
        are ideal: no output is possible for one sum and impossible for another.

    Edge cases:
        a value that is not finite stays as it is.
        how long it takes depends, very little, on the result: an observer who can time single coordinates to a
        millisecond learns which were open.

    >>> from decrescendo.base.rng import SecureStream
    >>> noisy = add_gaussian(np.zeros(4), 1.0, SecureStream.fresh().words)
    >>> bool((noisy * 2**20 == np.rint(noisy * 2**20)).all())
    True
    """
    check_instance("values", values, np.ndarray)
    if values.ndim != 1 or values.dtype != np.float64:
        raise InvalidValue(
            f"values must be a vector of float64, got {values.dtype} of shape {values.shape}. "
            "In fewer digits the sum itself is not what was bounded"
        )
    step = grid(std)
    result = np.empty_like(values)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        result[part] = _add(values[part], std, step, words)
    return result


def grid(std: float) -> float:
    """The distance gamma of neighbouring outputs: the power of two in (std 2^-21, std 2^-20].

    >>> grid(1.5) == grid(1.0) == 2.0**-20
    True
    """
    low, high = _STD_RANGE
    value = check_real("std", std, above=0)
    if not low <= value <= high:
        raise InvalidValue(
            f"std must be within [2^-900, 2^900], got {value!r}. Scale the loss, or the clip norm"
        )
    return math.ldexp(1.0, math.frexp(value)[1] - 1 - _FINENESS)


def _add(
    values: Float[np.ndarray, " size"], std: float, step: float, words: Words
) -> Float[np.ndarray, " size"]:
    drawn = words(len(values))
    # One bit is the sign; 63 are the beginning of a tail probability below one half, whose other bits nobody drew yet.
    negative, tail = drawn >> np.uint64(63) == 1, drawn & np.uint64(2**63 - 1)
    probability = (tail + 0.5) * 2.0**-64
    size = -ndtri(probability)
    with np.errstate(over="ignore", invalid="ignore"):
        total = values + np.where(negative, -std, std) * size
        scaled = total / step
        nearest = np.rint(scaled)
        # |dN/du| <= 1.26/u: half a unit of the last bit drawn, and the rounding of u, become an error of N.
        error = std * (2.0**-64.5 / probability + _QUANTILE_ERROR * (1 + size)) + 2.0**-52 * np.abs(total)
        is_closed = np.abs(scaled - nearest) + error / step < 0.5
        result = nearest * step
    for index in np.flatnonzero(np.isfinite(values) & ~is_closed):
        result[index] = _decide(
            float(values[index]), std, step, bool(negative[index]), int(tail[index]), words
        )
    return result


def _decide(value: float, std: float, step: float, negative: bool, tail: int, words: Words) -> float:
    """The nearest multiple of ``step``, with as many more random bits and digits as it takes."""
    import mpmath  # rarely needed, and slow to load

    bits = 64
    while True:
        for word in words(2):
            tail, bits = (tail << 64) | int(word), bits + 64
        with mpmath.workprec(2 * bits + _MORE_DIGITS):
            first, last = (
                mpmath.nint((value + (-std if negative else std) * _quantile(end, bits)) / step)
                for end in (tail, tail + 1)
            )
            if first == last:
                return float(first * step)


def _quantile(tail: int, bits: int) -> Any:
    """The N with P(Z > N) = tail / 2^bits, an mpmath number."""
    import mpmath

    probability = mpmath.ldexp(mpmath.mpf(tail), -bits)
    if not probability:
        return mpmath.mpf("inf")
    return mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * probability)
