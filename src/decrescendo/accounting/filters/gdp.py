"""A filter in Gaussian differential privacy, for releases that everybody takes part in."""

import math
from fractions import Fraction
from typing import final

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.filters.metered import SAFE, MeteredFilter, checked_budget, round_up
from decrescendo.accounting.gaussian import log_delta, mu_of
from decrescendo.errors import AccountingError

# `log_delta` is right to 2e-13 relative in delta.
_LOG_DELTA_ERROR = 1e-12


@final
class GdpFilter(MeteredFilter):
    """Grants releases while sum 1/z_t^2 <= mu^2, with mu from (epsilon, delta) by `mu_of`.

    Args:
        budget: what everything that is granted may spend together.

    Guarantee: `guarantee`, that is the budget, for noise multipliers chosen by any rule from the outputs so far.

    Raises:
        AccountingError: (when asked) a release with sample_rate < 1, which would be billed as a full one; take
            `RenyiFilter`.

    >>> from decrescendo.accounting.release import Release
    >>> filter = GdpFilter(Budget(4.0, 1e-8))
    >>> round(filter.smallest_noise_multiplier(1.0, steps=100), 3)
    13.956
    >>> filter.request(Release(1.0, 0.5))
    Refused(release=Release(sample_rate=1.0, noise_multiplier=0.5, count=1, ...), cost=4.0, remaining=0.513...)
    """

    def __init__(self, budget: Budget) -> None:
        checked_budget(budget)
        mu = mu_of(budget.epsilon, budget.delta)
        # The root search and the curve have errors of their own: step down until the curve is below delta for sure.
        margin = SAFE
        while float(log_delta(budget.epsilon, mu)) > math.log(budget.delta) - _LOG_DELTA_ERROR:
            mu *= 1 - margin
            margin *= 2
        MeteredFilter.__init__(self, budget, "GdpFilter", mu * mu * (1 - SAFE), _squared_mu)


def _squared_mu(sample_rate: float, noise_multiplier: float) -> float:
    if sample_rate < 1:
        raise AccountingError(
            f"GdpFilter grants releases with sample_rate=1 only, got sample_rate={sample_rate:.6g}. "
            "Use RenyiFilter, which counts what sampling saves"
        )
    return math.inf if noise_multiplier == 0 else round_up(1 / Fraction(noise_multiplier) ** 2)
