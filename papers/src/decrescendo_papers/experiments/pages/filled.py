"""A table with its results: what every cell shows, and what the sentences about it are made from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from decrescendo.report import Paired, paired
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.scores import Score, score_of
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED, Cell, Column, Row, Table

VANILLA, LINEAR = "vanilla", "vanilla-linear"

# As the paper lists them; what it lacks comes last.
ORDER = ("zcdp", "tcdp", "vanilla", "growing-mu", "sensitivity-decay", "dynamic")

# A number of the paper is called reached when ours is at most this many points below.
REACHED = 1.0


@dataclass(frozen=True, slots=True)
class Filled:
    """A table and all finished results.

    Args:
        table: which cells there are.
        archive: all finished results.
    """

    table: Table
    archive: Archive
    _known: dict[tuple[str, Column, str], Score] = field(default_factory=dict[Any, Score], repr=False)

    def results(self, row: Row, column: Column, block: str) -> dict[int, Result]:
        """Finished results of a cell, by seed."""
        (spec,) = self.table.cell(row, column, block, [0]).specs
        return self.archive.of(spec)

    def score(self, row: Row, column: Column, block: str) -> Score:
        """What a cell shows."""
        cell = (row.key, column, block)
        if cell not in self._known:
            self._known[cell] = score_of(self.results(row, column, block))
        return self._known[cell]

    def plain(self) -> dict[str, tuple[Spec, Score]]:
        """Without privacy, by task."""
        return {task: (spec, score_of(self.archive.of(spec))) for task, (spec,) in self.table.plain_specs([0]).items()}

    def cells(self, *blocks: str) -> Iterator[tuple[Cell, Score]]:
        """Every private cell, with its score."""
        for cell in self.table.cells([0], blocks or BLOCKS):
            yield cell, self.score(cell.row, cell.column, cell.block)

    def rows(self, block: str) -> list[Row]:
        """The rows of a block in the paper's order, what the paper lacks last."""
        shown = [row for row in self.table.rows if block == CERTIFIED or not row.control]
        return sorted(shown, key=lambda row: ORDER.index(row.key) if row.key in ORDER else len(ORDER))

    def row(self, key: str) -> Row | None:
        """The row of that name, if the table has one."""
        return next((row for row in self.table.rows if row.key == key), None)

    def gain(self, row: Row, over: str, column: Column, block: str) -> Paired:
        """A method against the row called ``over``, over the seeds that both have."""
        other = self.row(over)
        if other is None or (other.control and block != CERTIFIED):
            return Paired(())
        return paired(self.score(row, column, block).by_seed, self.score(other, column, block).by_seed)

    def all_results(self) -> list[Result]:
        """Every result that the page shows."""
        cells = [*self.table.cells([0]), *self.table.tried_cells([0], (*self.table.tried, *self.table.own))]
        cells += [cell for block in BLOCKS for cell in self.table.tried_cells([0], self.table.stopped, block)]
        found = [self.archive.of(cell.specs[0]) for cell in cells]
        found += [self.archive.of(spec) for spec, _ in self.plain().values()]
        return [result for results in found for result in results.values()]
