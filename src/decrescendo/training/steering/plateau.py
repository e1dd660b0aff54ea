"""`Plateau`: ends a training when a released score stops improving; as it reads released values only, no
assumption is needed."""

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, final

from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidType, InvalidValue, check_integer, check_real
from decrescendo.training.steering.reading import WINDOW, Reading, smoothed

if TYPE_CHECKING:
    from decrescendo.training.loop.progress import Progress


@final
@dataclass(frozen=True, slots=True)
class Plateau:
    """A callback of `train` that ends it when the released loss or accuracy has certainly stopped improving.

    It ends the training when the improvement over ``patience`` steps, plus ``errors`` of its standard errors, is at
    most ``least``. Where the noise of the released numbers is too large to tell (``errors`` standard errors are above
    ``least``), it goes on: take a longer window and more patience, or larger batches.

    It reads released telemetry and nothing else, so that the run needs no assumption about its end. The guarantee is
    that of the whole plan, as for every run that ends early. In a loop of your own: ``if trainer.ends(Plateau()):
    break``.

    Args:
        of: ``loss`` or ``accuracy``, which the training's `Telemetry` must have.
        patience: steps, >= 1: the mean of the last ``window`` steps is compared with the same mean ``patience`` steps
            earlier.
        window: steps, 1 to ``patience``.
        errors: >= 0: how many standard errors of the difference of the two means are added to the improvement seen.
            The rule is asked at every step: with less than 3 chance ends trainings that still improve.
        least: >= 0: the smallest improvement over ``patience`` steps, in units of the loss or as a share of the
            examples, for which the training should go on.

    >>> Plateau("accuracy", patience=200)
    Plateau(of='accuracy', patience=200, window=20, errors=3.0, least=0.01)
    """

    of: Literal["loss", "accuracy"] = "loss"
    patience: int = 100
    window: int = WINDOW
    errors: float = 3.0
    least: float = 0.01

    def __init_subclass__(cls) -> NoReturn:
        raise InvalidType(
            f"Plateau must be used as it is, got the subclass {cls.__name__}: another rule may read what is private. "
            "Return True from a callback: the run then says that it ended early"
        )

    def __post_init__(self) -> None:
        if self.of not in ("loss", "accuracy"):
            raise InvalidValue(f"of must be loss or accuracy, got of={self.of!r}")
        check_integer("patience", self.patience, at_least=1)
        check_integer("window", self.window, at_least=1)
        if self.window > self.patience:
            raise InvalidValue(
                f"window must be at most patience, got window={self.window} and patience={self.patience}. Both means "
                "would be over the same steps"
            )
        check_real("errors", self.errors, at_least=0)
        check_real("least", self.least, at_least=0)

    def check(self, telemetry: Telemetry | None) -> None:
        """Check that a training with this telemetry releases ``of``.

        Raises:
            InvalidValue: it does not.
        """
        if telemetry is None or not getattr(telemetry, self.of):
            raise InvalidValue(
                f"a training that Plateau ends must release its {self.of}, got none. Give train "
                f"telemetry=dc.Telemetry({self.of}=True)"
            )

    def __call__(self, progress: "Progress") -> bool:
        """Whether the training should end: it is sure that the improvement was at most ``least``.

        Raises:
            InvalidValue: a training that does not release ``of``.
        """
        readings = progress.readings
        now, before = smoothed(readings, self.of, self.window), None
        if now is None:
            self.check(None)
            return False
        if len(readings) >= self.patience + self.window:
            before = smoothed(readings[: -self.patience], self.of, self.window)
        if before is None:
            return False
        gained = now.value - before.value if self.of == "accuracy" else before.value - now.value
        error = self.errors * math.hypot(self._error(readings), self._error(readings[: -self.patience]))
        if error > self.least and len(readings) == self.patience + self.window:
            wanted = math.ceil(self.window * (error / self.least) ** 2) if self.least else math.inf
            steps = f"of about {wanted} steps" if 2 * wanted < progress.steps else "longer than this run has room for"
            warnings.warn(
                f"Plateau will hardly end this training: {self.errors:g} standard errors of the improvement, "
                f"{error:.2g}, are more than least={self.least:g}. Give it a window {steps}, as much "
                "patience, a larger least, larger batches, or (for a loss) Telemetry a narrower loss_range",
                stacklevel=2,
            )
        return gained + error <= self.least

    def _error(self, readings: Sequence[Reading]) -> float:
        """The standard error of the mean over the last ``window`` steps, from the spread of their values."""
        each = [smoothed([reading], self.of, 1) for reading in readings[-self.window :]]
        values = [one.value for one in each if one is not None]
        if len(values) > 1:
            return statistics.stdev(values) / math.sqrt(len(values))
        return each[0].standard_error if each and each[0] is not None else 0.0
