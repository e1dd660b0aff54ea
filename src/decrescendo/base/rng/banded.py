"""Correlated noise on the CPU: draws each step's noise from earlier noise, and adds it to a sum.

Everything is in units of the noise's grid: noise is whole numbers below 2^31, and weights are multiples of 2^-m with so
few digits (`grid_of`) that no sum of their products is rounded. The compiled form (banded.c) gives the same numbers as
NumPy, faster.
"""

import ctypes
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int32

from decrescendo.base import native
from decrescendo.base.rng.keystream import ReservedWords
from decrescendo.base.rng.rounded import adder, counter_of
from decrescendo.base.rng.settling import rounded_exactly
from decrescendo.errors import InvalidValue

SOURCE = Path(__file__).with_name("banded.c")
# Noise is stored in 32 bits; no sum has more digits than float64.
_STORED, _DIGITS = 31, 53
# The grid must hold noise of so many standard deviations: more than any computer will ever draw.
_DEVIATIONS = 64.0
# The least bits of the grid below one standard deviation: a coarser grid would add to the sensitivity.
_FINEST_NEEDED = 12
# Coordinates per chunk: those of sixteen steps fit into one core's cache. And for a release, which is read once.
_CHUNK, _RELEASED = 2**14, 2**16


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


@dataclass(frozen=True, slots=True)
class Step:
    """The settings that one step's noise is drawn with.

    Args:
        std: standard deviation of the new part of the noise, in units of the grid.
        weights: the weights of earlier steps' noise, the latest first.
        words: the random words, one for each coordinate.
        row: the row that the noise is written to; ``earlier``: the rows of earlier steps' noise.
    """

    std: float
    weights: Float64[np.ndarray, " earlier"]
    words: ReservedWords
    row: int
    earlier: Sequence[int]


def draw(rows: Int32[np.ndarray, "bands size"], steps: Sequence[Step]) -> None:
    """Draw the noise of consecutive steps, round(std xi - sum_k weights[k] earlier[k]), into ``rows``.

    Coordinates that fit into the cache have all of their steps drawn before the next: so ``rows``, which may be much
    larger, are read and written once for all steps, not once for each.
    """
    size = rows.shape[1]
    most = min(_CHUNK, size)
    starts = deque(range(0, size, _CHUNK))  # several threads may take from it
    counters = [counter_of(step.words, size) for step in steps]

    def work() -> None:
        noise = np.empty(most)
        sums = [weighted(rows, step, noise) for step in steps]
        adders = [
            adder(noise, noise, step.std, 1.0, 1.0, step.words, most, counter)
            for step, counter in zip(steps, counters, strict=True)
        ]
        while starts:
            try:
                start = starts.popleft()
            except IndexError:
                return
            count = min(_CHUNK, size - start)
            here = noise[:count]
            for step, add_up, add in zip(steps, sums, adders, strict=True):
                add_up(start, count)
                left, drawn = add(0, count, start)
                if len(left):  # settled before later steps read it
                    words = step.words.after(start)
                    here[left] = rounded_exactly(here[left], step.std, 1.0, 1.0, drawn, words, left)
                rows[step.row, start : start + count] = here

    if len(starts) > 1:
        native.on_all_threads(work)
    elif starts:
        work()


def weighted(
    rows: Int32[np.ndarray, "bands size"], step: Step, out: Float64[np.ndarray, " most"]
) -> Callable[[int, int], None]:
    """A function of (start, count) that writes -sum_k weights[k] earlier[k], from ``start`` on, to ``out``; exact."""
    earlier, weights = [rows[k] for k in step.earlier], step.weights
    if (function := kernel()) is None:

        def portable(start: int, count: int) -> None:
            out[:count] = 0
            for weight, noise in zip(weights, earlier, strict=True):
                out[:count] -= weight * noise[start : start + count]

        return portable
    bases = np.array([noise.ctypes.data for noise in earlier] or [0], dtype=np.uint64)
    at = bases.copy()
    given = at.ctypes.data, weights.ctypes.data, len(earlier), out.ctypes.data, None, None, None

    def compiled(start: int, count: int) -> None:
        np.add(bases, np.uint64(4 * start), out=at)
        function(*given, count, 0.0, 0.0, 0, native.BEST)

    return compiled


def released(
    noise: Int32[np.ndarray, " size"], values: Float[np.ndarray, " size"], per_unit: float, back: float
) -> Float[np.ndarray, " size"]:
    """(round(``values`` ``per_unit``) + ``noise``) ``back``, in the dtype of ``values``; all contiguous.

    Args:
        noise: in units of the grid.
        values: float32 or float64.
        per_unit: 1 over the value of a unit.
        back: the value of a unit of the result.
    """
    found, size, wide = np.empty_like(values), values.itemsize, values.dtype == np.float64
    starts = deque(range(0, len(values), _RELEASED))
    function = kernel()
    if function is None:
        with np.errstate(over="ignore", invalid="ignore"):
            found[:] = (np.rint(values.astype(np.float64) * per_unit) + noise) * back
        return found
    source, there, target = (array.ctypes.data for array in (noise, values, found))

    def work() -> None:
        while starts:
            try:
                start = starts.popleft()
            except IndexError:
                return
            at = source + 4 * start, there + size * start, target + size * start
            count = min(_RELEASED, len(values) - start)
            function(None, None, 0, None, *at, count, per_unit, back, wide, native.BEST)

    if len(starts) > 1:
        native.on_all_threads(work)
    elif starts:
        work()
    return found


@functools.cache
def kernel() -> Any:
    """The compiled function, or ``None`` if there is none."""
    function = native.kernel(SOURCE)
    if function is not None:
        pointer, number, whole = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64
        function.argtypes = (
            pointer, pointer, whole, *(pointer,) * 4, whole, number, number, ctypes.c_uint, ctypes.c_uint,
        )  # fmt: skip
        function.restype = None
    return function
