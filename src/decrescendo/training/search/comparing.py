"""Plans compared on public data that stand in for the private ones."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from decrescendo.accounting import Unit
from decrescendo.errors import InvalidValue, check_instance, check_integer
from decrescendo.plans.plan import Plan
from decrescendo.training.data.rows import table_of
from decrescendo.training.search.tuning import as_many
from decrescendo.training.tasks.fitting import fit
from decrescendo.training.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of several plans on public data.

    Args:
        scores: of each plan, one a seed; the same seeds for all.
    """

    scores: Mapping[str, tuple[float, ...]]

    @property
    def best(self) -> str:
        """The plan with the highest mean. Whether it is better than the others, `describe` says."""
        return max(self.scores, key=lambda name: statistics.fmean(self.scores[name]))

    def describe(self) -> str:
        """A line a plan: mean and standard deviation over seeds, and how far it is from the first, seed by seed, with
        the standard error of that mean.

        >>> print(Comparison({"constant": (0.5, 0.6), "moving": (0.6, 0.8)}).describe())
        constant  0.5500 (sd 0.0707)
        moving    0.7000 (sd 0.1414)  +0.1500 (se 0.0500) from constant, 2 seeds
        On rows that were said to be public: for trainings on others nothing was paid.
        """
        first, *_ = self.scores
        wide, lines = max(map(len, self.scores)), list[str]()
        for name, found in self.scores.items():
            line = f"{name:{wide}}  {statistics.fmean(found):.4f}"
            if len(found) > 1:
                line += f" (sd {statistics.stdev(found):.4f})"
            if name != first:
                apart = [one - other for one, other in zip(found, self.scores[first], strict=True)]
                error = f" (se {statistics.stdev(apart) / len(apart) ** 0.5:.4f})" if len(apart) > 1 else ""
                line += f"  {statistics.fmean(apart):+.4f}{error} from {first}, {len(apart)} seeds"
            lines.append(line)
        lines.append("On rows that were said to be public: for trainings on others nothing was paid.")
        return "\n".join(lines)


def compare(
    plans: Mapping[str, Plan],
    public: Task,
    *,
    seeds: int = 3,
    learning_rate: float | None = None,
    momentum: float = 0.0,
    lr_decay: str = "none",
    averaging: float = 0.0,
) -> Comparison:
    """Train by each plan on public data, with the noise that the private rows would have, and score the models.

    The public rows are repeated or left out until there are as many as the plan has, so that sample rate, steps and
    noise are the plan's. Nothing is spent, provided that no private row is among them, nor among what they are scored
    on. Each plan has the same seeds, and so the same initial weights. With a plan for people each public row counts as
    a person of its own.

    Args:
        plans: by name, in the order in which they are told; the first is what the others are compared with.
        public: model, loss, optimiser, rows and score; the first score counts. Its other settings are not used.
        seeds: runs a plan, from seed 0, >= 1; with one nothing can be said about a difference.
        learning_rate: > 0; by default the task's. A schedule may want a rate of its own: compare at several.
        momentum, lr_decay, averaging: as in `fit`.

    Raises:
        InvalidValue: no plan, no score, a score that is not finite, a number outside its range.

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
    check_integer("seeds", seeds, at_least=1)
    for name, plan in plans.items():
        check_instance(f"plan {name!r}", plan, Plan)
    check_instance("public", public, Task)
    if not plans:
        raise InvalidValue("at least one plan must be given by its name, got none")
    if public.score is None:
        raise InvalidValue("the public task must have a score, got none. It is what plans are compared by")
    loaded = public.load()
    table = table_of(loaded, public.collate_fn)
    scores: dict[str, tuple[float, ...]] = {}
    for name, plan in plans.items():
        size = plan.sampling.dataset_size
        data = as_many(table, size)
        people = np.arange(size) if plan.budget.unit is Unit.PERSON else None
        found: list[float] = []
        for seed in range(seeds):
            _, model = fit(
                public.fresh(seed, loaded), public.loss, data, plan, seed=seed, optimizer=public.optimizer,
                learning_rate=public.learning_rate if learning_rate is None else learning_rate, momentum=momentum,
                lr_decay=lr_decay, averaging=averaging, settings=public.engine, people=people,
                collate_fn=public.collate_fn,
            )  # fmt: skip
            score = public.first_score(model)
            if not math.isfinite(score):
                raise InvalidValue(
                    f"a score must be finite, got {score} by the plan {name!r} and seed {seed}"
                )
            found.append(score)
        scores[name] = tuple(found)
    return Comparison(scores)
