"""What a search on public data found, as one small file: settings, score, and everything it took to find them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from decrescendo.base.sealed import read, write
from decrescendo.errors import FileRefused
from decrescendo_papers.experiments.checked import listed, named, number, numbers, text, texts, whole
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import Row

FORMAT, VERSION = "decrescendo-recipe", 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a search.

    Args:
        number: from 0, in the order in which they were asked for.
        values: of the settings that move.
        scores: one a seed; empty if a run failed or was refused.
        seconds: of training, all seeds together.
        why: it has no scores.
    """

    number: int
    values: Mapping[str, float | int | str]
    scores: tuple[float, ...] = ()
    seconds: float = 0.0
    why: str = ""

    @property
    def score(self) -> float | None:
        """Mean over the seeds."""
        return sum(self.scores) / len(self.scores) if self.scores else None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The best settings of a search on public data, and what the search was.

    The score is on the stand-in, and the best of many with one seed each: too good. What the settings are worth is told
    by fresh seeds on the task itself.

    Args:
        spec: the run on the task's own data, seed 0, without the stand-in.
        stand_in: key of the public data that were searched on.
        public: those data in words.
        score: mean of the winner's scores on the stand-in.
        trials: all of them: what was searched is listed.
        space: what moved and what was fixed.
        core_minutes: of training, on one core each.
        command: that finds it again.
        sampler: the optimiser, its version and its seed.
        machine: what the winner was computed on.
    """

    spec: Spec
    stand_in: str
    public: str
    score: float
    trials: tuple[Trial, ...]
    space: Mapping[str, str]
    core_minutes: float
    command: str
    sampler: Mapping[str, str]
    machine: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def failed(self) -> int:
        """Trials without a score."""
        return sum(trial.score is None for trial in self.trials)

    def seeds(self, count: int, first: int = 1) -> list[Spec]:
        """Fresh runs on the task's own data; from seed 1, because 0 was searched with."""
        return [self.spec.seeded(seed) for seed in range(first, first + count)]

    def row(self, key: str, label: str) -> Row:
        """A row of a table, certified, with these settings; not in the paper."""
        said = ("task", "epsilon", "accountant", "seed")
        settings = {name: value for name, value in self.spec.settings().items() if name not in said}
        # Settings at a spec's default are left out, and the optimiser's default is not every task's.
        settings["optimizer"] = self.spec.optimizer
        return Row(key, label, (), settings, accountant="pld", control=True)

    def describe(self) -> str:
        """A few lines for people."""
        spec = self.spec
        by = "certified" if spec.accountant == "pld" else f"claimed by {spec.accountant}"
        rate = f"{spec.optimizer} {spec.learning_rate:.4g}, decay {spec.lr_decay}, momentum {spec.momentum:g}"
        return "\n".join(
            (
                f"score      {100 * self.score:.2f} % on {self.stand_in}, not on {spec.task}: {self.public}",
                f"settings   {spec.method}, batch {spec.batch:g}, {spec.steps} steps, clip {spec.clip:.4g}, {rate}, "
                f"averaging {spec.averaging:g}, model {spec.model}",
                f"budget     epsilon {spec.epsilon:g} at delta {spec.delta:.4g}, {by}; the search cost none of it",
                f"search     {len(self.trials)} trials, {self.failed} failed, {self.core_minutes:.1f} core-minutes",
            )
        )


def save_recipe(path: Path, recipe: Recipe) -> None:
    """Write ``recipe`` as JSON, all or nothing."""
    write(path, FORMAT, VERSION, {**asdict(recipe), "spec": recipe.spec.settings()})


def load_recipe(path: Path) -> Recipe:
    """The recipe in a file.

    Raises:
        FileRefused: not there, damaged, edited, foreign or newer.
    """
    content = read(path, FORMAT, VERSION)
    try:
        trials = tuple(_trial(named(item)) for item in listed(content.pop("trials")))
        spec = Spec.of(named(content.pop("spec")))
        for name in ("stand_in", "public", "command"):
            content[name] = text(content[name])
        for name in ("score", "core_minutes"):
            content[name] = number(content[name])
        for name in ("space", "sampler", "machine"):
            content[name] = texts(content[name])
        return Recipe(spec=spec, trials=trials, **content)
    except FileRefused as error:
        raise FileRefused(f"{path}: {error}") from None
    except (TypeError, KeyError) as error:
        raise FileRefused(f"{path} must have the entries of a recipe, got {error}") from None


def _trial(item: Mapping[str, Any]) -> Trial:
    values = {
        name: value if isinstance(value, str) else number(value)
        for name, value in named(item["values"]).items()
    }
    given: dict[str, Any] = dict(item) | {
        "number": whole(item["number"]),
        "values": values,
        "scores": tuple(numbers(item["scores"])),
        "seconds": number(item["seconds"]),
        "why": text(item["why"]),
    }
    return Trial(**given)
