"""Accuracy by constant, moving and correlated noise, and by both: the second table of
docs/explanation/correlated-noise.md.

    python -m benchmarks.correlated_accuracy [adam|sgd|names|fashion ..] [EPSILON ..] [rate=RATE] [jobs=2]

The tasks: IMDB as in Table 2 of Du et al. (embedding MLP, 25 epochs, batch 512, C = 2), with Adam and with SGD; NAME
and Fashion-MNIST with the models and clip norms of Du et al., SGD, and fewer steps. The learning rate falls linearly,
which is the workload of the plans. All plans are certified for the same budget. Moving noise, and both, come in three
variants: the workload forgets a step's noise at these shares a step (`Workload(weight_decay=)`), where the loss of a
network does so by its curvature. Each variant's learning rate is chosen on public data (half of the test reviews;
made-up surnames; MNIST), by public rows that nothing is trained on; then more seeds on public data choose the variant.
Then every contender is trained on the private rows at its own rate, and scored on test rows that no rate was fitted
to. With a rate every contender is trained at it, in place of its own: how much of a difference is the rate's. Adds to
results/correlated-accuracy, a folder a column, and goes on where it was stopped.
"""

import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import decrescendo as dc
from benchmarks.correlated import equally, toeplitz
from decrescendo.plans import CyclicPoissonSampling, Plan, Schedule, Workload
from decrescendo.training import ComparedRun, Comparison, Task, accuracy, compare
from decrescendo_papers.data import Dataset, imdb_public, mnist, synthetic_names
from decrescendo_papers.tasks import as_task

RESULTS = Path(__file__).resolve().parent.parent / "results" / "correlated-accuracy"
SEEDS = 5
DECAYS = (0.0, 0.01, 0.1)


@dataclass(frozen=True)
class Setting:
    """A task.

    Args:
        private, public: the papers' task, and the data that stand in for it.
        rates: learning rates to choose from, on public data.
        public_seeds: which choose the variant.
    """

    private: Task
    public: Callable[[], Dataset]
    batch: float
    steps: int
    rates: tuple[float, ...]
    epsilons: tuple[float, ...]
    public_seeds: int = 4


def imdb(optimizer: str, rates: tuple[float, ...]) -> Setting:
    """25 epochs."""
    steps = math.ceil(25 * 25_000 / 512)
    task = replace(as_task("imdb-half"), optimizer=optimizer)
    return Setting(task, imdb_public, 512, steps, rates, (3.0, 6.0, 9.0))


SETTINGS = {
    "adam": imdb("adam", (0.04, 0.08, 0.16, 0.32)),
    "sgd": imdb("sgd", (1.0, 2.0, 4.0)),
    "names": Setting(as_task("names"), synthetic_names, 400, 250, (2.0, 4.0, 8.0), (2.0, 4.0, 8.0), 2),
    "fashion": Setting(as_task("fashion-mnist"), mnist, 250, 500, (0.2, 0.4, 0.8), (1.2, 2.0), 2),
}


def plans(setting: Setting, epsilon: float) -> dict[str, Plan]:
    """The variants. *Correlated* is the strategy of jax-privacy with as many bands as are best for a falling rate."""
    task, steps = setting.private, setting.steps
    budget, sampling = dc.Budget(epsilon, 1e-5), dc.PoissonSampling(task.count, setting.batch)
    workloads = {decay: Workload(1 - np.arange(steps) / steps, weight_decay=decay) for decay in DECAYS}

    def plan(bands: int | Literal["auto"], given: Workload | None) -> Plan:
        return dc.calibrate(budget, sampling, steps=steps, clip=task.clip, bands=bands, workload=given)

    return {
        **{f"both, {decay:g}": plan("auto", workload) for decay, workload in workloads.items()},
        **{f"moving, {decay:g}": plan(1, workload) for decay, workload in workloads.items()},
        "correlated": peer(budget, sampling, workloads[0.0], steps, task.clip), "constant": plan(1, None),
    }  # fmt: skip


