"""exp(s l) - 1 summed over the losses of discrete mechanisms, at complex s, and how far such sums may be off."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Complex, Float

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")

UNIT = 2.0**-53


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
    def of(
        cls, losses: Float[np.ndarray, " n"], direction: Direction, c: float, v: Float[np.ndarray, " f"]
    ) -> "Waves":
        power = 1 + c if direction == "remove" else -c
        finite = np.isfinite(losses)
        if direction == "add":
            finite[0] = False
        loss = np.where(finite, losses, 0.0)
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

    def stretched(self, factor: Float[np.ndarray, " n"], losses: Float[np.ndarray, " n"]) -> "Waves":
        """The same with tilts ``factor`` times as large and other finite losses: for `rounding`."""
        loss = np.where(self.tilt > 0, np.where(np.isfinite(losses), losses, 0.0), 0.0)
        return replace(self, tilt=self.tilt * factor, loss=loss)

    def where(self, kept: Bool[np.ndarray, "n f"]) -> "Table":
        """Sums over those points only that are ``kept`` at a frequency; the others' waves count as 0."""
        return Table(self, kept, np.where(kept, 1 - self.versine, 0.0), np.where(kept, self.sine, 0.0))


@dataclass(frozen=True, slots=True)
class Table:
    """`Waves` with points left out: ``cosine`` and ``sine`` are 0 there."""

    waves: Waves
    kept: Bool[np.ndarray, "n f"]
    cosine: Float[np.ndarray, "n f"]
    sine: Float[np.ndarray, "n f"]

    def sums(self, q: Float[np.ndarray, "g n"]) -> Complex[np.ndarray, "g f"]:
        """sum_j q_j (exp(a_j + i v l_j) - 1)."""
        tilt = self.waves.tilt
        change = np.where(self.kept, self.waves.versine, 1.0)
        real, imaginary = _product(q, tilt, change), _product(q, tilt, self.sine)
        return ((q @ self.waves.tilt_less_1)[:, None] - real) + 1j * imaginary

    def moments(
        self, q: Float[np.ndarray, "g n"], factor: Float[np.ndarray, " n"]
    ) -> Complex[np.ndarray, "g f"]:
        """sum_j q_j factor_j exp(a_j + i v l_j)."""
        tilt = self.waves.tilt * factor
        return _product(q, tilt, self.cosine) + 1j * _product(q, tilt, self.sine)


def _product(
    q: Float[np.ndarray, "g n"], tilt: Float[np.ndarray, " n"], table: Float[np.ndarray, "n f"]
) -> Float[np.ndarray, "g f"]:
    """sum_j q_j tilt_j table_j: the factors go to the smaller factor."""
    return (q * tilt) @ table if q.shape[0] < table.shape[1] else q @ (tilt[:, None] * table)
