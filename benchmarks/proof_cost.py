"""What the proof that examples are apart takes of an engine's step, once a pass was accepted, on one thread.

``python -m benchmarks.proof_cost`` measures and writes results/engine/proof.json. There is no engine without a proof to
compare with, so a clock is put from outside at every door between the proof and the rest, and what it takes itself is
taken off; what torch takes to get to a dispatch mode that does nothing is added for each operation. The copy of the
batch that a pass is given is the proof's; recording the uses of parameters, which clipping needs by itself, is not.
"""

import functools
import json
import statistics
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import measured_at
from benchmarks.engine.contenders import Setting
from benchmarks.engine.contenders.ours import EngineInPython
from benchmarks.engine.machine import machine
from benchmarks.engine.timing import WARM_UP
from benchmarks.engine.workloads import workloads
from decrescendo.clipping import checker, passes
from decrescendo.clipping.tracking import Tracking
from decrescendo.clipping.uses import Use
from decrescendo.row_independence.dataflow import Labels
from decrescendo.row_independence.tracer import Tracer

RESULT, STEPS = Path(__file__).resolve().parents[1] / "results/engine/proof.json", 21
# Where the proof (1) begins, and where what is not the proof's (0) begins inside of it.
DOORS: list[tuple[Any, str, int]] = [
    (checker.Checker, "begin", 1), (checker.Checker, "run", 1),
    (Tracer, "__torch_dispatch__", 1), (Tracer, "consume", 1),
    (Tracer, "written", 1), (Labels, "label", 1), (Labels, "assign", 1), (Tracking, "keep", 1), (Use, "check_saved", 1),
    (Tracer, "_call", 0), (passes, "output_gradients", 0), (passes, "_arrived", 0),
]  # fmt: skip


class Clock:
    """CPU seconds of the rest and of the proof; how often it turned, and how often to an operation."""

    seconds, turns, operations, now, since = (0.0, 0.0), 0, 0, 0, 0.0

    def turn(self, proof: int) -> int:
        """It runs for the proof (1) or for the rest (0) from here on; for which it ran."""
        at, before = time.thread_time(), self.now
        rest, own = self.seconds
        self.seconds = (rest, own + at - self.since) if before else (rest + at - self.since, own)
        self.now, self.since, self.turns = proof, at, self.turns + 1
        return before

    def at(self, function: Callable[..., Any], proof: int) -> Callable[..., Any]:
        """A function while which it runs for one of them."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = self.turn(proof)
            self.operations += function.__name__ == "_call"
            try:
                return function(*args, **kwargs)
            finally:
                self.turn(before)

        return timed


class Idle(TorchDispatchMode):
    """Does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


def seconds_of(work: Callable[[], Any], number: int = 5_000) -> float:
    """CPU time of one of many, undisturbed."""
    return min(timeit.repeat(work, number=number, repeat=9, timer=time.thread_time)) / number


def measure() -> dict[str, Any]:
    """Every workload of the engine's benchmark."""
    torch.set_num_threads(1)
    device, clock, one = torch.device("cpu"), Clock(), torch.zeros(1)
    bare, own = seconds_of(one.relu), seconds_of(lambda: clock.turn(0))
    with Idle():
        doorway = seconds_of(one.relu) - bare
    for place, name, proof in DOORS:
        setattr(place, name, clock.at(getattr(place, name), proof))
    found: dict[str, Any] = {**measured_at(), "machine": machine(device), "doorway": doorway, "rows": []}
    for workload in workloads(device).values():
        watched = replace(workload, loss=clock.at(workload.loss, 0))
        step = EngineInPython(Setting(watched, device))
        proofs, shares = list[float](), list[float]()
        for _ in range(WARM_UP + STEPS):
            clock.seconds, clock.turns, clock.operations, clock.since = (0.0, 0.0), 0, 0, time.thread_time()
            step.step()
            clock.turn(0)
            # Half of what a turn takes is before the clock is read.
            proofs.append(clock.seconds[1] + clock.operations * doorway - clock.turns * own / 2)
            shares.append(proofs[-1] / (sum(clock.seconds) - clock.turns * own))
        found["rows"].append({
            "title": f"{workload.title} ({workload.rows})", "extra": workload.extra, "operations": clock.operations,
            "ms": 1e3 * statistics.median(proofs[WARM_UP:]), "share": statistics.median(shares[WARM_UP:]),
        })  # fmt: skip
        print(found["rows"][-1], flush=True)
    return found


def main() -> None:
    """Measure and write."""
    found = measure()
    shares = [row["share"] for row in found["rows"] if not row["extra"]]
    print(f"{statistics.median(shares):.1%} in the median of the workloads, {max(shares):.1%} at most")
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
