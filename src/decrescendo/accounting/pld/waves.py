"""exp(s l) - 1 summed over the losses of discrete mechanisms, at complex s, and how far such sums may be off.

Thousands of frequencies k dv are one fast transform: each loss is spread over the points nearest to it of an even grid
of G points, of width D = 2 pi/(G dv), with weights exp(-x^2/(2 t)), x in grid points, |x| <= P; what comes out at k is

    sqrt(2 pi t) exp(-t h^2/2) (sum_j a_j exp(i k dv l_j) + aliases),     h = 2 pi k/G <= pi/3.

Poisson's formula bounds the aliases by 2 exp(-2 pi t (pi - h)) sum_j |a_j|, and what is cut off beyond P adds less
than 3 exp(-(P - 1/2)^2/(2 t)) sum_j |a_j| before the division: together below 2^-50 of sum_j |a_j|. (Dutt and Rokhlin,
"Fast Fourier transforms for nonequispaced data", 1993.) Losses within 1/v of 0 at the largest v are summed by powers of
v instead, for in long runs at small rates nearly all mass is there, and only its distance from 0 may be rounded.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Complex, Float
from scipy.fft import next_fast_len, rfft
from scipy.sparse import csr_array
from scipy.special import factorial

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")

UNIT = 2.0**-53

# So many frequencies, on which nearly all of a long run hangs, are summed one by one: more exact, and slower.
_ONE_BY_ONE = 64
_DEGREE = 18  # 1/19! is below rounding
_T, _P = 2.7, 15
_GROWTH = 4.4  # exp(t h^2/2) at the largest h


@dataclass(frozen=True, slots=True)
class Waves:
    """exp(s l_j) - 1 at the losses (times y_j where P is the first law), split so that nothing cancels.

    With the tilt exp(a) at v = 0 and the phase x = v l: exp(a + ix) - 1 = expm1(a) - exp(a) (2 sin^2(x/2) - i sin x).
    Where the loss is infinite, or counted so, the tilt is 0: the term is -1. Frequencies that are 0, dv, 2 dv, .. are
    fast.
    """

    v: Float[np.ndarray, " f"]
    power: float
    tilt: Float[np.ndarray, " n"]
    tilt_less_1: Float[np.ndarray, " n"]
    loss: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, losses: Float[np.ndarray, " n"], direction: Direction, c: float, v: Float[np.ndarray, " f"]) -> "Waves":
        power = 1 + c if direction == "remove" else -c
        finite = np.isfinite(losses)
        if direction == "add":
            finite[0] = False
        loss = np.where(finite, losses, 0.0)
        with np.errstate(over="ignore"):  # an overflow makes a search turn back; no bound is made of it
            tilt = np.where(finite, np.exp(power * loss), 0.0)
            tilt_less_1 = np.where(finite, np.expm1(power * loss), -1.0)
        return cls(v, power, tilt, tilt_less_1, loss)

    def sums(
        self, q: Float[np.ndarray, "g n"], factor: Float[np.ndarray, " n"] | None = None
    ) -> Complex[np.ndarray, "g f"]:
        """sum_j q_j (exp(a_j + i v l_j) - 1); with a factor, sum_j q_j factor_j exp(a_j + i v l_j)."""
        tilted = q * (self.tilt if factor is None else self.tilt * factor)
        still = (q @ self.tilt_less_1 if factor is None else tilted.sum(axis=1))[:, None]
        slow = self.v if not self._fast else self.v[:_ONE_BY_ONE]
        half = np.outer(self.loss, slow / 2)
        sine, cosine = np.sin(half), np.cos(half)
        found = still - tilted @ (2 * sine**2) + 1j * (tilted @ (2 * sine * cosine))
        if not self._fast:
            return found
        near = self._near
        phase, powers = self.loss[near] * self.v[-1], np.arange(1, _DEGREE + 1)
        moments = tilted[:, near] @ (phase[:, None] ** powers / factorial(powers))
        whole = moments @ (1j * self.v[_ONE_BY_ONE:] / self.v[-1]) ** powers[:, None]
        if factor is None:
            whole += (q[:, near] @ self.tilt_less_1[near] - q[:, ~near].sum(axis=1))[:, None]
        else:
            whole += tilted[:, near].sum(axis=1)[:, None]
        whole += self._transformed(tilted[:, ~near], self.loss[~near])[:, _ONE_BY_ONE:]
        return np.concatenate([found, whole], axis=1)

    @property
    def _fast(self) -> bool:
        """Whether there are many frequencies, at even distances from 0 on."""
        if self.v.size <= _ONE_BY_ONE:
            return False
        return bool(np.allclose(self.v, self.v[1] * np.arange(self.v.size), rtol=1e-15, atol=0))

    @property
    def _near(self) -> Bool[np.ndarray, " n"]:
        """Losses that are summed by powers of v: so many are so near to 0 that only their distance may count."""
        return np.abs(self.loss * self.v[-1]) <= 1

    def _transformed(
        self, weights: Float[np.ndarray, "g m"], loss: Float[np.ndarray, " m"]
    ) -> Complex[np.ndarray, "g f"]:
        """sum_j weights_j exp(i v l_j) at all frequencies, as the module says."""
        size = next_fast_len(6 * self.v.size, real=True)
        place = loss * (size * self.v[1] / (2 * math.pi))
        nearest = np.rint(place)
        taps = np.arange(-_P, _P + 1)
        kernel = np.exp(-((taps - (place - nearest)[:, None]) ** 2) / (2 * _T))
        index = (nearest[:, None] + taps).astype(np.int64) % size
        starts = np.arange(0, index.size + 1, taps.size)
        spread = csr_array((kernel.ravel(), index.ravel(), starts), shape=(place.size, size))
        angle = 2 * math.pi / size * np.arange(self.v.size)
        scale = np.sqrt(2 * math.pi * _T) * np.exp(-_T * angle**2 / 2)
        return np.conj(rfft(weights @ spread, axis=1)[:, : self.v.size]) / scale

    def rounding(
        self,
        q: Float[np.ndarray, "g n"],
        scale: Float[np.ndarray, "g m"],
        factor: Float[np.ndarray, " n"] | None = None,
    ) -> Float[np.ndarray, "g f"]:
        """How far `sums` may be off for masses |q|: products and sums; and slopes, whose errors telescope."""
        size = np.ones(self.loss.size) if factor is None else np.abs(factor)
        tilted = q * (self.tilt * size)
        mass, moment = tilted.sum(axis=1)[:, None], (tilted @ np.abs(self.loss))[:, None]
        real = mass if factor is not None else (q @ np.abs(self.tilt_less_1))[:, None]
        speed = np.abs(self.v)
        waves = np.minimum(3 * mass, 2 * speed * moment)
        if self._fast:
            # Sums into a point of the grid, and on the at most 21 levels of a fast transform, for its sizes.
            far = (tilted[:, ~self._near] + q[:, ~self._near]).sum(axis=1)[:, None]
            waves = waves + np.where(np.arange(self.v.size) >= _ONE_BY_ONE, _GROWTH * far, 0.0)
        both = self.tilt[1:] + self.tilt[:-1]
        rise = scale @ (both * np.maximum(size[1:], size[:-1]) * np.abs(np.diff(self.loss)))
        slopes = (np.abs(self.power) + speed) * rise[:, None]
        if factor is not None:
            slopes = slopes + (scale @ (both * np.abs(np.diff(factor))))[:, None]
        return UNIT * ((self.loss.size + 300) * (real + waves) + 8 * (speed * moment + slopes))


@dataclass(frozen=True, slots=True)
class RealWaves:
    """exp(power l_j) - 1 at the losses, for several real powers; -1 where the loss is infinite, or counted so."""

    power: Float[np.ndarray, " k"]
    less_1: Float[np.ndarray, "n k"]
    loss: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, losses: Float[np.ndarray, " n"], direction: Direction, power: Float[np.ndarray, " k"]) -> "RealWaves":
        finite = np.isfinite(losses)
        if direction == "add":
            finite[0] = False
        loss = np.where(finite, losses, 0.0)
        with np.errstate(over="ignore"):  # as above
            return cls(power, np.where(finite[:, None], np.expm1(np.outer(loss, power)), -1.0), loss)

    def sums(self, q: Float[np.ndarray, "g n"]) -> Float[np.ndarray, "g k"]:
        """sum_j q_j (exp(power l_j) - 1)."""
        return q @ self.less_1

    def rounding(self, q: Float[np.ndarray, "g n"], scale: Float[np.ndarray, "g m"]) -> Float[np.ndarray, "g k"]:
        """How far such a sum may be off for masses |q|: products and sums; and slopes, whose errors telescope."""
        rise = (self.less_1[1:] + self.less_1[:-1] + 2) * np.abs(np.diff(self.loss))[:, None]
        sums = (self.loss.size + 64) * (q @ np.abs(self.less_1))
        return UNIT * (sums + 8 * np.abs(self.power) * (scale @ rise))
