"""A sum plus an exact real Gaussian, rounded once to a public grid.

Longer than most files: the argument, the two kernels and what settles the numbers they leave open.

Gaussian noise made of floating-point numbers is not Gaussian: which outputs are possible at all depends on the sum, and
an output that one neighbour can give and the other cannot betrays it (Mironov, "On significance of the least
significant bits for differential privacy", 2012; for Gaussians Jin et al., "Are we there yet? Timing and floating-point
attacks on differential privacy systems", 2022). Here each coordinate is

    gamma * round((x + std N) / gamma),    gamma a power of two near std 2^-20

of the exact sum x and an ideal real N ~ N(0, 1): rounding is post-processing of the mechanism that accountants count,
and the outputs are the multiples of gamma whatever x is. N is never known exactly, nor need it be: 64 random bits and
float64 say in which interval it lies. Where the interval leaves open which multiple is nearest (one coordinate in some
millions), more bits are drawn, from a place of the coordinate's own, and the interval is computed with more digits,
until nothing is open. So a result is a function of the bits alone: with the compiled kernel (gaussian.c) or without it,
on any processor, by any number of threads.
"""

import ctypes
import functools
import math
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from decrescendo.base import native
from decrescendo.errors import InvalidValue, check_instance, check_real

SOURCE = Path(__file__).with_name("gaussian.c")
# gamma is this many powers of two below the largest one that is at most std.
_FINENESS = 20
# What float64 may be wrong by in the quantile, in units of 1 + |N|; SciPy's is at most 2^-50 (tests measure it).
QUANTILE_ERROR = 2.0**-45
# What the kernel may be wrong by in N, half of the first word's interval counted (tests prove it).
KERNEL_ERROR = 2.0**-46
# Coordinates worked on at once: what is between them stays in the cache. Even: two words make a block.
CHUNK = 2**14
# The same where the kernel draws the words itself, into the first cache: fewer calls from Python.
_KEYED_CHUNK = 4 * CHUNK
# Digits, in bits, of the slow path, beyond those of the random number.
_MORE_DIGITS = 256
# Multiples of the grid: what float64 may be wrong by where it says between which two of them a sum lies.
_NEAR = 0.25
_STD_RANGE = (2.0**-900, 2.0**900)


@runtime_checkable
class Words(Protocol):
    """Uniform 64-bit words, one for each coordinate of a vector, and more where they are needed."""

    def reader(self, most: int) -> Callable[[int, int], UInt64[np.ndarray, " count"]]:
        """A function of (start, count) for one thread, with at most ``most`` words a call."""
        ...

    def further(self, index: int) -> Iterator[int]:
        """More words of one coordinate, without end, used for nothing else."""
        ...


@runtime_checkable
class KeyedWords(Words, Protocol):
    """Words of AES-256 in counter mode, which the kernel can draw itself."""

    def counter(self) -> tuple[bytes, int]:
        """The key, of 32 bytes, and the place n of word 0: word i is half (n + i) % 2 of block (n + i) // 2."""
        ...


