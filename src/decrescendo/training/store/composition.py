"""Rules for the total cost of several runs, valid also if a run is planned after seeing another's result."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias, final

from decrescendo.accounting import Budget, Ledger, Pld, Release, RenyiFilter, Truncated, rounded
from decrescendo.accounting.rdp import round_down, round_up
from decrescendo.errors import InvalidValue, check_instance
from decrescendo.plans.agreement import Agreement

_KINDS = 16  # noise multipliers and rates that `RenyiSum.can_be_cost_of` tells apart
# The factor within which versions of an accountant without a lower bound agree.
_NEAR = 0.99
# The cost of one run, in the units of its rule; fractions, so that sums are exact.
Cost = tuple[Fraction, ...]


class Reserved(NamedTuple):
    """The reservation of one run: its cost, and its planned releases (empty for an adaptive run)."""

    cost: Cost
    ledger: Ledger


@final
class Sum:
    """Epsilons add up, and deltas: the (epsilon_i, delta_i) that `Pld` certifies for each whole plan.

    Holds for plans chosen after looking at other runs' results (basic composition is a filter: Rogers, Roth, Ullman and
    Vadhan 2016), and for runs at the same time (Haney et al. 2023). The most expensive rule for many runs, exact for
    one.
    """

    name = "sum"

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def cost(self, agreed: Agreement) -> Cost:
        """(epsilon, delta) of the run; certified here, whatever guarantee the plan states."""
        whole = agreed.price(Pld())
        if whole.epsilon == float("inf"):
            raise InvalidValue("a run in a store must have noise, got a plan whose epsilon is infinite")
        return Fraction(whole.epsilon), Fraction(whole.delta)

    def can_be_cost_of(self, agreed: Agreement, cost: Cost) -> bool:
        """Whether delta is the plan's, and epsilon is not below the plan's own lower bound. A plan without a
        bound is certified again, as is one whose guarantee exceeds the cost."""
        if len(cost) != 2 or cost[1] != Fraction(agreed.budget.delta):
            return False
        lower = agreed.guarantee.epsilon_lower
        if lower is not None and lower <= cost[0]:
            return True
        whole = agreed.price(Pld())
        return cost[0] >= (_NEAR * whole.epsilon if whole.epsilon_lower is None else whole.epsilon_lower)

    def fits(self, runs: Sequence[Reserved]) -> bool:
        """Whether both sums stay within the budget, computed exactly in decimals."""
        epsilon, delta = self._left(runs)
        return epsilon >= 0 and delta >= 0

    def describe(self, runs: Sequence[Reserved]) -> str:
        """The total cost and what is left, as text."""
        spent = ", ".join(rounded(float(_sum(runs, part, _written)), "up") for part in (0, 1))
        rest = ", ".join(rounded(float(part), "down") for part in self._left(runs))
        return (
            f"reserved ({spent}), left ({rest}) of "
            f"({self._budget.epsilon:g}, {self._budget.delta:g}); epsilons and deltas of runs add up"
        )

    def _left(self, runs: Sequence[Reserved]) -> Cost:
        given = Fraction(self._budget.epsilon), Fraction(self._budget.delta)
        return tuple(_written(whole) - _sum(runs, part, _written) for part, whole in enumerate(given))


@final
class RenyiSum:
    """Renyi divergences at one order, fixed when the store is made, add up (Feldman and Zrnic 2021).

    Holds as `Sum` does. Cheaper for many runs, if their total cost is near that for which the order was chosen.
    """

    def __init__(self, budget: Budget, order: int) -> None:
        self._filter = RenyiFilter(budget, order)
        self.name = f"renyi:{order}"

    def cost(self, agreed: Agreement) -> Cost:
        """The divergence of the whole run, rounded up."""
        if agreed.planned is None:
            raise InvalidValue(
                "a run whose noise is decided during the run must be in a store that adds epsilons, got one by Renyi. "
                'Make the store with composition="sum"'
            )
        if agreed.planned.is_banded:
            raise InvalidValue(
                "a run whose noise is correlated must be in a store that adds epsilons, got one by Renyi, for which "
                'there is no theorem here. Make the store with composition="sum"'
            )
        for release in agreed.planned.distinct():
            if release.steps_per_epoch:
                raise InvalidValue(
                    "a run whose records take part once an epoch must be in a store that adds epsilons, got one by "
                    'Renyi, for which there is no theorem here. Make the store with composition="sum"'
                )
            if release.overflow:
                raise InvalidValue(
                    "a run with truncated batches must be in a store that adds epsilons, got one by Renyi, which has "
                    'no delta to pay the cut with. Make the store with composition="sum"'
                )
        return (self._total(agreed.planned),)

    def can_be_cost_of(self, agreed: Agreement, cost: Cost) -> bool:
        """Whether the cost is at least that of the plan with noise rounded up and rates rounded down to a few
        values: a lower bound that is quick to compute."""
        quieter = planned.with_noise(lambda z: round_up(z, _KINDS)) if (planned := agreed.planned) else Ledger()
        fewer = quieter.with_rates(lambda p: round_down(p, _KINDS))
        return len(cost) == 1 and cost[0] >= self._total(fewer)

    def _total(self, ledger: Ledger) -> Fraction:
        total = Fraction(0)
        for release in ledger.distinct():
            price = self._filter.cost(Release(release.sample_rate, release.noise_multiplier))
            if price == math.inf:
                raise InvalidValue("a run in a store must have noise, got a plan with a release without any")
            total += Fraction(price) * release.count
        return total

    def fits(self, runs: Sequence[Reserved]) -> bool:
        return _sum(runs, 0) <= Fraction(self._filter.limit)

    def describe(self, runs: Sequence[Reserved]) -> str:
        share = 100 * float(_sum(runs, 0) / Fraction(self._filter.limit))
        spent, rest = rounded(share, "up"), rounded(100 - share, "down")
        budget = self._filter.budget
        return (
            f"reserved {spent} %, left {rest} % of ({budget.epsilon:g}, {budget.delta:g}); "
            f"Renyi divergences of order {self._filter.order} of runs add up"
        )


@final
class Declared:
    """All runs as one: `Pld` accounts for their releases together. All must be registered before any of them
    releases.

    The cheapest rule, and the strictest: a plan made after looking at a result is not covered by it, and is refused.
    """

    name = "declared"

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def cost(self, agreed: Agreement) -> Cost:
        """Zero: only all runs together have a cost."""
        if agreed.planned is None:
            raise InvalidValue(
                "a run whose noise is decided during the run cannot be declared in advance, got an adaptive one. "
                'Make the store with composition="sum"'
            )
        return ()

    def can_be_cost_of(self, agreed: Agreement, cost: Cost) -> bool:
        """Whether ``cost`` is empty: no run has a cost of its own."""
        del agreed
        return not cost

    def fits(self, runs: Sequence[Reserved]) -> bool:
        return self._epsilon(runs) <= self._budget.epsilon

    def describe(self, runs: Sequence[Reserved]) -> str:
        return (
            f"reserved ({rounded(self._epsilon(runs), 'up', 6)}, {self._budget.delta:g}) of ({self._budget.epsilon:g}, "
            f"{self._budget.delta:g}); all runs composed together, declared before the first release"
        )

    def _epsilon(self, runs: Sequence[Reserved]) -> float:
        joint = sum((run.ledger for run in runs), Ledger())
        if joint.is_allocated and (joint.steps_per_epoch == 0).any():
            raise InvalidValue(
                "runs that are composed together must all draw Poisson batches, or all have each record once an epoch, "
                'got both. Make the store with composition="sum"'
            )
        if sum(run.ledger.is_banded for run in runs) > 1:
            raise InvalidValue(
                "of runs that are composed together at most one must have correlated noise, got several: each draws "
                'its own groups of records. Make the store with composition="sum"'
            )
        return Truncated().certify(joint, self._budget).epsilon if len(joint) else 0.0


def _sum(runs: Sequence[Reserved], part: int, read: Callable[[Fraction], Fraction] = Fraction) -> Fraction:
    return sum((read(run.cost[part]) for run in runs), Fraction(0))


def _written(number: Fraction) -> Fraction:
    """A float as its shortest decimal: the decimals 1e-5 and 2e-5 add up to 3e-5, the floats to a little more.

    >>> _written(Fraction(1e-5)) + _written(Fraction(2e-5)) == _written(Fraction(3e-5))
    True
    """
    return Fraction(repr(float(number)))


# The total cost of runs, compared with one budget by one of three rules; its name is stored, with fixed parameters.
Composition: TypeAlias = Sum | RenyiSum | Declared


def composition(name: str, budget: Budget) -> Composition:
    """The rule by its name: ``sum``, ``renyi:ORDER`` or ``declared``.

    >>> composition("renyi:16", Budget(1.0, 1e-5)).name
    'renyi:16'
    """
    check_instance("composition", name, str)
    kind, _, order = name.partition(":")
    if kind == "renyi" and order.isdecimal() and len(order) < 9:
        return RenyiSum(budget, int(order))
    if name == "sum":
        return Sum(budget)
    if name == "declared":
        return Declared(budget)
    raise InvalidValue(
        f"composition must be sum, renyi:ORDER or declared, got {name!r}. "
        "sum is right for a few runs; renyi:16, say, for many"
    )
