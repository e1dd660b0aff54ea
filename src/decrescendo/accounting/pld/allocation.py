"""Each record in exactly one of the t steps of an epoch, which one by a fair draw of its own.

*The pair.* Without a record the noisy sums of an epoch, each less what the others add to it, are N(0, z^2 I) in t
steps; with it one of them, I uniform in 1 .. t, has a vector of norm at most C more. Whatever that vector is, and
however it was chosen after looking at the earlier sums, the epoch is post-processing of

    P = (1/t) sum_i N(e_i, z^2 I)    against    Q = N(0, z^2 I):

from x_1 .. x_t of either law, step after step, a x_i u + sqrt(1 - a^2) (fresh noise along u) + (fresh noise across u)
is what the step shows of a vector of length a C along u. It needs that the bins of different records are independent:
lists that are shuffled and cut are not, for there a record's place is known from the others'. So P and Q dominate an
epoch, and epochs compose as dominating pairs do (Chua et al., "Balls-and-Bins Sampling for DP-SGD", 2025; Feldman and
Shenfeld, "Privacy amplification by random allocation", 2025).

*The curve.* With W_i = exp((x_i - 1/2)/z^2) the likelihood ratio is L = (W_1 + .. + W_t)/t; under Q the W_i are
independent lognormal of mean 1. Both directions are expectations of convex functions of L,

    delta(P, Q) = E_Q[(L - y)_+],    delta(Q, P) = E_Q[(1 - y L)_+],    y = exp(epsilon).

Convex order is kept by sums of independent terms. Joining the curve of one Gaussian at multiples of a step h
(`discretisation`) gives a law of W that is larger in convex order, with what is beyond the last multiple as a mass of
P at infinity, *tail*; so its t-fold convolution, over t, has a curve that is nowhere below the epoch's.

*The sum.* The convolution is the t-th power of a discrete Fourier transform, of masses tilted by exp(a h W) for the
part above y = 1. Three things are added to the curve: *tail*; the sums beyond the window S, whose aliases only add,
and which are at most (S/t) exp(-a S) E[exp(a h W)]^t for every a >= 1/S; and rounding, of which the Euclidean length
over all places is bounded: that of a transform by its length times a logarithm (Higham 2002, Theorem 24.2), and a
t-th power's by t r max |w|^(t-1).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

from decrescendo.accounting.pld.discretisation import (
    CURVE_ERROR,
    LossGrid,
    Masses,
    excess,
    masses_of,
    place_grid,
)
from decrescendo.accounting.pld.waves import UNIT
from decrescendo.errors import AccountingError

_FEWEST, _MOST = 1 << 16, 1 << 21  # points of a transform
LEAST_NOISE = 0.5
_FINE = 16.0  # the deviation of W over the step of its grid, at least


@dataclass(frozen=True, slots=True)
class _Law:
    """Masses at 0, step, 2 step, .. times exp(tilt place), none of them below the exact one by more than its part in
    ``error``, a Euclidean length over all of them."""

    tilted: Float[np.ndarray, " n"]
    tilt: float
    error: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """L under Q, from above in convex order: its laws on a grid, tilted and not, and the mass of P beyond them."""

    steps: int
    step: float
    high: _Law
    low: _Law
    beyond: float

    @classmethod
    def of(cls, steps: int, noise_multiplier: float, tail: float) -> "Epoch":
        """Of t ``steps`` of noise z; ``tail`` is the mass of P that may be put at infinity for what is far out.

        Raises:
            AccountingError: ratios so far apart that no even grid reaches.

        >>> epoch = Epoch.of(10, 1.0, 1e-12)
        >>> epoch.excess(np.array([-0.5, 0.0, 0.5])).round(4)
        array([0.0116, 0.1521, 0.0269])
        """
        mu = 1 / max(noise_multiplier, LEAST_NOISE)
        largest = math.exp(mu * (mu / 2 - float(ndtri(tail))))
        spread = math.sqrt(math.expm1(mu**2))
        window = steps + 2.5 * largest + 12 * spread * math.sqrt(steps)
        size = max(_FEWEST, math.ceil(window * _FINE / spread))
        # All ratios below one step at once count as 0, which is seldom enough for a step of this length.
        smallest = math.exp(-mu * (mu / 2 - float(ndtri(tail ** (1 / steps)))))
        finer = max(size, min(_MOST, math.ceil(window / smallest)))
        if size > _MOST or noise_multiplier < LEAST_NOISE:
            raise AccountingError(
                f"random allocation must have ratios that one grid holds, got noise_multiplier={noise_multiplier:.4g} "
                f"with {steps} steps an epoch. Add noise, or take Poisson batches"
            )
        size = next_fast_len(finer, real=True)
        step = window / size
        places = np.arange(math.ceil(largest / step) + 1.0)
        y = step * places
        curve = np.maximum(0.0, 1 - y)
        curve[1:] += excess(np.log(y[1:]), np.array([mu]))[0] * (1 + CURVE_ERROR)
        slopes = np.diff(curve) / step
        # Where rounding makes a mass negative it is raised to nothing.
        q = np.maximum(np.diff(slopes, prepend=-1.0, append=0.0), 0.0)
        shares = [a for a in np.geomspace(2.0, 1e4, 40).tolist() if a / window * largest < 500]
        least = _least(lambda a: steps * math.log(float(q @ np.exp(a / window * y))) - a, shares)
        outside = math.exp(min(least + math.log(window / steps), 0.0)) * (1 + 1e-9)
        tilt = step * min(10 / largest, 3 / (spread * math.sqrt(steps)), 10 / steps)
        high = _power(q, places, steps, tilt, size)
        return cls(steps, step / steps, high, _power(q, places, steps, 0.0, size), float(curve[-1]) + outside)

    def excess(self, e: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """delta(e) - max(0, 1 - exp(e)), at least; e ascending."""
        y = np.exp(e)
        below = e < 0
        return np.r_[self._under(y[below]), self._over(y[~below])]

    def _under(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """E[(y - L)_+]."""
        mass = self.low.tilted
        place = np.minimum(np.ceil(y / self.step).astype(np.int64), mass.size)
        value = self.step * np.arange(mass.size)
        some, first = (np.r_[0.0, np.cumsum(part)][place] for part in (mass, mass * value))
        rounding = self.low.error * self.step * np.sqrt((place + 1.0) ** 3 / 3)
        return np.maximum(y * some - first, 0.0) + rounding + 4 * UNIT * np.sqrt(place + 1.0) * y * some

    def _over(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """E[(L - y)_+], from sums of what is at each distance above the first place not below y."""
        size, tilt = self.high.tilted.size, self.high.tilt
        mass = self.high.tilted * np.exp(-tilt * np.arange(size))
        some = np.r_[np.cumsum(mass[::-1])[::-1], 0.0]  # of this place and all beyond
        twice = np.r_[np.cumsum(some[::-1])[::-1], 0.0]  # sum of (distance + 1) mass
        place = np.minimum(np.ceil(y / self.step).astype(np.int64), size)
        found = self.step * (twice[np.minimum(place + 1, size)] + (place - y / self.step) * some[place])
        r = math.exp(-2 * tilt)
        length = self.step * math.sqrt((1 + r) / -(math.expm1(-2 * tilt) ** 3))
        rounding = self.high.error * length * np.exp(-tilt * np.maximum(place - 1.0, 0.0))
        return found * (1 + 8 * UNIT * math.sqrt(size)) + rounding + self.beyond


def _least(bound: Callable[[float], float], shares: list[float]) -> float:
    """The least of a convex ``bound``, by halving: each evaluation passes over all places, and any one is a bound."""
    known = functools.cache(bound)
    first, last = 0, len(shares) - 1
    while first < last:
        middle = (first + last) // 2
        if known(shares[middle]) <= known(shares[middle + 1]):
            last = middle
        else:
            first = middle + 1
    return known(shares[first])


def _power(q: Float[np.ndarray, " m"], places: Float[np.ndarray, " m"], steps: int, tilt: float, size: int) -> _Law:
    weights = q * np.exp(tilt * places)
    wave = rfft(weights, n=size)
    power = wave**steps
    mass = irfft(power, n=size)
    levels = 8 * UNIT * (math.log2(size) + 4)
    total = float(weights.sum()) * (1 + 1e-9)
    off = (levels + 4 * UNIT) * float(np.linalg.norm(weights))  # of the first transform, and of its tilted masses
    error = steps * off * total ** (steps - 1) * math.sqrt(2)
    error += (levels + 32 * steps * UNIT) * float(np.linalg.norm(power)) * math.sqrt(2 / size)
    return _Law(np.maximum(mass, 0.0), tilt, 1.01 * error)


def epoch_masses(epoch: Epoch) -> tuple[LossGrid, Masses]:
    """The epoch as one discrete mechanism above it, on a grid of losses."""
    spread = float(np.sqrt(np.sum(epoch.low.tilted * (epoch.step * np.arange(epoch.low.tilted.size) - 1) ** 2)))
    deviation = math.sqrt(math.log1p(spread**2))
    far = np.linspace(14 * deviation, 0.0, 200)
    low = epoch.excess(-far)
    left = far[np.searchsorted(low, 4 * low[0] + epoch.beyond)]
    right = math.log(epoch.step * epoch.low.tilted.size)
    grid = place_grid(deviation, kappa=0.02, ends=(max(float(left), deviation), right))
    # Either side of y = 1 for itself: there max(0, 1 - y) is linear, and added to an excess of 1e-13 it would round it.
    # At y = 1 the curve stays convex, for max(0, 1 - y) bends there by 1.
    y, values, middle = np.r_[0.0, np.exp(grid.e)], np.r_[0.0, epoch.excess(grid.e)], grid.zero + 2
    values[:middle] = _hull(y[:middle], values[:middle])
    values[middle - 1 :] = _hull(y[middle - 1 :], values[middle - 1 :])
    return grid, masses_of(grid, values[None, 1:])


def _hull(x: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The largest convex function that is nowhere above ``values``."""
    kept: list[int] = []
    for i in range(x.size):
        while len(kept) > 1 and (values[i] - values[kept[-1]]) * (x[kept[-1]] - x[kept[-2]]) <= (
            values[kept[-1]] - values[kept[-2]]
        ) * (x[i] - x[kept[-1]]):
            kept.pop()
        kept.append(i)
    return np.interp(x, x[kept], values[kept])
