"""Compares plans by training on public data in place of the private data."""

import math
import os
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from decrescendo.base import write_whole
from decrescendo.base.sealed import check_writable
from decrescendo.errors import InvalidValue, MissingExtra, check_instance, check_integer, check_real
from decrescendo.plans.plan import Plan
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.report import Scores
from decrescendo.training.search.comparison import Comparison
from decrescendo.training.search.comparison_runs import ComparedRun, RunSettings, Wanted, run_all
from decrescendo.training.tasks.task import Task


def compare(
    plans: Mapping[str, Plan],
    task: Task,
    *,
    seeds: int = 3,
    jobs: int = 1,
    out: str | os.PathLike[str] | None = None,
    learning_rate: float | Sequence[float] | Mapping[str, float] | None = None,
    momentum: float = 0.0,
    lr_decay: str | Mapping[str, str] = "none",
    averaging: float = 0.0,
    points: int = 5,
    tell: Callable[[ComparedRun], None] | None = None,
) -> Comparison:
    """Train by each plan on public data, with the noise that the private rows would have, and score the models.

    The public rows are repeated or left out until there are as many as the plan has, so that sample rate, steps and
    noise are the plan's. Nothing is spent, provided that no private row is among them or among the rows of the score.
    Each plan has the same seeds, and so the same initial weights. With a plan for people each public row counts as a
    person of its own.

    Args:
        plans: by name, in report order; the others are compared with the first.
        task: on public rows: model, loss, optimiser, rows and score; the first score counts, and higher is
            better. Its other settings are not used.
        seeds: runs per plan, with seeds 0, 1, ..; >= 1. With one seed no difference can be tested.
        jobs: processes, >= 1, with one thread of torch each; the numbers do not depend on it. In several processes the
            task must be one that cloudpickle can send: its functions may be defined in a script.
        out: folder for ``runs.jsonl`` (a sealed line for each finished run), ``table.md`` and ``figure.png``.
            Runs found there, of the same plan, seed, rate, settings and task, are not repeated: a comparison that
            was killed is continued, and one with more seeds or plans trains only the new runs.
        learning_rate: > 0; by default the task's. Given several, each plan is scored at its best one. Or one
            per plan, by name, as `Comparison.learning_rates` has them, chosen on other rows.
        lr_decay: as in `fit`; or one per plan, by name: a falling rate is a control for every schedule.
        momentum, averaging: as in `fit`.
        points: at how many steps, evenly spread, a run is scored, >= 1; the last step is one of them.
        tell: called with each finished run, including those read from ``runs.jsonl``.

    Raises:
        InvalidValue: no plan, no score, a score that is not finite, a number outside its range.
        FileRefused: a line of ``runs.jsonl`` is broken.

    >>> import torch, decrescendo as dc
    >>> from decrescendo.training import Task, accuracy, cross_entropy
    >>> rows = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> public = Task(
    ...     model=lambda seed: torch.nn.Linear(2, 2), loss=cross_entropy, data=(rows, (rows[:, 0] > 0).long()),
    ...     score=lambda model: {"accuracy": accuracy(model, rows, (rows[:, 0] > 0).long())}, learning_rate=0.5)
    >>> budget, sampling, constant = dc.Budget(2.0, 1e-4), dc.PoissonSampling(1_000, 100), dc.curves.constant(1.0)
    >>> found = compare({
    ...     "constant": dc.calibrate(budget, sampling, steps=20, privacy=constant, clip=constant),
    ...     "falling": dc.calibrate(budget, sampling, steps=20, privacy=constant, clip=dc.curves.linear(2.0, 0.5)),
    ... }, public, seeds=2)
    >>> [len(scores) for scores in found.scores.values()], found.best in ("constant", "falling")
    ([2, 2], True)
    """
    check_instance("plans", plans, Mapping, "Take a dict of plans by name")
    check_integer("seeds", seeds, at_least=1)
    check_integer("jobs", jobs, at_least=1)
    check_integer("points", points, at_least=1)
    _check_plans(plans)
    check_instance("task", task, Task)
    if task.score is None:
        raise InvalidValue("the public task must have a score, got none. It is what plans are compared by")
    check_real("momentum", momentum, at_least=0)
    if averaging:
        check_real("averaging", averaging, above=0, below=1)
    given = task.learning_rate if learning_rate is None else learning_rate
    rates = _rates_of(plans, given)
    decays = _decays_of(plans, lr_decay)
    folder = None if out is None else Path(out)
    if folder is not None:
        check_writable(folder)
    # Every plan at every rate for one seed, then the next seed: the first results can be compared early.
    wanted = [
        Wanted(name, plan, seed, rate, decays[name])
        for seed in range(seeds)
        for rate in dict.fromkeys(rate for found in rates.values() for rate in found)
        for name, plan in plans.items()
        if rate in rates[name]
    ]
    settings = RunSettings(
        optimizer=task.optimizer, momentum=momentum, averaging=averaging, points=points)  # fmt: skip
    runs: dict[tuple[str, float, int], ComparedRun] = {}
    path = None if folder is None else folder / "runs.jsonl"
    for run in run_all(wanted, task, settings, jobs=jobs, path=path):
        runs[run.plan, run.learning_rate, run.seed] = run
        if tell is not None:
            tell(run)
    budgets = {name: plan.budget for name, plan in plans.items()}
    trained = _how_trained(settings, decays)
    found = replace(_at_best_rates(rates, seeds, runs), budgets=budgets, trained=trained)
    if folder is not None:
        write_whole(folder / "table.md", found.table() + "\n")
        try:
            found.draw(folder / "figure.png")
        except MissingExtra as error:
            warnings.warn(f"figure.png was not drawn: {error}", stacklevel=2)
    return found


