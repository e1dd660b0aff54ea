"""What filters that add up costs have in common: all but their name, their limit and their price."""

from abc import ABC, abstractmethod

from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.accounting.filters.meter import Meter
from decrescendo.accounting.filters.protocol import Granted, Refused
from decrescendo.accounting.ledger import Release
from decrescendo.errors import check_integer, check_real


class MeteredFilter(ABC):
    """A `Filter` whose constructor sets a budget and a meter."""

    __slots__ = ("_budget", "_meter")

    _budget: Budget
    _meter: Meter

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in guarantees, with what was fixed in advance."""

    @property
    def budget(self) -> Budget:
        """What all granted releases together may spend."""
        return self._budget

    @property
    def guarantee(self) -> Guarantee:
        """The whole budget, whatever was spent: see `Filter`."""
        return Guarantee(self._budget.epsilon, self._budget.delta, self._budget.unit, self.name, "upper")

    @property
    def limit(self) -> float:
        """The budget in the filter's own unit, rounded down."""
        return self._meter.limit

    @property
    def spent(self) -> float:
        """What the granted releases cost together, rounded up."""
        return self._meter.spent

    @property
    def remaining(self) -> float:
        """What is left, rounded down."""
        return self._meter.remaining

    def cost(self, release: Release) -> float:
        """What ``release`` would cost, all its repetitions together, rounded up; infinite without noise."""
        return self._meter.cost(release)

    def request(self, release: Release) -> Granted | Refused:
        """Ask for ``release`` before anything of it is computed; granted, it is spent."""
        return self._meter.request(release)

    def smallest_noise_multiplier(self, sample_rate: float, steps: int = 1) -> float:
        """The smallest z with which ``steps`` releases still fit, rounded up; infinite when nothing does."""
        rate = check_real("sample_rate", sample_rate, above=0, at_most=1)
        return self._meter.smallest(rate, check_integer("steps", steps, at_least=1))

    def __repr__(self) -> str:
        return f"<{self.name}, spent {self.spent:.6g} of {self.limit:.6g}>"
