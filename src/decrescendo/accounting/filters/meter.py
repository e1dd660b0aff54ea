"""Adding up costs against a limit without rounding: what all filters are made of."""

import math
from collections.abc import Callable
from fractions import Fraction
from threading import Lock
from typing import final

from decrescendo.accounting.filters.protocol import Granted, Refused
from decrescendo.accounting.ledger import Release
from decrescendo.errors import check_instance

# The search for the smallest noise multiplier ends within this share of it.
NARROW = 1e-14
_LARGEST, _SMALLEST = 2.0**500, 2.0**-500


@final
class Meter:
    """An exact sum of costs that stays at or below a limit.

    Costs are floats, each rounded up where it was computed; their sum is kept as a fraction, so nothing is rounded
    between the steps, however many and however small they are. Several threads may ask: what is compared with the limit
    is what is then written down, one request after the other.

    Args:
        limit: > 0, rounded down where it was computed.
        price: the cost of one release, its count left aside, rounded up; infinite without noise.
    """

    __slots__ = ("_limit", "_lock", "_price", "_spent")

    def __init__(self, limit: float, price: Callable[[float, float], float]) -> None:
        self._limit, self._spent, self._price = Fraction(limit), Fraction(0), price
        self._lock = Lock()

    def __getstate__(self) -> tuple[Fraction, Fraction, Callable[[float, float], float]]:
        """All but the lock: a copy, or what comes out of a pickle, has a sum and a lock of its own."""
        return self._limit, self._spent, self._price

    def __setstate__(self, state: tuple[Fraction, Fraction, Callable[[float, float], float]]) -> None:
        self._limit, self._spent, self._price = state
        self._lock = Lock()

    @property
    def limit(self) -> float:
        """The limit."""
        return float(self._limit)

    @property
    def spent(self) -> float:
        """The sum, rounded up."""
        return round_up(self._spent)

    @property
    def remaining(self) -> float:
        """Limit less sum, rounded down."""
        return round_down(self._limit - self._spent)

    def cost(self, release: Release) -> float:
        """Of all the repetitions, rounded up."""
        check_instance("release", release, Release)
        each = self._price(release.sample_rate, release.noise_multiplier)
        return math.inf if math.isinf(each) else round_up(Fraction(each) * release.count)

    def request(self, release: Release) -> Granted | Refused:
        """Grant what fits: sum + cost <= limit, in exact arithmetic. Equality fits."""
        cost = self.cost(release)
        with self._lock:  # without it two threads that find the same room both take it
            if not math.isfinite(cost) or self._spent + Fraction(cost) > self._limit:
                return Refused(release, cost, self.remaining)
            self._spent += Fraction(cost)
            return Granted(release, cost, self.remaining)

    def smallest(self, sample_rate: float, steps: int) -> float:
        """The smallest noise multiplier with which ``steps`` releases fit one by one; infinite if none does."""
        left = self._limit - self._spent

        def fits(z: float) -> bool:
            each = self._price(sample_rate, z)
            return math.isfinite(each) and Fraction(each) * steps <= left

        low, high = _SMALLEST, _LARGEST
        if not fits(high):
            return math.inf
        if fits(low):
            return low
        while high / low > 1 + NARROW:  # in logarithms while the ends are far apart
            middle = math.sqrt(low) * math.sqrt(high) if high / low > 2 else (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high


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
