"""`allocate_compute`: batch sizes and noise together, for a privacy budget and a number of examples to process."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import lambertw

from decrescendo.accounting import Accountant, Pld, mu_of
from decrescendo.accounting.budget import Budget, check_budget, check_one_example
from decrescendo.errors import check_integer, check_real
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import evaluate
from decrescendo.plans.lagrange import clt
from decrescendo.plans.plan import Plan
from decrescendo.plans.progress import CurveOrValues
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import check_steps
from decrescendo.plans.workload import Workload

_LOG_X = np.linspace(math.log(1e-13), math.log(600), 40_001)
_X = np.exp(_LOG_X)
_SERIES = _X**2 / 2 + _X**3 / 3 + _X**4 / 8 + _X**5 / 30
# log h(x), h(x) = 1 + (x - 1) exp(x), which cancels below.
_LOG_H = np.log(np.where(_X < 1e-2, _SERIES, 1 + (_X - 1) * np.exp(_X)))
_FALLING = 2 * _LOG_X + _X - 4 * _LOG_H


def allocate_compute(
    budget: Budget,
    dataset_size: int,
    *,
    steps: int,
    compute: float,
    max_batch_size: int | None = None,
    influence: CurveOrValues,
    clip: CurveOrValues,
    accountant: Accountant | None = None,
) -> Plan:
    """The plan within ``budget`` and ``compute`` examples with little `mean_noise_cost`, sum_t q_t (C_t z_t / B_t)^2.

    By the central limit theorem's price, with p_t = B_t / N, x_t = 1/z_t^2 and a_t = q_t C_t^2:

        minimise sum a_t / (p_t^2 x_t)  with  sum p_t^2 (exp(x_t) - 1) <= mu^2,  sum p_t <= compute / N,  p_t <= 1.

    That is a geometric program (convex in log p and log x), and Lagrange's conditions are closed but for two numbers
    lambda and kappa:

        p_t = min(1, kappa / h(x_t)),  h(x) = 1 + (x - 1) exp(x),  a_t = lambda p_t^4 x_t^2 exp(x_t).

    A step whose noise matters more gets a larger batch *and* a larger noise multiplier: its mean is less noisy all the
    same. Where all steps matter alike, all are alike.

    Args:
        budget: what the whole run may spend.
        dataset_size: N, public.
        steps: number of steps T >= 1.
        compute: expected number of examples that all steps process together, the sum of B_t; at most T N.
        max_batch_size: of all batches, as in `PoissonSampling`.
        influence: curve (or array) of q_t > 0, of the variance of the noise on the *mean*; only ratios matter.
        clip: curve (or array) of C_t > 0; taken as given.
        accountant: `Pld` by default; it certifies the noise, the shape is the theorem's.

    Returns:
        The calibrated plan, with an expected batch size of each step.

    Guarantee: that of `calibrate`, whatever the influences are. That batches of different size also differ in how well
        they stand for the data is not in the sum.

    Raises:
        ImpossibleBudget, InvalidValue: as `calibrate`; ``compute`` beyond T N.

    >>> plan = allocate_compute(Budget(1.0, 1e-5), 10_000, steps=4, compute=4_000, influence=[1.0, 1.0, 4.0, 4.0],
    ...     clip=[1.0] * 4)
    >>> bool(plan.batch_size[0] < plan.batch_size[-1]), round(float(plan.batch_size.sum()))
    (True, 4000)
    """
    check_budget(budget)
    check_one_example(budget, "the best schedule")
    size, count = check_integer("dataset_size", dataset_size, at_least=1), check_steps(steps)
    total = check_real("compute", compute, above=0, at_most=count * size, hint="All examples at every step") / size
    clips, q = evaluate("clip", clip, count), evaluate("influence", influence, count)
    a = np.maximum((np.sqrt(q / q.max()) * (clips / clips.max())) ** 2, 1e-150)
    judge: Accountant = Pld() if accountant is None else accountant

    def plan(price: float, judge: Accountant) -> Plan:
        rates, mu = best_by_clt(a, price, total)
        return calibrate(
            budget, PoissonSampling(size, float(rates[0] * size), max_batch_size), steps=count, privacy=mu, clip=clips,
            batch=rates * size, accountant=judge,
        )  # fmt: skip

    # The shape depends on the run's price mu^2, first from the theorem: repeat with that of the certified noise.
    first = plan(mu_of(budget.epsilon, budget.delta) ** 2, Pld(rtol=1e-2) if accountant is None else judge)
    p, x = first.sampling.rates(count), 1 / first.noise_multiplier**2
    return plan(float(np.sum(p**2 * np.expm1(x))), judge)


def mean_noise_cost(plan: Plan, influence: CurveOrValues) -> float:
    """sum_t q_t (C_t z_t / B_t)^2: the variance of a plan's noise on the mean, weighted by its influence at the end.

    Args:
        plan: any plan.
        influence: curve (or array) of q_t > 0, as for `allocate_compute`. Compare plans by ratios.

    >>> from decrescendo.plans.plan import _EXAMPLE
    >>> mean_noise_cost(Plan.from_json(_EXAMPLE), [1.0, 1.0]) > 0
    True
    """
    if plan.correlation is not None:
        q = evaluate("influence", influence, plan.steps)
        return Workload.of_influence(q).cost(plan.correlation, plan.clip_norm / plan.batch_size)
    std = plan.schedule.noise_std / plan.batch_size
    return float(np.sum(evaluate("influence", influence, plan.steps) * std**2))


def best_by_clt(
    a: Float[np.ndarray, " steps"], price: float, total: float
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
    """(p_t, mu_t) of the least sum a_t / (p_t mu_t)^2 with sum p_t^2 expm1(mu_t^2) = ``price``, sum p_t = ``total``.

    Args:
        a: > 0.
        price: mu^2 > 0 of the whole run, by the central limit theorem.
        total: in (0, T].

    >>> rates, mu = best_by_clt(np.array([1.0, 1.0]), price=0.02, total=0.2)
    >>> rates.round(6), bool(np.allclose(rates**2 * np.expm1(mu**2), 0.01))
    (array([0.1, 0.1]), True)
    """
    if total >= a.size * (1 - 1e-9):  # every example at every step: only noise is left to choose
        return np.ones(a.size), clt(a, price)
    log_a = np.log(a) - float(np.log(a).max())

    def answer(log_kappa: float, log_lambda: float) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """p_t and x_t by Lagrange's conditions."""
        level = log_a - log_lambda
        edge = float(np.exp(np.interp(log_kappa, _LOG_H, _LOG_X)))  # below it p would be above 1
        whole = level >= 2 * math.log(edge) + edge
        x = np.exp(np.interp(level - 4 * log_kappa, _FALLING[::-1], _LOG_X[::-1]))
        root: Any = np.exp(np.minimum(level, 1200) / 2) / 2
        x = np.where(whole, 2 * np.real(lambertw(root)), x)
        p = np.exp(log_kappa - np.interp(np.log(x), _LOG_X, _LOG_H))
        return np.where(whole, 1.0, np.minimum(p, 1.0)), x

    def in_compute(log_kappa: float) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        low, high = -1e4, 1e4
        rate = brentq(lambda at: float(answer(log_kappa, at)[0].sum()) - total, low, high, xtol=1e-12)
        return answer(log_kappa, float(rate))

    def gap(log_kappa: float) -> float:
        p, x = in_compute(log_kappa)
        return math.log(float(np.sum(p**2 * np.expm1(np.minimum(x, 600)))) / price)

    low, high = np.interp([1e-10, 300.0], _X, _LOG_H)
    p, x = in_compute(float(brentq(gap, low, high, xtol=1e-12)))
    return np.minimum(p * (total / p.sum()), 1.0), np.sqrt(x)