def add_gaussian(
    values: np.ndarray, std: float, words: Words, *, divisor: float = 1.0, out: np.ndarray | None = None,
    step: float | None = None,
) -> Float[np.ndarray, " size"]:  # fmt: skip
    """``values`` plus independent N(0, std^2) on each, rounded to a multiple of ``step``, over ``divisor``.

    All of torch's threads take part, where torch was imported.

    Args:
        values: float64 or float32; what must be protected.
        std: in [2^-900, 2^900]; public.
        words: where random bits come from.
        divisor: > 0; public. The multiple times 1 / divisor, in float64, is rounded to the dtype of ``values``.
        out: where the result goes, of the shape and dtype of ``values``; may be ``values``. ``None`` for a new array.
        step: gamma, a power of two; public. ``None`` for `grid` (std).

    Guarantee:
        the law of the result is exactly that of an ideal real Gaussian added to ``values`` and rounded, if the words
        are ideal: no output is possible for one sum and impossible for another.

    Edge cases:
        a value that is not finite stays as it is.
        how long it takes depends, very little, on the result: an observer who can time single coordinates to a
        millisecond learns which were open.

    >>> from decrescendo.base.rng import SecureStream
    >>> noisy = SecureStream.fresh().add_gaussian(np.zeros(4), 1.0)
    >>> bool((noisy * 2**20 == np.rint(noisy * 2**20)).all())
    True
    """
    check_instance("values", values, np.ndarray)
    found = np.empty_like(values) if out is None else out
    for array in (values, found):
        same = array.dtype == values.dtype and array.shape == values.shape and array.flags.c_contiguous
        if values.dtype.type not in (np.float64, np.float32) or array.ndim != 1 or not same:
            raise InvalidValue(
                f"values and out must be contiguous vectors of float64 or float32, got {array.dtype} of shape "
                f"{array.shape}. In fewer digits the sum itself is not what was bounded"
            )
    step, inverse = step or grid(std), 1 / check_real("divisor", divisor, above=0)
    counter = counter_of(words, len(values))
    chunk = CHUNK if counter is None else _KEYED_CHUNK
    starts = deque(range(0, len(values), chunk))  # several threads may take from it
    left: list[tuple[Int[np.ndarray, " some"], UInt64[np.ndarray, " some"]]] = []

    def work() -> None:
        add = adder(values, found, std, step, inverse, words, min(chunk, len(values)), counter)
        while starts:
            try:
                start = starts.popleft()
            except IndexError:
                return
            indices, drawn = add(start, min(chunk, len(values) - start))
            if len(indices):
                left.append((start + indices, drawn))

    if len(starts) > 1:
        native.on_all_threads(work)
    elif starts:
        work()
    if left:
        indices, drawn = (np.concatenate(parts) for parts in zip(*left, strict=True))
        with np.errstate(over="ignore"):  # beyond float32
            found[indices] = settled(
                values[indices].astype(np.float64), std, step, inverse, drawn, words, indices
            )
    return found


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


@functools.cache
def kernel() -> Any:
    """The compiled function, or ``None`` where there is none."""
    function = native.kernel(SOURCE)
    if function is not None:
        pointer, number, whole = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64
        function.argtypes = (*(pointer,) * 4, whole, *(number,) * 4, ctypes.c_uint, ctypes.c_uint)
        function.restype = whole
    return function


@functools.cache
def _keyed_kernel() -> Any:
    """The function that draws its words itself, for `KeyedWords`."""
    function = native.kernel(SOURCE, "_keyed")
    if function is not None:
        pointer, number, whole, flag = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64, ctypes.c_uint
        word = ctypes.c_uint64
        function.argtypes = (
            *(pointer,) * 3,
            word,
            word,
            flag,
            *(pointer,) * 2,
            whole,
            *(number,) * 4,
            flag,
            flag,
        )
        function.restype = whole
    return function


def counter_of(words: Words, count: int) -> tuple[bytes, int] | None:
    """Key and place of these words, where the kernel can draw them itself."""
    if kernel() is None or not isinstance(words, KeyedWords):
        return None
    key, place = words.counter()
    nothing = None, None, key, 0, 0, 0, None, None, 0, 1.0, 1.0, 0.5, 1.0, 0, native.BEST
    is_able = place // 2 % 2**64 + count + CHUNK < 2**64 and _keyed_kernel()(*nothing) == 0
    return (key, place) if is_able else None


