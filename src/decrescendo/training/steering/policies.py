"""Policies: rules that choose noise and clipping from released values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from torch import nn

from decrescendo.errors import InvalidType, check_instance, check_integer, check_real
from decrescendo.plans.schedule import Schedule
from decrescendo.training.steering.context import PolicyContext, Settings


@final
class FromSchedule:
    """A policy that follows a given schedule: Hong et al., Algorithm 1, when a filter ends it.

    A plan of the same schedule is better: it can use the whole budget by a tighter accountant.

    >>> policy = FromSchedule(Schedule([2.0, 1.0], [1.0, 0.5]))
    >>> policy(PolicyContext((), nn.Linear(1, 1), 1.0))
    Settings(noise_multiplier=2.0, clip_norm=1.0)
    >>> policy(PolicyContext((Settings(2.0, 1.0), Settings(1.0, 0.5)), nn.Linear(1, 1), 0.5)) is None
    True
    """

    __slots__ = ("_schedule",)

    def __init__(self, schedule: Schedule) -> None:
        check_instance("schedule", schedule, Schedule)
        self._schedule = schedule

    def __call__(self, context: PolicyContext, /) -> Settings | None:
        """The schedule's next step, ``None`` after its last."""
        if context.step >= self._schedule.steps:
            return None
        noise, clip = self._schedule.noise_multiplier[context.step], self._schedule.clip_norm[context.step]
        return Settings(float(noise), float(clip))

    def __repr__(self) -> str:
        return f"FromSchedule({self._schedule.steps} steps)"


@final
@dataclass(slots=True, kw_only=True, eq=False)
class ValidationDecay:
    """Less noise when a score on public data stops improving: z <- k z (Yu et al. 2019, validation-based
    decay).

    The score is taken at the start and after every ``period`` steps. Once there are ``window`` gains, each check at
    which the mean of the last ``window`` gains is below ``threshold`` multiplies the noise by ``decay``.

    Args:
        score: of the model, higher is better, measured on *public* data. On private data it would be a release that
            no ledger counts.
        noise_multiplier: z to begin with, > 0.
        clip_norm: C of all steps, > 0.
        decay: k in (0, 1).
        threshold: the mean gain below which the noise falls; finite.
        period: steps from one check to the next, >= 1.
        window: m >= 1, how many gains are averaged.

    Raises:
        InvalidValue: a number outside its range; (when asked) a score that is not finite.

    >>> scores = iter([0.50, 0.60, 0.61, 0.61])
    >>> policy = ValidationDecay(
    ...     lambda model: next(scores), noise_multiplier=4.0, clip_norm=1.0, decay=0.5, threshold=0.02, period=1
    ... )
    >>> past = ()
    >>> for _ in range(4):
    ...     past += (policy(PolicyContext(past, nn.Linear(1, 1), 1.0)),)
    >>> [settings.noise_multiplier for settings in past]
    [4.0, 4.0, 2.0, 1.0]
    """

    score: Callable[[nn.Module], float] = field(kw_only=False, repr=False)
    noise_multiplier: float
    clip_norm: float
    decay: float
    threshold: float
    period: int
    window: int = 1
    _noise: float = field(init=False, repr=False)
    _scores: list[float] = field(init=False, repr=False, default_factory=list[float])

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise InvalidType(
                f"score must be a function of the model, got {type(self.score).__name__}. "
                "For example lambda model: accuracy(model, public_inputs, public_targets)"
            )
        self._noise = check_real("noise_multiplier", self.noise_multiplier, above=0)
        Settings(self._noise, self.clip_norm)
        check_real("decay", self.decay, above=0, below=1)
        check_real("threshold", self.threshold)
        check_integer("period", self.period, at_least=1)
        check_integer("window", self.window, at_least=1)

    def __call__(self, context: PolicyContext, /) -> Settings:
        """The same noise as before, or less after a check without progress."""
        if context.step == 0:
            self._noise, self._scores = float(self.noise_multiplier), list[float]()
        if context.step % self.period == 0:
            self._scores.append(check_real("score", self.score(context.model)))
            if len(self._scores) > self.window:
                # The mean of the last gains is the whole gain over their number.
                gain = (self._scores[-1] - self._scores[-1 - self.window]) / self.window
                if gain < self.threshold:
                    self._noise *= self.decay
        return Settings(self._noise, self.clip_norm)

    @property
    def scores(self) -> tuple[float, ...]:
        """The scores of the checks so far."""
        return tuple(self._scores)
