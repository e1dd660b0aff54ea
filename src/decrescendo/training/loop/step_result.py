"""`StepResult`: what `Trainer.step` returns."""

from collections.abc import Callable
from dataclasses import dataclass, field

from decrescendo.accounting.release import Release
from decrescendo.clipping import Diagnostics
from decrescendo.training.loop.progress import no_record
from decrescendo.training.steering.reading import Reading


@dataclass(frozen=True, slots=True)
class StepResult:
    """The released result of one step.

    Args:
        step: from 1 on.
        release: the entry of this step in the ledger.
        telemetry: what was released beside the gradients; ``None`` without telemetry.
    """

    step: int
    release: Release
    _diagnostics: Diagnostics = field(repr=False)
    _read: Callable[[], None] = field(default=no_record, repr=False, compare=False)
    telemetry: Reading | None = None

    @property
    def diagnostics(self) -> Diagnostics:
        """Diagnostics of the clipping: private, covered by no guarantee. The run records that they were read."""
        self._read()
        return self._diagnostics
