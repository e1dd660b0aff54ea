"""Facts: `search` searches public data, never the task's own, and says what it cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from decrescendo_papers.data import Dataset
from decrescendo_papers.experiments import execute as execute_room
from decrescendo_papers.experiments import tasks
from decrescendo_papers.experiments.execute import Outcome, missing
from decrescendo_papers.experiments.recipes import load_recipe
from decrescendo_papers.experiments.results import Result, save
from decrescendo_papers.experiments.spec import Spec

from .conftest import Invoke

PUBLIC = ["search", "mnist", "--epsilon", 0.4, "--on", "fashion-mnist", "--out", "found.json"]


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """Runs are not trained, and the private data cannot be opened."""
    specs: list[Spec] = []

    def execute(wanted: Sequence[Spec], folder: Path, *, jobs: int, device: str, console: Any) -> Outcome:
        for spec in missing(wanted, folder):
            specs.append(spec)
            save(folder, Result(spec, metrics={"test_accuracy": 1 / (1 + spec.learning_rate)}, seconds=30.0))
        return Outcome(0, len(specs))

    def closed() -> Dataset:
        raise AssertionError("the private data were opened")

    monkeypatch.setattr(execute_room, "execute", execute)
    task = tasks.TASKS["mnist"]
    fields = {name: getattr(task, name) for name in task.__slots__}
    monkeypatch.setitem(tasks.TASKS, "mnist", tasks.Task(**{**fields, "load": closed}))
    return specs


@pytest.mark.slow
def test_public_data_are_searched_and_the_command_is_in_the_file(
    invoke: Invoke, performed: list[Spec], tmp_path: Path
) -> None:
    options = ["--trials", 5, "--fix", "steps=300", "--vary", "batch=250,500", "--jobs", 2]
    result = invoke(*PUBLIC, *options)
    assert result.exit_code == 0, result.output
    recipe = load_recipe(tmp_path / "found.json")
    assert "on fashion-mnist, not on mnist" in result.stdout
    assert "5 trials, 0 failed, 2.5 core-minutes" in result.stdout
    assert recipe.command == (
        "papers search mnist --epsilon 0.4 --on fashion-mnist --trials 5 --vary batch=250,500 --fix steps=300"
    )
    assert {(spec.steps, spec.accountant, spec.stand_in) for spec in performed} == {(300, "pld", "fashion-mnist")}
    assert recipe.score == max(1 / (1 + spec.learning_rate) for spec in performed)
    again = invoke(*recipe.command.split()[1:], "--out", "again.json")
    assert again.exit_code == 0, again.output
    assert load_recipe(tmp_path / "again.json") == recipe
    assert len(performed) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PUBLIC, "--trials", "geometric:3"], "--trials must be a number"),
        ([*PUBLIC], "--trials must be a number, got ''"),
        ([*PUBLIC, "--trials", 0], "trials must be >= 1"),
        ([*PUBLIC, "--trials", 3, "--vary", "seed=1,2"], "a setting must be one of"),
        ([*PUBLIC, "--trials", 3, "--fix", "momentum=1"], "momentum must be"),
        (
            ["search", "mnist", "--epsilon", 1, "--on", "mnist", "--trials", 3, "--out", "x.json"],
            "stand_in for mnist",
        ),
    ],
)
def test_wrong_requests_are_refused_in_one_line(
    invoke: Invoke, performed: list[Spec], tmp_path: Path, arguments: list[Any], words: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.count("\n") == 1
    assert performed == []
    assert list(tmp_path.iterdir()) == []


def test_a_search_by_another_accountant_says_claimed(invoke: Invoke, performed: list[Spec], tmp_path: Path) -> None:
    result = invoke(*PUBLIC, "--trials", 2, "--accountant", "tcdp", "--fix", "method=time-decay")
    assert result.exit_code == 0, result.output
    assert {spec.accountant for spec in performed} == {"tcdp"}
    recipe = load_recipe(tmp_path / "found.json")
    assert recipe.spec.accountant == "tcdp"
    assert "--accountant tcdp" in recipe.command
    assert "claimed by tcdp" in result.stdout
    assert "certified" not in result.stdout
