"""Checks that the parts of a plan fit each other, and that a run's ledger and guarantee fit its plan."""

import math
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import AccountingError, InvalidValue, check_instance
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.sampling import RandomAllocation, Sampling
from decrescendo.plans.sampling_refusals import check_sampling
from decrescendo.plans.schedule import Schedule
from decrescendo.plans.strategy import Strategy

if TYPE_CHECKING:
    from decrescendo.plans.plan import Plan


def check_parts(plan: "Plan") -> None:
    """Refuse a plan whose budget, sampling, schedule and guarantee do not fit each other; see `Plan`."""
    for name, kind in (("budget", Budget), ("schedule", Schedule), ("guarantee", Guarantee)):
        check_instance(name, getattr(plan, name), kind)
    check_sampling(plan.sampling)
    check_correlation(plan.sampling, plan.schedule.noise_multiplier, plan.correlation)
    if plan.batch_size.size != plan.steps:
        raise InvalidValue(
            f"a plan must have one expected batch size a step ({plan.steps}), got {plan.batch_size.size}"
        )
    if isinstance(plan.sampling, RandomAllocation) and plan.sampling.whole(plan.steps) != plan.steps:
        raise InvalidValue(
            f"a plan must be of whole epochs of {plan.sampling.steps_per_epoch} steps, got {plan.steps} steps"
        )
    if plan.guarantee.epsilon > plan.budget.epsilon:
        raise InvalidValue(
            f"a plan's guarantee must be within its budget, got epsilon={plan.guarantee.epsilon:g} "
            f"over budget.epsilon={plan.budget.epsilon:g}. Make plans with calibrate"
        )
    if plan.guarantee.delta != plan.budget.delta or plan.guarantee.protected != plan.budget.protected:
        raise InvalidValue(
            "a plan's guarantee must have the delta and unit of its budget, got "
            f"delta={plan.guarantee.delta:g}, unit={plan.guarantee.protected} for {plan.budget}"
        )
    bare = bool((plan.noise_multiplier == 0).all())
    if plan.private and not np.isfinite(plan.clip_norm).all():
        raise InvalidValue(
            "a plan with a budget must have finite clip norms, got clip_norm=inf. See Plan.without_privacy"
        )
    if not plan.private and not (bare and math.isinf(plan.guarantee.epsilon)):
        raise InvalidValue(
            "a plan without a budget must have no noise and no guarantee, got one that has. Make it with "
            "Plan.without_privacy, and one with noise with calibrate"
        )


def check_run(plan: "Plan", ledger: Ledger, guarantee: Guarantee) -> None:
    """Refuse a ledger and a guarantee that cannot be of a run of the plan; see `Plan.check`."""
    if not plan.begins(ledger):
        raise AccountingError(f"the ledger must be the beginning of its plan's, got {ledger}")
    if guarantee.delta != plan.budget.delta or guarantee.protected != plan.budget.protected:
        raise AccountingError(
            f"the guarantee must have delta and unit of its plan's budget, got {guarantee} for {plan.budget}"
        )
    if guarantee.epsilon < (plan.guarantee.epsilon_lower or 0.0):
        raise AccountingError(
            f"the guarantee must not be below the true epsilon, which is at least "
            f"{plan.guarantee.epsilon_lower:.6g} by the plan, got epsilon={guarantee.epsilon:.6g}"
        )


def check_correlation(
    sampling: Sampling, noise_multiplier: Float[np.ndarray, " steps"], strategy: Strategy | None
) -> None:
    """Check that records take turns if and only if noise is correlated, in as many groups as there are bands, and that
    the noise multipliers accounted for are those of the strategy."""
    cyclic = isinstance(sampling, CyclicPoissonSampling)
    if strategy is None and not cyclic:
        return
    if strategy is not None:
        check_instance("correlation", strategy, Strategy)
    bands = 1 if strategy is None else strategy.bands
    if not cyclic or sampling.bands != bands or sampling.step:
        raise InvalidValue(
            "correlated noise must come with a CyclicPoissonSampling of as many bands from step 0, got a strategy of "
            f"{bands} and {sampling}. Make the plan with calibrate"
        )
    if strategy is not None and not np.array_equal(strategy.noise_multiplier, noise_multiplier):
        raise InvalidValue(
            "the noise multipliers of correlated noise must be 1 over the norms of its strategy's columns, got others. "
            "Make the plan with calibrate"
        )
