"""`Source`: where noise and clip norm of each step come from: a plan's schedule, a policy, or a loop."""

from abc import ABC, abstractmethod
from typing import Protocol

from decrescendo.accounting import Guarantee, Ledger
from decrescendo.base.assumption import Assumption
from decrescendo.plans.agreement import Agreement
from decrescendo.plans.sampling import Sampling
from decrescendo.plans.strategy import Strategy
from decrescendo.training.steering.context import Settings
from decrescendo.training.steering.reading import Reading


class Spending(Protocol):
    """Gives the epsilon spent so far, as `accounting.epsilon_curve.EpsilonCurve` does."""

    def at_step(self, step: int) -> float:
        """Upper bound on the epsilon of the first ``step`` steps."""
        ...


class Source(ABC):
    """Gives the settings of each step, and the guarantee that follows from them.

    Attributes:
        agreed: the `Plan` or `AdaptivePlan` that was fixed before the run.
        sampling: how batches are drawn.
        steps: the largest number of steps.
        spent: the epsilon spent by step, for progress bars.
        correlation: how the noises of the steps are correlated; ``None``: they are independent.
        stopped: why no further step is allowed, if that was decided during the run.
        controlled: the settings of the `ClipController`; empty without one.
        assumptions: what is assumed about user code that decides settings; empty if there is none.
    """

    agreed: Agreement
    sampling: Sampling
    steps: int
    spent: Spending
    correlation: Strategy | None = None
    stopped = controlled = ""
    assumptions: tuple[Assumption, ...] = ()

    @abstractmethod
    def next_settings(self, taken: int) -> Settings | None:
        """Settings of the step after ``taken`` steps; ``None`` at the end."""

    @abstractmethod
    def epsilon_spent(self, ledger: Ledger) -> float:
        """Epsilon spent by the releases of ``ledger``, the first steps of the run."""

    @abstractmethod
    def guarantee(self, ledger: Ledger) -> Guarantee:
        """The guarantee of a run that ends here."""

    def divisor(self, taken: int) -> float:
        """What the noisy mean of the step after ``taken`` steps is divided by before the optimiser gets it."""
        del taken
        return 1.0

    def follow(self, settings: Settings | None, stopped: str) -> None:
        """Take over, on another rank, what rank 0 decided for the next step; nothing where it was fixed before."""
        del settings, stopped

    def observe(self, reading: Reading) -> None:
        """Take the telemetry of the last step into account for the next one, on every rank."""
        del reading

    @property
    def chosen_clip_norms(self) -> tuple[float, ...]:
        """C_t of the steps granted; empty if the plan fixes them."""
        return ()

    @property
    def ended(self) -> str:
        """Why a run that ends here has ended, if that was decided during the run."""
        return ""
