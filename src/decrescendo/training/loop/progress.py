"""`Progress`, the state of a training that callbacks get, and a progress bar for the terminal."""

import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from decrescendo.accounting.budget import rounded
from decrescendo.clipping import Diagnostics
from decrescendo.errors import InvalidType
from decrescendo.training.steering.reading import Reading, remarks, smoothed
from decrescendo.training.steering.source import Spending

EVERY = 5.0  # seconds between lines where no bar can be drawn


def no_record() -> None:
    """No-op in place of the function that notes that private diagnostics were read."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a training after ``step`` of ``steps`` steps.

    Args:
        step: steps taken, 1 .. steps.
        steps: steps of the plan; of an adaptive training the most it may take.
        seconds: since the training began.
        spent: gives `epsilon_spent`.
        clip_norm: C_t of this step, if decided during the run; ``None`` if the plan fixes it.
        readings: the telemetry released so far, one a step; empty without. Public.
    """

    step: int
    steps: int
    seconds: float
    _diagnostics: Diagnostics = field(repr=False)
    spent: Spending
    _read: Callable[[], None] = field(default=no_record, repr=False, compare=False)
    clip_norm: float | None = None
    readings: Sequence[Reading] = field(default=(), repr=False)

    @property
    def telemetry(self) -> Reading | None:
        """The telemetry released at this step: public, unlike `diagnostics`."""
        return self.readings[-1] if self.readings else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings from the telemetry of the last steps: nothing is learned any more, or everything is
        clipped. Empty if neither shows."""
        return remarks(self.readings)

    @property
    def diagnostics(self) -> Diagnostics:
        """Diagnostics of this step's clipping: private, covered by no guarantee. Reading them is recorded: a
        run that then ends early, or whose optimiser settings change, lists it among its assumptions."""
        self._read()
        return self._diagnostics

    @property
    def seconds_left(self) -> float:
        """Seconds to the end, at the speed so far."""
        return self.seconds / self.step * (self.steps - self.step)

    @property
    def epsilon_spent(self) -> float:
        """Certified upper bound on the epsilon spent so far: its value at the next of 20 points of the plan.

        Computed when asked for, about a tenth of a second for each point. For an adaptive training it is the whole
        budget.
        """
        return self.spent.at_step(self.step)


Callback = Callable[[Progress], "bool | None"]


def callbacks_of(callback: object) -> list[Callback]:
    """One callback, or several, as a list: all are called in order, and any of them may end the training.

    Raises:
        InvalidType: something that cannot be called.

    >>> callbacks_of(None), callbacks_of(print) == callbacks_of([print])
    ([], True)
    """
    if callback is None or callable(callback):
        return [] if callback is None else [callback]
    if isinstance(callback, str) or not isinstance(callback, Sequence):
        raise InvalidType(
            f"callback must be a function of a Progress, or a list of such functions, got {type(callback).__name__}"
        )
    several = cast("Sequence[object]", callback)
    for i, one in enumerate(several):
        if not callable(one):
            raise InvalidType(f"callback[{i}] must be a function of a Progress, got {type(one).__name__}")
    return list(cast("Sequence[Callback]", several))


def ends(answers: Iterable[object]) -> bool:
    """Whether a callback asked to end the training: a number, as `file.write` returns, is refused.

    Raises:
        InvalidType: an answer is neither a bool nor None.

    >>> ends([None, False]), ends([None, True])
    (False, True)
    """
    found = False
    for answer in answers:
        if answer is not None and not isinstance(answer, (bool, np.bool_)):
            raise InvalidType(
                "a callback must return True to end the training, or False or None to go on, got "
                f"{type(answer).__name__}. Return None, or bool(..) of a condition"
            )
        found = found or bool(answer)
    return found


@contextmanager
def bar(steps: int, label: str = "training", console: Console | None = None) -> Generator[Callback]:
    """A callback that draws a progress bar on standard error, at most ten times a second.

    Where standard error is no terminal (a file, a batch system), a line every `EVERY` seconds.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[spent]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[warning]}"),
    )
    shown = console or Console(stderr=True, emoji=False)
    if not shown.is_terminal:
        yield _lines(label, shown)
        return
    with RichProgress(*columns, console=shown) as display:
        task = display.add_task(label, total=steps, spent="", warning="")
        last = 0.0

        def show(progress: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < 0.1 and progress.step < progress.steps:
                return
            last = now
            warning = "  ".join(f"[yellow]{text.partition(':')[0]}" for text in progress.remarks)
            spent = "  ".join([_words(progress.epsilon_spent), *curves(progress.readings)])
            display.update(task, completed=progress.step, spent=spent, warning=warning)

        yield show


def curves(readings: Sequence[Reading]) -> list[str]:
    """The released loss, accuracy and clipped share, each averaged over the last steps, as text."""
    names = readings[-1].shown() if readings else ()
    return [f"{name.replace('_', ' ')} {smoothed(readings, name)}" for name in names]


def _lines(label: str, console: Console) -> Callback:
    last = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < EVERY and (progress.step < progress.steps or progress.seconds < EVERY):
            return
        last = now
        passed, left = (timedelta(seconds=round(s)) for s in (progress.seconds, progress.seconds_left))
        line = f"{label}: {progress.step} of {progress.steps} steps, {passed} passed, {left} left"
        line = ", ".join([line, *curves(progress.readings), *progress.remarks])
        console.print(line, soft_wrap=True, highlight=False)

    return show


def _words(epsilon: float) -> str:
    return f"epsilon <= {rounded(epsilon, 'up')}" if math.isfinite(epsilon) else "NO PRIVACY"
