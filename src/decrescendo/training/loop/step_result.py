"""`StepResult`: what `Trainer.step` returns."""

from collections.abc import Callable
from dataclasses import dataclass, field

from decrescendo.accounting.release import Release
from decrescendo.clipping import Diagnostics
from decrescendo.training.loop.progress import unheard


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step: what was released."""

    step: int
    release: Release
    _diagnostics: Diagnostics = field(repr=False)
    _read: Callable[[], None] = field(default=unheard, repr=False, compare=False)

    @property
    def diagnostics(self) -> Diagnostics:
        """Diagnostics of the clipping: private, covered by no guarantee. The run records that they were read."""
        self._read()
        return self._diagnostics
