"""Facts: `tune` searches public data or private ones, never by accident, and says what it cost."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from decrescendo.accounting import Budget, Unit
from decrescendo.errors import InvalidValue
from decrescendo.plans import Plan
from decrescendo.training import Recipe, Run, Task, cross_entropy, default_space, tune

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


@pytest.mark.slow
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


@pytest.mark.slow
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
        ([*PRIVATE, "--trials", "geometric:3", "--examples-per-person", 2], "for one example"),
        ([*PUBLIC, "--trials", 3, "--store", "s.db"], "a search on public data costs nothing"),
        ([*PUBLIC, "--trials", 3, "--rank-by", "loss"], "the public task has a score"),
        ([*PRIVATE, "--trials", "geometric:3", "--rank-by", "luck"], "must be accuracy or loss, got 'luck'"),
        (
            [*PRIVATE, "--trials", "geometric:3", "--rank-by", "accuracy", "--largest-loss", 5],
            "must come with --rank-by loss",
        ),
        (
            [*PRIVATE, "--trials", "geometric:3", "--vary", "batch=100,200"],
            "got batch: it changes what a trial spends",
        ),
    ],
)
def test_wrong_requests_are_refused_in_one_line(invoke: Invoke, here: Path, arguments: list[Any], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.count("\n") == 1
    assert [path.name for path in here.iterdir() if path.suffix == ".json"] == []


@pytest.mark.slow
def test_a_budget_for_people_is_searched_and_trained_for_people(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search died, and a recipe's plan was one for examples."""
    (tmp_path / "mine.py").write_text(
        MINE.replace("data=closed, rows=700", "data=digits.digits()[0], people=[row // 2 for row in range(1438)]")
    )
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    on = "decrescendo.training.digits:task"
    arguments = ["mine:mine", "--epsilon", 8, "--examples-per-person", 2, "--trials", 1, *SMALL]
    refused = invoke("tune", *arguments, "--on", on, "--out", "r.json")
    assert refused.exit_code == 2  # the task's own rows
    others = """
    score = lambda model: {'zero': 0.0}
    inputs, targets = digits.digits()[0]
    rows = (1 - inputs, targets)
"""
    public = MINE.replace("data=closed, rows=700", "data=rows, score=score")
    (tmp_path / "public.py").write_text(public.replace("def mine():", f"def mine():{others}"))
    found = invoke("tune", *arguments, "--on", "public:mine", "--out", "r.json")
    assert found.exit_code == 0, found.output
    assert "for one person with at most 2 examples" in " ".join(found.stdout.split())
    budget = Recipe.load(tmp_path / "r.json").budget
    assert (budget.unit, budget.examples_per_person) == (Unit.PERSON, 2)
    trained = invoke("train", "mine:mine", "--recipe", "r.json", "--seed", 1, "--out", "run")
    assert trained.exit_code == 0, trained.output
    run = Run.load(tmp_path / "run")
    assert run.plan.budget == budget
    assert run.guarantee.unit is Unit.PERSON


def test_a_private_search_is_counted_in_the_ledger_of_the_data(invoke: Invoke, tmp_path: Path) -> None:
    made = invoke(
        "ledger",
        "ledger.db",
        "--create",
        "--dataset",
        "digits",
        "--rows",
        1438,
        "--epsilon",
        10,
        "--delta",
        0.001,
    )
    assert made.exit_code == 0, made.output
    options = ["--trials", "geometric:1", "--fix", "steps=2", "--fix", "batch=1438", "--store", "ledger.db"]
    options += ["--rank-by", "loss", "--largest-loss", 3]
    result = invoke(*PRIVATE, *options)
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "found.json").read_text())
    assert facts["provenance"]["random"] == "secure"
    assert facts["provenance"]["account"].startswith("digits, run ")
    (listed,) = json.loads(invoke("ledger", "ledger.db", "--json").stdout)["runs"]
    assert (listed["label"], listed["state"]) == ("private search", "finished")
    second = invoke(*PRIVATE[:-1], "other.json", *options)
    assert second.exit_code == 2
    assert "all runs together must stay within" in " ".join(second.output.split())
    assert not (tmp_path / "other.json").exists()


def test_views_of_the_private_rows_are_not_public() -> None:
    """Another slice of the same memory was searched as if it were free; so were its halves, concatenated anew."""
    rows = torch.rand(60, 2), torch.zeros(60).long()

    def toy(data: Any) -> Task:
        return Task(model=torch.nn.Linear(2, 2), loss=cross_entropy, data=data, score=lambda model: {"zero": 0.0})

    task = toy(rows)
    shared = (
        (rows[0][10:50], rows[1][10:50]),
        TensorDataset(*rows),
        (rows[0].numpy()[::2], rows[1].numpy()[::2]),
    )
    for view in shared:
        with pytest.raises(InvalidValue, match="must be on other rows than the task's own"):
            tune(task, toy(view), Budget(2.0, 1e-3), default_space(task), trials=1)
    half = toy((rows[0][:30], rows[1][:30]))
    others = toy((rows[0][30:], rows[1][30:]))  # of one memory, and no row of the task's
    found = tune(half, others, Budget(8.0, 1e-3), default_space(half).changed({}, {"steps": 1}), trials=1)
    assert found.score == 0.0
