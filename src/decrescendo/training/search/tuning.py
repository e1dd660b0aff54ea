"""`tune`: searches for settings on public data in place of a task's own, and makes a recipe of the best."""

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import isfunction
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import nn

from decrescendo.accounting import Accountant, Budget, Unit
from decrescendo.base.rng import Secure, Streams
from decrescendo.clipping import Telemetry
from decrescendo.errors import (
    ImpossibleBudget,
    InvalidValue,
    check_integer,
)
from decrescendo.plans import Plan
from decrescendo.row_independence.tracing import Memory
from decrescendo.training.data.data_memory import memory_of
from decrescendo.training.data.examples import Examples
from decrescendo.training.data.items import Repeated
from decrescendo.training.data.rows import Rows, table_of
from decrescendo.training.processes.world import data_facts
from decrescendo.training.run import Run, versions
from decrescendo.training.search.recipe import Recipe, Trial, plan_of
from decrescendo.training.search.settings import Settings
from decrescendo.training.search.space import Space, Value, starting_values
from decrescendo.training.tasks.fitting import fit, loss_of
from decrescendo.training.tasks.task import Task


def tune(
    task: Task,
    public: Task,
    budget: Budget,
    space: Space,
    *,
    trials: int,
    on: str = "public data",
    seeds: int = 1,
    seed: int = 0,
    accountant: Accountant | None = None,
    tell: Callable[[Trial], None] | None = None,
) -> Recipe:
    """Try settings on public data, with the noise that ``task`` would have, and keep the best.

    The rows of ``public`` are repeated or left out until there are as many as the task has, so that sample rate, steps
    and noise are those of the task. The task's own data are not trained on; the search costs no privacy, provided that
    none of them is among the public rows or among the rows of the score. Public rows that are the task's own, or
    share their memory, are refused if this can be seen: both come from one function, or are in memory. With a budget
    for people each public row counts as a person of its own: the noise is the task's.

    Args:
        task: what the settings are for: its number of rows is used, and its defaults.
        public: what is trained in its place; it must have a score.
        budget: of one run on the task, for an example or a person.
        space: what moves.
        trials: how many, >= 1; the first has the task's own settings, the others are drawn at random.
        on: the name of the public data.
        seeds: runs per trial, with seeds 0, 1, .., the same in all trials; a trial's score is their mean.
        seed: of the settings that are drawn.
        accountant: of the plans; `accounting.Pld` by default.
        tell: called with each trial when it is scored.

    Raises:
        InvalidValue: no score, the task's own rows, a number outside its range, settings that no run could have,
            no trial with a score.
    """
    check_integer("trials", trials, at_least=1)
    check_integer("seeds", seeds, at_least=1)
    if public.score is None:
        raise InvalidValue("the public task must have a score, got none. It is what trials are compared by")
    for values in space.corners():
        space.settings(task, values).check(task)
    _check_others(task, public, public.data, lie=not public.loads)
    loaded = public.load()
    _check_others(task, public, loaded, lie=True)
    if not task.loads:
        public.scores(public.fresh(0), task.data)
    data = as_many(table_of(loaded, public.collate_fn), task.count)
    done: list[Trial] = []
    for number in range(trials):
        drawn = space.draw(Streams(seed).child(number).numpy("selection"))
        values = {**drawn, **starting_values(space, task)} if number == 0 else drawn
        trial = _try(task, public, data, budget, space.settings(task, values), values, seeds, accountant)
        done.append(trial)
        if tell is not None:
            tell(trial)
    scored = [trial for trial in done if trial.score is not None]
    if not scored:
        raise InvalidValue(
            f"at least one trial must come to a score, got none of {trials}; the first: {done[0].why}. Narrow the space"
        )
    best = max(scored, key=lambda trial: -math.inf if trial.score is None else trial.score)
    return Recipe(
        settings=space.settings(task, best.values), epsilon=budget.epsilon, delta=budget.delta, score=best.score or 0.0,
        on=on, space=space.describe(), trials=tuple(done), machine=machine(), unit=budget.unit,
        examples_per_person=budget.examples_per_person, accountant="Pld" if accountant is None else accountant.name,
    )  # fmt: skip


def _check_others(task: Task, public: Task, data: object, *, lie: bool) -> None:
    """Check that the public rows are not the task's own rows. Rows in memory (``lie``) are compared if the
    task's are in memory, too; the task's are not loaded for this."""
    same = task is public or _is_one(task.data, data)
    lie = lie and not task.loads
    if not same and lie:
        private = Memory()
        private.withhold(memory_of(task.data))
        same = any(map(private.withholds, memory_of(data)))
    if not same and lie:
        own, all_own = data_facts(table_of(task.data, task.collate_fn))
        others, all_others = data_facts(table_of(data, public.collate_fn))
        same = own == others and all_own and all_others
    if same:
        raise InvalidValue(
            "a free search must be on other rows than the task's own, got these: each trial would be a training on "
            "them that nothing pays for. Name public data, or search the private rows with search_privately (tune "
            "--private)"
        )


def _is_one(first: object, second: object) -> bool:
    """Whether two values are one object, or one function created twice over the same objects."""

    def made_of(thing: Any) -> list[object] | None:
        if not isfunction(thing):
            return None
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        return [thing.__code__, *cells, *(thing.__defaults__ or ())]

    if first is second:
        return True
    one, other = made_of(first), made_of(second)
    return one is not None and other is not None and len(one) == len(other) and all(map(is_, one, other))


def train_with(
    task: Task,
    settings: Settings,
    plan: Plan,
    data: object,
    seed: Secure | None = None,
    people: object = None,
    telemetry: Telemetry | None = None,
) -> tuple[Run, nn.Module]:
    """Train a fresh model of ``task`` on ``data``, with random streams from the settings' seed or from
    ``seed``.

    Returns:
        The run, and the model to score.
    """
    return fit(
        task.fresh(settings.seed, data), loss_of(task, telemetry), data, plan,
        seed=settings.seed if seed is None else seed,
        optimizer=settings.optimizer, learning_rate=settings.learning_rate, momentum=settings.momentum,
        lr_decay=settings.lr_decay, averaging=settings.averaging, settings=task.engine, people=people,
        collate_fn=task.collate_fn, telemetry=telemetry,
    )  # fmt: skip


def machine() -> dict[str, str]:
    """The hardware and software that computed a result: kind, threads, versions; no host names."""
    return {"kind": platform.machine(), "threads": str(torch.get_num_threads()), **versions()}


def _try(
    task: Task,
    public: Task,
    data: object,
    budget: Budget,
    settings: Settings,
    values: Mapping[str, Value],
    seeds: int,
    accountant: Accountant | None,
) -> Trial:
    try:
        plan = plan_of(task, settings, budget, accountant)
    except ImpossibleBudget as error:
        return Trial(values, why=str(error))
    scores: list[float] = []
    people = np.arange(task.count) if budget.unit is Unit.PERSON else None
    for seed in range(seeds):
        _, model = train_with(replace(public, engine=task.engine), settings.seeded(seed), plan, data, people=people)
        scores.append(public.first_score(model))
    mean = sum(scores) / len(scores)
    return Trial(values, mean) if math.isfinite(mean) else Trial(values, why="the score is not finite")


def as_many(table: Rows | Examples, count: int) -> Rows | Repeated:
    """Exactly ``count`` public rows: the first ones, or all of them repeated."""
    if isinstance(table, Examples):
        return Repeated(table.items, count)
    return Rows(count, lambda indices: table.take(indices % table.count))
