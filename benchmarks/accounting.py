"""What `Pld` costs: width against time, growth with the number of steps, and dp-accounting on the same steps.

    python -m benchmarks.accounting [--peer] [--page-only]

Writes results/accounting/speed.json and, from it, docs/reference/accounting-speed.md. ``--peer`` also composes
5,000 different steps one by one with dp-accounting at grid 1e-3 (minutes). Times are medians of three runs in this
process after one warm-up; nothing here is a test.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import decrescendo as dc
from benchmarks import measured_at, words
from decrescendo.accounting import Pld

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "results" / "accounting" / "speed.json", ROOT / "docs/reference/accounting-speed.md"
RATE, DELTA = 250 / 60_000, 1 / 600_000


def timed(action: Callable[[], object], runs: int = 3) -> tuple[float, object]:
    """Median seconds of ``runs`` calls after one warm-up, and the last result."""
    result = action()
    seconds: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        result = action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), result


def growing(steps: int, sample_rate: float = RATE) -> dc.Ledger:
    """The reference run: growing mu 2.5 near epsilon 1.2, ``steps`` different releases."""
    plan = dc.calibrate(
        dc.Budget(1.2, DELTA),
        dc.PoissonSampling(60_000, 60_000 * sample_rate),
        steps=steps,
        privacy=dc.curves.growing_mu(2.5),
        clip=dc.curves.constant(1.0),
    )
    return plan.ledger


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--page-only", action="store_true")
    arguments = parser.parse_args()
    if arguments.page_only:
        PAGE.write_text(render(json.loads(RESULT.read_text())))
        return
    ledger = growing(5_000)
    report: dict[str, Any] = {
        **measured_at(),
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {"decrescendo": dc.__version__, "numpy": np.__version__},
    }
    widths = []
    for rtol in (1e-2, 1e-3, 5e-4, 2e-4):
        seconds, bracket = timed(lambda rtol=rtol: Pld(rtol=rtol).bracket(ledger, DELTA))
        lower, upper = bracket  # type: ignore[misc]
        widths.append({"rtol": rtol, "seconds": seconds, "lower": lower, "upper": upper, "width": upper / lower - 1})
    report["5,000 different steps, growing mu 2.5, delta 1/600,000"] = widths
    growth = []
    for steps in (500, 5_000, 50_000, 500_000, 1_000_000):
        noise = np.geomspace(2.5, 1.0, steps) * np.sqrt(steps / 5_000)
        distinct = dc.Ledger.of(noise, RATE)
        seconds, bracket = timed(lambda distinct=distinct: Pld().bracket(distinct, DELTA))
        lower, upper = bracket  # type: ignore[misc]
        growth.append({"steps": steps, "seconds": seconds, "upper": upper, "width": upper / lower - 1})
    report["growth with different steps"] = growth
    seconds, _ = timed(lambda: growing(5_000))
    report["calibrate, 5,000 steps, seconds"] = seconds
    if arguments.peer:
        from dp_accounting.pld import privacy_loss_distribution as peer

        start = time.perf_counter()
        total = None
        for release in ledger:
            step = peer.from_gaussian_mechanism(
                release.noise_multiplier,
                sampling_prob=release.sample_rate,
                value_discretization_interval=1e-3,
            )
            total = step if total is None else total.compose(step)
        report["dp-accounting, the same 5,000 steps, grid 1e-3"] = {
            "version": version("dp-accounting"),
            "seconds": time.perf_counter() - start,
            "epsilon": total.get_epsilon_for_delta(DELTA) if total is not None else None,
        }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    PAGE.write_text(render(report))


def render(report: dict[str, Any]) -> str:
    """The page, every number from the result."""
    machine = report["machine"]
    lines = [
        "# What accounting costs",
        "",
        f"Measured on {machine['cores']} {machine['cpu']} cores of a shared machine, Python {machine['python']}, by",
        "`python -m benchmarks.accounting --peer`, medians of three runs after a warm-up;",
        f"{words(report)}.",
        "",
        "One bracket of a run of 5,000 different steps (p = 250/60,000, growing mu 2.5, delta = 1/600,000):",
        "",
        "| asked `rtol` | lower | upper | relative width | seconds |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['rtol']:g} | {row['lower']:.5f} | {row['upper']:.5f} | {row['width']:.2e} | {row['seconds']:.2f} |"
        for row in report["5,000 different steps, growing mu 2.5, delta 1/600,000"]
    ]
    lines += [
        "",
        f"Calibrating that run (search and certificate): {report['calibrate, 5,000 steps, seconds']:.2f} s.",
        "",
        "Growth with the number of *different* steps, at `rtol` 1e-3:",
        "",
        "| steps | upper | relative width | seconds |",
        "| ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['steps']:,} | {row['upper']:.4f} | {row['width']:.2e} | {row['seconds']:.2f} |"
        for row in report["growth with different steps"]
    ]
    peer = report.get("dp-accounting, the same 5,000 steps, grid 1e-3")
    if peer:
        ours = report["5,000 different steps, growing mu 2.5, delta 1/600,000"][1]["seconds"]
        lines += [
            "",
            f"dp-accounting {peer['version']} on the same 5,000 steps, one by one, at grid 1e-3:",
            f"{peer['seconds']:.0f} s in one run, upper bound {peer['epsilon']:.4f}; `Pld` at `rtol` 1e-3 is "
            f"{peer['seconds'] / ours:.0f} times as fast.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
