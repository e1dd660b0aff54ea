"""What exact noise costs: numbers a second, and a private step of the paper's CNN.

    python -m benchmarks.secure [--rounds 15]       # measures, then writes docs/reference/noise-speed.md

All ways alternate in one process on one thread; seconds are the thread's own; medians over rounds, the slowdown as a
median of ratios within a round.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks import measured_at
from decrescendo.accounting.budget import Budget
from decrescendo.base.rng import Secure, SecureStream, Streams, rounded
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import constant
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Trainer, cross_entropy
from decrescendo_papers.data import mnist
from decrescendo_papers.experiments.perform import machine
from decrescendo_papers.models import paper_cnn

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "results" / "engine" / "secure.json", ROOT / "docs/reference/noise-speed.md"
# The CNN's parameters, and an embedding's.
SIZES = (26_010, 2_000_000)


def draws(size: int) -> dict[str, Callable[[], object]]:
    """Ways of adding noise to a sum of ``size`` float32 numbers, and of dividing it."""
    sums, out = torch.zeros(size), np.zeros(size, dtype=np.float32)
    generator, seeded, secure = Streams(0).torch("noise"), Streams(0).keyed("noise"), SecureStream.fresh()

    def without_kernel() -> object:
        with mock.patch.object(rounded, "kernel", return_value=None):
            return secure.add_gaussian(sums.numpy(), 1.0, divisor=3.0, out=out)

    return {
        "torch, float32 (ends at 5.8 deviations; predictable)": lambda: (
            torch.randn(size, generator=generator).add_(sums).div_(3.0)
        ),
        "torch, float64 (ends at 8.6; predictable)": lambda: (
            torch.randn(size, dtype=torch.float64, generator=generator).add_(sums).div_(3.0).float()
        ),
        "a seed: exact": lambda: seeded.add_gaussian(sums.numpy(), 1.0, divisor=3.0, out=out),
        "`Secure()`: exact, unpredictable": lambda: secure.add_gaussian(sums.numpy(), 1.0, divisor=3.0, out=out),
        "the same, without the compiled kernel": without_kernel,
    }


def seconds(work: Callable[[], object], times: int) -> float:
    """Of one call, from ``times`` of them."""
    start = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - start) / times


def trainer(seed: int | Secure, steps: int) -> Callable[[], object]:
    """One step of the paper's CNN on MNIST, a call."""
    data = mnist().train
    plan = calibrate(
        Budget(1.2, 1e-6),
        PoissonSampling(60_000, 250),
        steps=steps,
        privacy=constant(1.0),
        clip=constant(1.5),
    )
    model = paper_cnn(0).to(memory_format=torch.channels_last)
    made = Trainer(model, cross_entropy, plan, torch.optim.SGD(model.parameters(), lr=0.15), seed=seed)
    batches = made.batches(data)
    return lambda: made.step(next(batches))


def measure(rounds: int) -> dict[str, Any]:
    """Draws and steps."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "rounds": rounds,
        "machine": machine("cpu"),
        "draws": {},
        **measured_at(),
    }
    for size in SIZES:
        ways, times = draws(size), max(1, 1_000_000 // size)
        rows = [{name: seconds(work, times) for name, work in ways.items()} for _ in range(rounds)]
        found["draws"][str(size)] = {name: size / statistics.median(row[name] for row in rows) for name in ways}
    each = 20
    steps = {"seeded": trainer(0, each * (rounds + 1)), "secure": trainer(Secure(), each * (rounds + 1))}
    for work in steps.values():
        seconds(work, each)
    rows = [{name: seconds(work, each) for name, work in steps.items()} for _ in range(rounds)]
    found["step_ms"] = {name: 1e3 * statistics.median(row[name] for row in rows) for name in steps}
    found["slowdown"] = sorted(row["secure"] / row["seeded"] for row in rows)
    return found


def render(found: dict[str, Any]) -> str:
    """The page, every number from the result."""
    lines = [
        "# What exact noise costs",
        "",
        "One thread of a CPU, in its own seconds, all ways alternating in one process, medians of "
        f"{found['rounds']} rounds, {found['date']}, commit {found['commit']}. Made by "
        "`python -m benchmarks.secure`. What exact noise is: [secure-noise.md](../explanation/secure-noise.md).",
        "",
        "| noise added to a float32 sum, and divided | "
        + " | ".join(f"{int(size):,} numbers" for size in found["draws"])
        + " |",
        "| --- | " + " | ".join("---:" for _ in found["draws"]) + " |",
    ]
    for name in next(iter(found["draws"].values())):
        cells = (f"{rates[name] / 1e6:.0f} million a second" for rates in found["draws"].values())
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    ratios = found["slowdown"]
    lines += [
        "",
        "A private step of the paper's CNN on MNIST (250 of 60,000 expected): "
        f"{found['step_ms']['seeded']:.1f} ms with a seed, {found['step_ms']['secure']:.1f} ms with `Secure()`;",
        f"within a round the secure step takes {statistics.median(ratios):.3f} times the other "
        f"({ratios[0]:.3f} .. {ratios[-1]:.3f}). With `Secure()` batches are drawn by the cipher too.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    found = measure(parser.parse_args().rounds)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(render(found))


if __name__ == "__main__":
    main()
