"""Two rows: a divisor that is not declared tells by the size of the noise how many rows were drawn."""

import numpy as np
import torch

from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums
from decrescendo.audit.probe import Probed, probe_loss
from decrescendo.plans import Plan, PoissonSampling, calibrate
from decrescendo.plans.curves import linear

_COORDINATES = 200


def batch_size(budget: Budget, *, steps: int = 6, moving: bool = False) -> Attack:
    """Rows without gradient, one or two of them, each drawn with probability one half, and 200 weights.

    The sums are zero: all that is released is noise. (sum + noise)/k instead of (sum + noise)/B has another size for
    each number k of rows drawn, which 200 coordinates show: with one row it never changes (an empty batch counts as
    one), with two it does.

    Args:
        budget: of the plan, whose noise is constant.
        steps: T >= 2.
        moving: whether B_t grows, from 0.8 to 1.2, in the place of 1.

    >>> batch_size(Budget(2.0, 1e-5)).plan.sampling.sample_rate
    0.5
    """
    plan = calibrate(
        budget, PoissonSampling(2, 1), steps=steps, privacy=[1.0] * steps, clip=[1.0] * steps,
        batch=linear(0.8, 1.2) if moving else None,
    )  # fmt: skip
    data = (torch.zeros(2), torch.zeros(2, dtype=torch.long))
    return Attack("batch size", plan, data, lambda: Probed(None, _COORDINATES), probe_loss, _evidence)


def _evidence(sums: Sums, plan: Plan) -> float:
    """By how much the size of the noise on the mean, over z_t, differs between steps: of one divisor, it does not.

    B_t is public in both worlds, and in proportion: its differences between steps are the same in both.
    """
    means = sums / (plan.batch_size * plan.noise_multiplier)[:, None]
    sizes = np.log(np.mean(np.square(means), axis=1) + 1e-300)
    return float(sizes.max() - sizes.min())
