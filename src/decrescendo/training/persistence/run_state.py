"""`RunState`: the record of a run's steps, kept across restarts."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from decrescendo.accounting.release import Release
from decrescendo.base.assumption import Assumption
from decrescendo.clipping import Diagnostics
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import FileRefused, PlanViolation
from decrescendo.training.statement import FLOAT32
from decrescendo.training.steering.reading import Reading, as_row, read


@dataclass(slots=True)
class RunState:
    """The record of a run's steps, kept across restarts.

    Args:
        run_id: in a store; empty without one.
        diagnostics: the private diagnostics of each step.
        began: start on the monotonic clock, moved back by the seconds of earlier processes.
        resumed: the steps from which the run was resumed.
        assumptions: assumptions of earlier processes of the run, and about plan, model and data.
        accumulate: the dtype of the gradient sums; if processes of the run differ, the narrower.
        gamma: of automatic clipping; 0 without.
        telemetry: what is released beside the gradients.
        readings: the telemetry of each step.
        place: the number of earlier runs in the store, from which a seeded run's streams follow; ``None``: no store.
    """

    run_id: str
    releases: list[Release] = field(default_factory=list[Release])
    diagnostics: list[Diagnostics] = field(default_factory=list[Diagnostics])
    began: float = field(default_factory=time.monotonic)
    resumed: tuple[int, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    place: int | None = None
    accumulate: str = FLOAT32
    gamma: float = 0.0
    telemetry: Telemetry | None = None
    readings: list[Reading] = field(default_factory=list[Reading])

    @property
    def taken(self) -> int:
        """Number of steps taken."""
        return len(self.releases)

    @property
    def seconds(self) -> float:
        """Seconds of training, over all processes that continued the run."""
        return max(0.0, time.monotonic() - self.began)  # a broken clock must not lose a run


def telemetry_entry(run_state: RunState) -> dict[str, Any]:
    """A checkpoint's entry for the telemetry of a run."""
    return {"of": repr(run_state.telemetry), "rows": [as_row(reading) for reading in run_state.readings]}


def restore_readings(run_state: RunState, state: Mapping[str, Any] | None, step: int) -> None:
    """Restore the telemetry of the first ``step`` steps; refuse a run that resumes with other telemetry settings."""
    began = None if state is None else state["of"]
    if began != (None if run_state.telemetry is None else repr(run_state.telemetry)):
        raise PlanViolation(
            f"a run must go on with the telemetry it began with, got {run_state.telemetry} after {began}. Its "
            "gradients would be clipped otherwise"
        )
    if state is not None and run_state.telemetry is not None:
        run_state.readings[:] = read(run_state.telemetry, state["rows"])
        if len(run_state.readings) != step:
            raise FileRefused(f"a checkpoint must have a reading a step, got {len(run_state.readings)} of {step}")
