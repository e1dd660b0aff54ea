"""Minimises the sum of a_t / mu_t^2 within one accountant's budget, by Lagrange's conditions.

At the optimum the marginal delta (or CLT mu, or rho) that a step costs over the marginal utility it buys is equal at
all steps. Where the accountant adds up a cost g(mu_t), that is a_t = lambda mu_t^3 g'(mu_t)/2, one equation a step:

    g = mu^2 (Gaussian DP, zCDP):  mu_t^2 proportional to sqrt(a_t),
    g = expm1(mu^2) (the CLT, Du Eq. (7)):  mu_t^2 = 2 W(lambda sqrt(a_t)), W the Lambert function,
    `Pld`:  g is the curve of `accounting.pld.marginal_costs`, which moves with the solution: solved until it stands.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import lambertw

from decrescendo.accounting.pld.marginal_costs import MarginalCosts

_ROUNDS = 60
_STANDS = 1e-11  # relative gain of a round below which the iteration has converged
_SLOW = 1e-7  # and below which it is accelerated
_EDGE = 1e-9


def squares(a: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
    """mu_t, up to a factor, where the cost is the sum of mu_t^2: a_t^(1/4). Exact for Gaussian DP and zCDP.

    >>> squares(np.array([1.0, 16.0]))
    array([1., 2.])
    """
    return a**0.25


def disjoint_epochs(a: Float[np.ndarray, " steps"], batches: int) -> Float[np.ndarray, " steps"]:
    """mu_t, up to a factor, where each ``batches`` steps in a row cost what the largest mu_t^2 among them costs.

    >>> disjoint_epochs(np.array([6.0, 10.0, 1.0, 0.0]), 2)
    array([2., 2., 1., 1.])
    """
    starts = np.arange(0, a.size, batches)
    return np.repeat(squares(np.add.reduceat(a, starts)), np.diff(np.r_[starts, a.size]))


def clt(a: Float[np.ndarray, " steps"], total: float) -> Float[np.ndarray, " steps"]:
    """mu_t that minimise the sum of a_t / mu_t^2 with sum_t expm1(mu_t^2) = ``total``: Du Eq. (7) by Lagrange.

    With x = mu^2: a/x^2 = lambda exp(x), so (x/2) exp(x/2) = sqrt(a/lambda)/2.

    >>> mu = clt(np.array([1.0, 16.0]), total=3.0)
    >>> mu.round(4), round(float(np.expm1(mu**2).sum()), 9)
    (array([0.6738, 1.1096]), 3.0)
    """
    root = np.sqrt(a / a.max())

    def squared(log_rate: float) -> Float[np.ndarray, " steps"]:
        return np.asarray(2 * np.real(lambertw(math.exp(log_rate) * root)), dtype=np.float64)

    def gap(log_rate: float) -> float:
        x = squared(log_rate)
        return float(x.max()) - 600 if x.max() > 600 else math.log(float(np.expm1(x).sum()) / total)

    # One step that spends all, and all steps that spend as the largest does, hold the answer between them.
    largest, least = math.log1p(total), math.log1p(total / a.size)
    low, high = (x / 2 + math.log(x / 2) for x in (least, largest))
    rate = float(brentq(gap, low - 1e-9, high + 1e-9, xtol=1e-14))
    return np.sqrt(squared(rate))


def at_limit(
    x: Callable[[float], Float[np.ndarray, " steps"]],
    costs: MarginalCosts,
    log_delta: float,
    low: float,
    high: float,
) -> Float[np.ndarray, " steps"]:
    """log mu_t = x(r) for the r in [low, high], which mu rises with, at which the run spends exactly ``delta``."""

    def gap(rate: float) -> float:
        return max(costs.log_deltas(x(rate))) - log_delta

    if gap(low) >= 0:
        return x(low)
    if gap(high) <= 0:
        return x(high)
    return x(float(brentq(gap, low, high, xtol=1e-10)))


def solve(
    a: Float[np.ndarray, " steps"], start: Float[np.ndarray, " steps"], costs: MarginalCosts, log_delta: float
) -> Float[np.ndarray, " steps"]:
    """log mu_t that minimise the sum of a_t / mu_t^2 with delta within budget for adding and for removing a record.

    Args:
        a: a_t > 0.
        start: log mu_t of any schedule within the table; it is scaled to the budget first.
        costs: the accountant's table.
        log_delta: log of the budget's delta; ``costs`` knows its epsilon.
    """
    first = _one_mixture(a, start, costs, log_delta, share=1.0)
    if _lead(costs, first) >= -_EDGE:
        return first  # adding a record costs no more than removing one
    second = _one_mixture(a, start, costs, log_delta, share=0.0)
    if _lead(costs, second) <= _EDGE:
        return second
    best, cheapest = first, _utility(a, first)
    low, high = 0.0, 1.0
    for _ in range(12):  # both bind: mix them until both cost the same
        share = (low + high) / 2
        found = _one_mixture(a, best, costs, log_delta, share=share)
        if _utility(a, found) < cheapest:
            best, cheapest = found, _utility(a, found)
        low, high = (low, share) if _lead(costs, found) > 0 else (share, high)
    return best


def _lead(costs: MarginalCosts, x: Float[np.ndarray, " steps"]) -> float:
    remove, add = costs.log_deltas(x)
    return remove - add


def _utility(a: Float[np.ndarray, " steps"], x: Float[np.ndarray, " steps"]) -> float:
    return float(np.sum(a * np.exp(-2 * x)))


def _one_mixture(
    a: Float[np.ndarray, " steps"],
    start: Float[np.ndarray, " steps"],
    costs: MarginalCosts,
    log_delta: float,
    *,
    share: float,
) -> Float[np.ndarray, " steps"]:
    """A fixed point of costs and answers; each round is accepted only if it lowers the sum.

    Where the cost is not convex in 1/mu^2 an answer may lie beyond a hill. Then mu_t goes up the logarithm of the
    rate of exchange instead: the sum falls that way unless the rates are equal.
    """
    nodes = costs.log_mu
    log_a = np.log(a)
    reach = float(nodes[-1] - nodes[0])

    def scaled(x: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
        return at_limit(lambda shift: np.clip(x + shift, nodes[0], nodes[-1]), costs, log_delta, -reach, reach)

    def moved(
        x: Float[np.ndarray, " steps"], by: Float[np.ndarray, " steps"], least: float
    ) -> Float[np.ndarray, " steps"]:
        """The first of x + by, x + by/2, .. with a smaller sum; x if none has."""
        share = 1.0
        while share >= least:
            y = scaled(x + share * by)
            if _utility(a, y) < _utility(a, x):
                return y
            share /= 2
        return x

    x = scaled(start)
    for _ in range(_ROUNDS):
        before = _utility(a, x)
        slopes = costs.slopes(x, share)
        answer = _answers(nodes, slopes)
        low, high = float(answer[0][0] - log_a.max()), float(answer[0][-1] - log_a.min())
        y = at_limit(lambda rate, answer=answer: np.interp(log_a + rate, *answer), costs, log_delta, low, high)
        if _utility(a, y) >= before:
            y = moved(x, y - x, least=0.1)
        if _utility(a, y) >= before * (1 - _SLOW):
            # With a cost of mu^2 the rate falls with the fourth power of mu: a quarter is Newton's step.
            log_slope = np.interp(x, nodes, np.log(np.maximum(slopes, 1e-300)))
            rates = log_a - 2 * x - log_slope
            y = moved(y, (rates - np.average(rates, weights=np.exp(log_slope))) / 4, least=1e-3)
        if _utility(a, y) >= before * (1 - _STANDS):
            return y
        x = y
    return x


def _answers(
    nodes: Float[np.ndarray, " k"], slopes: Float[np.ndarray, " k"]
) -> tuple[Float[np.ndarray, " knots"], Float[np.ndarray, " knots"]]:
    """(log a, log mu): what minimises a/mu^2 + cost(mu), which rises with a; knots for interpolation.

    Where the cost is not convex in 1/mu^2 the left side would fall: it is held, and the answer jumps there.
    """
    level = np.exp(2 * nodes) * np.maximum(slopes, 0.0) / 2
    log_level = np.log(np.maximum(level, 1e-300))
    rising = np.maximum.accumulate(log_level)
    keep = np.r_[True, np.diff(rising) > 0]
    return rising[keep], nodes[keep]
