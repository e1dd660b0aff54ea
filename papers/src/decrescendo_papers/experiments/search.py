"""Search for settings on public data: Optuna asks, the executor answers, and what is on disk is not run again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Console

from decrescendo.base import require
from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real
from decrescendo.plans import schedule_curves
from decrescendo.training import decay_scheduler, make_optimizer
from decrescendo_papers.experiments.alike import first_of_most
from decrescendo_papers.experiments.execute import Outcome
from decrescendo_papers.experiments.pretrain import check_start
from decrescendo_papers.experiments.recipes import Recipe, Trial
from decrescendo_papers.experiments.results import Result, find
from decrescendo_papers.experiments.space import Among, Dimension, Space, Value, starting_values
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.stand_ins import check_untested, find_stand_in
from decrescendo_papers.experiments.tasks import find_task

SCORE = "test_accuracy"

# Runs what has no result yet; `experiments.execute.execute` with its folder and processes.
Run = Callable[[Sequence[Spec]], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search on public data. Two equal ones try the same trials, however often they were interrupted.

    Args:
        task: a key of `experiments.tasks.TASKS`; its own data are never opened, only their number of rows is used.
        epsilon: of one run on the task; the noise of every trial is calibrated for it.
        stand_in: public data in their place, a key of `experiments.stand_ins.STAND_INS`.
        space: what moves.
        trials: how many, >= 1.
        seeds: runs a trial, whose mean is its score, >= 1.
        common_seeds: all trials share the same seeds.
        together: trials asked for before any of them is scored, >= 1: it is part of the search, because what is asked
            for depends on it, and it keeps that many processes busy.
        accountant: by which; certified by "pld", claimed by others.
        sampler_seed: of Optuna's sampler.

    Raises:
        InvalidValue: a number outside its range, an unknown task or stand-in, or settings that no run could have.
    """

    task: str
    epsilon: float
    stand_in: str
    space: Space
    trials: int
    seeds: int = 1
    # Trials are compared with each other. With the same initial weights, and the same batches where the batch size is
    # the same, their difference comes from their settings and less from luck: common random numbers. One seed's luck
    # may then choose the winner; its worth is measured with fresh seeds, which a recipe gives.
    common_seeds: bool = True
    together: int = 4
    sampler_seed: int = 0
    accountant: str = "pld"

    def __post_init__(self) -> None:
        task = find_task(self.task)
        check_real("epsilon", self.epsilon, above=0)
        check_instance("space", self.space, Space)
        for name, least in (("trials", 1), ("seeds", 1), ("together", 1), ("sampler_seed", 0)):
            check_integer(name, getattr(self, name), at_least=least)
        check_untested(find_stand_in(self.stand_in, task), task)
        for values in self.space.corners():
            check_settings(self.spec(values))

    def spec(self, values: dict[str, Value]) -> Spec:
        """The run of a trial with these values, on the stand-in."""
        spec = self.space.spec(self.task, self.epsilon, values, stand_in=self.stand_in, accountant=self.accountant)
        if not spec.stand_in:  # nothing below opens the task's own data, as long as this holds
            raise InvalidValue("a trial on public data must have a stand-in, got none")
        return spec

    def runs(self, number: int, values: dict[str, Value]) -> tuple[Spec, ...]:
        """The runs of trial ``number``, one a seed."""
        first = 0 if self.common_seeds else number * self.seeds
        return tuple(self.spec(values).seeded(first + index) for index in range(self.seeds))


