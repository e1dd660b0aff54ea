"""A sum plus an exact real Gaussian, rounded once to a public grid.

Gaussian noise made of floating-point numbers is not Gaussian: which outputs are possible at all depends on the sum, and
an output that one neighbour can give and the other cannot betrays it (Mironov, "On significance of the least
significant bits for differential privacy", 2012; for Gaussians Jin et al., "Are we there yet? Timing and floating-point
attacks on differential privacy systems", 2022). Here each coordinate is

    gamma * round((x + std N) / gamma),    gamma a power of two near std 2^-20

of the exact sum x and an ideal real N ~ N(0, 1): rounding is post-processing of the mechanism that accountants count,
and the outputs are the multiples of gamma whatever x is. N is never known exactly, nor need it be: 64 random bits and
float64 say in which interval it lies. Where the interval leaves open which multiple is nearest (one coordinate in some
millions), `settling` draws more bits until nothing is open. So a result is a function of the bits alone: with the
compiled kernel (gaussian.c) or without it, on any processor, by any number of threads.
"""

import ctypes
import functools
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, UInt64

from decrescendo.base import native
from decrescendo.base.rng.settling import Further, nearest_of, rounded_exactly
from decrescendo.errors import InvalidValue, check_instance, check_real

SOURCE = Path(__file__).with_name("gaussian.c")
# gamma is this many powers of two below the largest one that is at most std.
_FINENESS = 20
# The largest error of the kernel in N, including half of the first word's interval (tests prove it).
KERNEL_ERROR = 2.0**-46
# Coordinates per chunk: intermediate results stay in the cache. Even: two words make a block.
CHUNK = 2**14
# The chunk where the kernel draws the words itself, into the first-level cache: fewer calls from Python.
_KEYED_CHUNK = 4 * CHUNK
_STD_RANGE = (2.0**-900, 2.0**900)


@runtime_checkable
class Words(Further, Protocol):
    """Uniform 64-bit words, one for each coordinate of a vector, and more where they are needed."""

    def reader(self, most: int) -> Callable[[int, int], UInt64[np.ndarray, " count"]]:
        """A function of (start, count) for one thread, with at most ``most`` words a call."""
        ...


@runtime_checkable
class KeyedWords(Words, Protocol):
    """Words of AES-256 in counter mode, which the kernel can compute itself."""

    def counter(self) -> tuple[bytes, int]:
        """The key, of 32 bytes, and the position n of word 0: word i is half (n + i) % 2 of block (n + i) // 2."""
        ...


def add_gaussian(
    values: np.ndarray, std: float, words: Words, *, divisor: float = 1.0, out: np.ndarray | None = None,
    step: float | None = None,
) -> Float[np.ndarray, " size"]:  # fmt: skip
    """``values`` plus independent N(0, std^2) on each, rounded to a multiple of ``step``, over ``divisor``.

    All of torch's threads take part, where torch was imported.

    Args:
        values: float64 or float32; the private sum.
        std: in [2^-900, 2^900]; public.
        words: the source of random bits.
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
            found[indices] = rounded_exactly(
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
        raise InvalidValue(f"std must be within [2^-900, 2^900], got {value!r}. Scale the loss, or the clip norm")
    return math.ldexp(1.0, math.frexp(value)[1] - 1 - _FINENESS)


@functools.cache
def kernel() -> Any:
    """The compiled function, or ``None`` if there is none."""
    function = native.kernel(SOURCE)
    if function is not None:
        pointer, number, whole = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64
        function.argtypes = (*(pointer,) * 4, whole, *(number,) * 4, ctypes.c_uint, ctypes.c_uint)
        function.restype = whole
    return function


@functools.cache
def _keyed_kernel() -> Any:
    """The compiled function that computes its words itself, for `KeyedWords`; ``None`` if there is none."""
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
    """Key and position of ``words``, if the kernel can compute them itself; else ``None``."""
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
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """A function of (start, count), for one thread: writes the results to ``out`` where float64 decides which multiple
    is nearest; returns the positions, from ``start`` on, of the others, which it leaves alone, and their words. With a
    third argument the words are those of the coordinates from so many after ``start`` on."""
    if kernel() is None:
        return _portable(values, out, std, step, inverse, words.reader(most))
    unsure, size = np.empty(most, dtype=np.int64), values.itemsize
    source, target, listed = (array.ctypes.data for array in (values, out, unsure))
    scales = std, 1 / step, 0.5 - KERNEL_ERROR * (std / step), step * inverse
    version = values.dtype == np.float64, native.BEST
    if counter is not None:
        (key, place), kept, draw = counter, np.empty(most, dtype=np.uint64), _keyed_kernel()
        others = kept.ctypes.data

        def keyed(start: int, count: int, ahead: int = 0) -> tuple[np.ndarray, np.ndarray]:
            block, odd = divmod(place + start + ahead, 2)
            there = source + size * start, target + size * start, key, block >> 64, block % 2**64, odd
            found = draw(*there, listed, others, count, *scales, *version)
            return unsure[:found].copy(), kept[:found].copy()

        return keyed
    function, read = kernel(), words.reader(most)

    def compiled(start: int, count: int, ahead: int = 0) -> tuple[np.ndarray, np.ndarray]:
        drawn = read(start + ahead, count)
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
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    def add(start: int, count: int, ahead: int = 0) -> tuple[np.ndarray, np.ndarray]:
        drawn, part = read(start + ahead, count), slice(start, start + count)
        nearest, is_open = nearest_of(values[part].astype(np.float64), std, step, drawn)
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out[part], nearest * (step * inverse), casting="same_kind", where=~is_open)
        return np.flatnonzero(is_open), drawn[is_open]

    return add
