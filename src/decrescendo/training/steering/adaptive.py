"""`Adaptive`: given to `train` in place of a plan, to decide noise during the run."""

from dataclasses import dataclass

from decrescendo.accounting import Accountant, Filter, Release
from decrescendo.errors import InvalidType, check_instance, check_integer
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.sampling_refusals import uncut
from decrescendo.training.steering.context import Policy


@dataclass(frozen=True, slots=True, eq=False)
class Adaptive:
    """A training in which a policy chooses noise multipliers and clip norms, within what a privacy filter
    allows.

    Before each step, before a batch is drawn, the policy proposes `Settings` and the filter grants or refuses their
    release. The training ends when the policy says so, when the filter refuses, or after ``steps`` steps; the run
    says which.

    Args:
        sampling: how batches are drawn; sample_rate 1 for full batches.
        filter: guards the budget. It is spent by the training: trainings on the same data that share one filter share
            its budget, and everything they release together is within it.
        policy: see `Policy`.
        steps: the most steps to take, >= 1.

    Guarantee:
        the filter's budget, whatever was spent of it, for weights, settings and the moment of the end together.

    Raises:
        InvalidType: a filter that is none; `Pld` in particular, whose composition is not proved for noise that depends
            on earlier releases.
        AccountingError: a filter that cannot account for releases at this sample rate.

    >>> from decrescendo.accounting import RenyiFilter
    >>> from decrescendo.accounting.budget import Budget
    >>> from decrescendo.training.steering import Settings
    >>> adaptive = Adaptive(
    ...     PoissonSampling(1_000, 20), RenyiFilter(Budget(1.0, 1e-4), order=16),
    ...     policy=lambda context: Settings(2.0 * 0.99**context.step, clip_norm=1.0), steps=500,
    ... )
    >>> print(adaptive.plan)
    (1, 0.0001)-DP per example, RenyiFilter(order=16) upper bound · noise decided during the run · at most 500 steps
    """

    sampling: PoissonSampling
    filter: Filter
    policy: Policy
    steps: int

    def __post_init__(self) -> None:
        check_instance("sampling", self.sampling, PoissonSampling)
        uncut(self.sampling, "a training whose noise is decided during the run")
        check_instance("filter", self.filter, Filter, _remedy(self.filter))
        if not callable(self.policy):
            raise InvalidType(
                f"policy must be a function from PolicyContext to Settings (or None to stop), "
                f"got {type(self.policy).__name__}. For a fixed schedule give FromSchedule(schedule), or a plan instead"
            )
        object.__setattr__(self, "steps", check_integer("steps", self.steps, at_least=1))
        # A filter that cannot account for sampled releases raises here and not at the first step.
        self.filter.cost(Release(self.sampling.sample_rate, 1.0))

    @property
    def plan(self) -> AdaptivePlan:
        """The `AdaptivePlan` that is fixed before the run and saved with it."""
        words = getattr(self.policy, "__name__", None) or repr(self.policy)
        return AdaptivePlan(self.filter.budget, self.sampling, self.filter.name, self.steps, words)


def _remedy(given: object) -> str:
    if not isinstance(given, Accountant):
        return "RenyiFilter(budget, order) is one"
    return (
        f"{given.name} composition needs noise multipliers fixed in advance; use RenyiFilter for noise decided "
        "during the run (GdpFilter or ZcdpFilter for full batches), or fix the schedule with calibrate"
    )
