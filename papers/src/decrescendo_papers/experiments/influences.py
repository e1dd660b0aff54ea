"""Influences of an experiment's runs, measured and kept: one sealed line a study, so that it can be broken off."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from decrescendo.base import sealed as kept
from decrescendo.errors import FileRefused, InvalidValue, check_integer
from decrescendo.report import Scores
from decrescendo.training import cross_entropy, decay_scheduler, make_optimizer, mean_loss
from decrescendo_papers.experiments.estimate import Exponential, Influence
from decrescendo_papers.experiments.influence import HIGH, LOW, Course, Measured, Tick, measure, work
from decrescendo_papers.experiments.measured_seeds import add_seed, read_seeds, seeds_bar
from decrescendo_papers.experiments.panels import Panel, draw_panels
from decrescendo_papers.experiments.perform import chosen_rows, data_of, fresh_model, machine, plan_of
from decrescendo_papers.experiments.spec import Spec


@dataclass(frozen=True, slots=True)
class Study:
    """Whose influence is measured where.

    Args:
        spec: the training; its own seed does not matter. With ``stand_in`` on public data; without, on the task's own,
            which no guarantee covers: for published data sets only.
        at: steps, ascending.
        low: factor of one step's variance, see `influence.measure`.
        high: likewise.

    Raises:
        InvalidValue: a run that has no noise, or averages its iterates (the average is not what is followed).
    """

    spec: Spec
    at: tuple[int, ...]
    low: float = LOW
    high: float = HIGH

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", self.spec.seeded(0))
        object.__setattr__(self, "at", tuple(check_integer("at", step, at_least=1) for step in self.at))
        if not self.spec.private or self.spec.averaging:
            raise InvalidValue(
                "influence must be measured on a private run without averaging of iterates, "
                f"got method={self.spec.method!r}, averaging={self.spec.averaging}"
            )

    @property
    def work(self) -> int:
        """Steps to take for one seed."""
        return work(self.spec.steps, self.at, self.low)

    @property
    def identity(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"spec": self.spec.settings(), "low": self.low, "high": self.high, "at": list(self.at)}

    def path(self, folder: Path) -> Path:
        """Where its seeds are kept, in a line of its own."""
        return folder / f"{self.spec.task}.jsonl"


def course_of(spec: Spec) -> Course:
    """The training of ``spec`` as a course; its score is the mean loss on the rows it trains on."""
    data = chosen_rows(spec, data_of(spec.task, spec.stand_in))
    plan = plan_of(spec)
    return Course(
        build=lambda seed: fresh_model(spec.seeded(seed)),
        loss=cross_entropy,
        data=data.train,
        plan=plan,
        optimizer=lambda model: make_optimizer(model, spec.optimizer, spec.learning_rate, spec.momentum),
        score=lambda model: mean_loss(model, *data.train),
        scheduler=lambda optimizer: decay_scheduler(optimizer, spec.lr_decay, plan.steps),
    )


def found(folder: Path, study: Study) -> dict[int, Measured]:
    """What is kept of a study, by seed; nothing if there is only a damaged file."""
    try:
        return read_seeds(study.path(folder), study.identity)
    except FileRefused:
        return {}


def study_influence(
    studies: Sequence[Study], seeds: Sequence[int], folder: Path, *, console: Console | None = None
) -> list[Influence]:
    """Measure what is missing, seed by seed over all studies, and return an estimate for each.

    Interrupted, every finished seed is kept, and the next call goes on from there.

    Args:
        studies: what to measure.
        seeds: whole numbers >= 0.
        folder: where finished seeds are kept; one process may work on a study at a time.
        console: where progress and the time left are drawn; standard error by default.

    Raises:
        OSError: the folder cannot be written to; nothing was measured.
    """
    known = {study: found(folder, study) for study in studies}
    todo = [(study, seed) for seed in seeds for study in studies if seed not in known[study]]
    if todo:
        kept.check_writable(folder)
        with seeds_bar(console) as show:
            total = sum(study.work * study.spec.batch for study, _ in todo)
            bar = show.add_task("", total=total)
            for study, seed in todo:
                show.update(bar, description=f"influence of {study.spec.task}, seed {seed}")
                _one(study, seed, folder, lambda steps, size=study.spec.batch: show.advance(bar, steps * size))
    whole = [(study, found(folder, study)) for study in studies]
    return [Influence.of(study.spec.steps, [of[seed] for seed in seeds]) for study, of in whole]


def _one(study: Study, seed: int, folder: Path, tick: Tick) -> None:
    start = time.monotonic()
    measured = measure(
        course_of(study.spec.seeded(seed)), study.at, seed=seed, low=study.low, high=study.high, tick=tick
    )
    facts = {"seconds": time.monotonic() - start, "machine": machine("cpu")}
    add_seed(study.path(folder), study.identity, measured, facts)


def draw_influence(influence: Influence, fit: Exponential, path: Path) -> Path:
    """The measured influence with its band, and the fit, as a figure."""
    low, high = influence.interval()
    every = np.arange(1, influence.steps + 1)
    lines = {
        f"measured, {influence.seeds} seeds, 95 % interval": Scores(
            influence.at.tolist(), [low.tolist(), influence.mean.tolist(), high.tolist()]
        ),
        f"fit, times {np.exp(fit.rate):.3f} a step": Scores(every.tolist(), [fit.at(every).tolist()]),
    }
    title = f"How much the noise of step t is felt at the end, T = {influence.steps}"
    panel = Panel(lines, "influence of $z_t^2$ on the final loss", title, markers=True, from_zero=False)
    return draw_panels([panel], path)
