"""The telemetry of the rounds so far, as it was released."""

from collections.abc import Mapping
from typing import Any, final

from decrescendo.clipping import Telemetry
from decrescendo.errors import PlanViolation
from decrescendo.federated.messages import Round
from decrescendo.optim.noise import NoisyMean
from decrescendo.plans.sampling import Sampling
from decrescendo.training.loop.releasing import reading_of
from decrescendo.training.steering.reading import Reading, as_row, read


@final
class Readings:
    """Readings of the rounds that were released; an aborted round has none.

    Args:
        telemetry: the settings; ``None`` for none.
    """

    def __init__(self, telemetry: Telemetry | None) -> None:
        self._telemetry, self.found = telemetry, list[Reading]()

    def add(self, noisy: NoisyMean, asked: Round, sampling: Sampling) -> None:
        """Note what was released with a round's noisy mean."""
        if self._telemetry is not None:
            about = asked.number, asked.clip_norm, asked.noise_multiplier
            self.found.append(reading_of(noisy, self._telemetry, *about, float(sampling.expected_batch_size)))

    def state(self) -> dict[str, Any]:
        """For the journal."""
        rows = [[reading.step, *as_row(reading)] for reading in self.found]
        return {"of": None if self._telemetry is None else repr(self._telemetry), "rows": rows}

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Have the readings of a journal.

        Raises:
            PlanViolation: it was written with other telemetry settings.
        """
        if state["of"] != (own := None if self._telemetry is None else repr(self._telemetry)):
            raise PlanViolation(
                f"a run must go on with the telemetry that it began with, got {own} after {state['of']}"
            )
        if self._telemetry is not None:
            self.found = [read(self._telemetry, [numbers], int(step))[0] for step, *numbers in state["rows"]]
