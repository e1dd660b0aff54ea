"""Privacy filters: budgets for noise that is decided as the run goes.

An accountant judges a list of releases that was fixed in advance. When a noise multiplier depends on what was released
before, its sum is no guarantee; a filter's budget is. A filter is asked *before* each release and refuses what does
not fit.

==============  ===========================================  ==================================================
Filter          Cost of a Gaussian step                      For
==============  ===========================================  ==================================================
`RenyiFilter`   Renyi divergence at one order fixed before   sampled batches, and whatever else
`GdpFilter`     1/z^2                                        full batches (sample_rate 1): the largest budget
`ZcdpFilter`    1/(2 z^2), sampled or not                    full batches; Hong et al., Algorithm 1
==============  ===========================================  ==================================================

There is no filter for `Pld`: the composition of privacy loss distributions is proved for noise multipliers that were
fixed in advance.

Source: Rogers, Roth, Ullman and Vadhan 2016 (filters); Feldman and Zrnic 2021 (Renyi, and with it zCDP); Smith and
Thakurta 2022, Koskela, Tobaben and Honkela 2023 (Gaussian DP); Hong et al., Algorithm 1.
"""

from decrescendo.accounting.filters.gdp import GdpFilter
from decrescendo.accounting.filters.protocol import Filter, Granted, Refused
from decrescendo.accounting.filters.renyi import RenyiFilter, best_order
from decrescendo.accounting.filters.zcdp import ZcdpFilter

__all__ = ["Filter", "GdpFilter", "Granted", "Refused", "RenyiFilter", "ZcdpFilter", "best_order"]
