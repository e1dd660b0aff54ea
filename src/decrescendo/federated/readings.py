"""The telemetry of the rounds so far, as it was released; and the clip norms that follow it."""

from collections.abc import Mapping
from typing import Any, final

from decrescendo.clipping import Telemetry
from decrescendo.errors import InvalidValue, PlanViolation, check_instance
from decrescendo.federated.messages import Round
from decrescendo.optim.noise import NoisyMean
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import Sampling
from decrescendo.training.loop.beginning import telemetry_of
from decrescendo.training.loop.releasing import reading_of
from decrescendo.training.steering.controller import ClipController, assumed_of_controller
from decrescendo.training.steering.reading import Reading, as_row, read

# Of a run without telemetry.
NO_READINGS: Mapping[str, Any] = {"of": "None", "rows": []}


@final
class Readings:
    """Readings of the rounds that were released; an aborted round has none.

    A round's reading is written down (`state`) before it is `shown`: as long as its round may be repeated, with the
    same noise and perhaps other replies, nobody may see it.

    Args:
        plan: of the run, or its controller.
        telemetry: the settings; ``None`` for none.
    """

    def __init__(self, plan: Plan | ClipController, telemetry: Telemetry | None) -> None:
        self._controller = plan if isinstance(plan, ClipController) else None
        self.assumptions = assumed_of_controller(self._controller)
        self.telemetry, self.found = telemetry, list[Reading]()
        self._last: Reading | None = None  # written down, and not shown yet
        # The factor on the plan's clip norms, of each round whose predecessors have ended.
        self._factors = [1.0]

    @property
    def max_clip_norm(self) -> float:
        """The controller's; 0 without one."""
        return 0.0 if self._controller is None else self._controller.max_clip_norm

    @property
    def values(self) -> tuple[str, ...]:
        """Which of "loss" and "accuracy" the telemetry has, in the order of its coordinates."""
        told = self.telemetry
        return () if told is None else ("loss",) * told.loss + ("accuracy",) * told.accuracy

    @property
    def factor(self) -> float:
        """On the plan's clip norm of the next round."""
        return self._factors[-1]

    def clip_norms(self, plan: Plan, rounds: int) -> tuple[float, ...]:
        """C_t of the rounds so far, if they followed the telemetry; else none."""
        if self._controller is None:
            return ()
        return tuple((plan.clip_norm[:rounds] * self._factors[:rounds]).tolist())

    def end(self, noisy: NoisyMean | None, asked: Round, sampling: Sampling) -> None:
        """Note what comes with a round's noisy mean; ``None`` for a round that is aborted."""
        self._last = None
        if noisy is not None and self.telemetry is not None:
            about = asked.number, asked.clip_norm, asked.noise_multiplier
            self._last = reading_of(noisy, self.telemetry, *about, sampling)

    def shown(self) -> None:
        """The round that has ended is written down."""
        self._follow(self._last)
        self._last = None

    def _follow(self, reading: Reading | None) -> None:
        factor, rule = self._factors[-1], self._controller
        if reading is not None:
            self.found.append(reading)
        if rule is not None and reading is not None:
            factor = rule.next_factor(factor, reading, reading.coordinates)
        elif rule is not None:
            factor = rule.limited(factor, len(self._factors))
        self._factors.append(factor)

    def state(self) -> dict[str, Any]:
        """For the journal."""
        every = self.found if self._last is None else [*self.found, self._last]
        rows = [[reading.step, *as_row(reading)] for reading in every]
        return {"of": self._settings, "rows": rows}

    def go_on(self, state: Mapping[str, Any], rounds: int) -> None:
        """Have the readings of a journal with so many ``rounds``.

        Raises:
            PlanViolation: it was written with other settings of telemetry or controller.
        """
        if state["of"] != self._settings:
            raise PlanViolation(
                f"a run must go on with the telemetry that it began with, got {self._settings} after {state['of']}"
            )
        if self.telemetry is None:
            return
        known = {int(step): read(self.telemetry, [row], int(step))[0] for step, *row in state["rows"]}
        for number in range(1, rounds + 1):
            self._follow(known.get(number))

    @property
    def _settings(self) -> str:
        following = self._controller
        rule = "" if following is None else following.settings
        return f"{self.telemetry!r} {rule}".strip()


def readings_of(given: Plan | ClipController, telemetry: Telemetry | None) -> tuple[Plan, Readings]:
    """The plan of a run that was given a plan or a controller, and its readings: none yet.

    Raises:
        InvalidType: neither.
        InvalidValue: telemetry that a controller cannot follow, a controller that rescales, or a plan with rounds
            without noise.
    """
    plan = given.plan if isinstance(given, ClipController) else given
    check_instance("plan", plan, Plan, "calibrate makes one, and ClipController takes one")
    if isinstance(given, ClipController) and given.rescale_to_unit_norm:
        raise InvalidValue(
            "a ClipController of a federated run must have rescale_to_unit_norm=False, got True: updates that are not "
            "clipped have their own length, which must not be divided"
        )
    return plan, Readings(given, telemetry_of(telemetry, given, plan))
