"""A simulated federated round against the central engine's step of the same size; memory by number of clients.

    python -m benchmarks.federated [--rounds 20] [--blocks 5] [--long 300]

500,000 clients of one image, 250 expected a round, CENTRAL noise. Blocks of central and federated rounds alternate in
one process on one thread, in CPU time of that thread, so that other programs disturb little; each block gives one
ratio. Images are random bytes, in memory: what is measured is training, not data. Memory is what a process of
its own, which computes its images from their numbers, holds at most at the end of a round; the accounting is over by
then. A longer run of ``--long`` rounds, one after another, says what 5,000 of them take: the time of the whole loop,
drawing cohorts and collecting their images included.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.federated import Clients, LocalSteps, Placement, simulate
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import constant
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import train
from decrescendo.training.data.rows import Rows
from decrescendo.training.loop.progress import Progress
from decrescendo_papers.data import InfiniteMnist
from decrescendo_papers.data.infinite import ORIGINALS, TEST
from decrescendo_papers.models import infinite_cnn

POPULATIONS = (500_000, 5_000_000, 50_000_000)
RESULT = Path(__file__).resolve().parent.parent / "results" / "engine" / "federated.json"
WARM = 3


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of each image."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def plan_of(clients: int, rounds: int, unit: Unit, cohort: int = 250) -> Plan:
    """A constant plan."""
    sampling = PoissonSampling(clients, cohort)
    return calibrate(Budget(2.0, 1e-7, unit), sampling, steps=rounds, privacy=constant(1.0), clip=constant(1.5))


class Times:
    """CPU time of this thread between the ends of rounds."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.wall: list[float] = []

    def __call__(self, progress: Progress) -> None:
        assert progress.step > len(self.at)
        self.at.append(time.thread_time())
        self.wall.append(time.monotonic())

    @property
    def median(self) -> float:
        """Seconds a round, the first ones left out."""
        return statistics.median(np.diff(self.at[WARM:]).tolist())


def timed(kind: str, plan: Plan, data: tuple[Tensor, Tensor]) -> float:
    """Seconds a round of one kind."""
    model = infinite_cnn(0)
    optimizer, times = torch.optim.SGD(model.parameters(), lr=0.15), Times()
    if kind == "central":
        train(model, loss, data, plan, optimizer, seed=1, callback=times)
        return times.median
    records = 10 if kind in ("ten records", "local epochs") else 1
    simulate(
        model,
        loss,
        Clients.equal(data, records),
        plan,
        optimizer,
        seed=1,
        placement=Placement.DISTRIBUTED if kind == "distributed" else Placement.CENTRAL,
        local=LocalSteps(0.1, epochs=2, batch_size=5) if kind == "local epochs" else None,
        callback=times,
    )
    return times.median


def speed(clients: int, rounds: int, blocks: int) -> dict[str, Any]:
    """Milliseconds a round, and ratios to the central step."""
    data = random_images(clients)
    total = rounds + WARM + 1
    plans = {
        "central": plan_of(clients, total, Unit.EXAMPLE),
        "one record": plan_of(clients, total, Unit.CLIENT),
        "distributed": plan_of(clients, total, Unit.CLIENT),
        "ten records": plan_of(clients // 10, total, Unit.CLIENT, 25),
        "local epochs": plan_of(clients // 10, total, Unit.CLIENT, 25),
    }
    rows = [{kind: timed(kind, plan, data) for kind, plan in plans.items()} for _ in range(blocks)]
    found: dict[str, Any] = {}
    for kind in plans:
        ratios = sorted(row[kind] / row["central"] for row in rows)
        found[kind] = {
            "ms": 1e3 * statistics.median(row[kind] for row in rows),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
    return found


def long(clients: int, rounds: int) -> dict[str, Any]:
    """Many rounds in one go, and what they say of 5,000; the accounting of the plan is not in it."""
    data = random_images(clients)
    plan, times = plan_of(clients, rounds, Unit.CLIENT), Times()
    model = infinite_cnn(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15)
    simulate(
        model,
        loss,
        Clients.equal(data, records=1),
        plan,
        optimizer,
        seed=1,
        placement=Placement.CENTRAL,
        callback=times,
    )
    each = (times.at[-1] - times.at[WARM]) / (len(times.at) - 1 - WARM)
    wall = (times.wall[-1] - times.wall[WARM]) / (len(times.wall) - 1 - WARM)
    return {
        "rounds": rounds,
        "cpu_ms_a_round": 1e3 * each,
        "median_cpu_ms": 1e3 * times.median,
        "wall_ms_a_round": 1e3 * wall,
        "cpu_seconds_for_5000": 5_000 * each,
        "wall_seconds_for_5000": 5_000 * wall,
    }


def random_images(count: int) -> tuple[Tensor, Tensor]:
    """Bytes of the size of digits."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return images, torch.randint(10, (count,), generator=generator)


def resident(clients: int, rounds: int) -> int:
    """The most bytes held at the end of a round, over images that are computed from their numbers."""
    random = np.random.default_rng(0)
    pixels = random.integers(256, size=(TEST + ORIGINALS, 28, 28), dtype=np.uint8)
    source = InfiniteMnist(pixels, (np.arange(TEST + ORIGINALS) % 10).astype(np.uint8))

    def take(indices: np.ndarray) -> tuple[Tensor, Tensor]:
        numbers = TEST + indices
        labels = torch.from_numpy(source.labels(numbers).astype(np.int64))
        return torch.from_numpy(source.images(numbers)).unsqueeze(1), labels

    model = infinite_cnn(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15)
    plan = plan_of(clients, rounds, Unit.CLIENT)
    held: list[int] = []

    def note(progress: Progress) -> None:
        assert progress.step > len(held)
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())

    simulate(
        model,
        loss,
        Clients.equal(Rows(clients, take), records=1),
        plan,
        optimizer,
        seed=1,
        placement=Placement.CENTRAL,
        callback=note,
    )
    return max(held)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--long", type=int, default=300)
    parser.add_argument("--clients", type=int, default=500_000)
    parser.add_argument("--resident", type=int, help="only print the memory with so many clients")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.resident:
        print(resident(arguments.resident, 30))
        return
    memory = {
        str(clients): int(
            subprocess.run(
                [sys.executable, "-m", "benchmarks.federated", "--resident", str(clients)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for clients in POPULATIONS
    }
    found = {"clients": arguments.clients, "rounds": arguments.rounds, "blocks": arguments.blocks}
    found |= {"resident_bytes": memory, "speed": speed(arguments.clients, arguments.rounds, arguments.blocks)}
    found["long"] = long(arguments.clients, arguments.long)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
