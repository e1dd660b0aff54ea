"""Budgets as limits, on the safe side."""

import math

from decrescendo.accounting.budget import Budget
from decrescendo.errors import ImpossibleBudget, check_instance

# Closed-form limits are a few operations on floats: each is off by less than 1e-15 of its largest term. A limit is
# lowered by this share, so that it is never above the exact one: the hair by which a schedule that was made to spend
# the whole budget exactly may be refused its last step.
SAFE = 1e-13
# Far beyond any promise; squares of it are still numbers.
LARGEST_EPSILON = 1e100


def checked_budget(budget: Budget) -> Budget:
    """The budget, or an error if it is none."""
    check_instance("budget", budget, Budget)
    if budget.epsilon > LARGEST_EPSILON:
        raise ImpossibleBudget(
            f"a filter's budget must have epsilon <= {LARGEST_EPSILON:g}, got epsilon={budget.epsilon:g}, which "
            "promises nothing. Give a smaller one"
        )
    return budget


def checked_limit(limit: float, budget: Budget) -> float:
    """A limit that something can be granted from."""
    if not (limit > 0 and math.isfinite(limit)):
        raise ImpossibleBudget(
            f"a budget must allow some release, got a limit of {limit:.3g} for epsilon={budget.epsilon:g}, "
            f"delta={budget.delta:g}. Give a larger one"
        )
    return limit
