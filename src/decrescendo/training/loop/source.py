"""`source_of`: the `Source` of what `train` is given; `Planned`, of a plan."""

from functools import singledispatch
from typing import final

from torch import nn

from decrescendo.accounting.budget import Guarantee
from decrescendo.accounting.epsilon_curve import EpsilonCurve
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.verify import TOLERANCE
from decrescendo.clipping.clipped import check_clip_norm, trainable
from decrescendo.errors import InvalidValue, check_instance
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import RandomAllocation
from decrescendo.training.run import certify
from decrescendo.training.steering import Adaptive, ClipController, Settings
from decrescendo.training.steering.adaptive_run import AdaptiveRun
from decrescendo.training.steering.controller import assumed_of_controller
from decrescendo.training.steering.reading import Reading
from decrescendo.training.steering.source import Source


@final
class Planned(Source):
    """The schedule of a plan; with a ``controller`` each C_t is multiplied by its factor."""

    def __init__(self, plan: Plan, controller: ClipController | None = None, size: int = 0) -> None:
        self.assumptions = assumed_of_controller(controller)
        self._controller, self._size, self._factors = controller, size, [1.0]
        self.controlled = "" if controller is None else controller.settings
        # Refuse a tiny clip norm here: the engine would do so only at its step.
        check_clip_norm("clip_norm", float(plan.clip_norm.min()))
        self.agreed = self._plan = plan
        self.sampling, self.steps, self.correlation = plan.sampling, plan.steps, plan.correlation
        # Certified before any data are touched: a plan that cannot be certified must fail here, not at the end.
        self._planned = certify(plan.ledger, plan.budget)
        check_promise(plan, self._planned)
        self.spent = EpsilonCurve(plan.ledger, plan.budget.delta, group=plan.budget.examples_per_person)

    def next_settings(self, taken: int) -> Settings | None:
        if taken >= self.steps:
            return None
        schedule = self._plan.schedule
        clip_norm = float(schedule.clip_norm[taken])
        if self._controller is not None:
            clip_norm *= self._factors[taken]
        return Settings(float(schedule.noise_multiplier[taken]), clip_norm)

    def observe(self, reading: Reading) -> None:
        """Compute the factor of the next step from all telemetry released."""
        if self._controller is not None:
            self._factors.append(self._controller.next_factor(self._factors[-1], reading, self._size))

    def divisor(self, taken: int) -> float:
        """1; with a controller of ``rescale_to_unit_norm`` its factor times the plan's first clip norm."""
        if self._controller is None or not self._controller.rescale_to_unit_norm:
            return 1.0
        return self._factors[taken] * float(self._plan.clip_norm[0])

    def epsilon_spent(self, ledger: Ledger) -> float:
        """Epsilon of a number of steps fixed in advance; in random allocation, of whole epochs."""
        if isinstance(self.sampling, RandomAllocation) and self._plan.begins(ledger):
            ledger = self._plan.ledger.first(self.sampling.whole(len(ledger)))
        return certify(ledger, self._plan.budget).epsilon

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """The guarantee of the ledger, or of the whole plan if the run ended early."""
        return self._planned if self._plan.begins(ledger) else certify(ledger, self._plan.budget)

    @property
    def chosen_clip_norms(self) -> tuple[float, ...]:
        """Empty, since the plan fixes C_t; with a controller, the C_t that it chose."""
        if self._controller is None:
            return ()
        found = zip(self._plan.clip_norm.tolist(), self._factors, strict=False)
        return tuple(clip_norm * factor for clip_norm, factor in found)


def check_promise(plan: Plan, found: Guarantee) -> None:
    """Refuse a plan that promises less than its certified epsilon: made by hand, or by a wrong accountant."""
    if plan.guarantee.kind == "estimate":
        return
    if plan.guarantee.epsilon < found.epsilon * (1 - TOLERANCE):
        raise InvalidValue(
            f"a plan must promise what its releases spend, got epsilon={plan.guarantee.epsilon:.6g} by "
            f"{plan.guarantee.accountant} for releases of {found}. Make plans with calibrate"
        )


@singledispatch
def source_of(plan: object, model: nn.Module) -> Source:
    """The `Source` for the plan, controller or `Adaptive` given to `train`; only this function tells them
    apart."""
    del model
    if isinstance(plan, Source):  # an integration's own
        return plan
    check_instance("plan", plan, Plan, "calibrate makes one; for noise decided during the run give an Adaptive")
    raise AssertionError


@source_of.register(Plan)
def _of_plan(plan: Plan, model: nn.Module) -> Source:
    del model
    return Planned(plan)


@source_of.register(ClipController)
def _of_controller(plan: ClipController, model: nn.Module) -> Source:
    return Planned(plan.plan, plan, sum(parameter.numel() for parameter in trainable(model).values()))


source_of.register(Adaptive, AdaptiveRun)


def planned_steps(source: Source) -> int | None:
    """How many steps there will be, if that was fixed before the run."""
    return source.steps if isinstance(source, Planned) else None
