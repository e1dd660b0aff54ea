"""A clip norm that follows how many gradients were not clipped tells that number, if the count has no noise."""

import numpy as np
import torch

from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums, pulled
from decrescendo.audit.probe import STEEPNESS
from decrescendo.plans import Plan, PoissonSampling
from decrescendo.training.steering import QuantileClip

_PAIRS = 50
_QUANTILE, _RATE = 0.5, 0.2


def _follow(plan: Plan) -> QuantileClip:
    return QuantileClip(plan, quantile=_QUANTILE, rate=_RATE, share=0.5)


def counted(budget: Budget, *, steps: int = 3) -> Attack:
    """50 rows that are clipped, 50 that have no gradient, and a record that is clipped; all are in every batch.

    The plan is run with `QuantileClip`. The clip norm of a step says what the count before it was: half of the others,
    to which the record adds one that is clipped.

    Args:
        budget: of the plan, whose noise is constant.
        steps: T >= 2.

    >>> counted(Budget(2.0, 1e-5)).plan.sampling.sample_rate
    1.0
    """
    rows = 2 * _PAIRS + 1
    pull = torch.zeros(rows)
    pull[_PAIRS:] = STEEPNESS
    sampling = PoissonSampling(rows, rows)
    return pulled("count for the clip norm", budget, sampling, pull, _evidence, steps=steps, follow=_follow)


def _evidence(sums: Sums, plan: Plan) -> float:
    """How many more were clipped than not, twice over and with the count's noise, from the clip norms that followed.

    C_t stops moving where the noisy share is 0 or 1, which is B/2 and so another number without the record: what
    lies near is cut off, for B is public.
    """
    del sums
    share = _QUANTILE - np.diff(np.log(plan.clip_norm)) / _RATE
    more = (0.5 - share) * plan.batch_size[:-1]
    return float(np.clip(more, 1 - _PAIRS, _PAIRS - 1).sum())
