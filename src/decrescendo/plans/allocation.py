"""`allocate`: the plan within a budget with the least noise cost, for given influences of the steps' noise."""

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Literal

import numpy as np
from jaxtyping import Float

from decrescendo.accounting import Accountant, Gaussian, GdpClt, Pld, Zcdp, mu_of
from decrescendo.accounting.budget import Budget, check_budget, check_one_example
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld.discretisation import LARGEST_MU
from decrescendo.accounting.pld.marginal_costs import MarginalCosts
from decrescendo.errors import AccountingError, InvalidType, InvalidValue, check_instance
from decrescendo.plans import curves
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import evaluate
from decrescendo.plans.lagrange import at_limit, clt, disjoint_epochs, solve, squares
from decrescendo.plans.passes import steps_of
from decrescendo.plans.plan import Plan
from decrescendo.plans.progress import CurveOrValues
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.workload import Workload

# Steps with little influence get little mu, but mu^2 is at least this share of its value for equal steps: a wider range
# costs accounting time, and this floor at most 0.3 % of the budget.
_LEAST_SHARE = 3e-3
# Candidates whose sum is within this of the best are certified too: estimates have this error; certifying is slow.
_TIE = 1e-3
_SAME = 0.01  # shapes that differ by less than this in log mu count as one
_NEAR = 0.05  # a solution this close (in log mu) to the run that the cost table was made for is accepted
_TABLES = 6
_MARGIN = 0.7  # how far beyond the first guess the cost table reaches in log mu


def allocate(
    budget: Budget,
    sampling: PoissonSampling,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    influence: CurveOrValues | None = None,
    clip: CurveOrValues,
    accountant: Accountant | None = None,
    bands: int | Literal["auto"] = 1,
    workload: Workload | CurveOrValues | None = None,
) -> Plan:
    """The plan within ``budget`` whose `noise_cost`, sum_t q_t C_t^2 z_t^2, is smallest.

    The noise added to the clipped sum at step t has variance s_t^2 = C_t^2 z_t^2, and q_t says how much of it is still
    felt at the end: eta_t^2 where only the learning rate is known, an influence (Hong Lemma 4.3) where something
    is known of the loss, a curvature (Du Eq. (59)-(62)), 1 for Du Eq. (52)-(55). By Lagrange:

    ======================  =============================================================================
    accountant              mu_t = 1/z_t, with a_t = q_t C_t^2
    ======================  =============================================================================
    `Pld`                   marginal delta a step costs over what it buys equal at all steps, numerically; in
                            closed form for sample_rate 1, as `Gaussian`
    `GdpClt`                mu_t^2 = 2 W(lambda sqrt(a_t)), W the Lambert function; an estimate, as all it says
    `Gaussian`, `Zcdp`      mu_t^2 proportional to sqrt(a_t), ``curves.curvature(clip, influence)``: Hong Lemma 4.3
    ``Zcdp(batches)``       the same with a summed over each epoch
    ======================  =============================================================================

    Args:
        budget: what the whole run may spend.
        sampling: how batches are drawn.
        steps: number of steps T >= 1.
        epochs: in place of ``steps``: expected passes over the data.
        influence: curve (or array) of q_t > 0; only ratios matter. Hong's are those of z_t^2 at a fixed clip norm;
            with C_t that moves, those of the noise on the sum are what is meant here.
        clip: curve (or array) of C_t > 0; it is taken as given.
        accountant: `Pld` by default.
        bands: as of `calibrate`; from 2 on the noise is correlated, and the influence is of a last iterate into which
            all noise goes with the same sign.
        workload: as of `calibrate`, in the place of ``influence``.

    Returns:
        The calibrated plan. With `Pld` the search is by estimates; uniform noise, mu_t ~ sqrt(C_t), the small-mu closed
        form and the best-fitting growing mu are compared with its result, and the plan of the smallest sum is kept.

    Guarantee: that of `calibrate`, whatever the influences are. A smaller sum is a smaller noise term in a bound on the
        loss, not a promise about accuracy.

    Raises:
        InvalidType: an accountant whose budget cannot be divided here.
        ImpossibleBudget, InvalidValue: as `calibrate`.

    >>> budget, sampling = Budget(1.0, 1e-5), PoissonSampling(1_000, 1_000)
    >>> plan = allocate(budget, sampling, steps=3, influence=[1.0, 16.0, 81.0], clip=curves.constant(1.0))
    >>> (plan.noise_multiplier[0] / plan.noise_multiplier).round(6)
    array([1., 2., 3.])
    """
    check_budget(budget)
    check_one_example(budget, "the best schedule")
    check_instance("sampling", sampling, PoissonSampling)
    count = steps_of(sampling, steps, epochs)
    if (influence is None) == (workload is None):
        given = "neither" if workload is None else "both"
        raise InvalidValue(f"exactly one of influence and workload must be given, got {given}")
    if influence is None or bands != 1:
        of_end = None if influence is None else Workload.of_influence(evaluate("influence", influence, count))
        found = calibrate(
            budget,
            sampling,
            steps=count,
            clip=clip,
            accountant=accountant,
            bands=bands,
            workload=of_end or workload,
        )
        if bands != "auto" or influence is None:
            return found
        alone = allocate(budget, sampling, steps=count, influence=influence, clip=clip, accountant=accountant)
        return min(found, alone, key=lambda plan: noise_cost(plan, influence))
    judge: Accountant = Pld() if accountant is None else accountant
    check_instance("accountant", judge, Accountant, "Try accounting.Pld()")
    clips, q = evaluate("clip", clip, count), evaluate("influence", influence, count)
    root = np.sqrt(q / q.max()) * (clips / clips.max())
    a = np.maximum(root, 1e-150) ** 2

    problem = _Problem(budget, sampling, a, clips)
    plans = [
        calibrate(budget, sampling, steps=count, privacy=mu, clip=clips, accountant=judge)
        for mu in _shapes(judge, problem)
    ]
    return min(plans, key=lambda plan: noise_cost(plan, q))


