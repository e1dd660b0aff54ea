"""`DataSet`: the data of a training, inspected once before the first batch is drawn."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.errors import InvalidValue
from decrescendo.training.data.data_memory import memory_of
from decrescendo.training.data.examples import Collate, Examples, own_numbers
from decrescendo.training.data.people import check_index, check_people
from decrescendo.training.data.repeated_records import check_distinct, check_one_person_each
from decrescendo.training.data.rows import Rows, assumption_of, held_by, table_of
from decrescendo.training.processes.world import data_facts

SHARED_OBJECTS, OWN_IDS = assumed("records-share-objects"), assumed("own-ids")


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
        """Digests of the data and ``workers``, which must agree between ranks, and whether the digests
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
    check_index(data, people)
    person_of_row = check_people(people, budget, table.count)
    if budget.unit is Unit.EXAMPLE:
        check_distinct(data, columns=isinstance(table, Rows))
    elif person_of_row is not None:
        check_one_person_each(data, person_of_row)
    found = {assumption_of(table)}
    if person_of_row is not None:
        found.add(OWN_IDS)
    if one_by_one and isinstance(table, Examples) and table.count > 1 and _share_tensors(table):
        found.add(SHARED_OBJECTS)
    return DataSet(table, person_of_row, frozenset(one for one in found if one is not None), data)


def _share_tensors(examples: Examples) -> bool:
    """Whether the first two items share a tensor or array of several numbers, such as one graph for all nodes."""
    with own_numbers() as begin:
        items = list[Any]()
        for index in range(2):
            begin(0, index)
            items.append(examples.items[index])
    first, second = ({_lies(held) for held in memory_of([item]) if math.prod(held.shape) > 1} for item in items)
    return bool(first & second)


def _lies(held: Tensor | np.ndarray) -> tuple[object, ...]:
    """Address and shape of a tensor or an array; the object's id in place of the address if not strided."""
    if isinstance(held, Tensor):
        return held.data_ptr() if held.layout is torch.strided else id(held), tuple(held.shape)
    return held.ctypes.data, held.shape
