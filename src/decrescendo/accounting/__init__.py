"""Accountants: what a ledger of releases costs. NumPy and SciPy only; nothing here imports torch.

==============  =========  =========================================================================
Accountant      Kind       For
==============  =========  =========================================================================
`Pld`           upper      anything: thousands of different sampled Gaussian steps, a certified bracket
`Gaussian`      exact      releases that everybody takes part in (sample_rate 1)
`Selection`     upper      the best of a random number of trials: what a search on private data costs
`Allocated`     upper      batches in which each record takes part once an epoch, by a bin of its own
`Truncated`     any        truncated batches, accounted by any of the others
`Rdp`           upper      Renyi; looser; the field's older default
`Zcdp`          upper      rho-zCDP without amplification; Hong et al.'s budgets, Yu et al.'s baseline
`Tcdp`          estimate   Zhang et al.'s baseline
`GdpClt`        estimate   Du et al.'s central limit theorem: to reproduce the paper, never to promise
==============  =========  =========================================================================

They judge noise that was fixed in advance. For noise that is decided as the run goes there are `filters`. What else is
known of each is in `table`. Names load when they are first touched, so that the command line's help stays quick.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from decrescendo.accounting.table import KNOWN

if TYPE_CHECKING:
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
    from decrescendo.accounting.ledger import Ledger
    from decrescendo.accounting.overflow import smallest_cap
    from decrescendo.accounting.pld import Pld
    from decrescendo.accounting.protocol import Accountant, check_poisson
    from decrescendo.accounting.rdp import Rdp
    from decrescendo.accounting.release import Release
    from decrescendo.accounting.selection import Selection, Trials
    from decrescendo.accounting.trade_off_curve import trade_off
    from decrescendo.accounting.truncated import Truncated

_HOMES = {
    "budget": ("Bound", "Budget", "Guarantee", "Unit", "rounded"),
    "concentrated": ("rho_of",),
    "epsilon_curve": ("EpsilonCurve",),
    "filters": ("Filter", "GdpFilter", "Granted", "Refused", "RenyiFilter", "ZcdpFilter", "best_order"),
    "gaussian": ("delta_of", "epsilon_of", "mu_of"),
    "gdp": ("clt_mu",),
    "ledger": ("Ledger", "Release"),
    "overflow": ("smallest_cap",),
    "protocol": ("Accountant", "check_poisson"),
    "selection": ("Trials",),
    "trade_off_curve": ("trade_off",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_HOME_OF |= {name: known.file for name, known in KNOWN.items()}

__all__ = [
    "Budget", "Guarantee", "Bound", "Unit", "rounded", "Release", "Ledger", "EpsilonCurve", "Accountant", "Pld",
    "Gaussian", "Rdp", "Zcdp", "Tcdp", "GdpClt", "Selection", "Trials", "Filter", "Granted", "Refused", "RenyiFilter",
    "GdpFilter", "ZcdpFilter", "best_order", "clt_mu", "delta_of", "epsilon_of", "mu_of", "rho_of",
    "trade_off", "Allocated", "Truncated", "smallest_cap", "check_poisson",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        found = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = found
        return found
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")  # a file of this room
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
