"""A filter in Renyi differential privacy at one order, fixed in advance: sampled steps too."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import final

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.filters.metered import SAFE, MeteredFilter, checked_budget, round_up
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.rdp import round_down as onto_few
from decrescendo.accounting.renyi_orders import whole_moment
from decrescendo.errors import ImpossibleBudget, InvalidValue, check_instance, check_integer

ORDERS: tuple[int, ...] = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 768, 1024)
LARGEST_ORDER = 2**14
# Sums of positive terms, each from logarithms of some 1e4: off by 1e-12 at order 1024, measured against 60 digits.
_ERROR = 1e-10
_FEW = 32


@final
class RenyiFilter(MeteredFilter):
    """Grants releases while the sum of their Renyi divergences at ``order`` stays within the budget's.

    The budget's divergence is r = epsilon - log(1 - 1/a) + log(a delta)/(a - 1) at the order a (Canonne, Kamath and
    Steinke 2020, Proposition 12). A full step costs a/(2 z^2), a sampled one log(A)/(a - 1) with (Mironov, Talwar and
    Zhang 2019) A = 1 + sum_{k=2..a} C(a, k) (1-p)^(a-k) p^k (exp(k(k-1)/(2 z^2)) - 1), which holds for both neighbour
    directions. All terms are positive: written so, tiny steps do not drown in rounding.

    Args:
        budget: what everything that is granted may spend together.
        order: whole number from 2 to 16384, chosen before the run from public facts; `best_order` helps. The
            guarantee holds for every order; a badly chosen one grants less.

    Guarantee: `guarantee`, that is the budget, for noise multipliers (and sample rates) chosen by any rule from the
        outputs so far (Feldman and Zrnic 2021). The order may not be chosen so: it is fixed here.

    Raises:
        ImpossibleBudget: the order is too small for the budget: even no release at all would exceed it.

    >>> from decrescendo.accounting.release import Release
    >>> filter = RenyiFilter(Budget(1.0, 1e-5), order=16)
    >>> filter.request(Release(0.01, 1.5, count=500))
    Granted(release=Release(sample_rate=0.01, noise_multiplier=1.5, count=500, ...), cost=..., remaining=...)
    >>> print(filter.guarantee)
    (1, 1e-05)-DP per example, RenyiFilter(order=16) upper bound
    """

    def __init__(self, budget: Budget, order: int) -> None:
        checked_budget(budget)
        self._order = checked_order(order)
        limit = renyi_limit(budget, self._order)
        if limit <= 0:
            raise ImpossibleBudget(
                f"order must be large enough that the budget is above the conversion's own cost, got order={order} "
                f"for epsilon={budget.epsilon:g}, delta={budget.delta:g}. Take a larger one: best_order(budget, "
                "expected) finds it"
            )
        name, price = f"RenyiFilter(order={self._order})", partial(renyi_step, self._order)
        MeteredFilter.__init__(self, budget, name, limit, price)

    @property
    def order(self) -> int:
        """The order a, fixed in advance."""
        return self._order


def best_order(budget: Budget, expected: Ledger, *, orders: Sequence[int] = ORDERS) -> int:
    """The order at which an *expected* run uses the smallest share of the budget.

    What is expected must be declared before the run and made of public facts: an order that was chosen by looking at
    what the run does is not covered. Being wrong about it costs privacy nothing, only steps.

    Args:
        budget: of the run.
        expected: the releases that it is expected to make, or something like them, and about as dear as the budget:
            the ledger of a plan that `calibrate` makes for it serves well.
        orders: to choose from.

    Raises:
        ImpossibleBudget: none of the orders is large enough for the budget.

    >>> best_order(Budget(1.0, 1e-5), Ledger.of([1.3] * 500, sample_rate=0.01))
    14
    """
    checked_budget(budget)
    check_instance("expected", expected, Ledger)
    if not len(expected) or (expected.noise_multiplier == 0).any():
        raise InvalidValue(
            f"expected must have releases, all with noise, got {expected!r}. Declare the schedule that you expect"
        )
    # Only a choice: for thousands of different steps a few values tell enough.
    rough = expected.with_noise(lambda z: onto_few(z, _FEW)).distinct()
    best: tuple[float, int] | None = None
    for order in map(checked_order, orders):
        limit = renyi_limit(budget, order)
        if limit <= 0:
            continue
        cost = sum(
            release.count * renyi_step(order, release.sample_rate, release.noise_multiplier) for release in rough
        )
        if best is None or cost / limit < best[0]:
            best = cost / limit, order
    if best is None:
        raise ImpossibleBudget(
            f"orders must have one that is large enough for the budget, got none up to {max(orders, default=0)} for "
            f"epsilon={budget.epsilon:g}, delta={budget.delta:g}. Give larger orders or a larger budget"
        )
    return best[1]


def checked_order(order: object) -> int:
    """A whole order from 2 up."""
    found = check_integer("order", order, at_least=2)
    if found > LARGEST_ORDER:
        raise InvalidValue(f"order must be <= {LARGEST_ORDER}, got order={found}. Such a one helps no usual budget")
    return found


def renyi_limit(budget: Budget, order: int) -> float:
    """r = epsilon - log(1 - 1/a) + log(a delta)/(a - 1), rounded down; not above 0 where the order is too small."""
    terms = budget.epsilon, -math.log1p(-1 / order), (math.log(order) + math.log(budget.delta)) / (order - 1)
    largest = budget.epsilon + terms[1] + (math.log(order) - math.log(budget.delta)) / (order - 1)
    return math.fsum(terms) - SAFE * largest


def renyi_step(order: int, sample_rate: float, noise_multiplier: float) -> float:
    """Renyi divergence of one Poisson-sampled Gaussian step at a whole order, rounded up; infinite without noise."""
    p, z = sample_rate, noise_multiplier
    if z == 0:
        return math.inf
    if p == 1:
        return round_up(order / (2 * Fraction(z) ** 2))
    return math.nextafter(whole_moment(p, z, order) / (order - 1) * (1 + _ERROR), math.inf)
