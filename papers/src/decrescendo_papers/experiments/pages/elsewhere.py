"""What other blocks ran for a cell of a table: its method tuned on public data, and the table at another batch."""

from collections.abc import Iterator

from decrescendo_papers.experiments.methods import DYNAMIC
from decrescendo_papers.experiments.pages.filled import VANILLA, Filled
from decrescendo_papers.experiments.pages.scores import Score, score_of
from decrescendo_papers.experiments.pages.tuned_page import chosen_by
from decrescendo_papers.experiments.table import CLAIMED, Cell, Table
from decrescendo_papers.experiments.table2 import TABLE2, TABLE2_AT_64
from decrescendo_papers.experiments.tuned import COLUMNS, TESTED

_TUNED = {
    DYNAMIC.key: ("moving", "the pair tuned on public data"),
    VANILLA: ("constant", "a constant clip norm tuned on public data"),
}
_OTHERS: dict[str, tuple[Table, str]] = {
    TABLE2.key: (TABLE2_AT_64, "a batch of 64"),
    TABLE2_AT_64.key: (TABLE2, "a batch of 512"),
}


def elsewhere(filled: Filled, cell: Cell) -> Iterator[tuple[str, Score]]:
    """What was run for a cell's method and column in other blocks, in words, with its score."""
    role, words = _TUNED.get(cell.row.key, ("", ""))
    task = TESTED.get(cell.column.task, cell.column.task)
    for tuned in COLUMNS if role else ():
        if (tuned.table, tuned.task, tuned.epsilon) == (filled.table.key, task, cell.column.epsilon):
            chosen = chosen_by(filled.archive).candidates(tuned)
            if chosen:
                yield words, score_of(filled.archive.of(tuned.spec(chosen[role])))
    if filled.table.key in _OTHERS:
        table, words = _OTHERS[filled.table.key]
        other = Filled(table, filled.archive)
        row = other.row(cell.row.key)
        columns = [column for column in table.columns if column.epsilon == cell.column.epsilon]
        if row is not None and columns:
            yield words, other.score(row, columns[0], CLAIMED)
