"""`OpenEnded`: a training whose noise and clip norm are the optimiser's at each step, as long as the loop goes on."""

from collections.abc import Callable
from dataclasses import replace
from typing import final

import numpy as np

from decrescendo.accounting import Guarantee, Ledger
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.errors import PlanViolation
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.training.run import Run, certify
from decrescendo.training.steering import Settings
from decrescendo.training.steering.source import Source

# More steps than anybody takes.
_MANY = 2**40


@final
class OpenEnded(Source):
    """In place of a plan: nothing is promised before the run, each release is accounted as it was made."""

    steps = _MANY
    # That nobody reads private values and sets the noise by them.
    assumptions = (
        assumed("declared", "the loop set noise and clip norm of each step, and when it ended, by public values alone"),
    )

    def __init__(self, sampling: PoissonSampling, setting: Callable[[], Settings]) -> None:
        self.sampling, self._setting = sampling, setting
        self.agreed = Plan.without_privacy(sampling, steps=1)
        self.settings: Settings | None = None
        self.spent = self  # nobody asks for progress

    def at_step(self, step: int) -> float:
        """Not known before the steps are taken."""
        raise PlanViolation(f"epsilon must be asked of what was released, got step={step}. See get_epsilon")

    def next_settings(self, taken: int) -> Settings:
        """The optimiser's own, as they are now."""
        del taken
        self.settings = self._setting()
        return self.settings

    def check(self, noise_multiplier: float, clip_norm: float) -> None:
        """Refuse settings that changed since the batch of this step was drawn.

        Raises:
            PlanViolation: they did.
        """
        if self.settings is not None and self.settings != Settings(noise_multiplier, clip_norm):
            raise PlanViolation(
                "noise and clip norm of a step must be set before its batch is drawn, got others between draw and "
                "step. Step schedulers after optimizer.step()"
            )

    def epsilon_spent(self, ledger: Ledger) -> float:
        """At no delta in particular nothing is known."""
        raise PlanViolation(f"epsilon must be asked at a delta, got {ledger}. See get_epsilon")

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """There is none that was promised."""
        raise PlanViolation(f"a run must have a plan, got {ledger}. Take make_private_with_epsilon")


def rest_of(plan: Plan, earlier: Ledger) -> Plan:
    """What is left of a plan whose first steps were taken ``earlier``."""
    if not earlier.steps:
        return plan
    taken = earlier.steps
    noise = np.repeat(earlier.noise_multiplier, earlier.count)
    rates = np.repeat(earlier.sample_rate, earlier.count)
    planned = plan.ledger
    begun = taken <= plan.steps and (
        np.array_equal(noise, plan.noise_multiplier[:taken])
        and np.allclose(rates, planned.sample_rate[:taken], rtol=1e-12)
    )
    if begun and taken == plan.steps:
        raise PlanViolation(
            f"a training must stay within its plan, got one whose {taken} steps are all taken. It is done: nothing of "
            "target_epsilon is left"
        )
    if not begun:
        raise PlanViolation(
            f"what was released earlier must be the first steps of the calibrated plan, got {taken} others. Both "
            "together would spend more than target_epsilon: take make_private, whose get_epsilon adds both up"
        )
    rest = Schedule(plan.noise_multiplier[taken:], plan.clip_norm[taken:])
    return Plan(plan.budget, plan.sampling, rest, plan.guarantee)


def with_earlier(run: Run, plan: Plan, taken: int, assumptions: tuple[Assumption, ...], *, loaded: bool) -> Run:
    """A run of the rest of ``plan``, with the steps that were taken before it, which it spent as well.

    Args:
        run: of the rest.
        plan: the whole.
        taken: how many steps were taken before.
        assumptions: of these.
        loaded: whether they are of a checkpoint.
    """
    provenance = run.provenance
    if provenance is not None:
        together = tuple(sorted({*provenance.assumptions, *assumptions}))
        provenance = replace(provenance, resumed=(taken,) if loaded else (), assumptions=together)
    if not taken:
        return replace(run, provenance=provenance)
    ledger = plan.ledger.first(taken + run.steps)
    guarantee = certify(plan.covered(ledger), plan.budget)
    return replace(run, plan=plan, ledger=ledger, guarantee=guarantee, diagnostics=None, provenance=provenance)


def not_stepped() -> PlanViolation:
    """Of a batch that was drawn, and not stepped on."""
    return PlanViolation(
        "each batch must be followed by optimizer.step(), got a batch that was drawn and not stepped on. For larger "
        "batches give the loader a larger batch_size, and take BatchMemoryManager; evaluate with a loader of your own"
    )
