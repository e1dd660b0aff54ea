"""Filters that add up costs against a limit, without rounding: all but their name, their limit and their price."""

import math
import os
from collections.abc import Callable
from fractions import Fraction
from threading import Lock
from typing import Any

from decrescendo.accounting.budget import Budget, Guarantee, check_one_example
from decrescendo.accounting.filters.protocol import Granted, Refused
from decrescendo.accounting.release import Release
from decrescendo.errors import (
    AccountingError,
    ImpossibleBudget,
    InvalidValue,
    check_instance,
    check_integer,
    check_real,
)

# Closed-form limits are a few operations on floats: each is off by less than 1e-15 of its largest term. A limit is
# lowered by this share, so that it is never above the exact one: the hair by which a schedule that was made to spend
# the whole budget exactly may be refused its last step.
SAFE = 1e-13
# Far beyond any promise; squares of it are still numbers.
LARGEST_EPSILON = 1e100
# The search for the smallest noise multiplier ends within this share of it.
NARROW = 1e-14
_LARGEST, _SMALLEST = 2.0**500, 2.0**-500


class MeteredFilter:
    """A `Filter` that keeps an exact sum of costs at or below a limit.

    Costs are floats, each rounded up where it was computed; their sum is kept as a fraction, so nothing is rounded
    between the steps, however many and however small they are. Several threads may ask: what is compared with the limit
    is what is then written down, one request after the other. Other processes may not, forked or given it by a pickle.

    Args:
        budget: what everything that is granted may spend together.
        name: in guarantees, with what was fixed in advance.
        limit: the budget in the filter's own unit, rounded down where it was computed.
        price: the cost of one release, its count left aside, from its sample rate and noise multiplier, rounded up;
            infinite without noise.
    """

    def __init__(self, budget: Budget, name: str, limit: float, price: Callable[[float, float], float]) -> None:
        check_one_example(budget, "a filter")
        if not (limit > 0 and math.isfinite(limit)):
            raise ImpossibleBudget(
                f"a budget must allow some release, got a limit of {limit:.3g} for epsilon={budget.epsilon:g}, "
                f"delta={budget.delta:g}. Give a larger one"
            )
        self._budget, self._name, self._price = budget, name, price
        self._limit, self._spent = Fraction(limit), Fraction(0)
        self._lock, self._owner = Lock(), os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock: a copy has a sum and a lock of its own, and the owner of what it was made from."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = Lock()

    @property
    def name(self) -> str:
        """Name in guarantees, with what was fixed in advance."""
        return self._name

    @property
    def budget(self) -> Budget:
        """What all granted releases together may spend."""
        return self._budget

    @property
    def guarantee(self) -> Guarantee:
        """The whole budget, whatever was spent: see `Filter`."""
        return Guarantee(self._budget.epsilon, self._budget.delta, self._budget.unit, self._name, "upper")

    @property
    def limit(self) -> float:
        """The budget in the filter's own unit, rounded down."""
        return float(self._limit)

    @property
    def spent(self) -> float:
        """What the granted releases cost together, rounded up."""
        return round_up(self._spent)

    @property
    def remaining(self) -> float:
        """What is left, rounded down."""
        return round_down(self._limit - self._spent)

    def cost(self, release: Release) -> float:
        """What ``release`` would cost, all its repetitions together, rounded up; infinite without noise."""
        exact = self._cost(release)
        return math.inf if exact is None else round_up(exact)

    def _cost(self, release: Release) -> Fraction | None:
        """The same, without rounding but that of one repetition's price; ``None`` without noise."""
        check_instance("release", release, Release)
        if release.steps_per_epoch:
            raise AccountingError(
                f"{self._name} grants releases of Poisson batches only, got {release}. Take PoissonSampling"
            )
        if release.bands > 1:
            raise AccountingError(
                f"{self._name} grants releases of independent noise only, got {release}: the noise of correlated steps "
                "is fixed before the run. Take bands=1"
            )
        if release.overflow:
            raise AccountingError(
                f"{self._name} grants releases of batches of any size only, got {release}. Leave max_batch_size out"
            )
        each = self._price(release.sample_rate, release.noise_multiplier)
        return None if math.isinf(each) else Fraction(each) * release.count

    def request(self, release: Release) -> Granted | Refused:
        """Ask for ``release`` before anything of it is computed; granted, it is spent. What fits exactly is granted.

        Raises:
            InvalidValue: in another process than the one that made it.
        """
        if os.getpid() != self._owner:
            raise InvalidValue(
                "a filter must be asked in the process that made it, got another one: each process would spend the "
                "whole budget. Train in one process, in threads, or share the budget out among filters of their own"
            )
        exact = self._cost(release)
        cost = math.inf if exact is None else round_up(exact)
        with self._lock:  # without it two threads that find the same room both take it
            if exact is None or self._spent + exact > self._limit:
                return Refused(release, cost, self.remaining)
            self._spent += exact  # as many single requests come to this sum too
            return Granted(release, cost, self.remaining)

    def smallest_noise_multiplier(self, sample_rate: float, steps: int = 1) -> float:
        """The smallest z with which ``steps`` releases still fit, rounded up; infinite when nothing does."""
        rate = check_real("sample_rate", sample_rate, above=0, at_most=1)
        count, left = check_integer("steps", steps, at_least=1), self._limit - self._spent

        def fits(z: float) -> bool:
            each = self._price(rate, z)
            return math.isfinite(each) and Fraction(each) * count <= left

        low, high = _SMALLEST, _LARGEST
        if not fits(high):
            return math.inf
        if fits(low):
            return low
        while high / low > 1 + NARROW:  # in logarithms while the ends are far apart
            middle = math.sqrt(low) * math.sqrt(high) if high / low > 2 else (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high

    def __repr__(self) -> str:
        return f"<{self.name}, spent {self.spent:.6g} of {self.limit:.6g}>"


def checked_budget(budget: Budget) -> Budget:
    """The budget, or an error if it is none."""
    check_instance("budget", budget, Budget)
    if budget.epsilon > LARGEST_EPSILON:
        raise ImpossibleBudget(
            f"a filter's budget must have epsilon <= {LARGEST_EPSILON:g}, got epsilon={budget.epsilon:g}, which "
            "promises nothing. Give a smaller one"
        )
    return budget


def round_up(exact: Fraction) -> float:
    """The smallest float that is not below ``exact`` >= 0; infinite beyond the largest.

    >>> round_up(Fraction(1, 10)) >= Fraction(1, 10) > round_down(Fraction(1, 10))
    True
    """
    try:
        value = float(exact)
    except OverflowError:
        return math.inf
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def round_down(exact: Fraction) -> float:
    """The largest float that is not above ``exact`` >= 0."""
    value = float(exact)
    return value if Fraction(value) <= exact else math.nextafter(value, -math.inf)
