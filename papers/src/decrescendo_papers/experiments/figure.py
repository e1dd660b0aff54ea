"""A figure of the paper as data: the runs and the cost curves it is drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from decrescendo.errors import InvalidValue
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import BLOCKS, CLAIMED, fits


@runtime_checkable
class Exhibit(Protocol):
    """What ``reproduce`` can run: a table or a figure."""

    @property
    def key(self) -> str:
        """As ``reproduce`` names it."""
        ...

    def specs(self, seeds: Sequence[int], *, blocks: Sequence[str] = BLOCKS, only: Sequence[str] = ()) -> list[Spec]:
        """Its runs."""
        ...


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure.

    Args:
        key: as ``reproduce`` names it.
        title: of its section.
        notes: lines for the page: what the paper shows, and what was inferred.
        runs: by ``task/epsilon/name``; calibrated as the paper counts.
        curves: schedules whose cost is drawn, by the name in the legend.
        points: how many numbers of steps a cost curve has.
    """

    key: str
    title: str
    notes: tuple[str, ...] = ()
    runs: Mapping[str, Spec] = field(default_factory=dict[str, Spec])
    curves: Mapping[str, Spec] = field(default_factory=dict[str, Spec])
    points: int = 0

    def specs(self, seeds: Sequence[int], *, blocks: Sequence[str] = BLOCKS, only: Sequence[str] = ()) -> list[Spec]:
        """Every run, one seed after the other; none if ``blocks`` lacks the paper's way of counting.

        Args:
            seeds: whole numbers >= 0.
            blocks: see `experiments.table.Table.specs`.
            only: patterns as for a table.

        Raises:
            InvalidValue: a pattern that fits no run.
        """
        for pattern in only:
            if self.runs and not any(fits(key, pattern) for key in self.runs):
                raise InvalidValue(
                    f"cells must be like {next(iter(self.runs))} (* is anything), got {pattern!r}, which fits none "
                    f"of {self.key}"
                )
        if CLAIMED not in blocks:
            return []
        chosen = [spec for key, spec in self.runs.items() if not only or any(fits(key, p) for p in only)]
        return [spec.seeded(seed) for seed in seeds for spec in chosen]
