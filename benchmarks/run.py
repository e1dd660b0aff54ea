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
from pathlib import Path
from typing import Any

import torch

from decrescendo.experiments.perform import data_of, machine, perform
from decrescendo.experiments.spec import NOT_PRIVATE, Spec
from decrescendo.experiments.table import base_spec
from decrescendo.experiments.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "results" / "engine" / "run.json", ROOT / "docs" / "run-speed.md"
PRIVATE = base_spec(
    "mnist", epsilon=0.4, accountant="pld", settings={"method": "dynamic", "rho_mu": 1.25, "rho_c": 3.3}
)
PLAIN = dataclasses.replace(PRIVATE, method=NOT_PRIVATE, accountant="none", epsilon=0.0)
LAYOUTS = {"channels last": True, "contiguous": False}


def seconds(spec: Spec, steps: int) -> float:
    """Wall-clock time of everything that one run does."""
    start = time.perf_counter()
    perform(dataclasses.replace(spec, steps=steps))
    return time.perf_counter() - start


def measure(steps: int, rounds: int) -> dict[str, Any]:
    """Milliseconds a step and what a run costs once, by layout."""
    torch.set_num_threads(1)
    data_of("mnist")
    found: dict[str, Any] = {"steps": steps, "rounds": rounds, "machine": machine("cpu")}
    task = TASKS["mnist"]
    for layout, images in LAYOUTS.items():
        TASKS["mnist"] = dataclasses.replace(task, images=images)  # the layout is chosen for images only
        for spec in (PLAIN, PRIVATE):
            seconds(spec, 20)
        rows = [
            [
                (short := seconds(spec, 20), (seconds(spec, steps + 20) - short) / steps)
                for spec in (PLAIN, PRIVATE)
            ]
            for _ in range(rounds)
        ]
        ratios = sorted(row[1][1] / row[0][1] for row in rows)
        whole = [(row[1][0] + 4780 * row[1][1]) / (row[0][0] + 4780 * row[0][1]) for row in rows]
        found[layout] = {
            "plain_ms": 1e3 * statistics.median(row[0][1] for row in rows),
            "private_ms": 1e3 * statistics.median(row[1][1] for row in rows),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "whole_run_ratio": statistics.median(whole),
        }
    TASKS["mnist"] = task
    return found


def render(found: dict[str, Any]) -> str:
    """The page, every number from the result."""
    lines = [
        "# A whole private run against the same loop without privacy",
        "",
        "MNIST, the paper's CNN, Poisson batches of 250 expected, plain SGD: the executor's own loops, one thread,",
        f"private and plain alternating, medians of {found['rounds']} rounds of {found['steps']} steps. Made by",
        "`python -m benchmarks.run`.",
        "",
        "| layout of the images | plain, ms a step | private, ms a step | ratio (least .. most) | whole run of 4,800 |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for layout in LAYOUTS:
        row = found[layout]
        lines.append(
            f"| {layout} | {row['plain_ms']:.1f} | {row['private_ms']:.1f} | {row['ratio']:.2f} "
            f"({row['ratios'][0]:.2f} .. {row['ratios'][-1]:.2f}) | {row['whole_run_ratio']:.2f} |"
        )
    lines += [
        "",
        "torch's pooling with a stride of one takes half of a plain step in the contiguous layout; with channels last",
        "it takes a tenth, so both loops get quicker and the ratio larger. The executor uses channels last. The last",
        "column is a ratio too: calibration, certifying the ledger and the test score are in the private run, the test",
        "score is in the plain one.",
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
