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

from decrescendo.accounting.pld.segments import ORDER, Mixtures

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")

UNIT = 2.0**-53
# Relative error allowed for one value of a privacy curve (log_delta and exp; measured at most 1e-13 against mpmath).
CURVE_ERROR = 2e-13
_BLOCK = 1 << 22  # numbers held at once in a table of phases


@dataclass(frozen=True, slots=True)
class Part:
    """All steps at one sample rate: their losses at the dots, and their masses (dominating or dominated)."""

    losses: Float[np.ndarray, " n"]
    mixtures: Mixtures
    sample_rate: float

    def real_weights(self, direction: Direction, c: float) -> Float[np.ndarray, " n"]:
        """exp((1 + c) l_j) or exp(-c l_j), zero where the loss is infinite."""
        power = 1 + c if direction == "remove" else -c
        finite = np.isfinite(self.losses)
        with np.errstate(over="ignore"):  # an overflow makes a search turn back; no bound is made of it
            return np.where(finite, np.exp(power * np.where(finite, self.losses, 0.0)), 0.0)

    def infinite_mass(self, direction: Direction) -> float:
        """Sum over steps of the probability of an infinite loss, an upper bound on that of their composition."""
        mixtures = self.mixtures
        if direction == "remove":
            base, difference = mixtures.base_infinite * self.sample_rate, mixtures.difference_infinite * self.sample_rate
        elif self.sample_rate == 1:
            base, difference = mixtures.base[:, 0], mixtures.difference[:, 0]
        else:
            return 0.0
        return float(mixtures.power_sums[:, 0] @ base + mixtures.power_sums[:, 1] @ difference)


@dataclass(frozen=True, slots=True)
class Transform:
    """log M(c + iv) on a grid of v, and how far exp of it may be off.

    ``relative``: |error| <= (exp(relative) - 1) |M|. Where the value itself is not known (``relative`` infinite),
    |M| <= exp(log_magnitude).
    """

    value: Complex[np.ndarray, " f"]
    log_magnitude: Float[np.ndarray, " f"]
    relative: Float[np.ndarray, " f"]


def transform(parts: Sequence[Part], direction: Direction, c: float, v: Float[np.ndarray, " f"]) -> Transform:
    """The product over all steps of all parts, by blocks of frequencies."""
    n = max(part.losses.size for part in parts)
    block = max(64, _BLOCK // n)
    pieces = [_transform(parts, direction, c, v[start : start + block]) for start in range(0, v.size, block)]
    return Transform(
        np.concatenate([piece.value for piece in pieces]),
        np.concatenate([piece.log_magnitude for piece in pieces]),
        np.concatenate([piece.relative for piece in pieces]),
    )


def _transform(parts: Sequence[Part], direction: Direction, c: float, v: Float[np.ndarray, " f"]) -> Transform:
    log_value = np.zeros(v.size, dtype=np.complex128)
    log_magnitude = np.zeros(v.size)
    relative = np.zeros(v.size)
    sign = 1.0 if direction == "remove" else -1.0
    for part in parts:
        mixtures, weights = part.mixtures, part.real_weights(direction, c)
        finite = np.where(np.isfinite(part.losses), part.losses, 0.0)
        phase = np.outer(finite, sign * v)
        cosine, sine = np.cos(phase), np.sin(phase)
        base_weighted, difference_weighted = mixtures.base * weights, mixtures.difference * weights
        base = base_weighted @ cosine + 1j * (base_weighted @ sine)
        if np.any(mixtures.largest):
            difference = difference_weighted @ cosine + 1j * (difference_weighted @ sine)
        else:
            difference = np.zeros_like(base)
        largest, counts = mixtures.largest[:, None], mixtures.counts[:, None]

        size = np.abs(base)
        total = np.abs(base_weighted) + mixtures.largest[:, None] * np.abs(difference_weighted)
        mass, moment = total.sum(axis=1)[:, None], (total @ np.abs(finite))[:, None]
        # Each product and sum of the matrix product, each mass's own cancellation, and each phase is off by a few units.
        rounding = UNIT * ((2 * finite.size + 4000) * mass + 4 * np.abs(v) * moment)
        log_magnitude += (counts * np.log(np.minimum(size + largest * np.abs(difference) + rounding, mass))).sum(axis=0)

        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = difference / base
            reach = largest * np.abs(ratio)
            series = np.zeros_like(base)
            for k in range(ORDER - 1, 0, -1):  # Horner on power_k (-1)^(k+1) / k ratio^k
                series = (series + (-1) ** (k + 1) / k * mixtures.power_sums[:, k, None]) * ratio
            remainder = counts * reach**ORDER / (ORDER * np.maximum(1 - reach, 0.0))
            error = remainder + 2 * counts * rounding / size
            logs = counts * np.log(base) + series
        known = (reach < 0.5) & (rounding < 0.1 * size)
        empty = counts == 0
        error = np.where(empty, 0.0, np.where(known, error, np.inf))
        logs = np.where(empty | ~known, 0.0, logs)
        log_value += logs.sum(axis=0)
        relative += error.sum(axis=0)
    steps = sum(float(part.mixtures.counts.sum()) for part in parts)
    relative += steps * CURVE_ERROR
    lost = ~(relative < 0.5)
    relative[lost] = np.inf
    value = np.where(lost, 0.0, np.exp(np.where(lost, 0.0, log_value)))
    return Transform(value, log_magnitude, relative)


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
            mean = mixtures.power_sums[occupied, 1] / mixtures.counts[occupied]
            masses = mixtures.base[occupied] + mean[:, None] * mixtures.difference[occupied]
            loss = sign * np.where(np.isfinite(part.losses), part.losses, 0.0)
            powers = np.stack([np.ones_like(loss), loss, loss**2], axis=1)
            m0, m1, m2 = (masses @ (part.real_weights(self.direction, c)[:, None] * powers)).T
            counts = mixtures.counts[occupied]
            totals += [counts @ np.log(m0), counts @ (m1 / m0), counts @ (m2 / m0 - (m1 / m0) ** 2)]
        return float(totals[0]), float(totals[1]), float(totals[2])
