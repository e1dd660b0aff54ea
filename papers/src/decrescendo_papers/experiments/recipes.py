"""What a search on public data found, as one sealed line: settings, score, and everything it took to find them.

A file of one line is what a search writes; several, one behind the other, are an archive.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from decrescendo.base import read_whole, sealed, write_whole
from decrescendo.errors import FileRefused
from decrescendo_papers.experiments.checked import listed, named, number, numbers, text, texts, whole
from decrescendo_papers.experiments.spec import Spec

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
    """Write ``recipe`` as a line that is called as the file is, without its end; all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"format": FORMAT, "version": VERSION, "name": path.stem, **asdict(recipe)}
    write_whole(path, sealed.seal({**facts, "spec": recipe.spec.settings()}) + "\n")


def load_recipe(path: Path) -> Recipe:
    """The recipe in a file.

    Raises:
        FileRefused: not there, damaged, edited, foreign or newer.
    """
    return _read(read_whole(path), path)[1]


def load_recipes(path: Path) -> dict[str, Recipe]:
    """The recipes in a file of several, by name, in its order; none if there is no such file.

    Raises:
        FileRefused: one is damaged, edited, foreign or newer.
    """
    lines = read_whole(path).splitlines() if path.exists() else []
    return dict(_read(line, f"{path}, line {at}") for at, line in enumerate(lines, start=1))


def _read(raw: str | bytes, source: object) -> tuple[str, Recipe]:
    """Name and recipe; files of before have no name."""
    content = sealed.opened(raw, source, FORMAT, VERSION)
    del content["format"], content["version"]
    try:
        name = text(content.pop("name", ""))
        trials = tuple(_trial(named(item)) for item in listed(content.pop("trials")))
        spec = Spec.of(named(content.pop("spec")))
        for entry in ("stand_in", "public", "command"):
            content[entry] = text(content[entry])
        for entry in ("score", "core_minutes"):
            content[entry] = number(content[entry])
        for entry in ("space", "sampler", "machine"):
            content[entry] = texts(content[entry])
        return name, Recipe(spec=spec, trials=trials, **content)
    except FileRefused as error:
        raise FileRefused(f"{source}: {error}") from None
    except (TypeError, KeyError) as error:
        raise FileRefused(f"{source} must have the entries of a recipe, got {error}") from None


def _trial(item: Mapping[str, Any]) -> Trial:
    values = {name: value if isinstance(value, str) else number(value) for name, value in named(item["values"]).items()}
    given: dict[str, Any] = dict(item) | {
        "number": whole(item["number"]),
        "values": values,
        "scores": tuple(numbers(item["scores"])),
        "seconds": number(item["seconds"]),
        "why": text(item["why"]),
    }
    return Trial(**given)
