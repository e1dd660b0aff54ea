"""Where the settings of the next step come from: the seam between the training loop and what decides."""

from dataclasses import dataclass
from typing import final

from torch import nn

from decrescendo.accounting import Guarantee, Ledger, Release
from decrescendo.accounting.filters import GdpFilter, RenyiFilter, ZcdpFilter
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed, template
from decrescendo.errors import PlanViolation, check_instance, check_real
from decrescendo.training.steering.adaptive import Adaptive
from decrescendo.training.steering.context import PolicyContext, Settings
from decrescendo.training.steering.policies import FromSchedule
from decrescendo.training.steering.quantile import Tracker

FILTERED = template("own-filter")
DECIDED = assumed("own-policy")


@final
@dataclass(frozen=True, slots=True)
class WholeBudget:
    """Progress of an adaptive training: its epsilon is the budget's from the first step on."""

    epsilon: float

    def at_step(self, step: int) -> float:
        """The budget's epsilon; 0 before the first step."""
        return self.epsilon if step else 0.0


@final
class AdaptiveRun:
    """One adaptive training under way: asks the policy, then the filter, and remembers what was granted.

    What is granted is spent, even if a crash keeps the release from being made: a step may be wasted, never hidden.
    """

    def __init__(self, adaptive: Adaptive, model: nn.Module) -> None:
        self._adaptive, self._model = adaptive, model
        self._granted: list[Settings] = []
        self.agreed = adaptive.plan
        self.sampling, self.steps = adaptive.sampling, adaptive.steps
        self.spent = WholeBudget(adaptive.filter.budget.epsilon)
        self.stopped = ""
        known = type(adaptive.filter) in (GdpFilter, RenyiFilter, ZcdpFilter)
        self.assumptions: tuple[Assumption, ...] = (
            *(() if type(adaptive.policy) is FromSchedule else (DECIDED,)),
            *(() if known else (FILTERED.format(type(adaptive.filter).__name__),)),
        )
        self.tracker: Tracker | None = None

    def following(self, taken: int) -> Settings | None:
        """Settings of the next step, granted and paid for; ``None`` when the training is over, now and for good."""
        if self.stopped:
            return None
        if len(self._granted) > taken:  # a batch was lost on its way: the step is paid for, and comes again
            return self._granted[taken]
        if taken >= self._adaptive.steps:
            return self._end(f"all {taken} steps were taken")
        guard = self._adaptive.filter
        rate = self._adaptive.sampling.sample_rate
        share = min(max(guard.remaining / guard.limit, 0.0), 1.0)
        context = PolicyContext(
            tuple(self._granted),
            self._model,
            share,
            lambda steps: guard.smallest_noise_multiplier(rate, steps),
        )
        proposed = self._adaptive.policy(context)
        if proposed is None:
            return self._end(f"the policy ended the training after {taken} steps")
        check_instance(
            "policy's answer", proposed, Settings, "Return Settings(noise_multiplier, clip_norm) or None"
        )
        # Numbers that stay as they are, whatever class they come in.
        proposed = Settings(proposed.noise_multiplier, proposed.clip_norm)
        # What `privatise` would refuse, when it is already paid for.
        check_real(
            "noise_multiplier times clip_norm", proposed.noise_multiplier * proposed.clip_norm, at_least=0
        )
        answer = guard.request(Release(rate, proposed.noise_multiplier))
        if not answer:
            return self._end(f"{guard.name} refused step {taken + 1}: {answer}")
        self._granted.append(proposed)
        return proposed

    def follow(self, settings: Settings | None, stopped: str) -> None:
        """What rank 0 was granted, on another rank: its filter pays the same."""
        if settings is None:
            self.stopped = stopped
            return
        if not self._adaptive.filter.request(Release(self.sampling.sample_rate, settings.noise_multiplier)):
            raise PlanViolation(
                "filters of all ranks must have the same budget left, got one that refuses what rank 0's granted. "
                "Make the filter on every rank alike"
            )
        self._granted.append(settings)

    def _end(self, why: str) -> None:
        self.stopped = self._sentence(why)

    def _sentence(self, why: str) -> str:
        guard = self._adaptive.filter
        return f"{why}; {guard.remaining / guard.limit:.2%} of the budget left"

    def epsilon_spent(self, ledger: Ledger) -> float:
        """The whole budget, once anything was released: no part of it is a guarantee."""
        return self.spent.at_step(ledger.steps)

    @property
    def ended(self) -> str:
        """Why a run that ends now does: `stopped`, or because whoever runs the loop ends it."""
        return self.stopped or self._sentence(f"ended from outside after {len(self._granted)} steps")

    @property
    def decided_clip_norm(self) -> tuple[float, ...]:
        """C_t of the steps granted."""
        return tuple(settings.clip_norm for settings in self._granted)

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """The filter's budget, for a ledger of granted releases and no others."""
        rate = self._adaptive.sampling.sample_rate
        granted = Ledger(
            Release(rate, settings.noise_multiplier) for settings in self._granted[: ledger.steps]
        )
        if ledger != granted:
            raise PlanViolation(
                f"a run must release what the filter granted and nothing else, got {ledger} for {granted}. "
                "These weights have no guarantee"
            )
        return self._adaptive.filter.guarantee
