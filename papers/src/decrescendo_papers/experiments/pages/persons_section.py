"""Which unit a federated table protects, and what that says of the person behind several clients."""

from pathlib import Path

from decrescendo.accounting import rounded
from decrescendo.base.markdown import table
from decrescendo_papers.experiments import persons
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.table import BLOCKS, CLAIMED


def persons_section(filled: Filled, folder: Path) -> str:
    """The section; empty for tables whose unit is an example.

    Args:
        filled: the table.
        folder: where `experiments.persons` keeps what it computed.
    """
    if not filled.table.persons:
        return ""
    rows: list[list[str]] = []
    for block in BLOCKS:
        for row in filled.table.rows:
            for column in filled.table.columns:
                if row.key in filled.table.persons and not (row.control and block == CLAIMED):
                    (spec,) = filled.table.cell(row, column, block, [0]).specs
                    person = persons.find(folder, spec)
                    shown = "not computed" if person is None else _epsilon(person)
                    behind = "-" if person is None else str(person.clients)
                    bracket = filled.score(row, column, block).bracket
                    images = "1 image" if spec.records == 1 else f"{spec.records} images"
                    rows.append([row.label, column.key, block, f"client of {images}", bracket, behind, shown])
    header = ["method", "column", "block", "unit", "unit's epsilon", "clients of a digit", "digit's epsilon"]
    return "\n\n".join(
        [
            "## Which unit",
            "The guarantee of every run here is for **one client**: one derived image, or ten. Images are derived from "
            "60,000 source digits of MNIST, so the **source digit** (whoever wrote it) is behind several clients, and "
            "its epsilon is another one, below, at the same delta: an upper bound by a mixture of Gaussians, how many "
            "of its clients a cohort holds being binomial (`federated.units`). Where clients hold other digits too, "
            'they stay with other updates, which costs more. "Nothing": no finite bound was found at this delta. '
            "Sensitivity decay and the falling rate have vanilla's noise, growing mu has the dynamic one's. To protect "
            "the digit, make it the client.",
            table(header, rows, "llllrrr"),
        ]
    )


def _epsilon(person: persons.Person) -> str:
    return "nothing" if person.epsilon is None else rounded(person.epsilon, "up", 4)
