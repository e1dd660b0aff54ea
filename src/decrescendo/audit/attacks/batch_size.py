"""Two rows: a divisor that is not declared tells by the size of the noise how many rows were drawn."""

import numpy as np
import torch

from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums
from decrescendo.audit.probe import Probed, probe_loss
from decrescendo.plans import Plan, PoissonSampling, calibrate

_COORDINATES = 200


def batch_size(budget: Budget, *, steps: int = 6) -> Attack:
    """Rows without gradient, one or two of them, each drawn with probability one half, and 200 weights.

    The sums are zero: all that is released is noise. (sum + noise)/k instead of (sum + noise)/B has another size for
    each number k of rows drawn, which 200 coordinates show: with one row it never changes (an empty batch counts as
    one), with two it does.

    Args:
        budget: of the plan, whose noise is constant.
        steps: T >= 2.

    >>> batch_size(Budget(2.0, 1e-5)).plan.sampling.sample_rate
    0.5
    """
    plan = calibrate(budget, PoissonSampling(2, 1), steps=steps, privacy=[1.0] * steps, clip=[1.0] * steps)
    data = (torch.zeros(2), torch.zeros(2, dtype=torch.long))
    return Attack("batch size", plan, data, lambda: Probed(None, _COORDINATES), probe_loss, _evidence)


def _evidence(sums: Sums, plan: Plan) -> float:
    """By how much the size of the noise differs between steps: no function of B, which is public in both worlds."""
    sizes = np.log(np.mean(np.square(sums), axis=1) / np.square(plan.noise_multiplier) + 1e-300)
    return float(sizes.max() - sizes.min())
