"""Time: all contenders of a workload in one process, one step each in turn, the order shuffled every round."""

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.engine.checking import TOLERANCE, TOLERANCE_ON_GPU, reference_sum, relative_error
from benchmarks.engine.contenders import CONTENDERS, Missing, Refused, Setting, Step
from decrescendo.clipping.capture_choice import FEW

WARM_UP = 3
# Seconds of a first step that is warm-up enough.
LONG = 2.0
# Steps within which our engine has found out whether a replayed pass takes less time.
_CHOSEN_AFTER = 60
FEWEST_ROUNDS = 7
# Who takes more than so many times plain training's time takes part in the first few rounds only.
FAR, FEW_ROUNDS = 20.0, 3
# A step that takes longer is measured once, in the warm-up, and does not hold up the rounds.
SLOWEST = 60.0
# Seconds before a step: the threads of the library before it, which wait in a loop for more work, go to sleep.
PAUSE = 0.005


@dataclass(slots=True)
class Entry:
    """What became of one contender."""

    status: str
    reason: str = ""
    step: Step | None = None
    error: float | None = None
    first: float | None = None
    last: float = 0.0


def measure(setting: Setting, names: list[str], *, rounds: int, seconds: float) -> dict[str, Any]:
    """Check, warm up and time the contenders; plain training always takes part.

    Args:
        setting: the workload and the device.
        names: of contenders.
        rounds: at most this many.
        seconds: no new round after this time, once there are seven.
    """
    expected = reference_sum(setting)
    entries: dict[str, Entry] = {}
    for name in dict.fromkeys(("plain", *names)):
        entries[name] = entry = _ready(name, setting, expected)
        first = "" if entry.first is None else f", first step {entry.first:.2f} s"
        print(f"{setting.workload.name}, {name}: {entry.status}{first}", file=sys.stderr, flush=True)
    running = {name: entry.step for name, entry in entries.items() if entry.step is not None}
    plain = entries["plain"].last
    far = {name for name in running if entries[name].last > FAR * plain}
    times = in_turns(running, setting.device, rounds=rounds, seconds=seconds, far=far)
    return {
        name: _report(entry, times.get(name), times["plain"], on_gpu=setting.device.type == "cuda")
        for name, entry in entries.items()
    }


def timed(step: Step, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one step by a clock, with the device's queue empty before and after."""
    synchronise(device)
    start = clock()
    step.step()
    synchronise(device)
    return clock() - start


def synchronise(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _ready(name: str, setting: Setting, expected: Mapping[str, Any]) -> Entry:
    try:
        step = CONTENDERS[name].make(setting)
        found = step.clipped_sum()
        error = None if found is None else relative_error(found, expected)
        del found
        first = timed(step, setting.device)
        if first > SLOWEST:
            return Entry("too slow", f"the first step took {first:.0f} s", None, error, first)
        last = warm_up(step, setting.device, first)
    except Missing as error:
        return Entry("not installed", str(error))
    except Refused as error:
        return Entry("refused", str(error))
    except Exception as error:  # a peer may fail in any way; the table says how, and the others go on
        return Entry("failed", f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
    return Entry("ready", "", step, error, first, last)


def warm_up(step: Step, device: torch.device, first: float | None = None) -> float:
    """Steps until only the step itself is left to time, after one that took ``first`` seconds; the last one's seconds.

    Our engine has chosen by then whether its passes are captured.
    """
    last, done = (timed(step, device), 1) if first is None else (first, 1)
    while (done < WARM_UP and last <= LONG) or (step.passes == FEW and done < _CHOSEN_AFTER):
        last, done = timed(step, device), done + 1
    return last


def in_turns(
    running: Mapping[str, Step],
    device: torch.device,
    *,
    rounds: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    far: Container[str] = (),
) -> dict[str, list[float]]:
    """Seconds of one step of each in every round, or in the first few for those ``far`` from plain training; no new
    round after ``seconds``, once there are seven."""
    times: dict[str, list[float]] = {name: [] for name in running}
    order = list(running)
    shuffle = random.Random(0)
    start = time.perf_counter()
    gc.collect()
    for done in range(rounds):
        if done >= FEWEST_ROUNDS and time.perf_counter() - start > seconds:
            break
        shuffle.shuffle(order)
        for name in order:
            if done >= FEW_ROUNDS and name in far:
                continue
            time.sleep(PAUSE)
            times[name].append(timed(running[name], device, clock))
    return times


def _report(entry: Entry, seconds: list[float] | None, plain: list[float], *, on_gpu: bool) -> dict[str, Any]:
    report: dict[str, Any] = {"status": "measured" if seconds else entry.status}
    if entry.reason:
        report["reason"] = entry.reason
    if entry.step is not None and entry.step.rewritten:
        report["rewritten"] = entry.step.rewritten
    if entry.step is not None and entry.step.passes:
        report["passes"] = entry.step.passes
    if entry.error is not None:
        report["relative error"] = entry.error
        report["same work"] = entry.error <= (TOLERANCE_ON_GPU if on_gpu else TOLERANCE)
    if entry.first is not None:
        report["first step, seconds"] = entry.first
    if seconds:
        ratios = [own / base for own, base in zip(seconds, plain[: len(seconds)], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        report |= {
            "median, ms": 1e3 * statistics.median(seconds),
            "times plain": statistics.median(ratios),
            "times plain, quartiles": [low, high],
            "seconds": seconds,
        }
    return report
