"""Decides whether passes are captured: the first steps time both ways, and the faster one is kept.

Both give the same numbers on a CPU, to the bit, so that what a clock decides is the time alone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import torch

# Occurrences of a number of rows before its capture, which costs as much as two or three passes; passes each way
# whose medians are compared; numbers of rows that are captured to compare.
_FIRST, _EACH, _TRIED = 2, 3, 3
_CLOCK = time.perf_counter

ASKED = "passes were captured and replayed, as capture=True asks for"
PAYS = "passes were captured and replayed: in the first steps a replayed pass took less time than one in Python"
OFF = "all passes ran in Python, as capture=False asks for"
FEW = "all passes ran in Python, or a few were replayed to measure: too few of one size came to compare both ways"
SLOWER = "passes ran in Python: in the first steps a replayed pass took no less time"
CHANGES = "passes ran in Python: what the model and the loss compute, or store in Python, changes from step to step"
CANNOT = "passes ran in Python: a pass of this model and loss cannot be captured"
PARTS = "passes ran in Python: each process holds a part of each sum, and a replay has all of all sums at once"
MEMORY = "passes ran in Python: there was no memory for a captured pass"


def clock_on(device: torch.device) -> Callable[[], float]:
    """A clock in seconds that first waits for the work that was started on the device.

    >>> clock_on(torch.device("cpu")) is time.perf_counter
    True
    """
    if device.type != "cuda":
        return _CLOCK

    def clock() -> float:
        torch.cuda.synchronize(device)
        return _CLOCK()

    return clock


@dataclass(slots=True)
class Choice:
    """Whether passes of one engine are captured, and why.

    Args:
        asked: `EngineSettings.capture`.
        clock: see `clock_on`.
        parts: whether the engine hands each sum on as it is made (``keep``), so that they are never all in memory.
        steps: of the training; ``None`` where they are not known.
        done: how many of them were begun.

    >>> Choice(False, clock_on(torch.device("cpu"))).why == OFF
    True
    """

    asked: bool | Literal["auto"]
    clock: Callable[[], float]
    parts: bool = False
    steps: int | None = None
    done: int = 0
    on: bool = field(init=False)
    why: str = field(init=False)
    # Once measured, in times of a pass in Python: what a replay saves, and what a capture costs.
    _saves: float | None = None
    _costs: float = 0.0
    # Seconds of passes in Python, of replays and of captures, by key without the number of rows.
    _seconds: dict[object, tuple[list[float], list[float], list[float]]] = field(
        default_factory=dict[object, tuple[list[float], list[float], list[float]]]
    )
    _tried: set[object] = field(default_factory=set[object])
    _start: float = 0.0
    _way: tuple[object, bool] | None = None

    def __post_init__(self) -> None:
        kept_apart = self.parts and self.asked == "auto"
        self.on = self.asked is not False and not kept_apart
        self.why = {True: ASKED, False: OFF, "auto": FEW}[self.asked]
        if kept_apart:
            self.why = PARTS

    @property
    def measures(self) -> bool:
        """Whether passes are still timed to decide."""
        return self.on and self.asked == "auto" and self._saves is None

    def pays(self, key: object, uses: int) -> bool:
        """Whether to capture a pass now, by its occurrences from now on: as many a step as so far, in the steps that
        are left; where nobody knows their number, as many as so far.

        Args:
            key: of the pass.
            uses: its occurrences, this one included.
        """
        if self.asked is True:
            return uses > 1
        if self._saves is None:
            return uses >= _FIRST and (key in self._tried or len(self._tried) < _TRIED)
        left = None if self.steps is None else max(self.steps - self.done, 0)
        expected = uses if left is None else uses / max(self.done, 1) * left
        return uses >= _FIRST and expected * self._saves >= self._costs

    def takes_turns(self, alike: object) -> bool:
        """Whether passes in Python are still to be timed."""
        return self.measures and len(self._of(alike)[0]) < _EACH

    def begin(self) -> None:
        """Note that a pass begins, in Python or replayed."""
        if self.measures:
            self._start, self._way = self.clock(), None

    def captured(self, key: object, alike: object) -> None:
        """Note that the pass was captured; the choice how to run it comes later."""
        if self.measures:
            now = self.clock()
            self._of(alike)[2].append(now - self._start)
            self._start = now
            self._tried.add(key)

    def note_way(self, alike: object, *, replayed: bool) -> None:
        """Note how this pass runs. ``alike``: its key without the number of rows."""
        self._way = (alike, replayed)

    def end(self) -> None:
        """Note the end of a pass and, unless it ran twice, its time."""
        if not self.measures or self._way is None:
            return
        (alike, replayed), self._way = self._way, None
        python, replays, captures = seconds = self._of(alike)
        seconds[replayed].append(self.clock() - self._start)
        if captures and min(len(python), len(replays)) >= _EACH:
            usual = max(median(python), 1e-9)
            self._saves, self._costs = 1 - median(replays) / usual, min(captures) / usual
            self._seconds.clear()
            self.why = PAYS
            if self._saves <= 0:
                self.stop(SLOWER)

    def _of(self, alike: object) -> tuple[list[float], list[float], list[float]]:
        return self._seconds.setdefault(alike, ([], [], []))

    def note_repeat(self) -> None:
        """Note a pass that ran in Python after it was replayed: its time counts for neither way."""
        self._way = None

    def stop(self, why: str) -> None:
        """Capture and replay no pass from here on; ``why``: for the run's record."""
        self.on, self.why = False, why
        self._seconds.clear()
        self._tried.clear()
