"""Compares plans by training on public data in place of the private data."""

import math
import os
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from decrescendo.base import markdown, write_whole
from decrescendo.base.sealed import check_writable
from decrescendo.errors import InvalidValue, MissingExtra, check_instance, check_integer, check_real
from decrescendo.plans.plan import Plan
from decrescendo.report import LEVEL, POWER, Paired, Scores, draw_scores, holm, p_in_words, paired
from decrescendo.training.search.comparison_runs import ComparedRun, RunSettings, Wanted, run_all
from decrescendo.training.tasks.task import Task

_PUBLIC = "Scores are from rows declared public; no privacy budget was spent or accounted for any other rows."


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of several plans on public data.

    Args:
        scores: scores per plan, one per seed; the same seeds for all plans.
        learning_rates: the learning rate used for each plan's scores; empty if unknown.
        tried: the learning rates that every plan was trained at; given several, its scores are those at the
            rate with the highest mean. Empty if the plans were trained at different rates.
        curves: per plan, the score over the steps, one row per seed.
    """

    scores: Mapping[str, tuple[float, ...]]
    learning_rates: Mapping[str, float] = field(default_factory=dict[str, float])
    tried: tuple[float, ...] = ()
    curves: Mapping[str, Scores] = field(default_factory=dict[str, Scores])

    @property
    def best(self) -> str:
        """The plan with the highest mean score; `table` shows whether the difference is significant."""
        return max(self.scores, key=lambda name: statistics.fmean(self.scores[name]))

    @property
    def differences(self) -> dict[str, Paired]:
        """For every plan but the first: its scores minus the first plan's, seed by seed.

        >>> found = Comparison({"constant": (0.5, 0.6), "moving": (0.6, 0.8)}).differences["moving"]
        >>> found.differences, round(found.p_value, 3), found.seeds_to_decide
        ((0.1, 0.2), 0.205, 5)
        """
        first, *others = (dict(enumerate(found)) for found in self.scores.values())
        names = list(self.scores)[1:]
        return {name: paired(other, first) for name, other in zip(names, others, strict=True)}

    @property
    def p_values(self) -> dict[str, float]:
        """Holm-adjusted p-values of the paired t-tests; only plans for which a test is defined. All plans that are
        compared with the first count in the correction: how many do must not depend on the scores."""
        found = {name: pair.p_value for name, pair in self.differences.items()}
        corrected = zip(
            found, holm([1.0 if value is None else value for value in found.values()]), strict=True
        )
        return {name: p for name, p in corrected if found[name] is not None}

    def describe(self) -> str:
        """One line per plan: mean and standard deviation over seeds, and the mean paired difference to the
        first plan with its standard error.

        >>> print(Comparison({"constant": (0.5, 0.6), "moving": (0.6, 0.8)}).describe())
        constant  0.5500 (sd 0.0707)
        moving    0.7000 (sd 0.1414)  +0.1500 (se 0.0500) from constant, 2 seeds
        Scores are from rows declared public; no privacy budget was spent or accounted for any other rows.
        """
        first, *_ = self.scores
        wide, lines = max(map(len, self.scores)), list[str]()
        for name, found in self.scores.items():
            line = f"{name:{wide}}  {statistics.fmean(found):.4f}"
            if len(found) > 1:
                line += f" (sd {statistics.stdev(found):.4f})"
            if name != first:
                apart = self.differences[name]
                error = f" (se {apart.error:.4f})" if len(found) > 1 else ""
                line += f"  {apart.mean:+.4f}{error} from {first}, {len(found)} seeds"
            lines.append(line)
        return "\n".join([*lines, _PUBLIC])

    def table(self) -> str:
        """One row per plan, in Markdown: mean and standard deviation over seeds; the paired difference to the
        first plan: standard error, p-value (also Holm-adjusted), verdict, and number of seeds needed.

        >>> found = Comparison({"constant": (0.50, 0.60, 0.55), "moving": (0.61, 0.69, 0.66)})
        >>> print(found.table())  # doctest: +ELLIPSIS
        | plan     |   mean |     sd | minus constant |     se |      p | p after Holm | verdict | seeds to decide |
        | -------- | -----: | -----: | -------------: | -----: | -----: | -----------: | ------- | --------------: |
        | constant | 0.5500 | 0.0500 |                |        |        |              |         |                 |
        | moving   | 0.6533 | 0.0404 |        +0.1033 | 0.0067 | 0.0041 |       0.0041 | better  |               3 |
        <BLANKLINE>
        3 seeds. Differences are paired by seed...
        """
        first, *_ = self.scores
        rates = bool(self.learning_rates)
        header = [
            "plan", *["learning rate"] * rates, "mean", "sd", f"minus {first}", "se", "p", "p after Holm",
        ]  # fmt: skip
        rows: list[list[str]] = []
        for name, found in self.scores.items():
            spread = f"{statistics.stdev(found):.4f}" if len(found) > 1 else "-"
            rate = [f"{self.learning_rates[name]:g}"] if rates else []
            against = [""] * 6 if name == first else self._against_first(name)
            rows.append([name, *rate, f"{statistics.fmean(found):.4f}", spread, *against])
        align = "l" + "r" * (len(header) - 1) + "lr"
        lines = markdown.table([*header, "verdict", "seeds to decide"], rows, align)
        return f"{lines}\n\n{self._notes()}"

    def _against_first(self, name: str) -> list[str]:
        pair, p = self.differences[name], self.p_values.get(name)
        verdict = "-" if p is None else "undecided" if p >= LEVEL else "better" if pair.mean > 0 else "worse"
        error = f"{pair.error:.4f}" if pair.seeds > 1 else "-"
        needed = pair.seeds_to_decide
        return [
            f"{pair.mean:+.4f}", error, p_in_words(pair.p_value), p_in_words(p), verdict,
            "-" if needed is None else str(needed),
        ]  # fmt: skip

    def _notes(self) -> str:
        count = len(next(iter(self.scores.values())))
        notes = [
            f"{count} seed{'s' * (count != 1)}. Differences are paired by seed. P values are those of two-sided "
            f"t-tests, corrected after Holm for {len(self.scores) - 1} comparisons; below {LEVEL:g} a plan is called "
            f"better or worse. The last column is how many seeds one test would need to find such a difference with "
            f"probability {POWER:g}, assuming the true difference and its spread equal those observed."
        ]
        if len(self.tried) > 1:
            rates = ", ".join(f"{rate:g}" for rate in self.tried)
            notes.append(
                f"Each plan is at its own best learning rate of {rates}: the one with the highest mean over the same "
                "seeds, so means are a little too high, for every plan. Confirm a verdict at these rates, on other "
                "rows."
            )
        return "\n\n".join([*notes, _PUBLIC])

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw the scores over the steps; their differences to the first plan if all plans have the same steps.

        Raises:
            InvalidValue: no curves.
            MissingExtra: matplotlib is not installed.
        """
        steps = {tuple(curve.steps) for curve in self.curves.values()}
        compared = tuple(self.curves) if len(steps) == 1 and len(self.curves) > 1 else ()
        draw_scores(self.curves, path, title="Plans on public rows", compared=compared, score="score")