def search(asked: Search, folder: Path, run: Run, *, command: str = "", console: Console | None = None) -> Recipe:
    """Try what Optuna asks for, a few trials at a time, and return the best settings with all that was tried.

    Nothing but the finished runs in ``folder`` is kept of a search. It is resumed by asking Optuna the same questions
    again: the sampler's seed is fixed, and it is told the same scores in the same order, read from the files. So it
    cannot be in two minds with the results, and a later call with more trials goes on where an earlier one ended.
    (Another version of Optuna may ask for other trials; the runs that both ask for are still not repeated.)

    Args:
        asked: what to search.
        folder: where results are kept.
        run: computes and saves the results of some specs; see `execute`.
        command: for the recipe.
        console: where scores are written; standard error by default.

    Raises:
        InvalidValue: no trial came to a score.
        MissingExtra: Optuna is not installed.
    """
    optuna, show = require("optuna"), console or Console(stderr=True, emoji=False)
    task = find_task(asked.task)
    study = _study(optuna, asked.sampler_seed)
    study.enqueue_trial(starting_values(asked.space, task))
    done: list[Trial] = []
    results: dict[Spec, Result] = {}
    while len(done) < asked.trials:
        questions = [_ask(study, asked) for _ in range(min(asked.together, asked.trials - len(done)))]
        runs = {number: asked.runs(number, values) for number, values, _ in questions}
        outcome = run([spec for specs in runs.values() for spec in specs])
        for number, values, question in questions:
            trial = _trial(number, values, runs[number], folder, outcome, results)
            done.append(trial)
            if trial.score is None:
                study.tell(question, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(question, trial.score)
            show.print(_line(trial, done), soft_wrap=True, highlight=False, markup=False)
    best = _best(done)
    if best is None or best.score is None:
        raise InvalidValue(
            f"at least one trial must come to a score, got none of {len(done)}; the first: {done[0].why}. "
            "Narrow the space"
        )
    spec = asked.runs(best.number, dict(best.values))[0]
    return Recipe(
        spec=replace(spec, stand_in="", seed=0),
        stand_in=asked.stand_in,
        public=find_stand_in(asked.stand_in, task).what,
        score=best.score,
        trials=tuple(done),
        space=asked.space.describe(),
        core_minutes=round(sum(result.seconds for result in results.values()) / 60, 3),
        command=command,
        sampler={
            "name": "TPE", "optuna": version("optuna"), "seed": str(asked.sampler_seed),
            "together": str(asked.together), "seeds": str(asked.seeds), "common_seeds": str(asked.common_seeds),
        },
        machine=results[spec].machine,
    )  # fmt: skip


def check_settings(spec: Spec) -> None:
    """A run could begin with these settings; nothing is loaded.

    Raises:
        InvalidValue: an unknown method, model, optimiser, decay or start, a value outside its range, a batch too large.
    """
    task = find_task(spec.task)
    if spec.start:
        check_start(spec)
        check_start(replace(spec, stand_in=""))  # the recipe's own run
    if spec.batch > task.rows:
        raise InvalidValue(f"batch must be at most the {task.rows} rows of {task.name}, got batch={spec.batch:g}")
    check_real("averaging", spec.averaging, at_least=0, below=1)
    schedule_curves(spec.method, clip=spec.clip, rho_mu=spec.rho_mu, rho_c=spec.rho_c, epochs=2)
    with torch.device("meta"):  # shapes only: large models take a while to be filled
        model = task.build(spec.model, 0)
    optimizer = make_optimizer(model, spec.optimizer, spec.learning_rate, spec.momentum)
    decay_scheduler(optimizer, spec.lr_decay, spec.steps)


def _study(optuna: ModuleType, seed: int) -> Any:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Multivariate: settings are modelled together, so that a rate is judged at its batch size.
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _ask(study: Any, asked: Search) -> tuple[int, dict[str, Value], Any]:
    question = study.ask()

    def choose(name: str, dimension: Dimension) -> Value:
        if isinstance(dimension, Among):
            return question.suggest_categorical(name, dimension.values)
        return question.suggest_float(name, dimension.low, dimension.high, log=dimension.log)

    return question.number, asked.space.choose(choose), question


def _trial(
    number: int,
    values: dict[str, Value],
    specs: Sequence[Spec],
    folder: Path,
    outcome: Outcome,
    results: dict[Spec, Result],
) -> Trial:
    found = [find(folder, spec) for spec in specs]
    scores: list[float] = []
    seconds, why = 0.0, ""
    for spec, result in zip(specs, found, strict=True):
        if result is None:
            why = outcome.failed.get(spec.name, "no result was kept")
            continue
        results[spec] = result
        seconds += result.seconds
        if result.refused:
            why = result.refused
        else:
            scores.append(result.metrics[SCORE])
    # A mean over the seeds that went well would flatter settings that go wrong with the others.
    return Trial(number, values, () if why else tuple(scores), seconds, why)


def _best(trials: Sequence[Trial]) -> Trial | None:
    """The first of the best."""
    scored = [trial for trial in trials if trial.score is not None]
    return first_of_most(scored, lambda trial: trial.score or 0.0) if scored else None


def _line(trial: Trial, done: Sequence[Trial]) -> str:
    values = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in trial.values.items()
    )
    best = _best(done)
    if trial.score is None or best is None or best.score is None:
        return f"trial {trial.number}: no score ({trial.why}) with {values}"
    return f"trial {trial.number}: {trial.score:.4f}, best {best.score:.4f} (trial {best.number}); {values}"
