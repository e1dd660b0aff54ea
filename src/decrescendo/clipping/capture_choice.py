"""Whether passes are captured: in the first steps both ways are measured, and the faster is kept.

Both give the same numbers on a CPU, to the bit, so that what a clock decides is the time alone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import torch

# Uses of a number of rows before its first capture, which costs as much as two or three passes; passes each way whose
# median is compared; and numbers of rows that are captured for that.
_FIRST, _EACH, _TRIED = 4, 3, 3
_CLOCK = time.perf_counter

ASKED = "passes were captured and replayed, as capture=True asks for"
PAYS = (
    "passes were captured and replayed: in the first steps a replayed pass took less time than one in Python"
)
OFF = "all passes ran in Python, as capture=False asks for"
FEW = "all passes ran in Python, or a few were replayed to measure: too few of one size came to compare both ways"
SLOWER = "passes ran in Python: in the first steps a replayed pass took no less time"
CHANGES = (
    "passes ran in Python: what the model and the loss compute, or store in Python, changes from step to step"
)
CANNOT = "passes ran in Python: a pass of this model and loss cannot be captured"
MEMORY = "passes ran in Python: there was no memory for a captured pass"


def clock_on(device: torch.device) -> Callable[[], float]:
    """Seconds, once all that was started on the device is done.

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
        clock: in seconds.

    >>> Choice(False, clock_on(torch.device("cpu"))).why == OFF
    True
    """

    asked: bool | Literal["auto"]
    clock: Callable[[], float]
    on: bool = field(init=False)
    why: str = field(init=False)
    # The share of a pass's time in Python that a replay saves, once it is measured; what a capture costs, in passes.
    _saves: float | None = None
    _costs: float = 0.0
    # Seconds of passes in Python and of replays, and of the capture, by what was captured.
    _measured: dict[object, tuple[list[float], list[float]]] = field(
        default_factory=dict[object, tuple[list[float], list[float]]]
    )
    _captures: dict[object, float] = field(default_factory=dict[object, float])
    _start: float = 0.0
    _way: tuple[object, bool] | None = None

    def __post_init__(self) -> None:
        self.on = self.asked is not False
        self.why = {True: ASKED, False: OFF, "auto": FEW}[self.asked]

    @property
    def measures(self) -> bool:
        """Whether it is still to be decided."""
        return self.on and self.asked == "auto" and self._saves is None

    def pays(self, key: object, uses: int) -> bool:
        """Whether a pass that came so often, this time included, is to be captured now. One that came n times is
        expected to come n times more, so that captures never cost more than twice what they save."""
        if self.asked is True:
            return uses > 1
        if self._saves is None:
            return uses >= _FIRST and (key in self._measured or len(self._measured) < _TRIED)
        return uses >= _FIRST and uses * self._saves >= self._costs

    def begin(self) -> None:
        """A pass begins, in whichever way."""
        if self.measures:
            self._start, self._way = self.clock(), None

    def captured(self, key: object) -> None:
        """It was captured; what comes now is done in Python beside that."""
        if self.measures:
            now = self.clock()
            self._captures[key], self._start = now - self._start, now
            self._measured.setdefault(key, ([], []))

    def goes(self, key: object, *, replayed: bool) -> None:
        """Which way the pass takes that was captured under ``key``."""
        self._way = (key, replayed)

    def end(self) -> None:
        """It is done, and nothing was done twice."""
        if not self.measures or self._way is None or self._way[0] not in self._measured:
            return
        key, replayed = self._way
        self._way = None
        times = self._measured[key]
        times[replayed].append(self.clock() - self._start)
        if min(map(len, times)) >= _EACH:
            python, replay = map(median, times)
            self._saves = 1 - replay / python if python > 0 else 0.0
            self._costs = self._captures[key] / python if python > 0 else 0.0
            self._measured.clear()
            self.why = PAYS
            if self._saves <= 0:
                self.stop(SLOWER)

    def twice(self) -> None:
        """It is done in Python after it was replayed: no time of either way."""
        self._way = None

    def stop(self, why: str) -> None:
        """No pass is captured or replayed from here on."""
        self.on, self.why = False, why
        self._measured.clear()
        self._captures.clear()
