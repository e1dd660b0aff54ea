"""All others pull one way, the record the other way: shuffled batches then tell what Poisson batches do not.

Batches that are cut from a shuffled list have exactly B rows, and the record is in exactly one of them. If every other
row pulls by -C, each sum is known to be -B C but for the record's batch, where it is (2 - B) C; without the record the
last batch has one row less. Under Poisson sampling the others' own coins hide all of that. (Chua et al. 2024 and
Annamalai et al. 2024 audit with such data.) Under random allocation, where the record is in one batch of every epoch
too, the others' own draws hide it: each batch has as many of them as it happens to get.
"""

import numpy as np
import torch
from scipy.special import logsumexp

from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums, pulled
from decrescendo.audit.probe import STEEPNESS
from decrescendo.plans import Plan, PoissonSampling, RandomAllocation

_BATCH = 2


def opposed(budget: Budget, *, steps: int = 8, allocated: bool = False) -> Attack:
    """One pass over ``2 steps`` rows of which one pulls against the rest.

    Args:
        budget: of the plan, whose noise is constant.
        steps: T >= 2; the sample rate is 1/T. The more steps, the more a shuffled build gives away.
        allocated: random allocation over one epoch, in place of Poisson sampling.

    >>> opposed(Budget(2.0, 1e-5), steps=2).plan.sampling.sample_rate
    0.5
    """
    rows = _BATCH * steps
    sampling = RandomAllocation(rows, steps) if allocated else PoissonSampling(rows, _BATCH)
    pull = torch.full((rows,), -STEEPNESS)
    pull[-1] = STEEPNESS
    return pulled("opposed rows", budget, sampling, pull, _evidence, steps=steps)


def _evidence(sums: Sums, plan: Plan) -> float:
    """log of the likelihood ratio under shuffling: a step with 2 more, anywhere; or the last one with 1 more."""
    more = sums[:, 0] + _BATCH
    variance = plan.noise_multiplier**2
    anywhere = (4 * more - 4) / (2 * variance)
    last = (2 * more[-1] - 1) / (2 * variance[-1])
    return float(logsumexp(anywhere) - np.log(len(more)) - last)
