"""Whose records are whose: what code of a user's says of it, and what is supposed of that code."""

from typing import Any

import numpy as np
import pytest

from decrescendo.errors import InvalidValue
from decrescendo.federated import Clients, Outcome, Placement, Records, simulate
from decrescendo.federated.clients import CLIENTS_APART
from decrescendo.training import Rows
from decrescendo.training.data.examples import EXAMPLES_APART

from .conftest import loss, make_model, make_plan, records, sgd


def run_of(clients: Clients) -> Outcome:
    model = make_model()
    return simulate(model, loss, clients, make_plan(), sgd(model), seed=0, placement=Placement.CENTRAL)


class Items:
    """A data set of a user's."""

    def __len__(self) -> int:
        return len(records()[0])

    def __getitem__(self, index: int) -> Any:
        return tuple(column[index] for column in records())


@pytest.mark.parametrize("parts", [0.5, 2])
def test_one_part_a_client_and_no_other_number_is_taken(parts: float) -> None:
    """A ``take`` that counted the records of each of its sessions had a client clipped once a session: on a toy one
    client moved the sum by 2.4 C, of which the outcome said that all was proven."""

    def take(clients: Any) -> Records:
        count = int(len(clients) * parts)
        return Records(tuple(column[:count] for column in records()), np.ones(count, dtype=np.int64))

    with pytest.raises(InvalidValue, match=r"of each client how many records it has, got \d+ counts for \d+ clients"):
        run_of(Clients(len(Items()), take))


def test_what_is_supposed_of_code_that_gives_records_is_said() -> None:
    inputs, targets = records()

    def take(clients: Any) -> Records:
        return Records((inputs[clients], targets[clients]), np.ones(len(clients), dtype=np.int64))

    own = Rows(len(inputs), lambda indices: (inputs[indices], targets[indices]))
    for clients, said in (
        (Clients.equal((inputs, targets), records=1), ()),
        (Clients.ranges((inputs, targets), np.arange(len(inputs) + 1)), ()),
        (Clients(len(inputs), take), (CLIENTS_APART,)),
        (Clients.equal(own, records=1), (CLIENTS_APART,)),
        (Clients.equal(Items(), records=1), (EXAMPLES_APART,)),
    ):
        assert run_of(clients).assumptions == said
