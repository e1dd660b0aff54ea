"""Accountants: what a ledger of releases costs. NumPy and SciPy only; nothing here imports torch.

==============  =========  =========================================================================
Accountant      Kind       For
==============  =========  =========================================================================
`Pld`           upper      anything: thousands of different sampled Gaussian steps, a certified bracket
`Gaussian`      exact      releases that everybody takes part in (sample_rate 1)
`Selection`     upper      the best of a random number of trials: what a search on private data costs
`Allocated`     upper      batches in which each record takes part once an epoch, by a bin of its own
`Truncated`     any        batches that are cut to a largest size, judged by any of the others
`Rdp`           upper      Renyi; looser; the field's older default
`Zcdp`          upper      rho-zCDP without amplification; Hong et al.'s budgets, Yu et al.'s baseline
`Tcdp`          estimate   Zhang et al.'s baseline
`GdpClt`        estimate   Du et al.'s central limit theorem: to reproduce the paper, never to promise
==============  =========  =========================================================================

They judge noise that was fixed in advance. For noise that is decided as the run goes there are `filters`.
"""

from decrescendo.accounting.allocated import Allocated
from decrescendo.accounting.budget import Bound, Budget, Guarantee, Unit, rounded
from decrescendo.accounting.concentrated import Tcdp, Zcdp, rho_of
from decrescendo.accounting.epsilon_curve import EpsilonCurve
from decrescendo.accounting.filters import (
    Filter,
    GdpFilter,
    Granted,
    Refused,
    RenyiFilter,
    ZcdpFilter,
    best_order,
)
from decrescendo.accounting.gaussian import Gaussian, delta_of, epsilon_of, mu_of
from decrescendo.accounting.gdp import GdpClt, clt_mu
from decrescendo.accounting.ledger import Ledger, Release
from decrescendo.accounting.overflow import smallest_cap
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.protocol import Accountant
from decrescendo.accounting.rdp import Rdp
from decrescendo.accounting.selection import Selection, Trials
from decrescendo.accounting.trade_off import trade_off
from decrescendo.accounting.truncated import Truncated

__all__ = [
    "Budget", "Guarantee", "Bound", "Unit", "rounded", "Release", "Ledger", "EpsilonCurve", "Accountant", "Pld",
    "Gaussian", "Rdp", "Zcdp", "Tcdp", "GdpClt", "Selection", "Trials", "Filter", "Granted", "Refused", "RenyiFilter",
    "GdpFilter", "ZcdpFilter", "best_order", "clt_mu", "delta_of", "epsilon_of", "mu_of", "rho_of",
    "trade_off", "Allocated", "Truncated", "smallest_cap",
]  # fmt: skip
