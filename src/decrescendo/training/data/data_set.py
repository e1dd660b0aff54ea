"""`DataSet`: the data of a training, inspected once before the first batch is drawn."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int
from torch import Tensor

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.base.assumption import Assumption
from decrescendo.errors import InvalidValue
from decrescendo.training.data.data_memory import memory_of
from decrescendo.training.data.examples import Collate, Examples
from decrescendo.training.data.people import check_people
from decrescendo.training.data.repeated_records import check_distinct
from decrescendo.training.data.rows import Rows, assumption_of, held_by, table_of
from decrescendo.training.processes.world import data_facts


@dataclass(frozen=True, slots=True)
class DataSet:
    """The data of a training with all that was found out about it.

    Args:
        table: makes a batch from row indices.
        people: each row's person (0, 1, ..); ``None`` for example-level privacy.
        assumptions: what is assumed of the data and of the code that makes rows.
        given: the data as they were given to the training.
    """

    table: Rows | Examples
    people: Int[np.ndarray, " rows"] | None
    assumptions: frozenset[Assumption]
    given: object = field(repr=False)

    def memory(self) -> Iterator[Tensor | np.ndarray]:
        """Tensors and arrays that store the rows: model, optimiser and loss must not reference them."""
        kept = held_by(self.table)
        return memory_of(self.given if kept is self.given else (kept, self.given))

    def facts(self, workers: int) -> tuple[dict[str, str], bool]:
        """Digests of the data that must agree between processes, each with ``workers``, and whether they
        cover all rows."""
        found, all_rows = data_facts(self.table)
        people = "" if self.people is None else hashlib.sha256(self.people.tobytes()).hexdigest()
        return found | {"num_workers": str(workers), "people": people}, all_rows


def data_set_of(
    data: object,
    collate_fn: Collate | None,
    people: object,
    size: int,
    budget: Budget,
    *,
    one_by_one: bool = False,
) -> DataSet:
    """Make a `DataSet` of the arguments of `Trainer.batches`, checked against a plan's ``size`` (rows) and
    ``budget`` (privacy unit). ``one_by_one``: see `Examples`.

    Raises:
        InvalidValue: another number of rows; a person or a record with more rows than the plan allows.
    """
    table = table_of(data, collate_fn, one_by_one=one_by_one)
    if isinstance(data, list) and isinstance(table, Rows) and len(data) == size > 1:
        raise InvalidValue(
            f"columns must be in a tuple where they are as many as there are rows, got a list of {size} tensors, "
            "which may be rows. Give torch.stack(rows), or tuple(columns)"
        )
    if table.count != size:
        raise InvalidValue(
            f"data must have the plan's {size} rows, got {table.count}. "
            "The sample rate was calibrated for that number: make a plan for this data"
        )
    person_of_row = check_people(people, budget, table.count)
    if budget.unit is Unit.EXAMPLE:
        check_distinct(data, columns=isinstance(table, Rows))
    found = assumption_of(table)
    return DataSet(table, person_of_row, frozenset() if found is None else frozenset({found}), data)
