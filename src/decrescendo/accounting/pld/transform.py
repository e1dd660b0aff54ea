"""Moment-generating functions of composed privacy losses, at complex arguments, with error bounds.

For one direction (*remove*: losses of P against Q under P; *add*: of Q against P under Q) and s = c + iv,

    remove: M(s) = prod_t sum_j q_tj exp((1 + s) l_j),      add: M(s) = prod_t sum_j q_tj exp(-s l_j),

over finite losses l_j; mass at infinite loss is kept apart. Losses of a direction are never mixed with the other's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Complex, Float
from scipy.special import log1p  # NumPy's loses small complex arguments

from decrescendo.accounting.pld.interpolation import ORDER, Mixtures

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")

UNIT = 2.0**-53
# Relative error allowed for one value of a privacy curve (log_delta and exp; measured at most 1e-13 against mpmath).
CURVE_ERROR = 2e-13
_BLOCK = 1 << 22  # numbers held at once in a table of phases


@dataclass(frozen=True, slots=True)
class Part:
    """All steps at one sample rate: their losses at grid points, and their masses (dominating or dominated)."""

    losses: Float[np.ndarray, " n"]
    mixtures: Mixtures
    sample_rate: float

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
        mixtures, counts, largest = (
            part.mixtures,
            part.mixtures.counts[:, None],
            part.mixtures.largest[:, None],
        )
        waves = Waves.of(part, direction, c, sign * v)
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


@dataclass(frozen=True, slots=True)
class Waves:
    """exp(s l_j) - 1 at the losses (times y_j where P is the first law), split so that nothing cancels.

    With the tilt exp(a) at v = 0 and the phase x = v l: exp(a + ix) - 1 = expm1(a) - exp(a) (2 sin^2(x/2) - i sin x).
    Where the loss is infinite, or counted so, the tilt is 0: the term is -1.
    """

    v: Float[np.ndarray, " f"]
    power: float
    tilt: Float[np.ndarray, " n"]
    tilt_less_1: Float[np.ndarray, " n"]
    loss: Float[np.ndarray, " n"]
    versine: Float[np.ndarray, "n f"]
    sine: Float[np.ndarray, "n f"]

    @classmethod
    def of(cls, part: Part, direction: Direction, c: float, v: Float[np.ndarray, " f"]) -> "Waves":
        power = 1 + c if direction == "remove" else -c
        finite = np.isfinite(part.losses)
        if direction == "add":
            finite[0] = False
        loss = np.where(finite, part.losses, 0.0)
        half = np.outer(loss, v / 2)
        sine, cosine = np.sin(half), np.cos(half)
        with np.errstate(over="ignore"):  # an overflow makes a search turn back; no bound is made of it
            tilt = np.where(finite, np.exp(power * loss), 0.0)
            tilt_less_1 = np.where(finite, np.expm1(power * loss), -1.0)
        return cls(v, power, tilt, tilt_less_1, loss, 2 * sine**2, 2 * sine * cosine)

    def sums(self, q: Float[np.ndarray, "g n"]) -> Complex[np.ndarray, "g f"]:
        """sum_j q_j (exp(a_j + i v l_j) - 1)."""
        tilted = q * self.tilt
        return ((q @ self.tilt_less_1)[:, None] - tilted @ self.versine) + 1j * (tilted @ self.sine)

    def rounding(
        self, q: Float[np.ndarray, "g n"], scale: Float[np.ndarray, "g m"]
    ) -> Float[np.ndarray, "g f"]:
        """How far such a sum may be off for masses |q|: products and sums; and slopes, whose errors telescope."""
        tilted = q * self.tilt
        mass, moment = tilted.sum(axis=1)[:, None], (tilted @ np.abs(self.loss))[:, None]
        real = (q @ np.abs(self.tilt_less_1))[:, None]
        waves = np.minimum(3 * mass, 2 * np.abs(self.v) * moment)
        rise = (self.tilt[1:] + self.tilt[:-1]) * np.abs(np.diff(self.loss))
        slopes = np.abs(self.power) + np.abs(self.v)
        return UNIT * ((self.loss.size + 64) * (real + waves) + 8 * slopes * (scale @ rise)[:, None])


def log_mgf(parts: Sequence[Part], direction: Direction, c: float) -> float:
    """An upper bound on log M(c), c real; infinite where floating point cannot tell."""
    with np.errstate(over="ignore", invalid="ignore"):
        result = float(_transform(parts, direction, c, np.zeros(1)).log_magnitude[0])
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
            waves = Waves.of(part, self.direction, c, np.zeros(1))
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
