"""Moment-generating functions of composed privacy losses, at complex arguments, with error bounds.

For one direction (*remove*: losses of P against Q under P; *add*: of Q against P under Q) and s = c + iv,

    remove: M(s) = prod_t sum_j q_tj exp((1 + s) l_j),      add: M(s) = prod_t sum_j q_tj exp(-s l_j),

over finite losses l_j; mass at infinite loss is kept apart. Losses of a direction are never mixed with the other's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float
from scipy.special import log1p  # NumPy's loses small complex arguments

from decrescendo.accounting.pld.interpolation import ORDER, Mixtures
from decrescendo.accounting.pld.rates import Spread, expanded, log_bound
from decrescendo.accounting.pld.waves import DIRECTIONS, UNIT, Direction, Waves

__all__ = [
    "CURVE_ERROR",
    "DIRECTIONS",
    "UNIT",
    "Cumulants",
    "Direction",
    "Part",
    "Transform",
    "log_mgf",
    "transform",
]

# Relative error allowed for one value of a privacy curve (log_delta and exp; measured at most 1e-13 against mpmath).
CURVE_ERROR = 2e-13
_BLOCK = 1 << 22  # numbers held at once in a table of phases


@dataclass(frozen=True, slots=True)
class Part:
    """All steps at one sample rate: their losses at grid points, and their masses (dominating or dominated).

    Or all in one cell of sample rates, ``sample_rate`` in its middle: ``spread`` then says how they differ.
    """

    losses: Float[np.ndarray, " n"]
    mixtures: Mixtures
    sample_rate: float
    spread: Spread | None = None

    def infinite_mass(self, direction: Direction) -> float:
        """Sum over steps of the probability of an infinite loss, an upper bound on that of their composition."""
        mixtures = self.mixtures
        if direction == "remove":
            base, difference = (
                mixtures.base_infinite * self.sample_rate,
                mixtures.difference_infinite * self.sample_rate,
            )
        else:
            # The mass of Q at y = 0 stands for its cut tail. Its loss -log(1 - p) is finite, but far too large to be
            # tilted: it is counted as infinite.
            base, difference = mixtures.base[:, 0], mixtures.difference[:, 0]
        if self.spread is not None:
            middle = self.sample_rate if direction == "remove" else None
            base = mixtures.base_infinite if direction == "remove" else base
            difference = mixtures.difference_infinite if direction == "remove" else difference
            return self.spread.total(base, difference * mixtures.largest, by_rate=middle)
        return float(mixtures.power_sums[:, 0] @ base + mixtures.power_sums[:, 1] @ difference)


@dataclass(frozen=True, slots=True)
class Transform:
    """log M(c + iv) on a grid of v (any branch), and how far exp of it may be off.

    ``relative``: |error| <= (exp(relative) - 1) |M|. Where that is infinite only |M| <= exp(log_magnitude) is known.
    """

    log_value: Complex[np.ndarray, " f"]
    log_magnitude: Float[np.ndarray, " f"]
    relative: Float[np.ndarray, " f"]


def transform(parts: Sequence[Part], direction: Direction, c: float, v: Float[np.ndarray, " f"]) -> Transform:
    """The product over all steps of all parts, by blocks of frequencies."""
    n = max(part.losses.size for part in parts)
    block = max(64, _BLOCK // n)
    pieces = [_transform(parts, direction, c, v[start : start + block]) for start in range(0, v.size, block)]
    return Transform(
        np.concatenate([piece.log_value for piece in pieces]),
        np.concatenate([piece.log_magnitude for piece in pieces]),
        np.concatenate([piece.relative for piece in pieces]),
    )


def _transform(
    parts: Sequence[Part], direction: Direction, c: float, v: Float[np.ndarray, " f"]
) -> Transform:
    log_value = np.zeros(v.size, dtype=np.complex128)
    log_magnitude = np.zeros(v.size)
    relative = np.zeros(v.size)
    sign = 1.0 if direction == "remove" else -1.0
    for part in parts:
        if part.spread is not None:
            value, magnitude, error = expanded(
                part.losses, part.mixtures, part.spread, direction, c, sign * v
            )
            log_value += value
            log_magnitude += magnitude
            relative += error
            continue
        mixtures, counts, largest = (
            part.mixtures,
            part.mixtures.counts[:, None],
            part.mixtures.largest[:, None],
        )
        waves = Waves.of(part.losses, direction, c, sign * v)
        base, difference = (
            waves.sums(mixtures.base),
            waves.sums(mixtures.difference) if largest.any() else 0.0,
        )
        rounding = waves.rounding(
            np.abs(mixtures.base) + largest * np.abs(mixtures.difference), mixtures.slope_scale
        )
        # One step's transform is 1 + base + w difference: kept without the 1, which rounding would be relative to.
        size = np.abs(1 + base)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = difference / (1 + base)
            reach = largest * np.abs(ratio)
            magnitude = np.log(size + largest * np.abs(difference) + rounding)
            series = np.zeros_like(base)
            for k in range(ORDER - 1, 0, -1):  # Horner on power_k (-1)^(k+1) / k ratio^k
                series = (series + (-1) ** (k + 1) / k * mixtures.power_sums[:, k, None]) * ratio
            remainder = counts * reach**ORDER / (ORDER * np.maximum(1 - reach, 0.0))
            error = remainder + 2 * counts * (rounding + UNIT * np.abs(base)) / size
            error += 2 * counts * UNIT * (mixtures.members[:, None] + 2 * ORDER) * np.minimum(reach, 1.0)
            logs = counts * log1p(base) + series
        known = (reach < 0.5) & (rounding < 0.1 * size)
        empty = counts == 0
        log_magnitude += np.where(empty, 0.0, counts * magnitude).sum(axis=0)
        log_value += np.where(empty | ~known, 0.0, logs).sum(axis=0)
        relative += np.where(empty, 0.0, np.where(known, error, np.inf)).sum(axis=0)
    relative[~(relative < 0.5)] = np.inf
    return Transform(log_value, log_magnitude, relative)


def log_mgf(parts: Sequence[Part], direction: Direction, c: float) -> float:
    """An upper bound on log M(c), c real; infinite where floating point cannot tell."""
    with np.errstate(over="ignore", invalid="ignore"):
        plain = [part for part in parts if part.spread is None]
        result = float(_transform(plain, direction, c, np.zeros(1)).log_magnitude[0]) if plain else 0.0
        for part in parts:
            if part.spread is not None:
                result += log_bound(part.losses, part.mixtures, part.spread, direction, c)
    return result if math.isfinite(result) else math.inf


@dataclass(frozen=True, slots=True)
class Cumulants:
    """log M(c) and its first two derivatives in c, for steering only: every group is taken at its mean mixture."""

    parts: Sequence[Part]
    direction: Direction

    def at(self, c: float) -> tuple[float, float, float]:
        """(log M, (log M)', (log M)'') at real c."""
        sign = 1.0 if self.direction == "remove" else -1.0
        totals = np.zeros(3)
        for part in self.parts:
            mixtures = part.mixtures
            occupied = mixtures.counts > 0
            counts = mixtures.counts[occupied]
            mean = mixtures.power_sums[occupied, 1] / counts
            masses = mixtures.base[occupied] + mean[:, None] * mixtures.difference[occupied]
            losses = part.losses if part.spread is None else part.spread.typical
            waves = Waves.of(losses, self.direction, c, np.zeros(1))
            loss = sign * waves.loss
            with np.errstate(
                over="ignore", invalid="ignore", divide="ignore"
            ):  # far beyond the saddle: turned back
                m0 = masses @ waves.tilt_less_1
                m1, m2 = (
                    (masses @ (waves.tilt * loss)) / (1 + m0),
                    (masses @ (waves.tilt * loss**2)) / (1 + m0),
                )
                totals += [counts @ np.log1p(m0), counts @ m1, counts @ (m2 - m1**2)]
        return float(totals[0]), float(totals[1]), float(totals[2])
