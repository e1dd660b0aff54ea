"""What happens to the file of a store while runs use it, and what it says of itself."""

import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.accounting.budget import Unit
from decrescendo.accounting.release import Release
from decrescendo.errors import FileRefused, ImpossibleBudget, InvalidValue, PlanViolation, UnsupportedModel
from decrescendo.plans.plan import Plan
from decrescendo.training.store import Account, Store, new_id

from .conftest import ROWS, make, plan


def take(account: Account, steps: range) -> None:
    assert isinstance(account.agreed, Plan)
    for at in steps:
        noise = float(account.agreed.noise_multiplier[at])
        account.record(at, Release(account.agreed.sampling.sample_rate, noise), bytes([at]))


def write(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_does_not_go_on_with_a_file_that_nobody_finds_any_more(path: Path, gone: bool) -> None:
    """An older copy was put in its place: the run ended in a file without a name, and its budget was free again."""
    make(path).close()
    shutil.copy(path, path.with_name("old.db"))
    account = Store(path).start(plan())
    take(account, range(2))
    path.unlink() if gone else path.with_name("old.db").replace(path)
    for use in (lambda: take(account, range(2, 3)), account.finish, lambda: account.store.start(plan())):
        with pytest.raises(FileRefused, match="must stay the file that was opened"):
            use()


def test_a_store_is_found_from_another_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(path.parent)
    make(path).close()
    account = Store(path.name).start(plan())
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    take(account, range(2))
    assert account.entry().released.steps == 2


def test_a_run_that_its_store_has_forgotten_is_not_written_to_another_ones_place(path: Path) -> None:
    """Runs were found by their number: one registered since, in an older copy, has that of the run it forgot."""
    account = make(path).start(plan())
    other = new_id()
    write(path, f"UPDATE runs SET id = '{other}'")
    for use in (lambda: take(account, range(1)), account.finish):
        with pytest.raises(PlanViolation, match=r"must list the run that releases, .* older copy"):
            use()
    assert Store(path).account(other).entry().released.steps == 0


def test_a_finished_run_whose_weights_were_lost_is_done_again(path: Path) -> None:
    """The machine failed after the last step and before the weights were saved: nothing is released that was not."""
    account = make(path).start(plan())
    take(account, range(4))
    account.finish()
    take(account, range(4))
    assert account.entry().released.steps == 4
    with pytest.raises(PlanViolation, match="must have its first result"):
        account.record(0, Release(0.02, float(plan().noise_multiplier[0])), b"another")


COSTS: dict[str, tuple[str, Callable[[Path], Store]]] = {
    "nothing": ("0,0", make),
    "no parts": ("", make),
    "one part": ("1/2", make),
    "less of delta": ("1,1/100000000", make),
    "less of epsilon": ("1/2,1/1000000", make),
    "nothing by Renyi": ("0", lambda path: make(path, composition="renyi:8")),
    "less by Renyi": ("1/1000", lambda path: make(path, composition="renyi:8")),
    "something where nothing is paid": ("1", lambda path: make(path, composition="declared")),
}


@pytest.mark.parametrize("kind", COSTS)
def test_what_a_run_costs_is_held_against_its_plan(path: Path, kind: str) -> None:
    """The plan in the file has a checksum, what was paid for it has none: with 0 in its place it was paid twice."""
    cost, begin = COSTS[kind]
    store = begin(path)
    store.start(plan())
    assert len(store.entries()) == 1
    write(path, f"UPDATE runs SET cost = '{cost}'")
    for use in (store.entries, store.describe, lambda: store.start(plan(0.4))):
        with pytest.raises(FileRefused, match="has a cost that is not its plan's"):
            use()


def test_a_plan_without_a_lower_end_is_judged_again(path: Path) -> None:
    alone = dc.Guarantee(0.9, 1e-6, Unit.EXAMPLE, "mine", "upper")
    bare = Plan(plan().budget, plan().sampling, plan().schedule, alone)
    store = make(path)
    store.start(bare)
    assert len(store.entries()) == 1
    write(path, "UPDATE runs SET cost = '9/10,' || substr(cost, instr(cost, ',') + 1)")
    with pytest.raises(FileRefused, match="has a cost that is not its plan's"):
        store.entries()


def test_an_id_is_of_one_plan(path: Path) -> None:
    store, own = make(path), new_id()
    store.start(plan(), id=own)
    with pytest.raises(InvalidValue, match=r"id must be of a new run, .* new_id\(\) makes one"):
        store.start(plan(0.4), id=own)


def test_what_is_left_can_be_planned_for(path: Path) -> None:
    """The words were rounded to the nearest: a plan for what they said was left was refused, with the same words."""
    store = make(path, epsilon=1.2345675, delta=1e-6 + 1.23449e-5)
    store.start(plan())
    reserved, left = store.describe().split("left (")
    epsilon, delta = map(float, left.split(")")[0].split(","))
    spent = [float(part) for part in reserved.split("(")[1].split(")")[0].split(",")]
    paid = plan().guarantee
    assert spent[0] >= paid.epsilon
    assert spent[1] >= paid.delta
    assert epsilon <= 1.2345675 - paid.epsilon
    assert delta <= 1.23449e-5
    with pytest.raises(ImpossibleBudget, match=r"left \(0.23"):
        store.start(plan())


def test_a_store_in_another_thread_is_opened_there(path: Path) -> None:
    """It said that the file was damaged, and to restore it from a copy."""
    store = make(path)
    with ThreadPoolExecutor(1) as other:
        for use in (store.entries, store.describe, lambda: store.start(plan()), store.close):
            with pytest.raises(InvalidValue, match=r"in the thread that opened it, .* Store\('.*ledger.db'\)"):
                other.submit(use).result()
        own = other.submit(Store, path).result()
        other.submit(own.start, plan()).result()
    assert len(store.entries()) == 1


@pytest.mark.parametrize(("composition", "epsilon"), [("sum", 1.2), ("renyi:8", 3.0), ("declared", 1.2)])
def test_a_run_that_released_nothing_costs_nothing(path: Path, composition: str, epsilon: float) -> None:
    store, accounts = make(path, epsilon, composition=composition), list[Account]()
    for _ in range(99):
        try:
            accounts.append(store.start(plan()))
        except ImpossibleBudget:
            break
    assert 0 < len(accounts) < 99
    before = store.describe()
    assert accounts[0].give_back()
    assert store.entries()[0].given_back
    again = store.start(plan())
    assert store.describe() == before
    with pytest.raises(PlanViolation, match="got a finished one"):
        take(accounts[0], range(1))
    take(again, range(1))
    assert not again.give_back()
    again.finish()
    assert store.describe() == before


def test_seeds_of_later_runs_are_not_those_of_one_that_was_given_back(path: Path) -> None:
    """A run's noise is of its place: a row that were taken away would move those after it."""
    store = make(path)
    first, second = store.start(plan()), store.start(plan())
    assert first.give_back()
    assert [entry.id for entry in store.entries()] == [first.id, second.id]


def test_a_mistake_before_the_first_release_costs_nothing(path: Path) -> None:
    """A wrong number of rows, or a model that is refused, had the whole plan reserved for ever."""
    store = make(path, 1.2)

    def train(rows: int, *layers: nn.Module, ends: int = 9) -> None:
        model = nn.Sequential(nn.Linear(1, 1), *layers)

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            return model(batch)[:, 0]

        def callback(progress: Any) -> None:
            if progress.step == ends:
                raise KeyError

        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        dc.train(model, loss, torch.zeros(rows, 1), plan(), sgd, seed=0, store=store, callback=callback)

    with pytest.raises(InvalidValue, match="must have the plan's 500 rows"):
        train(499)
    with pytest.raises(UnsupportedModel):
        train(ROWS, nn.BatchNorm1d(1))
    with pytest.raises(KeyError):
        train(ROWS, ends=1)
    assert [(entry.given_back, entry.released.steps) for entry in store.entries()] == [
        (True, 0),
        (True, 0),
        (False, 1),
    ]
    with pytest.raises(ImpossibleBudget):
        train(ROWS)
