"""Noise in the iterates: constant, moving, correlated and both, beside peers: the table of
docs/explanation/correlated-noise.md.

    python benchmarks/correlated.py [EPSILON ..]

Adds to results/correlated.json, and prints the table. Every plan is certified by `Pld` for the same budget. Peers'
strategies are read from results/correlated-peers.json (`correlated_peers.py`), have one noise multiplier for the run,
and are judged by the same accountant, each at its best number of bands.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

import decrescendo as dc
from decrescendo.accounting import Ledger, Pld
from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.base.markdown import table
from decrescendo.plans import Workload
from decrescendo.plans.correlating import Task, equal_columns
from decrescendo.plans.scale_search import certified_scale, first_guess, steer
from decrescendo.plans.strategy import Strategy

RESULTS = Path(__file__).resolve().parent.parent / "results"
STEPS, DELTA, SAMPLING = 400, 1e-6, dc.PoissonSampling(25_000, 500)
COSINE = (1 + np.cos(np.pi * np.arange(STEPS) / STEPS)) / 2
WORKLOADS = {
    "constant rate": Workload(1.0),
    "cosine rate": Workload(COSINE),
    "momentum 0.9": Workload(1.0, momentum=0.9),
}
COLUMNS = ("moving", "equal columns", "jax-privacy", "opake", "opake, rates", "both")


def equally(budget: Budget, matrix: np.ndarray, sampling: dc.PoissonSampling = SAMPLING) -> tuple[Strategy, Guarantee]:
    """Columns of one norm, accounted as such, within the budget."""
    bands, steps = matrix.shape
    rates = np.full(steps, bands * sampling.sample_rate)

    def ledger(scale: float) -> Ledger:
        return Ledger.of(np.full(steps, 1 / scale), rates).banded(bands)

    guess = first_guess(np.ones(steps)[::bands], rates[::bands], budget)
    start = steer(Pld(), ledger, guess, budget)
    scale, guarantee = certified_scale(Pld(), ledger, start, budget, moving=False)
    return Strategy.rounded(matrix, scale), guarantee


def toeplitz(coefficients: list[float], steps: int = STEPS) -> np.ndarray:
    """A peer's strategy: its largest column norm is 1."""
    return np.tile(np.array(coefficients)[:, None] / np.linalg.norm(coefficients), steps)


def measured(epsilon: float, workload: Workload, peers: dict[str, dict[str, list[float]]]) -> dict[str, object]:
    """Root mean square noise over iterates, relative to constant independent noise; bands of the best."""
    budget = Budget(epsilon, DELTA)
    even = workload.cost(dc.calibrate(budget, SAMPLING, steps=STEPS, clip=1.0).noise_multiplier)
    task = Task(budget, workload, np.ones(STEPS), np.full(STEPS, SAMPLING.sample_rate))
    found: dict[str, object] = {}
    choices = {"equal columns": {str(b): equal_columns(task, b) for b in (2, 4, 8, 16, 32)}}
    choices |= {name: {b: toeplitz(c) for b, c in own.items() if int(b) <= 32} for name, own in peers.items()}
    scaled: dict[int, Strategy] = {}
    for name, each in choices.items():
        best = (1.0, 1)
        for b, matrix in each.items():
            one = scaled.setdefault(int(b), equally(budget, matrix)[0])  # the scale hangs on the bands alone
            own = Strategy.rounded(matrix, 1 / float(one.noise_multiplier[0]))
            best = min(best, (float(np.sqrt(workload.cost(own) / even)), int(b)))
        found[name] = best
    for name, bands in (("moving", 1), ("both", "auto")):
        started = time.process_time()
        plan = dc.calibrate(budget, SAMPLING, steps=STEPS, clip=1.0, bands=bands, workload=workload)
        cost = workload.cost(plan.correlation or plan.noise_multiplier)
        found[name] = (float(np.sqrt(cost / even)), plan.bands)
        found[f"{name}, seconds"] = time.process_time() - started
        found[f"{name}, bracket"] = [plan.guarantee.epsilon_lower, plan.guarantee.epsilon]
    return found


def main(epsilons: list[float]) -> None:
    """Measure, write, print."""
    path, other = RESULTS / "correlated.json", RESULTS / "correlated-peers.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    peers = json.loads(other.read_text(encoding="utf-8")) if other.exists() else {}
    for epsilon in epsilons:
        for name, workload in WORKLOADS.items():
            known[f"{name}, epsilon {epsilon:g}"] = measured(epsilon, workload, peers)
            path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    rows = [
        [name, *(f"{row[column][0]:.3f} ({row[column][1]})" if column in row else "" for column in COLUMNS)]
        for name, row in known.items()
    ]
    print(table(["workload", *COLUMNS], rows, "l" + "r" * len(COLUMNS)))


if __name__ == "__main__":
    main([float(word) for word in sys.argv[1:]] or [0.5, 1, 2, 4, 8])
