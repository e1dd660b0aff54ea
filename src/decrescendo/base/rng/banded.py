"""Noise that depends on earlier noise: the two walks around the Gaussian, on the CPU.

Everything is in units of the noise's grid: noise is whole numbers below 2^31, and weights are multiples of 2^-m with so
few digits (`grid_of`) that no sum of their products is rounded. The compiled form (banded.c) gives the same numbers as
NumPy, faster.
"""

import ctypes
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int32

from decrescendo.base import native
from decrescendo.errors import InvalidValue

SOURCE = Path(__file__).with_name("banded.c")
# Noise is stored in 32 bits; no sum has more digits than float64.
_STORED, _DIGITS = 31, 53
# Standard deviations that must fit: more than any random number that a computer will ever draw.
_DEVIATIONS = 64.0
# Bits of the grid below one standard deviation, at least: coarser ones would add to the sensitivity.
_FINEST_NEEDED = 12
_CHUNK = 2**16


def grid_of(std: float, weights: Float[np.ndarray, "steps bands"]) -> float:
    """The finest power of two of which noise with standard deviations up to ``std`` is a multiple below 2^31, with sums
    of ``weights`` times it exact in float64.

    Raises:
        InvalidValue: weights with too many binary digits.

    >>> grid_of(1.0, np.array([[0.5, 0.25]])) == 64 / 2**31
    True
    """
    parts, _ = np.frexp(weights)
    whole = np.abs(np.ldexp(parts, _DIGITS)).astype(np.int64)
    lowest = np.where(whole, np.log2(np.maximum(whole & -whole, 1)), _DIGITS).astype(int)
    behind = int(np.max(_DIGITS - np.frexp(weights)[1] - lowest, initial=0, where=whole > 0))
    largest = float(np.abs(weights).sum(axis=1).max(initial=0))
    # A sum is below 2^stored times the largest sum of weights, in multiples of 2^-behind.
    stored = min(_STORED, _DIGITS - behind - math.ceil(math.log2(max(largest, 1.0))))
    if stored < _FINEST_NEEDED + math.log2(_DEVIATIONS):
        raise InvalidValue(
            f"noise weights must have few binary digits, got {behind} behind the point with sums up to {largest:g}: "
            "their products with noise would be rounded. Round them to multiples of 2^-20"
        )
    return math.ldexp(1.0, math.ceil(math.log2(_DEVIATIONS * std)) - stored)


def weighted(
    earlier: Sequence[Int32[np.ndarray, " size"]], weights: Float64[np.ndarray, " bands"], size: int
) -> Float64[np.ndarray, " size"]:
    """-sum_k ``weights``[k] ``earlier``[k], exactly."""
    found, function = np.empty(size), kernel()
    weights = np.ascontiguousarray(weights, dtype=np.float64)

    def walk(start: int, count: int) -> None:
        if function is None:
            found[start : start + count] = 0
            for weight, noise in zip(weights, earlier, strict=True):
                found[start : start + count] -= weight * noise[start : start + count]
            return
        rows = (ctypes.c_void_p * max(len(earlier), 1))(*(_at(noise, start) for noise in earlier))
        there = _at(found, start), None, None, None
        function(rows, weights.ctypes.data, len(earlier), *there, count, 0.0, 0.0, 0, native.BEST)

    _on_all_threads(walk, size)
    return found


def released(
    noise: Float64[np.ndarray, " size"], values: Float[np.ndarray, " size"], kept: Int32[np.ndarray, " size"],
    per_unit: float, back: float, out: Float[np.ndarray, " size"],
) -> None:  # fmt: skip
    """(round(``values`` ``per_unit``) + ``noise``) ``back`` into ``out``, and the noise into ``kept``; all contiguous.

    Args:
        noise: whole numbers below 2^31.
        values: float32 or float64.
        per_unit: 1 over the value of a unit.
        back: what a unit of the result is.
        out: of the dtype of ``values``; may be ``values``.
    """
    function = kernel()
    wide = values.dtype == np.float64

    def walk(start: int, count: int) -> None:
        part = slice(start, start + count)
        if function is None:
            with np.errstate(over="ignore", invalid="ignore"):
                whole = np.rint(values[part].astype(np.float64) * per_unit)
                out[part] = (whole + noise[part]) * back
            kept[part] = noise[part]
            return
        there = _at(noise, start), _at(values, start), _at(out, start), _at(kept, start)
        function(None, None, 0, *there, count, per_unit, back, wide, native.BEST)

    _on_all_threads(walk, len(values))


@functools.cache
def kernel() -> Any:
    """The compiled function, or ``None`` where there is none."""
    function = native.kernel(SOURCE)
    if function is not None:
        pointer, number, whole = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64
        function.argtypes = (
            pointer, pointer, whole, *(pointer,) * 4, whole, number, number, ctypes.c_uint, ctypes.c_uint,
        )  # fmt: skip
        function.restype = None
    return function


def _at(array: np.ndarray, start: int) -> int:
    return array.ctypes.data + array.itemsize * start


def _on_all_threads(walk: Callable[[int, int], None], size: int) -> None:
    starts = deque(range(0, size, _CHUNK))  # several threads may take from it

    def work() -> None:
        while starts:
            try:
                start = starts.popleft()
            except IndexError:
                return
            walk(start, min(_CHUNK, size - start))

    if len(starts) > 1:
        native.on_all_threads(work)
    else:
        work()
