"""What other blocks ran for a cell is found by its table, column and method."""

from pathlib import Path

from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.elsewhere import elsewhere
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.verdict import NOT_EXPLAINED, misses
from decrescendo_papers.experiments.reproduce import TABLES
from decrescendo_papers.experiments.table import CLAIMED
from decrescendo_papers.experiments.table2 import TABLE2, TABLE2_AT_64
from decrescendo_papers.experiments.table3 import TABLE3

ARCHIVE = Archive.read(Path(__file__).parents[2] / "results" / "runs")


def test_a_cell_at_another_batch_has_the_numbers_of_its_page() -> None:
    """Also the tuned pair, for dynamic DP-SGD alone."""
    filled, other = Filled(TABLE2, ARCHIVE), Filled(TABLE2_AT_64, ARCHIVE)
    for cell in TABLE2.cells([0], (CLAIMED,)):
        found = dict(elsewhere(filled, cell))
        column = next(one for one in TABLE2_AT_64.columns if one.epsilon == cell.column.epsilon)
        row = other.row(cell.row.key)
        assert row is not None
        assert found["a batch of 64"] == other.score(row, column, CLAIMED)
        assert ("the pair tuned on public data" in found) is (cell.row.key == "dynamic")
        assert ("a constant clip norm tuned on public data" in found) is (cell.row.key == "vanilla")


def test_a_tuned_run_is_of_the_cells_own_column() -> None:
    filled = Filled(TABLE3, ARCHIVE)
    scores = [
        score for cell in TABLE3.cells([0], (CLAIMED,)) if cell.row.key == "dynamic"
        for _, score in elsewhere(filled, cell)
    ]  # fmt: skip
    assert [score.seeds for score in scores] == [5] * 4
    assert len({score.mean for score in scores}) == 4


def test_at_most_25_cells_off_by_a_point_have_no_word_of_what_was_tried_or_differs() -> None:
    whys = [why for table in TABLES.values() for *_, why in misses(Filled(table, ARCHIVE)).values()]
    assert len(whys) > 50
    assert sum(why == NOT_EXPLAINED for why in whys) <= 25