def compare(
    plans: Mapping[str, Plan],
    task: Task,
    *,
    seeds: int = 3,
    jobs: int = 1,
    out: str | os.PathLike[str] | None = None,
    learning_rate: float | Sequence[float] | Mapping[str, float] | None = None,
    momentum: float = 0.0,
    lr_decay: str = "none",
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
        momentum, lr_decay, averaging: as in `fit`.
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
    for name, plan in plans.items():
        check_instance("the name of a plan", name, str)
        check_instance(f"plan {name!r}", plan, Plan)
    check_instance("task", task, Task)
    if not plans:
        raise InvalidValue("at least one plan must be given by its name, got none")
    if task.score is None:
        raise InvalidValue("the public task must have a score, got none. It is what plans are compared by")
    check_real("momentum", momentum, at_least=0)
    if averaging:
        check_real("averaging", averaging, above=0, below=1)
    given = task.learning_rate if learning_rate is None else learning_rate
    rates = _rates_of(plans, given)
    folder = None if out is None else Path(out)
    if folder is not None:
        check_writable(folder)
    # Every plan at every rate for one seed, then the next seed: the first results can be compared early.
    wanted = [
        Wanted(name, plan, seed, rate)
        for seed in range(seeds)
        for rate in dict.fromkeys(rate for found in rates.values() for rate in found)
        for name, plan in plans.items()
        if rate in rates[name]
    ]
    settings = RunSettings(
        optimizer=task.optimizer, momentum=momentum, lr_decay=lr_decay, averaging=averaging, points=points)  # fmt: skip
    runs: dict[tuple[str, float, int], ComparedRun] = {}
    path = None if folder is None else folder / "runs.jsonl"
    for run in run_all(wanted, task, settings, jobs=jobs, path=path):
        runs[run.plan, run.learning_rate, run.seed] = run
        if tell is not None:
            tell(run)
    found = _at_best_rates(rates, seeds, runs)
    if folder is not None:
        write_whole(folder / "table.md", found.table() + "\n")
        try:
            found.draw(folder / "figure.png")
        except MissingExtra as error:
            warnings.warn(f"figure.png was not drawn: {error}", stacklevel=2)
    return found


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
