"""Runs whose unit is a client, and what they say of a person behind several clients."""

import collections
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from often import some

from decrescendo.accounting.budget import Unit
from decrescendo.errors import InvalidValue
from decrescendo.federated.units import group_epsilon
from decrescendo_papers.experiments import persons, tasks
from decrescendo_papers.experiments.pages.archive import Archive
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.persons_section import persons_section
from decrescendo_papers.experiments.perform import data_of, perform, plan_of, units_of
from decrescendo_papers.experiments.reproduce import requested_persons
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table1 import TABLE1
from decrescendo_papers.experiments.table4 import TABLE4

from .conftest import toy_data, toy_task

SPEC = Spec(
    task="toy", method="dynamic", accountant="pld", epsilon=3.0, delta=1e-3, steps=12, batch=6, seed=1, clip=1.0,
    learning_rate=0.5, rho_mu=1.25, rho_c=2.0, records=1,
)  # fmt: skip


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    data_of.cache_clear()
    monkeypatch.setitem(tasks.TASKS, "toy", toy_task(lambda: toy_data(0)))


@pytest.mark.slow
@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("changes", some([{}, {"lr_decay": "linear"}, {"averaging": 0.9, "momentum": 0.5}], 1))
def test_clients_of_one_row_are_rows(changes: dict[str, float]) -> None:
    over_clients = perform(dataclasses.replace(SPEC, **changes, trace=3))
    over_rows = perform(dataclasses.replace(SPEC, **changes, trace=3, records=0))
    assert over_clients.metrics == over_rows.metrics
    assert over_clients.trace == over_rows.trace  # gradient lengths to the last bit
    assert over_rows.trace["step"] == [
        1,
        2,
        4,
        8,
        12,
    ]  # a ramp-up may be over before the first of three points
    assert over_clients.certified == over_rows.certified
    assert over_clients.noise_multiplier == over_rows.noise_multiplier


@pytest.mark.slow
@pytest.mark.usefixtures("opened")
def test_the_plan_is_for_clients_and_the_run_keeps_it() -> None:
    five = dataclasses.replace(SPEC, records=5)
    plan = plan_of(five)
    assert plan.budget.unit is Unit.CLIENT
    assert (plan.sampling.dataset_size, plan.sampling.sample_rate) == (12, 0.5)
    result = perform(five)
    assert result.certified is not None
    assert result.certified[1] <= 3.0
    assert result.noise_multiplier is not None
    alone = perform(SPEC).noise_multiplier
    assert alone is not None
    assert result.noise_multiplier[0] > alone[0]  # a larger sample rate costs more


@pytest.mark.usefixtures("opened")
def test_what_cannot_be_shared_among_clients_is_refused() -> None:
    with pytest.raises(InvalidValue, match="records must divide the 60 rows of toy, got records=7"):
        perform(dataclasses.replace(SPEC, records=7))
    with pytest.raises(InvalidValue, match="records must be 0 without privacy"):
        dataclasses.replace(SPEC, method="none")


def test_table_4_counts_rounds_delta_and_epochs_in_clients() -> None:
    specs = {(cell.row.key, cell.column.task): cell.specs[0] for cell in TABLE4.cells([0])}
    for rows, task in ((250_000, "infinite-mnist-250k"), (500_000, "infinite-mnist-500k")):
        one, ten = specs["vanilla", task], specs["vanilla-10", task]
        assert (one.records, one.steps, one.delta) == (1, 5_000, 1 / (10 * rows))
        assert (ten.records, ten.steps, ten.delta) == (10, 500, 1 / rows)
        assert one.steps * one.batch * one.records == ten.steps * ten.batch * ten.records
        assert ten.batch / units_of(ten) == 10 * one.batch / units_of(one)
    for (plain,) in TABLE4.plain_specs([0]).values():
        assert plain.records == 0


@pytest.mark.slow
@pytest.mark.parametrize(("records", "most"), [pytest.param(1, 5, marks=pytest.mark.slow), (10, 5)])
def test_a_persons_guarantee_is_that_of_all_clients_behind(records: int, most: int, tmp_path: Path) -> None:
    key = "dynamic" if records == 1 else f"dynamic-{records}"
    cell = next(cell for cell in TABLE4.cells([0], ["certified"]) if cell.row.key == key)
    spec = dataclasses.replace(cell.specs[0], steps=3, epsilon=0.4)
    person = persons.compute(spec)
    # Counted one by one: row r is example 10,000 + r, made from train image r mod 60,000.
    behind: dict[int, set[int]] = collections.defaultdict(set)
    for row in range(250_000):
        behind[row % 60_000].add(row // records)
    assert person.clients == max(len(clients) for clients in behind.values()) == most
    ledger = plan_of(spec).ledger
    assert person.epsilon == group_epsilon(ledger, spec.delta, most, replaced=records > 1).value
    assert person.epsilon > plan_of(spec).guarantee.epsilon
    persons.save(tmp_path, spec, person)
    assert persons.find(tmp_path, spec.seeded(7)) == person
    assert persons.find(tmp_path, dataclasses.replace(spec, epsilon=0.5)) is None
    path = persons.path_of(tmp_path)
    path.write_text(path.read_text().replace(f'"clients": {most}', '"clients": 1'))
    assert persons.find(tmp_path, spec) is None


def test_the_page_says_which_unit_is_protected_and_what_the_other_has(tmp_path: Path) -> None:
    assert persons_section(Filled(TABLE1, Archive([])), tmp_path) == ""
    filled = Filled(TABLE4, Archive([]))
    asked = requested_persons(["table4", "figure1"])
    assert len(asked) == len(set(asked)) == 2 * 2 * 6 + 2 * 6
    persons.save(tmp_path, asked[0], persons.Person(5, 0.56201))
    persons.save(tmp_path, asked[1], persons.Person(9, None))
    section = persons_section(filled, tmp_path)
    assert " 0.5621 |" in section
    assert section.count("nothing |") == 1
    assert section.count("not computed") == len(asked) - 2
    assert np.all([unit in section for unit in ("client of 1 image", "client of 10 images")])
