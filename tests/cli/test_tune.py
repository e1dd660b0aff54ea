"""Facts: `tune` searches public data or private ones, never by accident, and says what it cost."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from decrescendo.plans import Plan
from decrescendo.training import Recipe, Run

from .conftest import Invoke

MINE = """
from decrescendo.training import Task, cross_entropy, digits

def closed():
    raise AssertionError("the private data were opened")

def mine():
    return Task(model=digits.digits_cnn, loss=cross_entropy, data=closed, rows=700, batch=70, learning_rate=1.0)

def unscored():
    return Task(model=digits.digits_cnn, loss=cross_entropy, data=digits.digits()[0])
"""
PUBLIC = ["tune", "mine:mine", "--epsilon", 2, "--on", "digits", "--out", "found.json"]
PRIVATE = ["tune", "digits", "--epsilon", 8, "--private", "--out", "found.json"]
SMALL = ["--fix", "steps=2", "--fix", "averaging=0.5"]


@pytest.fixture
def here(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_public_data_are_searched_and_the_recipe_is_trained_by(invoke: Invoke, here: Path) -> None:
    result = invoke(*PUBLIC, *SMALL, "--trials", 3, "--vary", "batch=70,140")
    assert result.exit_code == 0, result.output
    recipe = Recipe.load(here / "found.json")
    assert len(recipe.trials) == 3
    assert recipe.score == max(trial.score for trial in recipe.trials)
    assert (recipe.settings.steps, recipe.settings.averaging, recipe.on) == (2, 0.5, "digits")
    assert recipe.trials[0].values["clip"] == 1.0  # the task's own settings come first
    again = invoke(*PUBLIC, *SMALL, "--trials", 3, "--vary", "batch=70,140")
    assert again.exit_code == 0, again.output
    assert Recipe.load(here / "found.json") == recipe
    trained = invoke("train", "digits", "--recipe", "found.json", "--seed", 1, "--out", "run")
    assert trained.exit_code == 0, trained.output
    plan = Run.load(here / "run").plan
    assert isinstance(plan, Plan)
    assert (plan.steps, plan.budget.epsilon) == (2, 2.0)
    assert plan.sampling.expected_batch_size == recipe.settings.batch


def test_private_data_give_one_winner_with_the_guarantee_of_the_whole(invoke: Invoke, tmp_path: Path) -> None:
    options = ["--trials", "geometric:2", "--fix", "steps=2", "--fix", "batch=100", "--seed", 4]
    result = invoke(*PRIVATE, *options)
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "found.json").read_text())
    assert facts["guarantee"]["epsilon"] <= 8
    assert facts["guarantee"]["accountant"] == "Selection of 2 expected trials (geometric)"
    assert "Selection of 2 expected trials (geometric) upper bound: the whole search" in result.stdout
    assert sorted(path.name for path in tmp_path.rglob("found.*")) == ["found.json", "found.safetensors"]
    assert "seed" not in facts["settings"]
    second = invoke(*PRIVATE, *options)
    assert second.exit_code == 2
    assert "must be a new file" in second.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune", "digits", "--epsilon", 1, "--trials", 3, "--out", "x.json"], "got neither"),
        ([*PUBLIC, "--private", "--trials", "geometric:3"], "got both"),
        ([*PUBLIC, "--trials", "geometric:3"], "--trials must be a number on public data"),
        ([*PUBLIC], "--trials must be a number on public data, got ''"),
        ([*PUBLIC, "--trials", 0], "trials must be >= 1"),
        ([*PUBLIC, "--trials", 3, "--vary", "seed=1,2"], "a setting must be one of"),
        ([*PUBLIC, "--trials", 3, "--fix", "momentum=1"], "momentum must be"),
        ([*PUBLIC[:5], "mine:unscored", *PUBLIC[6:], "--trials", 3], "must have a score"),
        ([*PRIVATE], "--trials must be given with --private"),
        ([*PRIVATE, "--trials", 40], "must be random, like geometric:10, got '40'"),
        ([*PRIVATE, "--trials", "geometric:3", "--seeds", 2], "--seeds must be left out with --private"),
        (
            [*PRIVATE, "--trials", "geometric:3", "--vary", "batch=100,200"],
            "got batch: it changes what a trial spends",
        ),
    ],
)
def test_wrong_requests_are_refused_in_one_line(
    invoke: Invoke, here: Path, arguments: list[Any], words: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.count("\n") == 1
    assert [path.name for path in here.iterdir() if path.suffix == ".json"] == []
