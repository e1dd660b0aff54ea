"""`AdaptiveRun`: asks a policy for noise and clip norm of each step, and a privacy filter whether the budget
allows it."""

from dataclasses import dataclass
from typing import final

from torch import nn

from decrescendo.accounting import Guarantee, Ledger, Release
from decrescendo.accounting.filters import GdpFilter, RenyiFilter, ZcdpFilter
from decrescendo.base.assumptions import template
from decrescendo.errors import PlanViolation, check_instance, check_real
from decrescendo.training.steering.adaptive import Adaptive
from decrescendo.training.steering.context import PolicyContext, Settings
from decrescendo.training.steering.controller import OWN_POLICY
from decrescendo.training.steering.policies import FromSchedule
from decrescendo.training.steering.reading import Reading
from decrescendo.training.steering.source import Source

# Listed by a run whose filter or policy is a class of the user's.
OWN_FILTER = template("own-filter")


@final
@dataclass(frozen=True, slots=True)
class WholeBudget:
    """Gives the whole budget's epsilon from the first step on, as progress bars show it in an adaptive
    training."""

    epsilon: float

    def at_step(self, step: int) -> float:
        """The budget's epsilon; 0 before the first step."""
        return self.epsilon if step else 0.0


@final
class AdaptiveRun(Source):
    """The `Source` of an adaptive training: a policy proposes settings, a privacy filter grants them.

    The filter's budget is spent when it grants a step, even if a crash comes before the release: the guarantee counts
    too many releases, never too few.
    """

    def __init__(self, adaptive: Adaptive, model: nn.Module) -> None:
        self._adaptive, self._model = adaptive, model
        self._granted: list[Settings] = []
        self._readings: list[Reading] = []
        self.agreed = adaptive.plan
        self.sampling, self.steps = adaptive.sampling, adaptive.steps
        self.spent = WholeBudget(adaptive.filter.budget.epsilon)
        known = type(adaptive.filter) in (GdpFilter, RenyiFilter, ZcdpFilter)
        self.assumptions = (
            *(() if type(adaptive.policy) is FromSchedule else (OWN_POLICY,)),
            *(() if known else (OWN_FILTER.format(type(adaptive.filter).__name__),)),
        )

    def next_settings(self, taken: int) -> Settings | None:
        """The settings of the next step, granted by the filter and charged to it; ``None`` once the training
        is over."""
        if self.stopped:
            return None
        if len(self._granted) > taken:  # drawing this step's batch failed: the step is granted already
            return self._granted[taken]
        if taken >= self._adaptive.steps:
            return self._stop(f"all {taken} steps were taken")
        privacy_filter = self._adaptive.filter
        rate = self._adaptive.sampling.sample_rate
        share = min(max(privacy_filter.remaining / privacy_filter.limit, 0.0), 1.0)
        context = PolicyContext(
            tuple(self._granted),
            self._model,
            share,
            lambda steps: privacy_filter.smallest_noise_multiplier(rate, steps),
            tuple(self._readings),
        )
        proposed = self._adaptive.policy(context)
        if proposed is None:
            return self._stop(f"the policy ended the training after {taken} steps")
        check_instance("policy's answer", proposed, Settings, "Return Settings(noise_multiplier, clip_norm) or None")
        # `privatise` would refuse this product too, but only after the filter has spent budget.
        check_real("noise_multiplier times clip_norm", proposed.noise_multiplier * proposed.clip_norm, at_least=0)
        answer = privacy_filter.request(Release(rate, proposed.noise_multiplier))
        if not answer:
            return self._stop(f"{privacy_filter.name} refused step {taken + 1}: {answer}")
        self._granted.append(proposed)
        return proposed

    def observe(self, reading: Reading) -> None:
        """Pass the telemetry of a step on to the policy."""
        self._readings.append(reading)

    def follow(self, settings: Settings | None, stopped: str) -> None:
        """On other ranks: take over the settings granted on rank 0 (``None``: the end), and charge them to
        the filter here."""
        if settings is None:
            self.stopped = stopped
            return
        if not self._adaptive.filter.request(Release(self._adaptive.sampling.sample_rate, settings.noise_multiplier)):
            raise PlanViolation(
                "filters of all ranks must have the same budget left, got one that refuses what rank 0's granted. "
                "Make the filter on every rank alike"
            )
        self._granted.append(settings)

    def _stop(self, why: str) -> None:
        self.stopped = self._reason_and_budget_left(why)

    def _reason_and_budget_left(self, why: str) -> str:
        privacy_filter = self._adaptive.filter
        return f"{why}; {privacy_filter.remaining / privacy_filter.limit:.2%} of the budget left"

    def epsilon_spent(self, ledger: Ledger) -> float:
        """The whole budget once anything was released: a filter guarantees its whole budget and no smaller
        epsilon."""
        return self.spent.at_step(ledger.steps)

    @property
    def ended(self) -> str:
        """Why a run that ends now has ended: `stopped`, or the end of the user's loop."""
        return self.stopped or self._reason_and_budget_left(f"ended from outside after {len(self._granted)} steps")

    @property
    def chosen_clip_norms(self) -> tuple[float, ...]:
        """C_t of the steps granted."""
        return tuple(settings.clip_norm for settings in self._granted)

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """The filter's guarantee (its whole budget), if the ledger has exactly the granted releases."""
        rate = self._adaptive.sampling.sample_rate
        granted = Ledger(Release(rate, settings.noise_multiplier) for settings in self._granted[: ledger.steps])
        if ledger != granted:
            raise PlanViolation(
                f"a run must release what the filter granted and nothing else, got {ledger} for {granted}. "
                "These weights have no guarantee"
            )
        return self._adaptive.filter.guarantee
