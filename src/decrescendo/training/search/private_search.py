"""`PrivateSearch`: the settings of a search on private data, and the distribution of its number of trials."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from decrescendo.accounting import Budget, Guarantee, Trials
from decrescendo.clipping import Telemetry
from decrescendo.clipping.clipped import check_clip_norm
from decrescendo.errors import InvalidValue, check_instance, check_real
from decrescendo.plans import AdaptivePlan, Plan, PoissonSampling, calibrate_selection
from decrescendo.plans.sampling_refusals import only_constant
from decrescendo.training.search.settings import Settings
from decrescendo.training.search.space import Space, Value
from decrescendo.training.steering.reading import WINDOW
from decrescendo.training.tasks.fitting import cross_entropy, cross_entropy_and_accuracy
from decrescendo.training.tasks.task import Task

# The settings that may differ between trials: none changes the noise multipliers or the sampling.
FREE = (
    "clip", "rho_c", "learning_rate", "stride", "momentum", "lr_decay", "averaging", "optimizer",
)  # fmt: skip


LAWS = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSearch:
    """The settings of a search on private data. Every value in it is public.

    The settings of each trial are drawn at random, independently. An optimiser that looks at earlier scores (as
    Optuna's does) would find better ones, but its next settings depend on the data through every earlier trial, and
    the theorem is about independent trials.

    Args:
        task: what is trained. It must have no people: a guarantee for people is not proven for a search.
        epsilon: of the whole search, the winner included.
        delta: of the whole search; default: the task's.
        telemetry: what trials are ranked by: the released accuracy, if it has accuracy, else the released loss (the
            smallest wins), each the mean of the last 20 steps, of the weights before each step (in training mode, and
            not averaged). Every trial releases it with its gradients, so that it costs only its ``share`` of C; a
            larger share has less noise (`score_noise`). ``None``: trials are ranked by the task's score, on public
            data.
        space: what moves, of `FREE` only. Batch, steps, schedule and rho_mu are fixed: they decide the noise, and all
            trials must spend the same.
        trials: the distribution of the number of trials.

    Raises:
        InvalidType: a fixed number of trials.
        InvalidValue: a setting moves that changes what a trial spends; settings that no run could have; a task with
            people; telemetry with averaged weights, or with accuracy of a loss that may not return scores.
    """

    task: Task
    epsilon: float
    space: Space
    trials: Trials
    delta: float | None = None
    telemetry: Telemetry | None = None

    def __post_init__(self) -> None:
        check_instance("task", self.task, Task)
        if self.telemetry is not None:
            check_instance("telemetry", self.telemetry, Telemetry)
            if not self.telemetry.scalars:
                raise InvalidValue(
                    f"telemetry of a private search must have loss or accuracy, got {self.telemetry}: trials are "
                    "ranked by it"
                )
            if self.telemetry.accuracy and self.task.loss not in (cross_entropy, cross_entropy_and_accuracy):
                raise InvalidValue(
                    "telemetry must be of the loss where the task has a loss of its own, got accuracy: whether it "
                    "returns scores would show only after the budget is spent. Take Telemetry(loss=True)"
                )
            if self.space.moving.get("averaging") or self.space.fixed.get("averaging", 0.0):
                raise InvalidValue(
                    "averaging must be 0 with telemetry, got something else: what is released is of the weights of "
                    "each step, and not of their average. Fix averaging=0"
                )
        elif self.task.score is None:
            raise InvalidValue(
                "task must have a score on public data, got none. It is what trials are ranked by; without public data "
                "rank them by what they release: telemetry=Telemetry(accuracy=True), or --rank-by accuracy"
            )
        if self.task.people is not None:
            raise InvalidValue(
                "a private search must be of examples, got a task with people: the theorem on the best of many "
                "trials is for one example, and a person has several. Take a task without people, or search on public "
                "data (tune)"
            )
        check_real("epsilon", self.epsilon, above=0)
        check_instance("space", self.space, Space)
        check_instance("trials", self.trials, Trials, WHY_RANDOM)
        schedule = self.space.fixed.get("schedule", "dynamic")
        for name in self.space.moving:
            if name not in FREE:
                raise InvalidValue(
                    f"with private data only {', '.join(FREE)} may move, got {name}: it changes what a trial spends, "
                    "and all trials must spend the same. Fix it"
                )
        if schedule == "optimal" and "rho_c" in self.space.moving:
            raise InvalidValue("rho_c must be fixed with the schedule optimal, whose noise follows it, got a range")
        # Checked now: an error within the search would waste it, and tell how far it had come.
        for values in itertools.chain(self.space.corners(), self.space.pairs()):
            settings = self.settings(values)
            settings.check(self.task)
            check_clip_norm("clip", settings.clip / max(settings.rho_c, 1.0))

    def settings(self, values: Mapping[str, Value]) -> Settings:
        """The settings of a trial with these values, except its seed, and its noise, which comes from
        `calibrated`."""
        return self.space.settings(self.task, values)

    def calibrated(self) -> tuple[Plan, Guarantee]:
        """The plan whose noise every trial uses, and the guarantee of the whole search; no data are read."""
        settings = self.settings(next(self.space.corners()))
        sampling = PoissonSampling(self.task.count, settings.batch)
        privacy, clip = settings.curves(self.task.count)
        return calibrate_selection(
            Budget(self.epsilon, self.task.delta if self.delta is None else self.delta), sampling,
            steps=settings.steps, privacy=privacy, clip=clip, trials=self.trials,
        )  # fmt: skip

    def ranked_by(self, plan: Plan) -> str:
        """What the score of a trial is, in words."""
        if self.telemetry is None:
            return "on declared public data"
        what = "the released accuracy" if self.telemetry.accuracy else "minus the released loss"
        noise = self.score_noise(plan)
        return f"by {what}, mean of the last {min(WINDOW, plan.steps)} steps with noise of {noise:.2g}"

    def score_noise(self, plan: Plan) -> float:
        """The standard deviation of the noise on a trial's released score; 0 for scores on public data."""
        if self.telemetry is None:
            return 0.0
        low, high = self.telemetry.loss_range
        _, unit = self.telemetry.units(1.0)
        wide = 1.0 if self.telemetry.accuracy else high - low
        batch = only_constant(plan.sampling, "a private search").expected_batch_size
        noise = wide * plan.noise_multiplier[-WINDOW:] / (unit * batch)
        return float((noise**-2.0).sum() ** -0.5)

    def agreed(self, guarantee: Guarantee) -> AdaptivePlan:
        """The whole search as a store counts it: one release with the cost of ``guarantee`` from
        `calibrated`."""
        settings = self.settings(next(self.space.corners()))
        return AdaptivePlan(
            Budget(guarantee.epsilon, guarantee.delta, guarantee.unit),
            PoissonSampling(self.task.count, settings.batch), guarantee.accountant, steps=1,
            policy=f"a private search, the best of {self.trials}; its one release is the winner",
        )  # fmt: skip


def parse_trials(text: str) -> Trials:
    """Parse a distribution: ``geometric:10``, ``logarithmic:10``, ``poisson:10``, or a negative binomial by
    its shape, ``0.5:10``.

    Raises:
        InvalidValue: a fixed number, an unknown law, a mean out of range.

    >>> print(parse_trials("geometric:10"))
    10 expected trials (geometric)
    """
    law, colon, mean = text.partition(":")
    if not colon:
        raise InvalidValue(f"trials on private data must be random, like geometric:10, got {text!r}. {WHY_RANDOM}")
    try:
        return Trials(mean=float(mean), shape=LAWS[law] if law in LAWS else float(law))
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(
            f"trials must be a law and a mean, like {', '.join(f'{name}:10' for name in LAWS)} or 0.5:10 (a negative "
            f"binomial's shape), got {text!r}"
        ) from None


WHY_RANDOM = (
    "When the number is known, the best of them tells how it fared against so many others: each trial adds to the "
    "price. A secret random number hides the others, at about the price of a few"
)
