"""The tables by name, and which runs a request means."""

from collections.abc import Sequence

from decrescendo.errors import InvalidValue
from decrescendo.experiments.spec import Spec
from decrescendo.experiments.table import BLOCKS, Table
from decrescendo.experiments.table1 import TABLE1
from decrescendo.experiments.table2 import TABLE2
from decrescendo.experiments.table3 import TABLE3

TABLES: dict[str, Table] = {table.key: table for table in (TABLE1, TABLE2, TABLE3)}


def find_table(name: str) -> Table:
    """The table called ``name``.

    >>> find_table("table1").columns[0].key
    'mnist/0.4'
    """
    if name not in TABLES:
        raise InvalidValue(f"table must be one of {', '.join(TABLES)}, got table={name!r}")
    return TABLES[name]


def requested(
    names: Sequence[str], seeds: int, *, cells: Sequence[str] = (), blocks: Sequence[str] = BLOCKS
) -> list[Spec]:
    """The runs of some tables, seed by seed over all of them.

    Args:
        names: keys of `TABLES`.
        seeds: how many, from 0.
        cells: see `Table.specs`.
        blocks: see `Table.specs`.
    """
    found: list[Spec] = []
    for seed in range(seeds):
        for name in names:
            found += find_table(name).specs([seed], blocks=blocks, only=cells)
    return found
