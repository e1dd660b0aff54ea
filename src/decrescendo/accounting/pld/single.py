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


def _curves(rate: float, mu: float, epsilon: float) -> float:
    """The larger delta(epsilon) of the two directions."""
    if rate == 1:
        return delta_of(epsilon, mu)
    far = epsilon + math.log1p(-(1 - rate) * math.exp(-epsilon)) - math.log(rate)
    remove = rate * delta_of(max(far, 0.0), mu)
    survives = math.expm1(-epsilon) + rate
    if survives <= 0:
        return remove
    inner = math.log(survives / rate)
    add = rate * float(np.exp(log_delta(-inner, mu) + inner + epsilon)) if inner < 0 else remove
    return max(remove, add)


def delta_of_one(step: Ledger, epsilon: float) -> tuple[float, float]:
    """(lower, upper) of delta at ``epsilon`` >= 0 for a ledger of a single release."""
    value = _curves(float(step.sample_rate[0]), 1 / float(step.noise_multiplier[0]), epsilon)
    return value * (1 - _MARGIN), min(1.0, value * (1 + _MARGIN))


def epsilon_of_one(step: Ledger, delta: float) -> tuple[float, float]:
    """(lower, upper) of epsilon at ``delta`` for a ledger of a single release."""
    rate, mu = float(step.sample_rate[0]), 1 / float(step.noise_multiplier[0])
    if _curves(rate, mu, 0.0) <= delta:
        return 0.0, 0.0
    high = epsilon_of(delta, mu) * (1 + 1e-9)  # subsampling never raises epsilon
    value = float(
        brentq(
            lambda e: math.log(max(_curves(rate, mu, e), 1e-320) / delta), 0.0, high, xtol=1e-300, rtol=1e-13
        )
    )
    return value * (1 - _MARGIN), value * (1 + _MARGIN)
