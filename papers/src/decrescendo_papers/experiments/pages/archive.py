"""All finished results of a folder, found again by their spec, whatever the seed."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from decrescendo.errors import FileRefused
from decrescendo_papers.experiments.results import Result, read_all
from decrescendo_papers.experiments.spec import Spec


@final
class Archive:
    """Results by spec.

    Args:
        results: in any order.
        damaged: lines that were there and could not be used, and why.

    >>> spec = Spec(task="mnist", method="none", accountant="none", epsilon=0, delta=1e-6, steps=1, batch=1, seed=3,
    ...             clip=1, learning_rate=1)
    >>> list(Archive([Result(spec, metrics={"test_accuracy": 0.9})]).of(spec.seeded(0)))
    [3]
    """

    __slots__ = ("_by_spec", "damaged")

    def __init__(self, results: Iterable[Result], damaged: tuple[str, ...] = ()) -> None:
        self.damaged = damaged
        self._by_spec: dict[Spec, dict[int, Result]] = {}
        for result in sorted(results, key=lambda result: result.spec.seed):
            self._by_spec.setdefault(result.spec.seeded(0), {})[result.spec.seed] = result

    @classmethod
    def read(cls, folder: Path) -> "Archive":
        """The results in the files of ``folder``."""
        return cls.of_files(folder.glob("*.jsonl"))

    @classmethod
    def of_files(cls, paths: Iterable[Path]) -> "Archive":
        """The results in these files; a line that is damaged is left out and named."""
        results: list[Result] = []
        damaged: list[str] = []
        for path in sorted(paths):
            try:
                found, wrong = read_all(path)
                results += found
                damaged += wrong
            except FileRefused as error:
                damaged.append(str(error))
        return cls(results, tuple(damaged))

    def __len__(self) -> int:
        """Number of results."""
        return sum(len(results) for results in self._by_spec.values())

    def of(self, spec: Spec) -> dict[int, Result]:
        """Results of ``spec`` by seed, ascending; its own seed does not matter."""
        return self._by_spec.get(spec.seeded(0), {})


@dataclass(frozen=True, slots=True)
class Sources:
    """What figures are made from.

    Args:
        archive: finished runs.
        curves: folder of what is computed without training: cost curves, other units.
        recipes: file of the recipes that searches found.
        influence: folder of measured influences.
        registered: folder of the recipes whose searches were registered.
    """

    archive: Archive
    curves: Path
    recipes: Path = Path("results/recipes.jsonl")
    influence: Path = Path("results/influence")
    registered: Path = Path("results/registered")
