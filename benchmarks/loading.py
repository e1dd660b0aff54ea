"""How long a private loop waits for its data, beside the same loop over torch's own loader.

``python -m benchmarks.loading``: 2 workers, 2 ms an example. Both loops take the same batches and step in no time, so
that they wait for each batch as long as making it takes; the slower the step, the less there is to wait for.
"""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from decrescendo.base.rng import Streams
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training.data import table_of
from decrescendo.training.examples import Draw
from decrescendo.training.loading import made

ROWS, BATCH, STEPS, WORKERS, SECONDS = 2_000, 64, 30, 2, 0.002


class Slow(Dataset[Any]):
    """Pictures that take a while to read."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(SECONDS)
        return torch.full((3, 32, 32), float(index)), index % 10


def waited(batches: Any) -> float:
    """Seconds in which nothing but waiting happened."""
    begin = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - begin


def main() -> None:
    """Print both, and how many times longer the private loop waits."""
    ratios: list[float] = []
    for number in range(3):
        stream = Streams(number).numpy("sampling")
        drawn = [indices for indices in PoissonSampling(ROWS, BATCH).batches(STEPS, stream) if len(indices)]
        plain = waited(
            DataLoader(Slow(), batch_sampler=[list(map(int, d)) for d in drawn], num_workers=WORKERS)
        )
        draws = iter([Draw(indices, number) for indices in drawn])
        private = waited(made(table_of(Slow()), draws, WORKERS, torch.device("cpu")))
        ratios.append(private / plain)
        print(f"plain {plain:.2f} s, private {private:.2f} s, ratio {ratios[-1]:.3f}")
    print(
        f"median ratio {float(np.median(ratios)):.3f} ({STEPS} steps of {BATCH} examples of {1000 * SECONDS:g} ms)"
    )


if __name__ == "__main__":
    main()
