"""All others pull one way, the record the other way: with truncated batches a record that is drawn pushes one out.

Under Poisson sampling the others' own coins hide the record. Batches that are nearly always cut to the same number of
rows have none: every sum is known, and the record moves it by 2 C, for it brings its own pull and takes another's.
"""

import numpy as np
import torch

from decrescendo.accounting import Ledger, smallest_cap
from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums, pulled
from decrescendo.audit.probe import STEEPNESS
from decrescendo.plans import Plan, PoissonSampling

_ROWS, _RATE = 400, 0.95


def crowded(budget: Budget, *, steps: int = 1, max_batch_size: int | None = None) -> Attack:
    """399 rows and one that pulls against them, each drawn with probability 0.95.

    Args:
        budget: of the plan, whose noise is constant.
        steps: T >= 1.
        max_batch_size: of the plan; by default the least that costs a hundredth of delta.

    A smaller one is planned with as much more noise as it costs.

    >>> crowded(Budget(2.0, 1e-5)).plan.sampling.max_batch_size
    399
    """
    drawn = Ledger.of([1.0] * steps, _RATE)
    cap = smallest_cap(drawn, _ROWS, *(budget.epsilon, budget.delta)) if max_batch_size is None else max_batch_size
    sampling = PoissonSampling(_ROWS, _RATE * _ROWS, cap)
    pull = torch.full((_ROWS,), -STEEPNESS)
    pull[-1] = STEEPNESS
    return pulled("crowded batch", budget, sampling, pull, _evidence, steps=steps)


def _evidence(sums: Sums, plan: Plan) -> float:
    """The sums' sum: whatever they are cut to, the record lifts it; the threshold finds the rest."""
    del plan
    return float(np.sum(sums))
