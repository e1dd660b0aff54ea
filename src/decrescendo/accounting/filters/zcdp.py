"""A filter in zero-concentrated differential privacy: Hong et al., Algorithm 1."""

import math
from fractions import Fraction
from typing import final

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.concentrated import rho_of
from decrescendo.accounting.filters.metered import SAFE, MeteredFilter, checked_budget, round_up


@final
class ZcdpFilter(MeteredFilter):
    """Grants releases while sum 1/(2 z_t^2) <= rho, with rho from (epsilon, delta) by `rho_of`.

    A sampled step costs as much as a full one: that is an upper bound, and loose. For sampled batches take
    `RenyiFilter`, for full batches `GdpFilter` grants more.

    Hong et al. print a strict inequality in Algorithm 1, which refuses the last step of a schedule that spends the
    budget exactly; here equality fits, and the sum is exact.

    Args:
        budget: what everything that is granted may spend together.

    Guarantee: `guarantee`, that is the budget, for noise multipliers chosen by any rule from the outputs so far.

    >>> from decrescendo.accounting.release import Release
    >>> filter = ZcdpFilter(Budget(4.0, 1e-8))
    >>> round(filter.limit, 6)
    0.196352
    >>> z = filter.smallest_noise_multiplier(1.0, steps=2)
    >>> [bool(filter.request(Release(1.0, noise))) for noise in (z, 1.0, z, 1e6)]
    [True, False, True, False]
    >>> print(filter.guarantee)
    (4, 1e-08)-DP per example, ZcdpFilter upper bound
    """

    def __init__(self, budget: Budget) -> None:
        checked_budget(budget)
        limit = rho_of(budget.epsilon, budget.delta) * (1 - SAFE)
        MeteredFilter.__init__(self, budget, "ZcdpFilter", limit, _rho)


def _rho(_: float, noise_multiplier: float) -> float:
    """1/(2 z^2), rounded up, at any sample rate."""
    return math.inf if noise_multiplier == 0 else round_up(1 / (2 * Fraction(noise_multiplier) ** 2))
