"""Gaussian differential privacy: the exact privacy curve of Gaussian noise, its inverses, and its composition.

Source: Du et al., Eq. (1); Dong, Roth and Su, *Gaussian Differential Privacy* (2019). The printed form cancels for
small mu even in logarithms; the form used here does not.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from decrescendo.accounting.budget import Bound
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant, check_poisson
from decrescendo.errors import AccountingError, check_real

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_ROOT_HALF_PI = math.sqrt(math.pi / 2)
_MANY, _FEW = np.polynomial.legendre.leggauss(16), np.polynomial.legendre.leggauss(6)


def mills(y: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Mills ratio R(y) = Phi(-y) / phi(y), for y > -37.

    >>> float(mills(np.array(0.0)))
    1.25331413731550...
    """
    return np.asarray(_ROOT_HALF_PI * erfcx(y / math.sqrt(2)))


def _one_minus_y_mills(y: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """1 - y R(y) > 0; beyond 60, where the difference cancels, by its asymptotic series in 1/y^2."""
    inverse = 1 / np.maximum(y, 60.0) ** 2
    series = inverse * (1 - inverse * (3 - inverse * (15 - inverse * (105 - inverse * 945))))
    return np.where(y > 60, series, 1 - np.minimum(y, 60.0) * mills(y))


@np.errstate(over="ignore", divide="ignore")
def log_delta(
    epsilon: Float[np.ndarray, "..."] | float, mu: Float[np.ndarray, "..."] | float
) -> Float[np.ndarray, "..."]:
    """log delta(epsilon; mu), Du Eq. (1): delta = Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2), for epsilon >= 0.

    With x = epsilon/mu - mu/2 this is -x^2/2 - log(2 pi)/2 + log I, where I = R(x) - R(x + mu) for mu >= 1/2 and
    I = Int_0^mu (1 - (x+u) R(x+u)) du by Gauss-Legendre below, so that nothing cancels. Where x^2 overflows: -inf.

    Args:
        epsilon: >= 0, any shape.
        mu: > 0, broadcast against ``epsilon``.

    >>> float(np.exp(log_delta(1.0, 1.0)))
    0.126936737506...
    >>> float(log_delta(3e-12, 1e-12))  # Eq. (1) as printed cancels here
    -35.500...
    """
    e, m = np.asarray(epsilon, dtype=np.float64), np.asarray(mu, dtype=np.float64)
    if e.ndim == m.ndim == 0:
        e, m = e.reshape(1), m.reshape(1)
        x = e / m - m / 2
        law = _far_below if x[0] < -1 else _wide if m[0] >= 0.5 else _narrow
        return law(x, m).reshape(())
    e, m = np.broadcast_arrays(e, m)
    x = e / m - m / 2
    result = np.empty(e.shape)
    below = x < -1
    wide = ~below & (m >= 0.5)
    for where, law in ((below, _far_below), (wide, _wide), (~below & ~wide, _narrow)):
        if where.any():
            result[where] = law(x[where], m[where])
    return result


def _far_below(x: Float[np.ndarray, "..."], mu: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x < -1: Phi(-x) is at least 0.84 and mu at least 2, so that the printed form is the stable one."""
    second = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * mills(x + mu)
    return np.log(ndtr(-x) - second)


def _wide(x: Float[np.ndarray, "..."], mu: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return -(x**2) / 2 - _HALF_LOG_TWO_PI + np.log(mills(x) - mills(x + mu))


def _narrow(x: Float[np.ndarray, "..."], mu: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    # 16 points are needed near mu = 1/2; below 1/8 six are already exact to the last bit.
    nodes, weights = _MANY if mu.max() > 0.125 else _FEW
    if x.size == 1:  # all points at once, and added up in the same order: the same bits
        integral = np.cumsum(weights / 2 * _one_minus_y_mills(x + mu * (nodes + 1) / 2))[-1:]
    else:
        integral = np.zeros_like(x)
        for node, weight in zip(nodes, weights, strict=True):
            integral += weight / 2 * _one_minus_y_mills(x + mu * (node + 1) / 2)
    return -(x**2) / 2 - _HALF_LOG_TWO_PI + np.log(mu) + np.log(integral)


def delta_of(epsilon: float, mu: float) -> float:
    """delta(epsilon; mu) of Du Eq. (1); 0 for mu = 0, 1 for infinite mu.

    >>> round(delta_of(1.0, 1.0), 12)
    0.126936737507
    """
    if mu == 0 or math.isinf(mu):
        return 0.0 if mu == 0 else 1.0
    return float(np.exp(log_delta(epsilon, mu)))


def epsilon_of(delta: float, mu: float) -> float:
    """The epsilon >= 0 with delta(epsilon; mu) = delta; 0 when delta >= 2 Phi(mu/2) - 1; infinite for infinite mu.

    >>> round(epsilon_of(1 / 600_000, 0.28729), 4)
    1.2
    """
    if mu == 0 or delta >= math.erf(mu / math.sqrt(8)):
        return 0.0
    if mu > 1e8:  # the loss is N(mu^2/2, mu^2) with exp(-loss) negligible: a quantile, exact to a part in 1e8
        return mu * (mu / 2 - float(ndtri(delta)))
    target = math.log(delta)
    high = mu * (mu / 2 + math.sqrt(-2 * target) + 1)  # Chernoff: delta(e; mu) < exp(-(e/mu - mu/2)^2 / 2)
    root = brentq(lambda e: float(log_delta(e, mu)) - target, 0.0, high, xtol=1e-300, rtol=8.9e-16)
    return float(root)


def mu_of(epsilon: float, delta: float) -> float:
    """The mu with delta(epsilon; mu) = delta, for epsilon >= 0 and delta in (0, 1).

    >>> [round(mu_of(epsilon, 1 / 600_000), 5) for epsilon in (0.4, 0.6, 1.2)]
    [0.10363, 0.15117, 0.28729]
    """
    target = math.log(delta)
    low, high = 1e-300, 1.0
    while log_delta(epsilon, high) < target:
        high *= 2
    while high / low > 4:  # monotone in mu: bisect in logarithms, then finish by a root search
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (middle, high) if log_delta(epsilon, middle) < target else (low, middle)
    return float(brentq(lambda m: float(log_delta(epsilon, m)) - target, low, high, xtol=1e-300, rtol=8.9e-16))


@dataclass(frozen=True, slots=True)
class Gaussian(Accountant):
    """Exact accountant for releases in which every record takes part (sample_rate 1).

    Composition is exact: mu = sqrt(sum_t mu_t^2) with mu_t = 1/z_t.

    Guarantee: exact up to floating point (relative 1e-12).

    Edge cases: an empty ledger costs 0; a release without noise costs infinity; sample_rate < 1 is refused,
    because the result would be a needlessly loose bound where `Pld` gives a tight one.

    >>> Gaussian().epsilon(Ledger.of([10.0] * 4, sample_rate=1.0), delta=1e-5)
    Bound(value=0.72552..., kind='exact')
    """

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Exact epsilon at ``delta``."""
        return Bound(epsilon_of(check_delta(delta), self.mu(ledger)), "exact")

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Exact delta at ``epsilon``."""
        mu, e = self.mu(ledger), check_real("epsilon", epsilon, at_least=0)
        return Bound(delta_of(e, mu), "exact")

    def mu(self, ledger: Ledger) -> float:
        """Total mu of the ledger; infinite if a release has no noise."""
        check_poisson(ledger, self.name)
        sampled = np.flatnonzero(ledger.sample_rate < 1)
        if sampled.size:
            first = int(sampled[0])
            raise AccountingError(
                f"Gaussian accounts releases with sample_rate=1 only, got release {first + 1} of {len(ledger)} with "
                f"sample_rate={ledger.sample_rate[first]:.6g}. Use Pld"
            )
        if (ledger.noise_multiplier == 0).any():
            return math.inf
        with np.errstate(over="ignore", divide="ignore"):
            squared = float(np.sum(ledger.count / ledger.noise_multiplier**2))
            if not len(ledger) or 1e-250 < squared < math.inf:
                return math.sqrt(squared)
            least = ledger.noise_multiplier.min()  # squares beyond the floats: relative to the largest
            return float(np.sqrt(np.sum(ledger.count * (least / ledger.noise_multiplier) ** 2)) / least)


def check_delta(delta: object) -> float:
    """``delta`` as a float in (0, 1)."""
    return check_real("delta", delta, above=0, below=1)
