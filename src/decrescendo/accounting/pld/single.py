"""One subsampled Gaussian step alone: its privacy curve is known in closed form, so no composition is needed.

With D the excess of the Gaussian mechanism (`sandwich`) and f(e) = log(1 + expm1(e)/p):

    remove: delta(e) = p delta_Gauss(f(e)),        add: delta(e) = exp(e) p D(f(-e)), 0 where exp(-e) <= 1 - p.
"""

import math

import numpy as np
from scipy.optimize import brentq

from decrescendo.accounting.gaussian import delta_of, epsilon_of, log_delta
from decrescendo.ledger import Ledger

# Closed forms are accurate to 1e-12; ends this far apart hold them safely.
_MARGIN = 1e-11


def _curve(rate: float, mu: float, epsilon: float) -> float:
    """The larger delta(epsilon) of the two directions."""
    if rate == 1:
        return delta_of(epsilon, mu)
    remove = rate * delta_of(math.log1p(math.expm1(epsilon) / rate) if epsilon < 700 else math.inf, mu)
    survives = math.expm1(-epsilon) / rate
    if survives <= -1:
        return remove
    inner = math.log1p(survives)
    add = rate * float(np.exp(log_delta(-inner, mu) + inner + epsilon)) if inner < 0 else remove
    return max(remove, add)


def delta_of_one(step: Ledger, epsilon: float) -> tuple[float, float]:
    """(lower, upper) of delta at ``epsilon`` >= 0 for a ledger of a single release."""
    value = _curve(float(step.sample_rate[0]), 1 / float(step.noise_multiplier[0]), epsilon)
    return value * (1 - _MARGIN), min(1.0, value * (1 + _MARGIN))


def epsilon_of_one(step: Ledger, delta: float) -> tuple[float, float]:
    """(lower, upper) of epsilon at ``delta`` for a ledger of a single release; each end is checked."""
    rate, mu = float(step.sample_rate[0]), 1 / float(step.noise_multiplier[0])

    def gap(epsilon: float) -> float:
        return math.log(max(_curve(rate, mu, epsilon), 1e-320) / delta)

    if gap(0.0) <= -_MARGIN:
        return 0.0, 0.0
    high = max(epsilon_of(delta, mu), 1e-300) * (1 + 1e-9)  # subsampling never raises epsilon
    low = upper = float(brentq(gap, 0.0, high, xtol=1e-300, rtol=1e-13)) if gap(0.0) > 0 > gap(high) else high
    width = _MARGIN
    while low > 0 and gap(low) < _MARGIN:
        low, width = (low * (1 - width), 2 * width) if width < 1 else (0.0, width)
    width = _MARGIN
    while gap(upper) > -_MARGIN:
        upper, width = upper * (1 + width), 2 * width
    return low, upper