def peer(budget: dc.Budget, sampling: dc.PoissonSampling, workload: Workload, steps: int, clip: float) -> Plan:
    """A peer's strategy, certified by `Pld`."""
    known = json.loads((RESULTS.parent / "correlated-peers.json").read_text(encoding="utf-8"))["jax-privacy"]
    found: list[Plan] = []
    for bands, coefficients in known.items():
        if 1 < int(bands) <= min(32, sampling.dataset_size / sampling.expected_batch_size):
            strategy, guarantee = equally(budget, toeplitz(coefficients, steps), sampling)
            drawn = CyclicPoissonSampling(sampling.dataset_size, sampling.expected_batch_size, int(bands))
            schedule = Schedule(strategy.noise_multiplier, np.full(steps, clip))
            found.append(Plan(budget, drawn, schedule, guarantee, strategy))
    return min(found, key=lambda plan: workload.cost(plan.correlation or plan.noise_multiplier))


def public(setting: Setting) -> Task:
    """The task on public data, scored by other public rows."""
    data = setting.public()
    return replace(
        setting.private, data=data.train, rows=len(data.train[1]),
        score=lambda model: {"accuracy": accuracy(model, *data.test)},
    )  # fmt: skip


def chosen(setting: Setting, variants: dict[str, Plan], folder: Path, jobs: int) -> dict[str, float]:
    """The best variant of each contender, with its learning rate: by public data."""
    task = public(setting)

    def compared(seeds: int, rates: Any, out: str) -> Comparison:
        return compare(
            variants,
            task,
            seeds=seeds,
            learning_rate=rates,
            lr_decay="linear",
            points=1,
            jobs=jobs,
            tell=tell,
            out=folder / out,
        )

    rates = dict(compared(1, setting.rates, "rates").learning_rates)
    means = {
        label: statistics.fmean(scores)
        for label, scores in compared(setting.public_seeds, rates, "variants").scores.items()
    }
    print(rates, means, flush=True)
    kinds = dict.fromkeys(label.split(",")[0] for label in variants)
    best = (max((label for label in variants if label.startswith(kind)), key=means.__getitem__) for kind in kinds)
    return {label: rates[label] for label in best}


def column(name: str, epsilon: float, rate: float | None, jobs: int) -> None:
    """One task and epsilon: variants and rates, then five seeds a contender, at one rate if it is given."""
    setting, folder = SETTINGS[name], RESULTS / f"{name}-{epsilon:g}"
    variants = plans(setting, epsilon)
    rates = chosen(setting, variants, folder, jobs)
    rates = rates if rate is None else dict.fromkeys(rates, rate)
    contenders = {label: variants[label] for label in rates}
    whole = compare(
        contenders, setting.private, seeds=SEEDS, learning_rate=rates, lr_decay="linear", points=1, jobs=jobs,
        tell=tell, out=folder / "private",
    )  # fmt: skip
    bands = {label: plan.bands for label, plan in contenders.items()}
    table = "table.md" if rate is None else f"table-at-{rate:g}.md"
    (folder / table).write_text(f"{whole.table()}\n\nBands: {bands}; rates: {rates}\n", encoding="utf-8")
    print(name, epsilon, bands, whole.table(), sep="\n", flush=True)


def tell(run: ComparedRun) -> None:
    """One line."""
    print(
        f"{run.seconds:.0f} s {run.plan} seed {run.seed} rate {run.learning_rate:g}: {run.scores[-1]:.4f}",
        flush=True,
    )


def main(words: list[str]) -> None:
    """The columns that are named, or all."""
    given = dict(word.split("=") for word in words if "=" in word)
    rate, jobs = float(given["rate"]) if "rate" in given else None, int(given.get("jobs", "1"))
    names = [word for word in words if word in SETTINGS] or list(SETTINGS)
    epsilons = [float(word) for word in words if word not in SETTINGS and "=" not in word]
    for name in names:
        for epsilon in epsilons or SETTINGS[name].epsilons:
            column(name, epsilon, rate, jobs)


if __name__ == "__main__":
    main(sys.argv[1:])
