"""A store put back from a backup has forgotten the runs registered since: who has a checkpoint can tell."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from decrescendo.accounting import Budget
from decrescendo.base.rng import Secure
from decrescendo.errors import PlanViolation
from decrescendo.training import Checkpoints, Store, Trainer
from decrescendo.training.store import Account

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


def life(folder: Path, store: Store, data: Data, until: int, *, seed: Any = 0, every: int = 100) -> Trainer:
    model = make_model()
    kept = Checkpoints(folder, every=every, resume=True)
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=seed, store=store, checkpoints=kept)
    for batch in trainer.batches(data) if until else ():
        if trainer.step(batch).step == until:
            break
    return trainer


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Budget(100.0, 1e-2), dataset="toy", rows=ROWS)


def copy_to(store: Store, path: Path) -> None:
    with closing(sqlite3.connect(path)) as to:
        store._connection.backup(to)


def put_back(path: Path) -> Store:
    (path / "store").unlink()
    shutil.copy(path / "copy", path / "store")
    return Store(path / "store")


@pytest.mark.parametrize("seed", [0, Secure()], ids=["seed", "secure"])
@pytest.mark.parametrize("every", [1, 100])
def test_a_copy_of_before_a_run_was_registered_is_refused(
    data: Data, tmp_path: Path, store: Store, seed: Any, every: int
) -> None:
    """It was registered again; the other run, of which the restored store knows nothing, was forgotten."""
    copy_to(store, tmp_path / "copy")
    life(tmp_path / "kept", store, data, 2, seed=seed, every=every)
    store.start(make_plan(), label="other")
    store = put_back(tmp_path)
    with pytest.raises(PlanViolation, match="must list what its run has released, got 0 of 2 steps"):
        life(tmp_path / "kept", store, data, 3, seed=seed, every=every)
    assert not store.entries()


def test_a_copy_of_the_midst_of_a_run_is_refused(data: Data, tmp_path: Path, store: Store) -> None:
    life(tmp_path / "kept", store, data, 1)
    copy_to(store, tmp_path / "copy")
    store.start(make_plan(), label="other")
    life(tmp_path / "kept", store, data, 3)
    store = put_back(tmp_path)
    with pytest.raises(PlanViolation, match="got 1 of 3 steps"):
        life(tmp_path / "kept", store, data, 3)


def test_a_copy_without_the_runs_before_this_one_is_refused(data: Data, tmp_path: Path, store: Store) -> None:
    """Nothing of its own is missing, only the runs before it."""
    copy_to(store, tmp_path / "copy")
    store.start(make_plan(), label="other")
    life(tmp_path / "kept", store, data, 0, seed=Secure())
    store = put_back(tmp_path)
    with pytest.raises(PlanViolation, match="runs before this one"):
        life(tmp_path / "kept", store, data, 3, seed=Secure())


def test_a_crash_between_the_two_lists_is_nothing_to_refuse(
    data: Data, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Account, "record", _killed)
        with pytest.raises(KeyboardInterrupt):
            life(tmp_path / "kept", store, data, 3)
    trainer = life(tmp_path / "kept", store, data, 3)
    (entry,) = store.entries()
    assert (trainer.finish().assumptions, entry.released) == ((), make_plan().ledger)


def test_checkpoints_put_back_are_nothing_to_refuse(data: Data, tmp_path: Path, store: Store) -> None:
    """The store has what was released since, and each step again is held against it."""
    life(tmp_path / "kept", store, data, 1, every=1)
    for name in ("older", "changed"):
        shutil.copytree(tmp_path / "kept", tmp_path / name)
    life(tmp_path / "kept", store, data, 3, every=1)
    with pytest.raises(PlanViolation, match="a repeated step must have its first result"):
        life(tmp_path / "changed", store, (data[0] + 1, data[1]), 3, every=1)
    trainer = life(tmp_path / "older", store, data, 3, every=1)
    (entry,) = store.entries()
    assert (trainer.finish().assumptions, entry.released) == ((), make_plan().ledger)


def _killed(*_: object, **__: object) -> object:
    raise KeyboardInterrupt
