"""What `Pld` costs: width against time, growth with the number of steps, and dp-accounting on the same steps.

    python benchmarks/accounting.py [--peer] > results/accounting/speed.json

``--peer`` also composes 5,000 different steps one by one with dp-accounting at grid 1e-3 (minutes). Times are
medians of five runs in this process after one warm-up; nothing here is a test.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import decrescendo as dc
from decrescendo.accounting import Pld

RATE, DELTA = 250 / 60_000, 1 / 600_000


def timed(action: Callable[[], object], runs: int = 5) -> tuple[float, object]:
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
        privacy=dc.growing_mu(2.5),
        clip=dc.constant(1.0),
    )
    return plan.ledger


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="store_true")
    arguments = parser.parse_args()
    ledger = growing(5_000)
    report: dict[str, object] = {
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {"decrescendo": dc.__version__, "numpy": np.__version__},
    }
    widths = []
    for rtol in (1e-2, 1e-3, 5e-4, 2e-4):
        seconds, bracket = timed(lambda rtol=rtol: Pld(rtol=rtol).bracket(ledger, DELTA), 3)
        lower, upper = bracket  # type: ignore[misc]
        widths.append({"rtol": rtol, "seconds": seconds, "lower": lower, "upper": upper, "width": upper / lower - 1})
    report["5,000 different steps, growing mu 2.5, delta 1/600,000"] = widths
    growth = []
    for steps in (500, 5_000, 50_000, 500_000, 1_000_000):
        noise = np.geomspace(2.5, 1.0, steps) * np.sqrt(steps / 5_000)
        distinct = dc.Ledger.of(noise, RATE)
        seconds, bracket = timed(lambda distinct=distinct: Pld().bracket(distinct, DELTA), 3)
        lower, upper = bracket  # type: ignore[misc]
        growth.append({"steps": steps, "seconds": seconds, "upper": upper, "width": upper / lower - 1})
    report["growth with different steps"] = growth
    seconds, _ = timed(lambda: growing(5_000), 3)
    report["calibrate, 5,000 steps, seconds"] = seconds
    if arguments.peer:
        from dp_accounting.pld import privacy_loss_distribution as peer

        start = time.perf_counter()
        total = None
        for release in ledger:
            step = peer.from_gaussian_mechanism(
                release.noise_multiplier, sampling_prob=release.sample_rate, value_discretization_interval=1e-3
            )
            total = step if total is None else total.compose(step)
        report["dp-accounting, the same 5,000 steps, grid 1e-3"] = {
            "seconds": time.perf_counter() - start,
            "epsilon": total.get_epsilon_for_delta(DELTA) if total is not None else None,
        }
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
