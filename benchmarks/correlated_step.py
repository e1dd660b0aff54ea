"""How much longer a step with 16 bands of correlated noise takes than one with independent noise.

    python -m benchmarks.correlated_step

An MLP of a million parameters, batches of 256, secure noise, one thread. Both trainings run by turns; a turn's time is
the mean of its last 48 steps, in which the noise of 16 steps is drawn three times.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.plans import Plan

RECORDS, BATCH, STEPS, TURNS = 20_000, 256, 64, 10


def model() -> nn.Module:
    """998,030 parameters."""
    return nn.Sequential(
        nn.Linear(784, 900), nn.ReLU(), nn.Linear(900, 320), nn.ReLU(), nn.Linear(320, 10)
    )  # fmt: skip


def loss(trained: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss per example."""
    return nn.functional.cross_entropy(trained(batch[0]), batch[1], reduction="none")


def seconds(plan: Plan, data: tuple[Tensor, Tensor]) -> float:
    """The mean time of a step, without the first ones."""
    trained, ends = model(), [time.perf_counter()]
    note: Callable[[object], None] = lambda _: ends.append(time.perf_counter())  # noqa: E731
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    dc.train(trained, loss, data, plan, optimizer, seed=dc.Secure(), callback=note)
    return float(np.diff(ends)[-48:].mean())


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    data = torch.randn(RECORDS, 784), torch.randint(10, (RECORDS,))
    one, many = (
        dc.calibrate(
            dc.Budget(8, 1e-5), dc.PoissonSampling(RECORDS, BATCH), steps=STEPS, clip=1.0, bands=bands,
            workload=np.ones(STEPS),
        )
        for bands in (1, 16)
    )  # fmt: skip
    turns = [(seconds(one, data), seconds(many, data)) for _ in range(TURNS)]
    low, middle, high = statistics.quantiles([after / before for before, after in turns], n=4)
    print(f"independent {1e3 * statistics.median(before for before, _ in turns):.1f} ms a step")
    print(f"16 bands: {middle:.2f} times as long in the median of {TURNS} turns, quartiles {low:.2f} and {high:.2f}")


if __name__ == "__main__":
    main()
