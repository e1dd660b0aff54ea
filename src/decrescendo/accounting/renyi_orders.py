"""Renyi divergences of a Poisson-sampled Gaussian step at fractional orders, from above.

With l = exp(mu t - mu^2/2), t standard normal, mu = 1/z and w = q (l - 1), Mironov, Talwar and Zhang (2019) have

    (alpha - 1) RDP(alpha) = log A,    A = E[(1 + w)^alpha] = 1 + E[g(w)],    g(w) = (1 + w)^alpha - 1 - alpha w >= 0,

because E[w] = 0. g is computed by its series for small |w|, so that nothing cancels. The expectation is a sum over
points h apart. In the strip |Im t| <= y, y = min(pi z/2, 3), the integrand is analytic (|arg l| <= pi/2 there, so that
1 + w has no zero) and no larger than exp(y^2/2) times that of (1 + |w|)^alpha; the sum is off by 2/(exp(2 pi y/h) - 1)
of its integral, which h = 2 pi y/80 makes 1e-34: far below what rounding loses. Tails are cut 12 deviations out, where
less than 1e-32 is left.

Used in the place of dp-accounting's series, which does not converge for all rates and noise multipliers.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, logsumexp

_EXPONENT, _TAIL = 80.0, 12.0
_MOST = 1 << 21  # points
_SMALL, _TERMS = 0.3, 40  # the series reaches so far: 0.3^40 is 1e-21
MARGIN = 1e-10  # relative: sums of positive terms, each right to some 1e-12


def log_moment(sample_rate: float, noise_multiplier: float, order: float) -> float:
    """log A at one order, an upper bound within some 1e-10 of it, relatively.

    Args:
        sample_rate: q in (0, 1).
        noise_multiplier: z > 0.
        order: alpha > 1.

    >>> round(log_moment(0.5, 0.5, 1.25), 6)
    0.255276
    """
    mu = 1 / noise_multiplier
    strip = min(math.pi * noise_multiplier / 2, 3.0)
    step = 2 * math.pi * strip / _EXPONENT
    right = max(order, 2.0) * mu + _TAIL
    if not (right + _TAIL) / step < _MOST:
        # So little noise: (1 - q + q l)^alpha is at most (1 - q) + q l^alpha.
        high = math.log(sample_rate) + order * (order - 1) * mu * mu / 2
        return float(np.logaddexp(math.log1p(-sample_rate), high)) * (1 + MARGIN)
    t = np.arange(-_TAIL, right + step, step)
    logs = _log_excess(mu * (t - mu / 2), sample_rate, order) - t * t / 2
    excess = float(logsumexp(logs)) + math.log(step / math.sqrt(2 * math.pi))
    return float(np.logaddexp(0.0, excess) if excess > 0 else math.log1p(math.exp(excess))) * (1 + MARGIN)


def _log_excess(u: Float[np.ndarray, " n"], rate: float, order: float) -> Float[np.ndarray, " n"]:
    """log g(q (exp(u) - 1))."""
    log_1_w = np.logaddexp(math.log1p(-rate), math.log(rate) + u)
    w = rate * np.expm1(np.minimum(u, 600.0))
    power = order * log_1_w
    with np.errstate(divide="ignore"):
        found = np.log(np.maximum(np.exp(np.minimum(power, 300.0)) - 1 - order * w, 0.0))
        # Beyond floats by logarithms: w is q exp(u) there, and 1 is nothing. (At orders near 1 the power is not far
        # above alpha w.)
        less = np.log1p(-np.exp(np.minimum(math.log(order * rate) + u - power, -1e-12)))
        found = np.where(power > 200.0, power + less, found)
        near = np.abs(w) < _SMALL
        series = np.zeros(int(near.sum()))
        coefficients = [1.0]
        for k in range(1, _TERMS + 1):
            coefficients.append(coefficients[-1] * (order - k + 1) / k)
        for value in coefficients[:1:-1]:
            series = series * w[near] + value
        found[near] = np.log(series) + 2 * np.log(np.abs(w[near]))
    return found


def whole_moment(sample_rate: float, noise_multiplier: float, order: int) -> float:
    """log A at a whole order >= 2, within some 1e-10 of it relatively, however small: a sum of positive terms.

    Args:
        sample_rate: q in (0, 1).
        noise_multiplier: z > 0.
        order: alpha.

    >>> whole_moment(1e-7, 1e4, 2)  # log(1 + q^2 (exp(1/z^2) - 1)) = 1e-22
    1.00000000...e-22
    """
    p, z = sample_rate, noise_multiplier
    k = np.arange(2, order + 1, dtype=np.float64)
    # log(exp(x) - 1) with x = k(k-1)/(2 z^2), by way of log x so that neither end of the floats is met.
    log_x = np.log(k * (k - 1) / 2) - 2 * math.log(z)
    x = np.exp(np.clip(log_x, -40.0, 700.0))
    log_growth = np.where(log_x > 3, x + np.log(-np.expm1(-x)), log_x + np.log(np.expm1(np.minimum(x, 30.0)) / x))
    ways = gammaln(order + 1.0) - gammaln(k + 1) - gammaln(order - k + 1)
    logs = ways + (order - k) * math.log1p(-p) + k * math.log(p) + log_growth
    if (log_x > 690).any() or not np.isfinite(logs).all():
        return math.inf  # a divergence beyond all budgets
    top = float(logs.max())
    return float(np.logaddexp(0.0, top + math.log(float(np.exp(logs - top).sum()))))
