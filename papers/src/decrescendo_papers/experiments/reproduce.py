"""The tables and figures by name, and which runs a request means."""

from collections.abc import Sequence
from pathlib import Path

from decrescendo.errors import InvalidValue
from decrescendo_papers.experiments.figure import Exhibit, Figure
from decrescendo_papers.experiments.figures import (
    CONVERGENCE,
    FIGURE1,
    FIGURE2,
    FIGURE3,
    FIGURE3_WHOLE,
    FIGURE4,
    FIGURE5,
)
from decrescendo_papers.experiments.registered import read_registered
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.strong import read_recipes
from decrescendo_papers.experiments.table import BLOCKS, Table
from decrescendo_papers.experiments.table1 import TABLE1
from decrescendo_papers.experiments.table2 import TABLE2, TABLE2_AT_64
from decrescendo_papers.experiments.table3 import TABLE3
from decrescendo_papers.experiments.table4 import TABLE4
from decrescendo_papers.experiments.table5 import TABLE5
from decrescendo_papers.experiments.tuned import FOLDER, Trials, read_tuned

TABLES: dict[str, Table] = {table.key: table for table in (TABLE1, TABLE2, TABLE2_AT_64, TABLE3, TABLE4, TABLE5)}
FIGURES: dict[str, Figure] = {
    figure.key: figure for figure in (FIGURE1, FIGURE2, FIGURE3, FIGURE3_WHOLE, FIGURE4, FIGURE5, CONVERGENCE)
}


def find_exhibit(name: str, results: Path = FOLDER) -> Exhibit:
    """The table or figure called ``name``; ``recipes``, or ``registered`` ones, of the folders for them; schedules
    ``tuned`` in each column, and ``tuned-trials`` that choose them.

    >>> find_exhibit("figure1").key
    'figure1'
    """
    if name in ("recipes", "registered"):
        return read_recipes() if name == "recipes" else read_registered()
    known: dict[str, Exhibit] = {**TABLES, **FIGURES, "tuned-trials": Trials(), "tuned": read_tuned(results)}
    if name not in known:
        raise InvalidValue(
            f"table or figure must be one of {', '.join(known)}, recipes, registered, hong, got {name!r}"
        )
    return known[name]


def requested(
    names: Sequence[str],
    seeds: int,
    *,
    cells: Sequence[str] = (),
    blocks: Sequence[str] = BLOCKS,
    results: Path = FOLDER,
) -> list[Spec]:
    """The runs of some tables and figures, seed by seed over all of them.

    Args:
        names: keys of `TABLES` and `FIGURES`.
        seeds: how many, from 0.
        cells: see `Table.specs`.
        blocks: of `BLOCKS`; see `Table.specs`.
        results: folder of finished runs, by which what is ``tuned`` was chosen.

    Raises:
        InvalidValue: an unknown name or block, or cells that fit nothing.
    """
    for block in blocks:
        if block not in BLOCKS:
            raise InvalidValue(f"block must be one of {', '.join(BLOCKS)}, got {block!r}")
    found: list[Spec] = []
    for seed in range(seeds):
        for name in names:
            found += find_exhibit(name, results).specs([seed], blocks=blocks, only=cells)
    return found


def requested_persons(names: Sequence[str]) -> list[Spec]:
    """The runs over clients of some tables that a person's guarantee is asked of."""
    tables = [TABLES[name] for name in names if name in TABLES]
    return [cell.specs[0] for table in tables for cell in table.cells([0]) if cell.row.key in table.persons]


def requested_curves(names: Sequence[str]) -> list[tuple[Spec, int]]:
    """The cost curves of some figures, with the number of their points."""
    figures = [FIGURES[name] for name in names if name in FIGURES]
    return [(spec, figure.points) for figure in figures for spec in figure.curves.values()]
