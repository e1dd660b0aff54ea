"""How long a private loop waits for its data, beside the same loop over torch's own loader.

``python -m benchmarks.loading`` writes results/loading.json and docs/reference/loading.md: 2 workers, 2 ms an example.
Both loops take the same batches and step in no time, so that they wait for each batch as long as making it takes; the
slower the step, the less there is to wait for.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks import measured_at, words
from benchmarks.engine.machine import machine
from decrescendo.base.markdown import table
from decrescendo.base.rng import Streams
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training.data.examples import Draw
from decrescendo.training.data.loading import made
from decrescendo.training.data.rows import table_of

ROWS, BATCH, STEPS, WORKERS, SECONDS, ROUNDS = 2_000, 64, 30, 2, 0.002, 5
BAR = 1.15
ROOT = Path(__file__).resolve().parents[1]
RESULT, PAGE = ROOT / "results/loading.json", ROOT / "docs/reference/loading.md"


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


def page(found: dict[str, Any]) -> str:
    """What was measured, as a page."""
    rows = [
        [str(i), f"{one['plain']:.2f}", f"{one['private']:.2f}", f"{one['private'] / one['plain']:.3f}"]
        for i, one in enumerate(found["rounds"], start=1)
    ]
    ratio = median(found)
    return f"""# Waiting for data against the same loop without privacy

{STEPS} Poisson batches of {BATCH} expected examples, each of which takes {1000 * SECONDS:g} ms to read, made by
{WORKERS} workers and stepped on in no time: the same batches by torch's own `DataLoader` and by the private loop's. The
private loop collates each example by itself and makes one of each batch twice, to compare
([why](../how-to/data.md#padding)). Made by `python -m benchmarks.loading`, {words(found)},
on {found["machine"]["cpu"]}, {found["machine"]["cores"]} cores. Other programs ran: the load
was {found["load"]:.1f} before.

{table(["round", "plain, s", "private, s", "ratio"], rows, "rrrr")}

Median ratio **{ratio:.3f}**; the bar is {BAR}, and it is {"kept" if ratio <= BAR else "missed"}.
"""


def median(found: dict[str, Any]) -> float:
    """Of the rounds' ratios."""
    return float(np.median([one["private"] / one["plain"] for one in found["rounds"]]))


def main() -> None:
    """Both loops in turn, the first one's turn changing."""
    load, rounds = os.getloadavg()[0], list[dict[str, float]]()
    for number in range(ROUNDS):
        stream = Streams(number).numpy("sampling")
        drawn = [indices for indices in PoissonSampling(ROWS, BATCH).batches(STEPS, stream) if len(indices)]

        def plain(drawn: Any = drawn) -> float:
            return waited(DataLoader(Slow(), batch_sampler=[list(map(int, d)) for d in drawn], num_workers=WORKERS))

        def private(drawn: Any = drawn, number: int = number) -> float:
            draws = iter([Draw(indices, number) for indices in drawn])
            return waited(made(table_of(Slow()), draws, WORKERS, torch.device("cpu")))

        turns = {"plain": plain, "private": private}
        names = list(turns)[:: -1 if number % 2 else 1]
        taken = {name: turns[name]() for name in names}
        rounds.append({name: round(taken[name], 4) for name in turns})
        print(rounds[-1], f"ratio {taken['private'] / taken['plain']:.3f}", flush=True)
    found = {**measured_at(), "machine": machine(torch.device("cpu")), "load": load, "rounds": rounds}
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