def adder(
    values: np.ndarray,
    out: np.ndarray,
    std: float,
    step: float,
    inverse: float,
    words: Words,
    most: int,
    counter: tuple[bytes, int] | None,
) -> Callable[[int, int], tuple[np.ndarray, np.ndarray]]:
    """A function of (start, count), for one thread: writes to ``out`` where float64 is sure which multiple is nearest,
    and gives the places, from ``start`` on, of the others, which it leaves alone, and their words."""
    if kernel() is None:
        return _portable(values, out, std, step, inverse, words.reader(most))
    unsure, size = np.empty(most, dtype=np.int64), values.itemsize
    source, target, listed = (array.ctypes.data for array in (values, out, unsure))
    scales = std, 1 / step, 0.5 - KERNEL_ERROR * (std / step), step * inverse
    version = values.dtype == np.float64, native.BEST
    if counter is not None:
        (key, place), kept, draw = counter, np.empty(most, dtype=np.uint64), _keyed_kernel()
        others = kept.ctypes.data

        def keyed(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
            block, odd = divmod(place + start, 2)
            there = source + size * start, target + size * start, key, block >> 64, block % 2**64, odd
            found = draw(*there, listed, others, count, *scales, *version)
            return unsure[:found].copy(), kept[:found].copy()

        return keyed
    function, read = kernel(), words.reader(most)

    def compiled(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = read(start, count)
        there = source + size * start, target + size * start, drawn.ctypes.data
        found = unsure[: function(*there, listed, count, *scales, *version)].copy()
        return found, drawn[found]

    return compiled


def _portable(
    values: np.ndarray,
    out: np.ndarray,
    std: float,
    step: float,
    inverse: float,
    read: Callable[[int, int], UInt64[np.ndarray, " count"]],
) -> Callable[[int, int], tuple[np.ndarray, np.ndarray]]:
    def add(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        drawn, part = read(start, count), slice(start, start + count)
        nearest, is_open = _nearest(values[part].astype(np.float64), std, step, drawn)
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out[part], nearest * (step * inverse), casting="same_kind", where=~is_open)
        return np.flatnonzero(is_open), drawn[is_open]

    return add


def _nearest(
    values: Float[np.ndarray, " size"], std: float, step: float, drawn: UInt64[np.ndarray, " size"]
) -> tuple[Float[np.ndarray, " size"], Bool[np.ndarray, " size"]]:
    """The nearest multiples, in units of ``step``, and where float64 leaves them open."""
    scaled, error = _scaled(values, std, step, drawn)
    with np.errstate(invalid="ignore"):
        nearest = np.rint(scaled)
        return nearest, ~(np.abs(scaled - nearest) + error < 0.5)


def _scaled(
    values: Float[np.ndarray, " size"], std: float, step: float, drawn: UInt64[np.ndarray, " size"]
) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
    """The sums in units of ``step``, and what float64 may be wrong by in them."""
    from scipy.special import ndtri  # slow to load, for `decrescendo --help` too

    # One bit is the sign; 63 are the beginning of a tail probability below one half, whose other bits nobody drew yet.
    negative, tail = drawn >> np.uint64(63) == 1, drawn & np.uint64(2**63 - 1)
    probability = (tail + 0.5) * 2.0**-64
    size = -ndtri(probability)
    with np.errstate(over="ignore", invalid="ignore"):
        total = values + np.where(negative, -std, std) * size
        # |dN/du| <= 1.26/u: half a unit of the last bit drawn, and the rounding of u, become an error of N.
        error = std * (2.0**-64.5 / probability + QUANTILE_ERROR * (1 + size)) + 2.0**-52 * np.abs(total)
        return total / step, error / step


def settled(
    values: Float[np.ndarray, " some"], std: float, step: float, inverse: float, drawn: UInt64[np.ndarray, " some"],
    words: Words, indices: Int[np.ndarray, " some"],
) -> Float[np.ndarray, " some"]:  # fmt: skip
    """The results of the coordinates ``indices``, with more bits and digits for what float64 leaves open."""
    nearest, is_open = _nearest(values, std, step, drawn)
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


def _decide(
    value: float, std: float, step: float, word: int, further: Iterator[int], below: int | None
) -> float:
    """The nearest multiple of ``step``, with as many more random bits and digits as it takes.

    ``below``: if the sum lies by the middle between two of them, the number of the first, so that it only has to be
    seen on which side it lies.
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
            first, last = (
                mpmath.nint((value + signed * _quantile(end, bits)) / step) for end in (tail, tail + 1)
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