def _how_trained(settings: RunSettings, decays: Mapping[str, str]) -> str:
    """Optimiser, momentum, averaging, and the decay of the learning rates, in a sentence."""
    parts = [f"optimiser {settings.optimizer}"]
    parts += [f"{name} {value:g}" for name in ("momentum", "averaging") if (value := getattr(settings, name))]
    kinds = dict.fromkeys(decays.values())
    by_plan = ", ".join(f"{decay} for {name}" for name, decay in decays.items())
    falls = next(iter(kinds)) if len(kinds) < 2 else by_plan
    return f"Trained with {', '.join(parts)}; decay of the learning rate: {falls}."


def _check_plans(plans: Mapping[str, Plan]) -> None:
    for name, plan in plans.items():
        check_instance("the name of a plan", name, str)
        check_instance(f"plan {name!r}", plan, Plan, "A rule that moves numbers in a run has none: see "
                       "docs/how-to/compare-schedules.md")  # fmt: skip
        if isinstance(plan.sampling, StratifiedPoissonSampling):
            raise InvalidValue(
                f"plans that are compared must have no strata, got plan {name!r} with some: the public rows are "
                "repeated or cut to the plan's number. Compare the schedules with PoissonSampling"
            )
    if not plans:
        raise InvalidValue("at least one plan must be given by its name, got none")


def _rates_of(
    plans: Mapping[str, Plan], given: float | Sequence[float] | Mapping[str, float]
) -> dict[str, list[float]]:
    """The learning rates that each plan is trained at."""
    if isinstance(given, Mapping):
        if given.keys() != plans.keys():
            raise InvalidValue(
                f"learning_rate by name must have one rate for each plan, {', '.join(plans)}, got one for "
                f"{', '.join(given) or 'none'}"
            )
        return {name: [check_real("learning_rate", given[name], above=0)] for name in plans}
    every = given if isinstance(given, Sequence) else [given] if np.ndim(given) == 0 else np.ravel(given)
    rates = list(dict.fromkeys(check_real("learning_rate", rate, above=0) for rate in every))
    if not rates:
        raise InvalidValue("learning_rate must have at least one value, got none")
    return dict.fromkeys(plans, rates)


def _decays_of(plans: Mapping[str, Plan], given: str | Mapping[str, str]) -> Mapping[str, str]:
    """How the learning rate of each plan falls."""
    if isinstance(given, str):
        given = dict.fromkeys(plans, given)
    check_instance("lr_decay", given, Mapping, "Take one word for all plans, or a dict of words by name")
    for name, decay in given.items():
        if decay not in ("none", "linear", "cosine"):
            raise InvalidValue(f"lr_decay must be none, linear or cosine, got {decay!r} for {name!r}")
    if given.keys() != plans.keys():
        raise InvalidValue(
            f"lr_decay by name must have one for each plan, {', '.join(plans)}, got one for "
            f"{', '.join(given) or 'none'}"
        )
    return given


def _at_best_rates(
    tried: Mapping[str, Sequence[float]], seeds: int, runs: Mapping[tuple[str, float, int], ComparedRun]
) -> Comparison:
    """For each plan, the runs at the rate with the highest mean score (the first of equal ones).
    A diverging rate is not chosen; if every rate diverges, `InvalidValue` is raised."""
    scores: dict[str, tuple[float, ...]] = {}
    best: dict[str, float] = {}
    curves: dict[str, Scores] = {}
    for name, rates in tried.items():
        means = dict.fromkeys(rates, -math.inf)
        for rate in rates:
            last = [runs[name, rate, seed].scores[-1] for seed in range(seeds)]
            if all(map(math.isfinite, last)):
                means[rate] = statistics.fmean(last)
        rate = best[name] = max(rates, key=means.__getitem__)
        chosen = [runs[name, rate, seed] for seed in range(seeds)]
        for run in chosen:
            if not math.isfinite(run.scores[-1]):
                raise InvalidValue(
                    f"a score must be finite, got {run.scores[-1]} by the plan {name!r} and seed {run.seed}"
                )
        scores[name] = tuple(run.scores[-1] for run in chosen)
        curves[name] = Scores(chosen[0].steps, [run.scores for run in chosen])
    first, *others = map(tuple, tried.values())
    return Comparison(scores, best, first if all(rates == first for rates in others) else (), curves)
