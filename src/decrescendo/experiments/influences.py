"""Influences of an experiment's runs, measured and kept: one checked file a seed, so that a study can be broken off."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from decrescendo.errors import FileRefused, InvalidValue, check_integer
from decrescendo.evaluate import mean_loss
from decrescendo.experiments import kept
from decrescendo.experiments.estimate import Exponential, Influence
from decrescendo.experiments.influence import HIGH, LOW, Course, Measured, Tick, measure
from decrescendo.experiments.perform import chosen_rows, data_of, fresh_model, machine, plan_of
from decrescendo.experiments.spec import Spec
from decrescendo.experiments.tasks import cross_entropy, decay_scheduler, make_optimizer
from decrescendo.report.figure import Scores
from decrescendo.report.panels import Panel, draw_panels

FORMAT, VERSION = "decrescendo-influence", 1


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
        runs = (1 if self.low == 0 else 2) + 2
        return self.spec.steps + sum(runs * (self.spec.steps - step + 1) for step in self.at)

    def path(self, folder: Path, seed: int) -> Path:
        """Where what one seed says is kept."""
        place = f"{self.at[0]}to{self.at[-1]}x{len(self.at)}-{self.low:g}-{self.high:g}"
        return folder / f"{self.spec.seeded(seed).name}-{place}.json"


def spread(steps: int, points: int) -> tuple[int, ...]:
    """So many of 1 .. ``steps``, closest at the end: there the influence changes fastest and branches are short.

    >>> spread(100, 6)
    (1, 37, 65, 84, 96, 100)
    """
    total = check_integer("steps", steps, at_least=1)
    back = np.linspace(1.0, 0.0, check_integer("points", points, at_least=2)) ** 2
    return tuple(sorted({round(float(step)) for step in total - back * (total - 1)}))


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


def find(folder: Path, study: Study, seed: int) -> Measured | None:
    """What was kept; ``None`` if there is nothing, or only a damaged file, or that of another study."""
    try:
        facts = kept.read(study.path(folder, seed), FORMAT, VERSION)
        asked = (Spec.of(facts["spec"]), tuple(facts["at"]), facts["low"], facts["high"])
        if asked != (study.spec.seeded(seed), study.at, study.low, study.high):
            return None
        return Measured(facts["seed"], tuple(facts["at"]), facts["base"], tuple(facts["slopes"]))
    except (FileRefused, KeyError, TypeError):
        return None


def found(folder: Path, study: Study, seeds: Sequence[int]) -> list[Measured]:
    """What is there of these seeds."""
    return [one for seed in seeds if (one := find(folder, study, seed)) is not None]


def study_influence(
    studies: Sequence[Study], seeds: Sequence[int], folder: Path, *, console: Console | None = None
) -> list[Influence]:
    """Measure what is missing, seed by seed over all studies, and return an estimate for each.

    Interrupted, every finished seed is kept, and the next call goes on from there.

    Args:
        studies: what to measure.
        seeds: whole numbers >= 0.
        folder: where finished seeds are kept.
        console: where progress and the time left are drawn; standard error by default.

    Raises:
        OSError: the folder cannot be written to; nothing was measured.
    """
    todo = [(study, seed) for seed in seeds for study in studies if find(folder, study, seed) is None]
    if todo:
        kept.check_writable(folder)
        columns = (
            BarColumn(),
            TextColumn("{task.percentage:>4.1f} %"), TimeElapsedColumn(), TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.description}"),
        )  # fmt: skip
        with Progress(*columns, console=console or Console(stderr=True), speed_estimate_period=600) as show:
            total = sum(study.work * study.spec.batch for study, _ in todo)
            bar = show.add_task("", total=total)
            for study, seed in todo:
                show.update(bar, description=f"influence of {study.spec.task}, seed {seed}")
                _one(
                    study, seed, folder, lambda steps, size=study.spec.batch: show.advance(bar, steps * size)
                )
    return [Influence.of(study.spec.steps, found(folder, study, seeds)) for study in studies]


def _one(study: Study, seed: int, folder: Path, tick: Tick) -> None:
    start = time.monotonic()
    spec = study.spec.seeded(seed)
    measured = measure(course_of(spec), study.at, seed=seed, low=study.low, high=study.high, tick=tick)
    facts = {
        **asdict(measured),
        "spec": spec.settings(), "low": study.low, "high": study.high,
        "seconds": time.monotonic() - start, "machine": machine("cpu"),
    }  # fmt: skip
    kept.write(study.path(folder, seed), FORMAT, VERSION, facts)


def draw_influence(influence: Influence, fit: Exponential, path: Path) -> list[Path]:
    """The measured influence with its band, and the fit: PNG and SVG beside each other."""
    low, high = influence.interval()
    every = np.arange(1, influence.steps + 1)
    lines = {
        f"measured, {influence.seeds} seeds, 95 % interval": Scores(
            influence.at.tolist(), [low.tolist(), influence.mean.tolist(), high.tolist()]
        ),
        f"fit, times {np.exp(fit.rate):.3f} a step": Scores(every.tolist(), [fit.at(every).tolist()]),
    }
    panel = Panel(lines, "influence of $z_t^2$ on the final loss", dots=True, from_zero=False)
    return draw_panels([panel], path.with_suffix(""))
