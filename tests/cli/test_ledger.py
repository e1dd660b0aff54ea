"""The command that shows a store."""

import json
from pathlib import Path
from typing import Any

import pytest

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.plans import PoissonSampling, calibrate
from decrescendo.plans.curves import constant
from decrescendo.training import find_task
from decrescendo.training.store import Account, Store

from .conftest import Invoke


@pytest.fixture
def store(invoke: Invoke, tmp_path: Path) -> Path:
    path = tmp_path / "digits.db"
    result = invoke("ledger", path, "--create", "--epsilon", 3, "--delta", 1e-4, "--rows", 1000, "--dataset", "digits")
    assert result.exit_code == 0, result.output
    return path


def test_a_new_store_has_its_budget(invoke: Invoke, store: Path) -> None:
    opened = Store(store)
    assert (opened.budget.epsilon, opened.budget.delta, opened.rows, opened.dataset) == (
        3.0,
        1e-4,
        1000,
        "digits",
    )
    shown = invoke("ledger", store)
    assert shown.exit_code == 0
    assert "left (3, 0.0001) of (3, 0.0001)" in shown.output
    assert json.loads(invoke("ledger", store, "--json").output)["runs"] == []


def test_a_store_of_clients_takes_plans_for_clients_alone(invoke: Invoke, tmp_path: Path) -> None:
    made = invoke("ledger", "c.db", "--create", "--epsilon", 3, "--delta", 1e-4, "--rows", 1438, "--unit", "client")
    assert made.exit_code == 0, made.output
    assert "one client protected" in made.output
    assert Store(tmp_path / "c.db").budget.unit is Unit.CLIENT
    trained = invoke("train", "digits", "--epsilon", 1, "--steps", 2, "--store", "c.db", "--seed", 1)
    assert trained.exit_code == 2
    assert "unit" in trained.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", 3], "fixed when it is made"),
        (["--create", "--epsilon", 3], "--rows"),
        (["--create", "--epsilon", 3, "--delta", 1e-4, "--rows", 10], "exists"),
    ],
)
def test_mistakes_are_one_line(invoke: Invoke, store: Path, arguments: list[Any], words: str) -> None:
    before = store.read_bytes()
    result = invoke("ledger", store, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert store.read_bytes() == before


def test_foreign_and_missing_files_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("hello")
    for path in (other, tmp_path / "missing"):
        result = invoke("ledger", path)
        assert result.exit_code == 2
        assert "store" in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other"]


def test_a_training_is_written_into_its_ledger_and_can_be_resumed(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle: the ledger has what was released, and the resumed run ends with the same weights."""
    rows = find_task("digits").count
    store = Store.create(tmp_path / "s.db", Budget(4.0, 1e-4), dataset="digits", rows=rows)
    asked = [
        "train",
        "digits",
        "--epsilon",
        3,
        "--delta",
        1e-5,
        "--batch",
        64,
        "--steps",
        4,
        "--seed",
        1,
        "--json",
    ]
    asked += ["--lr-decay", "cosine", "--store", tmp_path / "s.db"]
    taken: list[int] = []
    record = Account.record

    def power_cut(self: Account, position: int, *others: Any) -> bool:
        taken.append(position)
        if len(taken) == 3:
            raise KeyboardInterrupt
        return record(self, position, *others)

    monkeypatch.setattr(Account, "record", power_cut)
    kept = ["--checkpoints", tmp_path / "kept"]
    assert invoke(*asked, *kept).exit_code != 0
    assert store.entries()[0].released.steps == 2
    refused = invoke(*asked, *kept)
    assert refused.exit_code == 2
    assert "resume" in refused.stderr
    result = invoke(*asked, *kept, "--resume", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    (entry,) = store.entries()
    assert (entry.released.steps, entry.state) == (4, "finished")
    assert invoke(*asked).exit_code == 2  # nothing is left
    assert "must be given --checkpoints" in invoke(*asked, "--resume").stderr


def test_the_time_of_a_start_is_whole_in_a_narrow_table(invoke: Invoke, store: Path) -> None:
    opened = Store(store)
    plan = calibrate(Budget(1.0, 1e-5), PoissonSampling(1000, 100), steps=2, privacy=constant(1.0), clip=constant(1.0))
    opened.start(plan)
    (entry,) = opened.entries()
    shown = invoke("ledger", store).output
    assert "\u2026" not in shown
    assert all(part in shown for part in entry.started[:16].split("T"))


def test_a_run_is_listed_by_the_name_that_it_was_given(invoke: Invoke, tmp_path: Path) -> None:
    """Nothing filled the column; a name with markup in it is shown as it is, whoever wrote it."""
    rows = find_task("digits").count
    Store.create(tmp_path / "s.db", Budget(8.0, 1e-4), dataset="digits", rows=rows).close()
    asked = ["train", "digits", "--epsilon", 3, "--delta", 1e-5, "--batch", 64, "--steps", 2, "--seed", 1]
    done = invoke(*asked, "--store", tmp_path / "s.db", "--name", "first [/red] try")
    assert done.exit_code == 0, done.output
    (entry,) = Store(tmp_path / "s.db").entries()
    assert entry.label == "first [/red] try"
    shown = invoke("ledger", tmp_path / "s.db")
    assert shown.exit_code == 0
    assert all(word in shown.output for word in ("name", "first", "[/red]", "try"))
    alone = invoke(*asked, "--name", "first")
    assert alone.exit_code == 2
    assert "--name must be given with --store" in alone.stderr


def test_a_store_that_is_not_there_names_the_option_that_makes_one(invoke: Invoke, tmp_path: Path) -> None:
    for asked in (
        ["ledger", tmp_path / "missing.db"],
        ["train", "digits", "--epsilon", 3, "--batch", 64, "--steps", 2, "--store", tmp_path / "missing.db"],
    ):
        result = invoke(*asked)
        assert result.exit_code == 2
        assert "--create" in result.stderr
    assert not list(tmp_path.iterdir())