def noise_cost(plan: Plan, influence: CurveOrValues) -> float:
    """sum_t q_t C_t^2 z_t^2: the variance of a plan's noise on the sum, weighted by its influence on the final loss.

    Args:
        plan: any plan.
        influence: curve (or array) of q_t > 0, as for `allocate`. Compare plans by ratios: its unit is that of q.
            Where noise is correlated, all of it is taken to go into the end with the same sign.

    >>> from decrescendo.accounting.budget import Guarantee, Unit, check_budget
    >>> from decrescendo.plans.schedule import Schedule
    >>> promise = Guarantee(1.0, 1e-5, Unit.EXAMPLE, "Pld", "upper")
    >>> plan = Plan(Budget(1.0, 1e-5), PoissonSampling(9, 3), Schedule([3.0, 1.0], [2.0, 1.0]), promise)
    >>> noise_cost(plan, [1.0, 4.0])
    40.0
    """
    check_instance("plan", plan, Plan)
    q = evaluate("influence", influence, plan.steps)
    if plan.correlation is not None:
        return Workload.of_influence(q).cost(plan.correlation, plan.clip_norm)
    return float(np.sum(q * plan.schedule.noise_std**2))


@dataclass(frozen=True, slots=True)
class _Problem:
    """The problem of `allocate`: budget, sampling, clip norms and the relative weights a_t = q_t C_t^2."""

    budget: Budget
    sampling: PoissonSampling
    a: Float[np.ndarray, " steps"]
    clips: Float[np.ndarray, " steps"]


@singledispatch
def _shapes(judge: Accountant, problem: _Problem) -> list[Float[np.ndarray, " steps"]]:
    """The candidates for mu_t, one of them the best, by the accountant's kind; most have a closed form."""
    del problem
    divided = ", ".join(accountant.__name__ for accountant in _shapes.registry if accountant is not object)
    raise InvalidType(
        f"accountant must be one of {divided}, whose budgets can be divided step by step, got {judge.name}. Take the "
        "shape from Pld, allocate(..), and scale it: "
        f"calibrate(.., privacy=1 / plan.noise_multiplier, accountant={judge.name}())"
    )


@_shapes.register(GdpClt)
def _by_clt(judge: GdpClt, problem: _Problem) -> list[Float[np.ndarray, " steps"]]:
    del judge
    total = mu_of(problem.budget.epsilon, problem.budget.delta) / problem.sampling.sample_rate
    return [clt(problem.a, total**2)]


@_shapes.register(Zcdp)
def _by_epochs(judge: Zcdp, problem: _Problem) -> list[Float[np.ndarray, " steps"]]:
    return [disjoint_epochs(problem.a, judge.batches_per_epoch)]


@_shapes.register(Gaussian)
def _by_squares(judge: Gaussian, problem: _Problem) -> list[Float[np.ndarray, " steps"]]:
    del judge
    return [squares(problem.a)]


