"""One step as a group of at most k records sees it: a mixture over how many of them were drawn.

Removing k records takes from a clipped sum a vector of norm at most J C, where J, how many of them were drawn, is
binomial(k, p). A step is dominated by P = sum_j P(J = j) N(j mu, 1) against Q = N(0, 1), whatever was released before:
given J, the vector is post-processing of one of norm J C; fewer records, and smaller p, have a smaller J. So is the
composition of the steps (Choquette-Choo, Ganesh, Steinke and Thakurta, "Privacy Amplification for Matrix Mechanisms",
2023). With q = 1 - (1 - p)^k, w_j = P(J = j)/q and y(x) = sum_j>=1 w_j exp(j mu x - j^2 mu^2/2), its likelihood ratio
is 1 - q + q y: that of a mechanism of ratio y sampled at rate q, as `discretisation` has it.

*Values.* y rises with x, so that with y(x*) = exp(e) and e_j = j mu x* - j^2 mu^2/2

    delta(e) = sum_j w_j delta(e_j; j mu),                      every term positive: nothing cancels.

*Interpolation.* As x* is the best threshold, d delta/d mu = sum_j w_j j phi(x* - j mu) = G. With m and V the mean and
variance of j under weights j w_j phi(x* - j mu),

    d log G/d mu  =  x*^2/mu - m x* - mu V  >=  -mu (m^2/4 + V)  >=  -c mu,

c = k^2/4 for k <= 2 and (k^2 - k + 1)/3 from there on, by V <= (k - m)(m - 1). So delta is convex in s with
s'' = -c mu s', which is the total variation of a Gaussian step of parameter 2 sqrt(c) mu (`Curves.bend`).

*Below.* With E the mean of j under w_j phi(x* - j mu), y^2 d^2 delta/dy^2 = G/(mu E^2) and d log G/de =
(m mu - x*)/(mu E); E and m rise with x*. So a cell [a, b] of e, with x*, E and m of mu' at its ends, has the inequality
of `discretisation` as soon as

    mu - mu'  >=  (exp(b - a) - 1)^2/(8 mu' E_a^2) exp(f),
    f = (b - a) max(x_b - m_a mu', m_b mu' - x_a)/(mu' E_a) + c (mu^2 - mu'^2)/2.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from decrescendo.accounting.gaussian import log_delta
from decrescendo.accounting.pld.discretisation import CURVE_ERROR, LARGEST_MU, LossGrid, Lowered
from decrescendo.errors import AccountingError

_LARGEST_LOSS = 600.0
_ITERATIONS = 100


@dataclass(frozen=True, slots=True)
class Group:
    """The curves of steps of a group.

    Args:
        size: k >= 2, the most records of the group.
        sample_rate: p in (0, 1) of each of them.

    >>> pair = Group(2, 0.1)
    >>> round(pair.rate, 4), float(pair.excess(np.array([0.0]), np.array([0.5]))[0, 0])
    (0.19, 0.206...)
    """

    size: int
    sample_rate: float

    @property
    def rate(self) -> float:
        """q: the probability that any of the group is drawn."""
        return -math.expm1(self.size * math.log1p(-self.sample_rate))

    @property
    def error(self) -> float:
        """That of k curves of one record, each at a loss that is off by some units."""
        return CURVE_ERROR * (5 + self.size)

    @property
    def bend(self) -> float:
        """2 sqrt(c)."""
        return 2 * math.sqrt(self._c)

    @property
    def _c(self) -> float:
        k = self.size
        return k**2 / 4 if k <= 2 else (k**2 - k + 1) / 3

    @property
    def _log_shares(self) -> Float[np.ndarray, " size"]:
        """log w_j, j = 1 .. k."""
        from scipy.stats import binom  # slow to load

        return np.asarray(binom.logpmf(np.arange(1, self.size + 1), self.size, self.sample_rate)) - math.log(self.rate)

    def loss(
        self, x: Float[np.ndarray, "k n"], mu: Float[np.ndarray, " k"]
    ) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k n"], Float[np.ndarray, "k n"]]:
        """log y, E and m at x."""
        m = mu[:, None]
        logs = self._log_shares
        top = np.full(x.shape, -np.inf)
        for j, log in enumerate(logs, 1):
            np.maximum(top, log + j * m * (x - j * m / 2), out=top)
        total, first, second = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape)
        for j, log in enumerate(logs, 1):
            term = np.exp(log + j * m * (x - j * m / 2) - top)
            total += term
            first += j * term
            second += j**2 * term
        return top + np.log(total), first / total, second / first

    def place(self, e: Float[np.ndarray, " n"], mu: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """x* with log y(x*) = e: Newton's method from the right, where the convex log y is above it."""
        m = mu[:, None]
        x = np.full((mu.size, e.size), np.inf)
        for j, log in enumerate(self._log_shares, 1):
            np.minimum(x, (e - log) / (j * m) + j * m / 2, out=x)
        for _ in range(_ITERATIONS):
            value, mean, _ = self.loss(x, mu)
            step = (value - e) / (m * mean)
            x = x - step
            if np.all(np.abs(step) <= 1e-13 * (1 + np.abs(x))):
                break
        return x

    def excess(self, e: Float[np.ndarray, " n"], mu: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """delta(e; mu) - max(0, 1 - exp(e)), with small relative error in both tails."""
        x, m = self.place(e, mu), mu[:, None]
        found = np.zeros(x.shape)
        for j, log in enumerate(self._log_shares, 1):
            inner = j * m * (x - j * m / 2)
            found += np.exp(log + log_delta(np.abs(inner), j * m) + np.minimum(inner, 0.0))
            # Of a ratio on the other side of 1 than y: all of it, less what is on its own side.
            across = np.where(e >= 0, inner < 0, inner > 0)
            size = np.abs(inner[across])
            found[across] += np.exp(log + np.maximum(inner[across], 0.0)) * -np.expm1(-size)
        return found

    def ends(self, mu: float, left: float, right: float) -> tuple[float, float]:
        """log y at x = -left, and where no more of P lies beyond than ``right`` deviations out of one Gaussian."""
        if mu > LARGEST_MU:
            raise AccountingError(_TOO_LITTLE.format(LARGEST_MU, 1 / mu, self.size))
        at = np.array([[-left, self._quantile(mu, right)]])
        low, high = self.loss(at, np.array([mu]))[0][0].tolist()
        if max(-low, high) > _LARGEST_LOSS:
            raise AccountingError(_TOO_LITTLE.format(_LARGEST_LOSS, 1 / mu, self.size))
        return -low, max(high, mu)

    def _quantile(self, mu: float, right: float) -> float:
        """x such that sum_j w_j Phi(j mu - x) is at most Phi(-right)."""
        j, shares = np.arange(1, self.size + 1), np.exp(self._log_shares)
        low, high = right, right + self.size * mu
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (low, middle) if shares @ ndtr(j * mu - middle) <= ndtr(-right) else (middle, high)
        return high

    def lowered(self, loss_grid: LossGrid, mu: Float[np.ndarray, " k"], tail: float) -> Lowered:
        """By the module's inequality in every cell where D may be above the cut."""
        at, beyond = (
            self.loss(np.array([[-far, self._quantile(float(one), far)] for one in mu]), mu)[0]
            for far in (tail, tail + 0.5)
        )
        places = np.c_[np.minimum(at[:, 0], 0.0), np.maximum(at[:, 1], 0.0)]
        outermost = self.excess(loss_grid.e[[0, -1]], mu).max(axis=1)
        cut = np.array([self.excess(own, mu[i : i + 1]).max() for i, own in enumerate(places)])
        left, right = loss_grid.e[:-1], loss_grid.e[1:]
        growth, high, lowered = np.expm1(right - left) ** 2 / 8, mu[:, None], mu * (1 - 1e-9)
        checked = (right > np.minimum(beyond[:, :1], 0.0)) & (left < np.maximum(beyond[:, 1:], 0.0))
        for _ in range(60):
            x, low = self.place(loss_grid.e, lowered), lowered[:, None]
            _, mean, m = self.loss(x, lowered)
            far = np.maximum(x[:, 1:] - m[:, :-1] * low, m[:, 1:] * low - x[:, :-1])
            fall = (right - left) * np.maximum(far, 0.0) / (low * mean[:, :-1])
            fall = np.minimum(fall + self._c * (high**2 - low**2) / 2, 600.0)
            needed = growth / (low * mean[:, :-1] ** 2) * np.exp(fall)
            needed = np.where(checked, needed, 0.0).max(axis=1)
            if np.all(mu - lowered >= needed):
                return Lowered(lowered, np.maximum(cut, outermost), checked)
            lowered = np.where(mu - lowered >= needed, lowered, np.maximum(mu - 1.02 * needed, mu / 2))
        raise AccountingError("the grid is too coarse for a lower bound; ask for a smaller rtol")


_TOO_LITTLE = (
    "Pld accounts losses up to {0:g} of a step, got noise_multiplier={1:.4g} for a group of {2}, which loses more. "
    "Add noise, or protect fewer records of one person"
)
