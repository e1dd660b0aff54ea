"""Searches the scale of the privacy curve at which an accountant's epsilon meets the budget."""

import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from decrescendo.accounting import Accountant, GdpClt
from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import estimate
from decrescendo.errors import AccountingError, ImpossibleBudget

# The certified epsilon ends within this share of the budget, on the safe side.
_TOLERANCE = 1e-4


_ATTEMPTS = 12


USUAL_SLOPE = 1.2  # d log(epsilon) / d log(scale), before it is measured


def first_guess(relative: Float[np.ndarray, " steps"], rates: Float[np.ndarray, " steps"], budget: Budget) -> float:
    """The scale at which the CLT estimate meets the budget."""
    clt = GdpClt()

    @functools.cache
    def gap(log_scale: float) -> float:
        noise = 1 / (math.exp(log_scale) * relative)
        estimate = clt.epsilon(Ledger.of(noise, rates), budget.delta).value
        return min(estimate, 1e300) - budget.epsilon

    low, high = math.log(1e-9), math.log(20.0)
    if gap(high) <= 0:
        return 20.0
    return math.exp(float(brentq(gap, low, high, xtol=1e-3))) if gap(low) < 0 else math.exp(low)


def steer(judge: Accountant, ledger_at: Callable[[float], Ledger], guess: float, budget: Budget) -> float:
    """A scale whose estimated epsilon is within a percent of the budget, or the refusal of an impossible one."""

    def spent(scale: float) -> float:
        return estimate(judge, ledger_at(scale), budget.delta)

    @functools.cache
    def gap(log_scale: float) -> float:
        try:
            epsilon = spent(math.exp(log_scale))
        except AccountingError:
            return math.inf  # too little noise for this accountant
        return math.log(max(epsilon, 1e-300) / budget.epsilon)

    low = high = math.log(guess)
    value = gap(low)
    for _ in range(80):
        if value > 0:
            low -= 0.25 if math.isfinite(value) else 0.5
            value = gap(low)
        else:
            break
    else:
        raise ImpossibleBudget(
            f"some noise must meet the budget, got none for epsilon={budget.epsilon:g} at delta={budget.delta:g}: even "
            f"noise multipliers above {1 / math.exp(low):.3g} spend more. Ask for a larger epsilon or fewer steps"
        )
    if low == high:
        while gap(high) <= 0:
            low = high
            high += 0.25
            if high > math.log(1e3):
                raise ImpossibleBudget(
                    f"the budget must need noise, got epsilon={budget.epsilon:g} at delta={budget.delta:g}, which "
                    "even a run almost without noise meets: records take part no more often than delta allows. "
                    "Ask for a smaller delta"
                )
    for _ in range(60):  # walk back from where the accountant refuses
        if math.isfinite(gap(high)):
            break
        middle = (low + high) / 2
        low, high = (middle, high) if gap(middle) <= 0 else (low, middle)
        if high - low < 1e-6:
            nearest = spent(math.exp(low))
            raise ImpossibleBudget(
                f"the budget must be one this accountant can reach with this curve, got epsilon={budget.epsilon:g}; "
                f"the nearest is epsilon={nearest:.4g}: beyond it the noise is too small for its conditions"
            )
    return math.exp(float(brentq(gap, low, high, xtol=2e-3)))


def slope_at(judge: Accountant, ledger_at: Callable[[float], Ledger], start: float, delta: float) -> float:
    """d log(epsilon) / d log(scale) from estimates a percent apart, or `USUAL_SLOPE` if these are not usable."""
    try:
        below, above = (estimate(judge, ledger_at(scale), delta) for scale in (start / 1.005, start * 1.005))
    except AccountingError:
        return USUAL_SLOPE
    if not 0 < below < above < math.inf:
        return USUAL_SLOPE
    return _bounded(math.log(above / below) / (2 * math.log(1.005)))


def _bounded(slope: float) -> float:
    return min(max(slope, 0.3), 20.0)


def certified_scale(
    judge: Accountant,
    ledger_at: Callable[[float], Ledger],
    start: float,
    budget: Budget,
    *,
    moving: bool,
) -> tuple[float, Guarantee]:
    """The largest scale tried that is certified within the budget, if possible within `_TOLERANCE` of it.

    ``start`` is about right. With ``moving`` batch sizes a certificate takes seconds, and two more estimates save one;
    otherwise they would cost as much.
    """
    slope = slope_at(judge, ledger_at, start, budget.delta) if moving else USUAL_SLOPE
    best: tuple[float, Guarantee] | None = None
    previous: tuple[float, float] | None = None
    scale = start
    aim = budget.epsilon * (1 - _TOLERANCE / 4)
    refusal: AccountingError | None = None
    for _ in range(_ATTEMPTS):
        try:
            found = judge.certify(ledger_at(scale), budget)
        except AccountingError as error:  # too little noise for the accountant
            refusal, scale = error, 0.9 * scale if best is None else math.sqrt(scale * best[0])
            continue
        epsilon = max(found.epsilon, 1e-300)
        if epsilon <= budget.epsilon and (best is None or scale > best[0]):
            best = (scale, found)
            if epsilon >= budget.epsilon * (1 - _TOLERANCE):
                break
        if not math.isfinite(epsilon):  # nothing to measure a slope by
            scale = 0.9 * scale if best is None else math.sqrt(scale * best[0])
            continue
        if previous is not None and abs(math.log(scale / previous[0])) > 1e-5:
            slope = _bounded(math.log(epsilon / previous[1]) / math.log(scale / previous[0]))
        previous = (scale, epsilon)
        ratio = aim / epsilon
        # (No power of it where it is huge: a float has no room for it, and twice as much is the most.)
        scale *= 2.0 if ratio > 2.0**20 else min(max(ratio ** (1 / slope), 0.5), 2.0)
    if best is None and refusal is not None:
        raise refusal
    if best is None:
        raise ImpossibleBudget(
            f"the accountant must settle on a scale for epsilon={budget.epsilon:g}, got none in {_ATTEMPTS} attempts. "
            "Ask for another epsilon or a larger rtol"
        )
    return best