@_shapes.register(Pld)
def _by_marginal_costs(judge: Pld, problem: _Problem) -> list[Float[np.ndarray, " steps"]]:
    del judge
    if problem.sampling.sample_rate == 1:
        return [squares(problem.a)]
    if np.ptp(np.log(problem.a)) < 1e-12:
        return [np.ones(problem.a.size)]  # by symmetry
    return _contenders(problem.budget, problem.sampling, problem.a, problem.clips)


def _contenders(
    budget: Budget,
    sampling: PoissonSampling,
    a: Float[np.ndarray, " steps"],
    clips: Float[np.ndarray, " steps"],
) -> list[Float[np.ndarray, " steps"]]:
    """The best mu_t by the cost table, and simple candidates whose sums are too close for estimates to decide."""
    found, costs = _search(budget, sampling, a)
    goal, (low, high) = math.log(budget.delta), costs.log_mu[[0, -1]]
    best = float(np.sum(a * np.exp(-2 * found)))
    kept = [found]
    u = curves.progress(a.size)
    growth = np.polyfit(u, found, 1)[0] * u if a.size > 1 else u
    for shape in (np.zeros(a.size), np.log(clips) / 2, np.log(a) / 4, growth):
        middle = shape - shape.mean() + found.mean()
        x = at_limit(
            lambda shift, middle=middle: np.clip(middle + shift, low, high),
            costs,
            goal,
            low - high,
            high - low,
        )
        close = float(np.sum(a * np.exp(-2 * x))) < best * (1 + _TIE)
        if close and all(np.ptp(x - other) > _SAME for other in kept):
            kept.append(x)
    return [np.exp(x) for x in kept]


def _search(
    budget: Budget, sampling: PoissonSampling, a: Float[np.ndarray, " steps"]
) -> tuple[Float[np.ndarray, " steps"], MarginalCosts]:
    """log mu_t of the smallest sum by estimates, and the cost table used, made for a run close to it."""
    rate, goal = sampling.sample_rate, math.log(budget.delta)
    total = (mu_of(budget.epsilon, budget.delta) / rate) ** 2
    least = math.sqrt(_LEAST_SHARE * math.log1p(total / a.size))
    found = np.log(_scaled(np.maximum(clt(a, total), least), budget, sampling))
    floor, ceiling = min(float(found.max()), math.log(least)), math.log(LARGEST_MU)
    below = above = _MARGIN
    tables = 0
    while True:
        low, high = max(float(found.min()) - below, floor), float(found.max()) + above
        low, high = min(low, ceiling - 0.5), min(high, ceiling)
        start = np.clip(found, low, high)
        ledger = Ledger.of(np.exp(-found), rate)
        costs = MarginalCosts.of(ledger, budget.epsilon, budget.delta, mu_low=math.exp(low), mu_high=math.exp(high))
        found = solve(a, start, costs, goal)
        tables += 1
        short_below = found.min() < low + 1e-6 and low > floor
        short_above = found.max() > high - 1e-6 and high < ceiling
        # A table is exact near the run that it was made for.
        stands = not short_below and not short_above and float(np.abs(found - start).max()) < _NEAR
        if stands or tables == _TABLES:
            return found, costs
        below, above = below * (2 if short_below else 1), above * (2 if short_above else 1)


def _scaled(mu: Float[np.ndarray, " steps"], budget: Budget, sampling: PoissonSampling) -> Float[np.ndarray, " steps"]:
    """``mu`` scaled to about the budget's epsilon; uniform mu if the accountant accepts no scale of ``mu``."""
    for shape in (mu, np.full(mu.size, float(np.sqrt(np.mean(mu**2))))):
        low, high, at = -math.inf, math.inf, 0.0  # log scales that spend too little, and too much
        for _ in range(24):
            try:
                epsilon = Pld().estimate(Ledger.of(np.exp(-at) / shape, sampling.sample_rate), budget.delta)
            except AccountingError:
                epsilon = math.inf  # too little noise for the accountant
            few, many = epsilon == 0, math.isinf(epsilon)
            gap = math.inf if few else -math.inf if many else math.log(budget.epsilon) - math.log(epsilon)
            if abs(gap) < 0.1:
                return math.exp(at) * shape
            low, high = (at, high) if gap > 0 else (low, at)
            known = math.isfinite(low) and math.isfinite(high)
            at = (low + high) / 2 if known else at + min(max(gap, -0.7), 0.7)
            if known and high - low < 1e-3:
                break
    # Estimates found nothing: the certified search raises the reason, or finds uniform noise to start from.
    even = calibrate(budget, sampling, steps=mu.size, privacy=np.ones(mu.size), clip=np.ones(mu.size))
    return 1 / even.noise_multiplier
