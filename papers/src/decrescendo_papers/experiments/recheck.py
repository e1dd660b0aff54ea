"""Finished runs repeated: does today's code give the numbers that a line states?"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decrescendo.errors import FileRefused, check_integer
from decrescendo_papers.experiments.perform import perform
from decrescendo_papers.experiments.results import REVISION, Result, read_all
from decrescendo_papers.experiments.spec import Spec


@dataclass(frozen=True, slots=True)
class Repeated:
    """A line and its run, repeated.

    Args:
        line: as it is kept.
        again: as it came out now.
    """

    line: Result
    again: Result

    @property
    def difference(self) -> float:
        """The largest difference of a score, in its own unit; infinite where the scores have other names."""
        if self.line.metrics.keys() != self.again.metrics.keys() or bool(self.line.refused) != bool(self.again.refused):
            return float("inf")
        return max(
            (abs(self.line.metrics[name] - self.again.metrics[name]) for name in self.line.metrics),
            default=0.0,
        )


def sample(folder: Path, count: int, seed: int, tasks: Sequence[str] = ()) -> list[Result]:
    """``count`` lines of the files of ``folder``, or all there are if fewer, drawn by ``seed``. Lines of an earlier
    `REVISION` are left out: their numbers come from other noise.

    Args:
        folder: with a file a task.
        count: >= 1.
        seed: whole number.
        tasks: names of tasks; empty: all.

    Raises:
        FileRefused: a damaged line.
    """
    check_integer("sample", count, at_least=1)
    files = sorted(path for path in folder.glob("*.jsonl") if not tasks or path.stem in tasks)
    known: list[Result] = []
    for path in files:
        results, wrong = read_all(path)
        if wrong:
            raise FileRefused(f"{wrong[0]}. Take the line out, and its run is repeated")
        known += [line for line in results if line.revision == REVISION]
    return random.Random(seed).sample(known, min(count, len(known)))


def repeat(line: Result, run: Callable[[Spec], Result] = perform) -> Repeated:
    """The run of ``line``, repeated."""
    return Repeated(line, run(line.spec))
