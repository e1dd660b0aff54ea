"""A whole run of the executor against the same loop without privacy: MNIST, the paper's CNN, batches of 250.

    python -m benchmarks.run [--steps 300] [--rounds 7]     # measures, then writes docs/run-speed.md

Private and plain runs alternate in one process on one thread; every round gives one ratio. What a run costs once (data,
calibration, certifying the ledger, the test score) is measured by runs of two lengths and told apart.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from decrescendo.clipping.rules import compiled
from decrescendo.experiments.perform import data_of, machine, perform
from decrescendo.experiments.spec import NOT_PRIVATE, Spec
from decrescendo.experiments.table import base_spec
from decrescendo.experiments.tasks import TASKS
from decrescendo.markdown import table

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "results" / "engine" / "run.json", ROOT / "docs" / "run-speed.md"
PRIVATE = base_spec(
    "mnist", epsilon=0.4, accountant="pld", settings={"method": "dynamic", "rho_mu": 1.25, "rho_c": 3.3}
)
PLAIN = dataclasses.replace(PRIVATE, method=NOT_PRIVATE, accountant="none", epsilon=0.0)
LAYOUTS = {"channels last": True, "contiguous": False}


@contextmanager
def without_compiled() -> Iterator[None]:
    """The engine as it is where no C compiler was at hand when it was installed."""
    library = compiled.library
    compiled.library = lambda: None
    try:
        yield
    finally:
        compiled.library = library


def seconds(spec: Spec, steps: int, form: str) -> float:
    """Wall-clock time of everything that one run does."""
    with nullcontext() if form == "compiled" else without_compiled():
        start = time.perf_counter()
        perform(dataclasses.replace(spec, steps=steps))
        return time.perf_counter() - start


def measure(steps: int, rounds: int) -> dict[str, Any]:
    """Milliseconds a step and what a run costs once, by layout and form; all of them in turn, round after round."""
    torch.set_num_threads(1)
    data_of("mnist")
    found: dict[str, Any] = {"steps": steps, "rounds": rounds, "machine": machine("cpu"), "rows": []}
    task = TASKS["mnist"]
    forms = ["torch alone"] if compiled.library() is None else ["compiled", "torch alone"]
    runs = [(PLAIN, "torch alone"), *((PRIVATE, form) for form in forms)]
    for layout, images in LAYOUTS.items():
        TASKS["mnist"] = dataclasses.replace(task, images=images)  # the layout is chosen for images only
        for spec, form in runs:
            seconds(spec, 20, form)
        times: list[list[tuple[float, float]]] = []
        for _ in range(rounds):
            round_: list[tuple[float, float]] = []
            for spec, form in runs:
                short = seconds(spec, 20, form)
                round_.append((short, (seconds(spec, steps + 20, form) - short) / steps))
            times.append(round_)
        for index, form in enumerate(forms, 1):
            pairs = [(round_[0], round_[index]) for round_ in times]
            whole = [
                (private[0] + 4780 * private[1]) / (plain[0] + 4780 * plain[1]) for plain, private in pairs
            ]
            found["rows"].append({
                "layout": layout,
                "form": form,
                "plain_ms": 1e3 * statistics.median(plain[1] for plain, _ in pairs),
                "private_ms": 1e3 * statistics.median(private[1] for _, private in pairs),
                "ratio": statistics.median(private[1] / plain[1] for plain, private in pairs),
                "ratios": sorted(private[1] / plain[1] for plain, private in pairs),
                "whole_run_ratio": statistics.median(whole),
            })  # fmt: skip
    TASKS["mnist"] = task
    return found


HEADER = (
    "layout of the images", "convolutions", "plain, ms a step", "private, ms a step", "ratio (least .. most)",
    "whole run of 4,800",
)  # fmt: skip


def _cells(row: dict[str, Any]) -> list[str]:
    ratios = f"{row['ratio']:.2f} ({row['ratios'][0]:.2f} .. {row['ratios'][-1]:.2f})"
    times = [f"{row[name]:.1f}" for name in ("plain_ms", "private_ms")]
    return [row["layout"], row["form"], *times, ratios, f"{row['whole_run_ratio']:.2f}"]


def render(found: dict[str, Any]) -> str:
    """The page, every number from the result."""
    lines = [
        "# A whole private run against the same loop without privacy",
        "",
        "MNIST, the paper's CNN, Poisson batches of 250 expected, plain SGD: the executor's own loops, one thread,",
        f"private and plain in turn, medians of {found['rounds']} rounds of {found['steps']} steps. Made by",
        "`python -m benchmarks.run`.",
        "",
        table(HEADER, [_cells(row) for row in found["rows"]], "llrrrr"),
    ]
    lines += [
        "",
        "torch's pooling with a stride of one takes half of a plain step in the contiguous layout; with channels last",
        "it takes a tenth, so both loops get quicker and the ratio larger. The executor uses channels last. The last",
        "column is a ratio too: calibration, certifying the ledger and the test score are in the private run, the test",
        "score is in the plain one. *Compiled*: the package was installed where there is a C compiler;",
        "*torch alone*: without one.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    found = measure(arguments.steps, arguments.rounds)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(render(found))


if __name__ == "__main__":
    main()
