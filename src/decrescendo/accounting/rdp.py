"""Renyi accounting, through Google's dp-accounting: an upper bound, looser than `Pld`.

Source: Mironov 2017; Mironov, Talwar and Zhang 2019 (the upper bound of Du et al., Figure 4).
"""

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import Bound
from decrescendo.accounting.gaussian import check_delta
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant, check_poisson, with_finite_squares
from decrescendo.errors import check_real

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.rdp import RdpAccountant

_DISTINCT = 64
# Whole orders cost little; of the others, dear to compute, a few serve large epsilons.
_ORDERS = (1.1, 1.25, 1.5, 1.75, 2.25, 2.5, 2.75, 3.5, 4.5, *range(2, 64), 80, 96, 128, 192, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Rdp(Accountant):
    """Upper bound by Renyi differential privacy over a grid of orders.

    More than 64 distinct noise multipliers a sample rate are rounded down onto 64 values (1.6 % apart for a range of
    e), which can only raise the result. Of more than 32 different sample rates each is rounded up onto one of 32 values
    with two noise multipliers: where noise and rate both move this may be far above the truth (`Pld` is not).

    Guarantee: an upper bound.

    >>> Rdp().epsilon(Ledger.of([1.205] * 4_800, sample_rate=250 / 60_000), delta=1 / 600_000)
    Bound(value=1.367..., kind='upper')
    """

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Upper bound on epsilon at ``delta``."""
        check_delta(delta)
        if is_trivial(ledger, self.name):
            return Bound(math.inf if len(ledger) else 0.0, "upper")
        return Bound(float(_composed(ledger).get_epsilon(delta)), "upper")

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Upper bound on delta at ``epsilon``."""
        check_real("epsilon", epsilon, at_least=0)
        if is_trivial(ledger, self.name):
            return Bound(1.0 if len(ledger) else 0.0, "upper")
        return Bound(float(_composed(ledger).get_delta(epsilon)), "upper")


def is_trivial(ledger: Ledger, accountant: str) -> bool:
    """Whether there is nothing to compute: no release, which costs nothing, or one without noise."""
    check_poisson(ledger, accountant)
    return not len(ledger) or bool((with_finite_squares(ledger).noise_multiplier == 0).any())


def _composed(ledger: Ledger) -> "RdpAccountant":
    return accountant_of(event_of(ledger))


def accountant_of(event: "DpEvent") -> "RdpAccountant":
    """dp-accounting's accountant of one event, over the orders used here, the fractional ones from `renyi_orders`.

    An order at which it has no number it leaves out, which is sound; the line it logs of each is not shown.
    """
    from decrescendo.accounting.exact_orders import ExactOrders  # slow to load

    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return ExactOrders(list(_ORDERS)).compose(event)
    finally:
        log.setLevel(level)


def event_of(ledger: Ledger) -> "DpEvent":
    """The ledger in dp-accounting's language; more than 64 distinct noise multipliers a sample rate rounded down; of
    more than 32 rates each rounded up and left with two."""
    import dp_accounting

    steps: list[DpEvent] = []
    # A smaller rate never costs more: rounded up, what many rates cost is a bound.
    many = np.unique(ledger.sample_rate).size > _DISTINCT // 2
    places, own = (_DISTINCT // 2, 2) if many else (_DISTINCT, _DISTINCT)
    distinct = with_finite_squares(ledger).with_rates(lambda rates: round_up(rates, places)).distinct()
    for rate in np.unique(distinct.sample_rate):
        rows = distinct.where(distinct.sample_rate == rate)
        noise, inverse = np.unique(round_down(rows.noise_multiplier, own), return_inverse=True)
        counts = np.bincount(inverse, weights=rows.count)
        for z, count in zip(noise, counts, strict=True):
            step = dp_accounting.PoissonSampledDpEvent(float(rate), dp_accounting.GaussianDpEvent(float(z)))
            steps.append(dp_accounting.SelfComposedDpEvent(step, int(count)))
    return dp_accounting.ComposedDpEvent(steps)


def round_up(values: Float[np.ndarray, " n"], places: int) -> Float[np.ndarray, " n"]:
    """As `round_down`, the other way.

    >>> round_up(np.array([1.0, 2.0, 3.0, 4.0, 8.0]), 4)
    array([1., 2., 4., 4., 8.])
    """
    if np.unique(values).size <= places:
        return values
    return np.clip(1 / round_down(1 / values, places), values, values.max())


def round_down(values: Float[np.ndarray, " n"], places: int) -> Float[np.ndarray, " n"]:
    """Positive values rounded down onto at most ``places`` values, evenly spaced in logarithm; few are left alone.

    >>> round_down(np.array([1.0, 2.0, 3.0, 4.0, 8.0]), 4)
    array([1., 2., 2., 4., 8.])
    """
    if np.unique(values).size <= places:
        return values
    grid = np.geomspace(values.min(), values.max(), places)
    grid[0], grid[-1] = values.min(), values.max()
    return grid[np.searchsorted(grid, values * (1 + 1e-15), side="right") - 1]
