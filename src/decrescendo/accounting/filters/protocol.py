"""What every filter can do, and its two answers."""

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.accounting.release import Release


@final
@dataclass(frozen=True, slots=True)
class Granted:
    """The release fits, and its cost is spent from now on, whether or not it is made. True as a condition.

    Args:
        release: what was asked for.
        cost: what it costs, rounded up, in the filter's own unit.
        remaining: what is left after it, rounded down.

    >>> bool(Granted(Release(1.0, 4.0), cost=0.03125, remaining=0.5))
    True
    """

    release: Release
    cost: float
    remaining: float

    def __bool__(self) -> bool:
        return True


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """The release does not fit; nothing was spent, and it must not be made. False as a condition.

    Args:
        release: what was asked for.
        cost: what it would cost, rounded up; infinite without noise.
        remaining: what is left, rounded down, as before.

    >>> print(Refused(Release(1.0, 0.5), cost=2.0, remaining=0.25))
    a release with noise_multiplier=0.5 costs 2, more than the 0.25 left
    """

    release: Release
    cost: float
    remaining: float

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        times = f", {self.release.count} times," if self.release.count > 1 else ""
        return (
            f"a release with noise_multiplier={self.release.noise_multiplier:.6g}{times} costs {self.cost:.6g}, "
            f"more than the {self.remaining:.6g} left"
        )


@runtime_checkable
class Filter(Protocol):
    """Guards a budget over releases whose noise may depend on everything released before.

    Every implementation keeps these laws (``tests/contracts/test_filters.py``): granted costs, added exactly, never
    exceed `limit`, whichever threads ask; what fits exactly is granted; a refusal changes nothing; the order of
    requests does not matter; more noise never costs more; no noise is refused; the guarantee is the budget, whatever
    was spent. One filter guards one budget, in the process that made it: a copy of it is a second budget.
    """

    @property
    def name(self) -> str:
        """Name in guarantees, with what was fixed in advance."""
        ...

    @property
    def budget(self) -> Budget:
        """What all granted releases together may spend."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """The whole budget, an upper bound for everything that is ever granted, however little was spent.

        The sum of the granted costs converted to an epsilon is *not* a guarantee: the end was decided during the run.
        (A bound that holds at every moment for what was spent until then is called an odometer.)
        """
        ...

    @property
    def limit(self) -> float:
        """The budget in the filter's own unit, rounded down."""
        ...

    @property
    def spent(self) -> float:
        """What the granted releases cost together, rounded up."""
        ...

    @property
    def remaining(self) -> float:
        """What is left, rounded down."""
        ...

    def cost(self, release: Release) -> float:
        """What ``release`` would cost, all its repetitions together, rounded up; infinite without noise."""
        ...

    def request(self, release: Release) -> Granted | Refused:
        """Ask for ``release`` before anything of it is computed; granted, it is spent."""
        ...

    def smallest_noise_multiplier(self, sample_rate: float, steps: int = 1) -> float:
        """The smallest z with which ``steps`` releases still fit, rounded up; infinite when nothing does."""
        ...
