"""A record that takes part once an epoch, whatever happens: a Poisson one may stay away, and is hidden by that.

With little noise it is seen in one of the sums of an epoch where it is. Under Poisson sampling it is in none of t sums
with probability (1 - 1/t)^t, and then nobody can see it: whoever counts random allocation as Poisson promises that.
"""

import numpy as np
import torch
from scipy.special import logsumexp

from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums, pulled
from decrescendo.audit.probe import STEEPNESS
from decrescendo.plans import Plan, RandomAllocation

_ROWS = 8


def once(budget: Budget, *, steps: int = 2) -> Attack:
    """One epoch of 8 rows, of which one pulls and the others have no gradient.

    Args:
        budget: of the plan, whose noise is constant.
        steps: t >= 2 of the epoch.

    >>> once(Budget(2.0, 1e-5)).plan.guarantee.accountant
    'Allocated'
    """
    pull = torch.zeros(_ROWS)
    pull[-1] = STEEPNESS
    return pulled("once an epoch", budget, RandomAllocation(_ROWS, steps), pull, _evidence, steps=steps)


def _evidence(sums: Sums, plan: Plan) -> float:
    """log of the likelihood ratio: one of the sums, any of them as likely, has 1 more."""
    exponents = (2 * sums[:, 0] - 1) / (2 * plan.noise_multiplier**2)
    return float(logsumexp(exponents) - np.log(len(sums)))
