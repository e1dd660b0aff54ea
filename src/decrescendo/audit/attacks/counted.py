"""A clip norm that follows how many gradients were not clipped tells that number, if it was released without noise."""

import numpy as np
import torch

from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums, pulled
from decrescendo.audit.probe import STEEPNESS
from decrescendo.clipping import Telemetry
from decrescendo.plans import Plan, PoissonSampling
from decrescendo.training.steering import ClipController

_PAIRS = 50
_TARGET, _RATE = 0.5, 0.2


def _follow(plan: Plan) -> ClipController:
    return ClipController(plan, "quantile", target=_TARGET, rate=_RATE)


def counted(budget: Budget, *, steps: int = 3) -> Attack:
    """50 rows that are clipped, 50 that have no gradient, and a record that has none; all are in every batch.

    The plan is run with `ClipController`. The clip norm of a step says what the share of unclipped rows before it was:
    half of the others, to which the record adds one.

    Args:
        budget: of the plan, whose noise is constant.
        steps: T >= 2.

    >>> counted(Budget(2.0, 1e-5)).plan.sampling.sample_rate
    1.0
    """
    rows = 2 * _PAIRS + 1
    pull = torch.zeros(rows)
    pull[:_PAIRS] = STEEPNESS
    name, telemetry = "count for the clip norm", Telemetry(norms=2)
    sampling = PoissonSampling(rows, rows)
    return pulled(name, budget, sampling, pull, _evidence, steps=steps, follow=_follow, telemetry=telemetry)


def _evidence(sums: Sums, plan: Plan) -> float:
    """How many more were not clipped than clipped, by the clip norms that followed.

    C_t stops moving where the noisy share is 0 or 1, which is B/2 and so another number without the record: what
    lies near is cut off, for B is public.
    """
    del sums
    share = _TARGET - np.diff(np.log(plan.clip_norm)) / _RATE
    more = (share - 0.5) * plan.batch_size[:-1]
    return float(np.clip(more, 1 - _PAIRS, _PAIRS - 1).sum())
