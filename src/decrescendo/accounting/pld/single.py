"""One subsampled Gaussian step alone: its privacy curve is known in closed form, so no composition is needed.

With D the excess of the Gaussian mechanism (`discretisation`) and f(e) = log(1 + expm1(e)/p):

    remove: delta(e) = p delta_Gauss(f(e)),        add: delta(e) = exp(e) p D(f(-e)), 0 where exp(-e) <= 1 - p.

Both are kept as logarithms, so that the smallest delta is as exact as the largest, and evaluated on either side of the
given mu: delta grows with mu, and no loss moves the curve by more than mu does (d log delta/d log mu >= |d log delta/
d log e|, because e R(e/mu + mu/2) <= mu for the Mills ratio R). What rounding does to mu and to a loss, however steep
the curve is there, is so on the safe side of both ends.
"""

import math
import sys

from scipy.optimize import brentq

from decrescendo.accounting.gaussian import epsilon_of, log_delta
from decrescendo.accounting.ledger import Ledger

# What mu may be off by, relatively, and with it the losses: 1/z of a float, a few units; of releases that everybody
# takes part in, the root of a sum of up to 2^53 terms, added pairwise: some thirty units. Twice that.
_INPUT = 2.0**-46
# log delta of a given mu and loss is right to 2e-13 (`test_gaussian`) and, beyond log delta = -700, to the last digits
# of x^2/2: 1e-12. Ends this much further hold it safely.
_MARGIN = 1e-11
# The relative error of a few operations.
_FEW = 2.0**-50
# No mu is larger: at half of it already every epsilon that is a float is lost for sure.
_LARGEST_MU = 1e300
_LARGEST_QUOTIENT = 1e300


def _log_curve(step: Ledger, epsilon: float, side: int) -> float:
    """The logarithm of the larger delta(epsilon) of the two directions; above it or below it, with ``side`` 1 or -1."""
    rate, z = float(step.sample_rate[0]), float(step.noise_multiplier[0])
    mu = min((1 + side * _INPUT) / max(z, 1 / _LARGEST_MU), _LARGEST_MU)
    if rate == 1:
        return float(log_delta(epsilon, mu)) + side * _MARGIN
    remove = math.log(rate) + float(log_delta(_from_sampled(epsilon, rate), mu))
    inner = _from_added(epsilon, rate, side)
    add = -math.inf
    if inner > -math.inf:
        add = epsilon + math.log(rate) + inner + float(log_delta(-inner, mu))
    return max(remove, add) + side * _MARGIN


def _from_sampled(epsilon: float, rate: float) -> float:
    """log(1 + expm1(epsilon)/rate), to a few units, wherever the exponential itself would overflow too."""
    if epsilon > 1:
        return epsilon - math.log(rate) + math.log1p((rate - 1) * math.exp(-epsilon))
    quotient = math.expm1(epsilon) / rate
    if quotient > _LARGEST_QUOTIENT:
        return math.log(math.expm1(epsilon) + rate) - math.log(rate)
    return math.log1p(quotient)


def _from_added(epsilon: float, rate: float, side: int) -> float:
    """log(1 + expm1(-epsilon)/rate), -inf where 1 + .. is not above 0; D grows with it.

    Rounded up or down with ``side``: near a quotient of -1 the logarithm depends on its last digits.
    """
    quotient = math.expm1(-epsilon) / rate
    if quotient > -0.5 or rate < 2 / 3:
        quotient *= 1 - side * _FEW
        return math.log1p(quotient) if quotient > -1 else -math.inf
    left = math.exp(-epsilon) * (1 + side * _FEW) - (1 - rate) * (1 - side * _FEW)
    return math.log(left / rate) if left > 0 else -math.inf


def delta_of_one(step: Ledger, epsilon: float) -> tuple[float, float]:
    """(lower, upper) of delta at ``epsilon`` >= 0 for a ledger of a single release.

    Never 0 at the upper end: delta is not, and where it is below all floats the smallest of them is above it.
    """
    low, high = (math.exp(min(_log_curve(step, epsilon, side), 0.0)) for side in (-1, 1))
    # Below 1e-308 floats have an absolute error, of one of the smallest, instead of a relative one.
    return max(0.0, math.nextafter(low, -1.0)), min(1.0, math.nextafter(high, 2.0))


def epsilon_of_one(step: Ledger, delta: float) -> tuple[float, float]:
    """(lower, upper) of epsilon at ``delta`` for a ledger of a single release; each end is checked."""
    target = math.log(delta)

    def gap(epsilon: float, side: int = 0) -> float:
        return max(_log_curve(step, epsilon, side), -1e300) - target

    if gap(0.0, 1) <= 0:
        return 0.0, 0.0
    # Subsampling never raises epsilon.
    high = max(epsilon_of(delta, 1 / max(float(step.noise_multiplier[0]), 1 / _LARGEST_MU)), 1e-300) * (1 + 1e-9)
    if math.isinf(high):  # beyond the floats, but for a hair
        return (sys.float_info.max * 0.5 if gap(sys.float_info.max * 0.5, -1) > 0 else 0.0), math.inf
    low = upper = float(brentq(gap, 0.0, high, xtol=1e-300, rtol=1e-13)) if gap(0.0) > 0 > gap(high) else high
    width = _MARGIN
    while low > 0 and gap(low, -1) < 0:
        low, width = (low * (1 - width), 2 * width) if width < 1 else (0.0, width)
    width = _MARGIN
    while gap(upper, 1) > 0:
        upper, width = upper * (1 + width), 2 * width
    return low, upper
