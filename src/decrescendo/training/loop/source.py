"""`Source`: where noise and clip norm of each step come from: the schedule of a plan, or a policy (`AdaptiveRun`)."""

from functools import singledispatch
from typing import Protocol, final, runtime_checkable

from torch import nn

from decrescendo.accounting.budget import Guarantee
from decrescendo.accounting.epsilon_curve import EpsilonCurve
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.verify import APART
from decrescendo.base.assumption import Assumption
from decrescendo.clipping.clipped import check_clip_norm, trainable
from decrescendo.errors import InvalidValue, check_instance
from decrescendo.plans.agreement import Agreement
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import RandomAllocation, Sampling
from decrescendo.plans.strategy import Strategy
from decrescendo.training.loop.progress import Spending
from decrescendo.training.run import certify
from decrescendo.training.steering import Adaptive, ClipController, Settings
from decrescendo.training.steering.adaptive_run import AdaptiveRun
from decrescendo.training.steering.reading import Reading


@runtime_checkable
class Source(Protocol):
    """Where the settings of each step come from, and what may be promised for them."""

    @property
    def agreed(self) -> Agreement:
        """What was fixed before the run."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How batches are drawn."""
        ...

    @property
    def steps(self) -> int:
        """The most steps."""
        ...

    @property
    def correlation(self) -> Strategy | None:
        """How the noises of the steps are correlated; ``None``: they are independent."""
        ...

    @property
    def spent(self) -> Spending:
        """For progress."""
        ...

    @property
    def stopped(self) -> str:
        """Why no step follows, where that was decided during the run."""
        ...

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What is assumed of who decides; none where it is no code of a user's."""
        ...

    def next_settings(self, taken: int) -> Settings | None:
        """Settings of the step after ``taken`` steps; ``None`` at the end."""
        ...

    def follow(self, settings: Settings | None, stopped: str) -> None:
        """What rank 0 decided for the next step, on another rank."""
        ...

    def epsilon_spent(self, ledger: Ledger) -> float:
        """Of the first steps."""
        ...

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """Of a run that ends here."""
        ...

    @property
    def decided_clip_norm(self) -> tuple[float, ...]:
        """C_t of the steps granted, where nothing fixed before says them."""
        ...

    @property
    def ended(self) -> str:
        """Why a run that ends here does, where that was decided during the run."""
        ...

    def heed(self, reading: Reading) -> None:
        """What was released beside the gradients of the step just taken, on every rank."""
        ...


@final
class Planned:
    """The schedule of a plan; with a ``controller``, by whose factors C_t moves."""

    stopped = ""
    assumptions: tuple[Assumption, ...] = ()

    def __init__(self, plan: Plan, controller: ClipController | None = None, size: int = 0) -> None:
        self._controller, self._size, self._factors = controller, size, [1.0]
        # The engine would refuse a tiny one too, but at its step.
        check_clip_norm("clip_norm", float(plan.clip_norm.min()))
        self.agreed = plan
        self.sampling, self.steps, self.correlation = plan.sampling, plan.steps, plan.correlation
        # Before any data are touched: a plan that cannot be judged must not be found out at the end.
        self._planned = certify(plan.ledger, plan.budget)
        check_promise(plan, self._planned)
        self.spent = EpsilonCurve(plan.ledger, plan.budget.delta, group=plan.budget.examples_per_person)

    def next_settings(self, taken: int) -> Settings | None:
        if taken >= self.steps:
            return None
        schedule = self.agreed.schedule
        clip_norm = float(schedule.clip_norm[taken])
        if self._controller is not None:
            clip_norm *= self._factors[taken]
        return Settings(float(schedule.noise_multiplier[taken]), clip_norm)

    def heed(self, reading: Reading) -> None:
        """The factor of the next step follows from all that was released."""
        if self._controller is not None:
            self._factors.append(self._controller.next_factor(self._factors[-1], reading, self._size))

    def follow(self, settings: Settings | None, stopped: str) -> None:
        """Nothing to keep: the ranks have one plan."""

    def epsilon_spent(self, ledger: Ledger) -> float:
        """Of a number of steps fixed in advance; where records take part once an epoch, of whole epochs."""
        if isinstance(self.sampling, RandomAllocation) and self.agreed.begins(ledger):
            ledger = self.agreed.ledger.first(self.sampling.whole(len(ledger)))
        return certify(ledger, self.agreed.budget).epsilon

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """Of the ledger, or of the whole plan if the run ended early."""
        return self._planned if self.agreed.begins(ledger) else certify(ledger, self.agreed.budget)

    @property
    def decided_clip_norm(self) -> tuple[float, ...]:
        """None, for the plan says them; with a controller, its own."""
        if self._controller is None:
            return ()
        found = zip(self.agreed.clip_norm.tolist(), self._factors, strict=False)
        return tuple(clip_norm * factor for clip_norm, factor in found)

    @property
    def ended(self) -> str:
        return ""


def check_promise(plan: Plan, found: Guarantee) -> None:
    """Refuse a plan whose promise is below its certified epsilon: one made by hand, or by a wrong accountant."""
    if plan.guarantee.kind == "estimate":
        return
    if plan.guarantee.epsilon < found.epsilon * (1 - APART):
        raise InvalidValue(
            f"a plan must promise what its releases spend, got epsilon={plan.guarantee.epsilon:.6g} by "
            f"{plan.guarantee.accountant} for releases of {found}. Make plans with calibrate"
        )


@singledispatch
def source_of(plan: object, model: nn.Module) -> Source:
    """Where the settings of each step come from, by what `train` was given: the only place that asks."""
    del model
    if isinstance(plan, Source):  # of who decides elsewhere, as an integration does
        return plan
    check_instance(
        "plan", plan, Plan, "calibrate makes one; for noise decided during the run give an Adaptive"
    )
    raise AssertionError


@source_of.register(Plan)
def _of_plan(plan: Plan, model: nn.Module) -> Source:
    del model
    return Planned(plan)


@source_of.register(ClipController)
def _of_controller(plan: ClipController, model: nn.Module) -> Source:
    return Planned(plan.plan, plan, sum(parameter.numel() for parameter in trainable(model).values()))


source_of.register(Adaptive, AdaptiveRun)
