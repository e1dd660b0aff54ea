"""A whole run of the executor against the same loop without privacy: MNIST, the paper's CNN, batches of 250.

    python -m benchmarks.run [--steps 4800]     # measures (a quarter of an hour), writes docs/reference/run-speed.md

The runs take turns of 20 steps in one process on one thread, so that whatever slows the machine slows all of them: each
turn gives one ratio. Calibration, certifying the ledger and the test score fall into turns as well, and count in the
ratio of whole runs.
"""

import argparse
import dataclasses
import json
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import measured_at, words
from decrescendo.base.markdown import table
from decrescendo.clipping import EngineSettings
from decrescendo.clipping.rules import compiled
from decrescendo_papers.experiments.perform import _plan, data_of, machine, perform
from decrescendo_papers.experiments.spec import NOT_PRIVATE, Spec
from decrescendo_papers.experiments.table import base_spec
from decrescendo_papers.experiments.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "results" / "engine" / "run.json", ROOT / "docs/reference/run-speed.md"
PRIVATE = base_spec(
    "mnist", epsilon=0.4, accountant="pld", settings={"method": "dynamic", "rho_mu": 1.25, "rho_c": 3.3}
)
PLAIN = dataclasses.replace(PRIVATE, method=NOT_PRIVATE, accountant="none", epsilon=0.0)
LAYOUTS = {"channels last": True, "contiguous": False}


class Turns:
    """Which of several threads goes on; the others wait."""

    def __init__(self, runs: int) -> None:
        self._changed, self._waiting, self._turn = threading.Condition(), list(range(runs)), 0

    def wait(self, run: int) -> None:
        """Until it is this one's turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn == run)

    def pass_on(self, run: int, *, last: bool = False) -> None:
        """To the next; ``last``: this one has ended."""
        with self._changed:
            following = [other for other in self._waiting if other > run] or self._waiting
            self._turn = following[0]
            if last:
                self._waiting.remove(run)
            self._changed.notify_all()


LIBRARY = compiled.library


def take_turns(runs: list[tuple[Spec, str]]) -> list[list[float]]:
    """Seconds of every turn of every run: 20 steps, the first with what comes before; the last is what comes after."""
    turns = Turns(len(runs))
    times: list[list[float]] = [[] for _ in runs]

    def follow(number: int) -> None:
        spec, form = runs[number]
        engine, start = EngineSettings(capture=form == "compiled, captured"), 0.0

        def begin() -> None:
            nonlocal start
            turns.wait(number)
            compiled.library = LIBRARY if form.startswith("compiled") else lambda: None
            start = time.perf_counter()

        def end(_: int) -> None:
            times[number].append(time.perf_counter() - start)
            turns.pass_on(number)
            begin()

        begin()
        try:
            _plan.cache_clear()  # every run calibrates for itself
            perform(spec, tick=end, engine=engine)
            times[number].append(time.perf_counter() - start)
        finally:  # one that fails must not keep the others waiting
            turns.pass_on(number, last=True)

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compiled.library = LIBRARY
    return times


def measure(steps: int) -> dict[str, Any]:
    """Milliseconds a step, and ratios by turns and of whole runs, by layout and form."""
    torch.set_num_threads(1)
    data_of("mnist")
    found: dict[str, Any] = {"steps": steps, **measured_at(), "machine": machine("cpu"), "rows": []}
    task = TASKS["mnist"]
    forms = ["torch alone"] if LIBRARY() is None else ["compiled", "compiled, captured", "torch alone"]
    for layout, images in LAYOUTS.items():
        TASKS["mnist"] = dataclasses.replace(task, images=images)  # the layout is chosen for images only
        specs = [(PLAIN, "torch alone"), *((PRIVATE, form) for form in forms)]
        for spec, _ in specs:
            perform(dataclasses.replace(spec, steps=20))
        plain, *private = take_turns([(dataclasses.replace(spec, steps=steps), form) for spec, form in specs])
        for form, turns in zip(forms, private, strict=True):
            # The first turn has calibration in it, and the last is no turn of steps.
            ratios = sorted(one / other for one, other in zip(turns[1:-1], plain[1:-1], strict=True))
            found["rows"].append({
                "layout": layout,
                "form": form,
                "plain_ms": 50 * statistics.median(plain[1:-1]),
                "private_ms": 50 * statistics.median(turns[1:-1]),
                "ratio": statistics.median(ratios),
                "quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
                "whole_run_ratio": sum(turns) / sum(plain),
            })  # fmt: skip
    TASKS["mnist"] = task
    return found


HEADER = (
    "layout of the images", "convolutions", "plain, ms a step", "private, ms a step", "ratio (quartiles)", "whole run",
)  # fmt: skip


def _cells(row: dict[str, Any]) -> list[str]:
    ratios = f"{row['ratio']:.2f} ({row['quartiles'][0]:.2f} .. {row['quartiles'][1]:.2f})"
    times = [f"{row[name]:.1f}" for name in ("plain_ms", "private_ms")]
    return [row["layout"], row["form"], *times, ratios, f"{row['whole_run_ratio']:.2f}"]


def render(found: dict[str, Any]) -> str:
    """The page, every number from the result."""
    lines = [
        "# A whole private run against the same loop without privacy",
        "",
        "MNIST, the paper's CNN, Poisson batches of 250 expected, plain SGD: the executor's own loops, one thread,",
        f"private and plain taking turns of 20 steps until each had {found['steps']:,}; medians of the turns' ratios.",
        f"Made by `python -m benchmarks.run`, {words(found)}.",
        "",
        table(HEADER, [_cells(row) for row in found["rows"]], "llrrrr"),
    ]
    lines += [
        "",
        "torch's pooling with a stride of one takes half of a plain step in the contiguous layout; with channels last",
        "it takes a tenth, so both loops get quicker and the ratio larger. The executor uses channels last. The last",
        "column is the ratio of the whole runs' times: with calibration, certifying the ledger and the test score in",
        "the one that is private, and the test score in the plain one. *Compiled*: the package was installed where",
        "there is a C compiler; *torch alone*: without one; *captured*: with `EngineSettings(capture=True)`",
        "([how](../how-to/speed.md)).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4800, help="a multiple of 20, at least 100")
    found = measure(parser.parse_args().steps)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(render(found))


if __name__ == "__main__":
    main()
