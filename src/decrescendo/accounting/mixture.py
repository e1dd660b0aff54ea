"""One step seen by a group of m records, a mixture of Gaussians, and many of them composed by dp-accounting: for a
second opinion on `Pld(group=m)`, with nothing in common but the formula."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, ndtr

# Beyond so many deviations there is less than 1e-23; what is cut off goes to the pessimistic side.
_TAIL = 10.0
_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class BinomialMixture:
    """P = sum_j P(J = j) N(j, z^2) with J binomial(m, p), against Q = N(0, z^2).

    Args:
        size: m >= 1.
        sample_rate: p in (0, 1].
        noise_multiplier: z > 0.

    >>> mixture = BinomialMixture(1, 1.0, 2.0)  # a plain Gaussian of mu = 1/2
    >>> float(mixture.remove(np.array([0.0]))[0])
    0.1974126...
    """

    size: int
    sample_rate: float
    noise_multiplier: float

    def log_ratio(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """log P(x)/Q(x) = log sum_j w_j exp((2 j x - j^2) / (2 z^2)): rises with x."""
        j, weights = self._parts()
        exponents = (2 * j[:, None] * x - j[:, None] ** 2) / (2 * self.noise_multiplier**2)
        return np.asarray(logsumexp(exponents, axis=0, b=weights[:, None]))

    def place(self, loss: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The x at which `log_ratio` is ``loss``, within the range that matters; its ends beyond it."""
        low = np.full(loss.shape, -4 * _TAIL * self.noise_multiplier)
        high = np.full(loss.shape, self.size + 4 * _TAIL * self.noise_multiplier)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            below = self.log_ratio(middle) < loss
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return high

    def remove(self, epsilon: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """P(x > x*) - exp(epsilon) Q(x > x*): the hockey-stick divergence of P from Q."""
        x = self.place(epsilon)
        return np.clip(self._mixed(-x, -1) - np.exp(epsilon) * ndtr(-x / self.noise_multiplier), 0, 1)

    def add(self, epsilon: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Q(x < x*) - exp(epsilon) P(x < x*), the other direction."""
        x = self.place(-epsilon)
        return np.clip(ndtr(x / self.noise_multiplier) - np.exp(epsilon) * self._mixed(x, 1), 0, 1)

    def span(self) -> tuple[float, float]:
        """Losses that matter: `log_ratio` at the ends of both distributions."""
        z = self.noise_multiplier
        low, high = self.log_ratio(np.array([-_TAIL * z, self.size + _TAIL * z]))
        return float(low), float(high)

    def _parts(self) -> tuple[Float[np.ndarray, " parts"], Float[np.ndarray, " parts"]]:
        from scipy.stats import binom  # slow to load

        j = np.arange(self.size + 1.0)
        return j, np.asarray(binom.pmf(j, self.size, self.sample_rate))

    def _mixed(self, x: Float[np.ndarray, " n"], sign: int) -> Float[np.ndarray, " n"]:
        """P of a half-line: sum_j w_j Phi((x - sign j) / z)."""
        j, weights = self._parts()
        return np.asarray(weights @ ndtr((x - sign * j[:, None]) / self.noise_multiplier))


def composed(mixture: BinomialMixture, grid: float, count: int) -> Any:
    """``count`` releases of one mixture as dp-accounting's dominating pairs, its losses rounded pessimistically onto
    multiples of ``grid``.

    >>> f"{composed(BinomialMixture(1, 1.0, 2.0), 1e-3, 4).get_delta_for_epsilon(1.0):.3f}"  # a Gaussian of mu = 1
    '0.127'
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    low, high = mixture.span()
    both: list[Any] = []
    for divergence, first, last in ((mixture.remove, low, high), (mixture.add, -high, -low)):
        losses = np.arange(math.floor(first / grid), math.ceil(last / grid) + 2)
        # Rounding may lift a later delta by 1e-16: upwards is the safe side.
        deltas = np.maximum.accumulate(divergence(losses * grid)[::-1])[::-1]
        both.append(pld_pmf.create_pmf_pessimistic_connect_dots(grid, losses, deltas))
    return pld.PrivacyLossDistribution(*both).self_compose(count)
