"""Accuracy by constant, moving and correlated noise, and by both: the second table of
docs/explanation/correlated-noise.md.

    python -m benchmarks.correlated_accuracy [adam|sgd ..] [EPSILON ..]

The task is IMDB as in Table 2 of Du et al. (embedding MLP, 25 epochs, batch 512, C = 2), with a learning rate that
falls linearly, which is the workload of the plans. All plans are certified for the same budget. Moving noise, and both,
come in three variants: the workload forgets a step's noise at these shares a step (`Workload(weight_decay=)`), where
the loss of a network does so by its curvature. Each variant's learning rate is chosen on public data, half of the test
reviews, by the other half; then four more seeds on public data choose the variant. Then every contender is trained on
the private reviews at its own rate, and scored on the half of the test reviews that no rate was fitted to. Adds to
results/correlated-accuracy, a folder a column, and goes on where it was stopped.
"""

import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import decrescendo as dc
from benchmarks.correlated import equally, toeplitz
from decrescendo.plans import CyclicPoissonSampling, Plan, Schedule, Workload
from decrescendo.training import ComparedRun, Comparison, Task, accuracy, compare
from decrescendo_papers.data import imdb_public
from decrescendo_papers.tasks import as_task

RESULTS = Path(__file__).resolve().parent.parent / "results" / "correlated-accuracy"
SEEDS, PUBLIC_SEEDS = 5, 4
RATES = {"adam": (0.04, 0.08, 0.16, 0.32), "sgd": (1.0, 2.0, 4.0)}
EPSILONS = (3.0, 6.0, 9.0)
DECAYS = (0.0, 0.01, 0.1)
STEPS = math.ceil(25 * 25_000 / 512)


def plans(epsilon: float) -> dict[str, Plan]:
    """The variants. *Correlated* is the strategy of jax-privacy with as many bands as are best for a falling rate."""
    budget, sampling = dc.Budget(epsilon, 1e-5), dc.PoissonSampling(25_000, 512)
    workloads = {decay: Workload(1 - np.arange(STEPS) / STEPS, weight_decay=decay) for decay in DECAYS}

    def plan(bands: int | Literal["auto"], given: Workload | None) -> Plan:
        return dc.calibrate(budget, sampling, steps=STEPS, clip=2.0, bands=bands, workload=given)

    return {
        **{f"both, {decay:g}": plan("auto", workload) for decay, workload in workloads.items()},
        **{f"moving, {decay:g}": plan(1, workload) for decay, workload in workloads.items()},
        "correlated": peer(budget, sampling, workloads[0.0]), "constant": plan(1, None),
    }  # fmt: skip


def peer(budget: dc.Budget, sampling: dc.PoissonSampling, workload: Workload) -> Plan:
    """A peer's strategy, certified by `Pld`."""
    known = json.loads((RESULTS.parent / "correlated-peers.json").read_text(encoding="utf-8"))["jax-privacy"]
    found: list[Plan] = []
    for bands, coefficients in known.items():
        if 1 < int(bands) <= 32:
            strategy, guarantee = equally(budget, toeplitz(coefficients, STEPS), sampling)
            drawn = CyclicPoissonSampling(25_000, 512, int(bands))
            schedule = Schedule(strategy.noise_multiplier, np.full(STEPS, 2.0))
            found.append(Plan(budget, drawn, schedule, guarantee, strategy))
    return min(found, key=lambda plan: workload.cost(plan.correlation or plan.noise_multiplier))


def public() -> Task:
    """Half of the test reviews, scored by the other half."""
    data = imdb_public()
    return replace(
        as_task("imdb-half"), data=data.train, rows=len(data.train[1]),
        score=lambda model: {"accuracy": accuracy(model, *data.test)},
    )  # fmt: skip


def chosen(name: str, variants: dict[str, Plan], folder: Path) -> dict[str, float]:
    """The best variant of each contender, with its learning rate: by public data."""
    task = replace(public(), optimizer=name)

    def compared(seeds: int, rates: Any, out: str) -> Comparison:
        return compare(
            variants,
            task,
            seeds=seeds,
            learning_rate=rates,
            lr_decay="linear",
            points=1,
            tell=tell,
            out=folder / out,
        )

    rates = dict(compared(1, RATES[name], "rates").learning_rates)
    means = {
        label: statistics.fmean(scores)
        for label, scores in compared(PUBLIC_SEEDS, rates, "variants").scores.items()
    }
    print(rates, means, flush=True)
    kinds = dict.fromkeys(label.split(",")[0] for label in variants)
    best = (
        max((label for label in variants if label.startswith(kind)), key=means.__getitem__) for kind in kinds
    )
    return {label: rates[label] for label in best}


def column(name: str, epsilon: float) -> None:
    """One optimiser and epsilon: variants and rates, then five seeds a contender."""
    variants, folder = plans(epsilon), RESULTS / f"{name}-{epsilon:g}"
    rates = chosen(name, variants, folder)
    contenders = {label: variants[label] for label in rates}
    task = replace(as_task("imdb-half"), optimizer=name)
    whole = compare(
        contenders, task, seeds=SEEDS, learning_rate=rates, lr_decay="linear", points=1, tell=tell,
        out=folder / "private",
    )  # fmt: skip
    bands = {label: plan.bands for label, plan in contenders.items()}
    (folder / "table.md").write_text(f"{whole.table()}\n\nBands: {bands}; rates: {rates}\n", encoding="utf-8")
    print(name, epsilon, bands, whole.table(), sep="\n", flush=True)


def tell(run: ComparedRun) -> None:
    """One line."""
    print(
        f"{run.seconds:.0f} s {run.plan} seed {run.seed} rate {run.learning_rate:g}: {run.scores[-1]:.4f}",
        flush=True,
    )


def main(words: list[str]) -> None:
    """The columns that are named, or all."""
    names = [word for word in words if word in RATES] or list(RATES)
    epsilons = [float(word) for word in words if word not in RATES] or list(EPSILONS)
    for epsilon in epsilons:
        for name in names:
            column(name, epsilon)


if __name__ == "__main__":
    main(sys.argv[1:])
