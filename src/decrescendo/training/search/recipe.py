"""`Recipe`: settings that a hyperparameter search found, a budget, the trials."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from decrescendo.accounting import Accountant, Budget, Unit, rounded
from decrescendo.accounting.budget import check_unit
from decrescendo.base import sealed
from decrescendo.errors import (
    FileRefused,
    check_instance,
    check_real,
    within,
)
from decrescendo.plans import Plan, PoissonSampling, calibrate
from decrescendo.training.search.settings import Settings
from decrescendo.training.search.space import Value
from decrescendo.training.tasks.task import Task

FORMAT, VERSION = "decrescendo-tuned", 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: the values of the searched settings and its score; ``None`` and the reason if there is
    none."""

    values: Mapping[str, Value]
    score: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings and a budget, in a file from which `train` takes them.

    The score is the best of many trials, on public data: expect a worse one on the task's own data.

    Args:
        settings: the best, seed 0.
        epsilon, delta: budget of one run; the search spent none of it.
        score: the best trial's mean on public data.
        on: the name of those data.
        space: values searched, values fixed.
        trials: all of them.
        machine: hardware and software that computed them.
        unit, examples_per_person: whom the budget protects, as in `Budget`.
        accountant: by which the trials' noise was calibrated; `plan` uses its own argument, `Pld` by default.
    """

    settings: Settings
    epsilon: float
    delta: float
    score: float
    on: str
    space: Mapping[str, str]
    trials: tuple[Trial, ...]
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    unit: Unit = Unit.EXAMPLE
    examples_per_person: int = 1
    accountant: str = "Pld"

    @property
    def budget(self) -> Budget:
        """The budget of one run."""
        return Budget(self.epsilon, self.delta, self.unit, self.examples_per_person)

    def plan(self, task: Task, accountant: Accountant | None = None) -> Plan:
        """The plan of a run of ``task`` with these settings."""
        return plan_of(task, self.settings, self.budget, accountant)

    def describe(self) -> str:
        """A few lines for people."""
        failed = sum(trial.score is None for trial in self.trials)
        lines = [
            f"score      {self.score:.4g} on {self.on}, the best of {len(self.trials)} trials ({failed} failed)",
            f"settings   {self.settings.describe()}",
            f"budget     epsilon {rounded(self.epsilon, 'up', 6)} at delta {rounded(self.delta, 'up')}, "
            f"for one {self.budget.protected}; the search cost none of it",
        ]
        if self.accountant != "Pld":
            lines.append(f"noise      of the trials by {self.accountant}; a run's is by its own, or by Pld")
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        """Write the recipe as JSON, all or nothing."""
        facts = {
            **asdict(self),
            "settings": self.settings.written(),
            "trials": [asdict(one) for one in self.trials],
        }
        if self.unit is Unit.EXAMPLE:  # as earlier versions wrote it, which knew no other unit
            del facts["unit"], facts["examples_per_person"]
        if self.accountant == "Pld":
            del facts["accountant"]
        sealed.write(path, FORMAT, VERSION, facts)

    @classmethod
    def load(cls, path: Path) -> "Recipe":
        """Read a recipe from a file.

        Raises:
            FileRefused: not there, damaged, edited, foreign or newer.
        """
        content = sealed.read(path, FORMAT, VERSION)
        try:
            settings = Settings.read(content.pop("settings"))
            trials = tuple(Trial(**item) for item in content.pop("trials"))
            unit = check_unit(content.get("unit", Unit.EXAMPLE))
            check_instance("accountant", content.get("accountant", "Pld"), str)
            check_real("score", content["score"])
            budget = Budget(content["epsilon"], content["delta"], unit, content.get("examples_per_person", 1))
            known: dict[str, Any] = {**content, **asdict(budget)}
            return cls(settings=settings, trials=trials, **known)
        except FileRefused as error:
            raise FileRefused(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise FileRefused(within(f"{path} must be a recipe", error)) from None


def plan_of(task: Task, settings: Settings, budget: Budget, accountant: Accountant | None = None) -> Plan:
    """The plan of a run of ``task`` with these settings."""
    privacy, clip = settings.curves(task.count)
    sampling = PoissonSampling(task.count, settings.batch)
    return calibrate(budget, sampling, steps=settings.steps, privacy=privacy, clip=clip, accountant=accountant)
