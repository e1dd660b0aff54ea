"""Edited runs and plans, free searches that are not free, and folders that are taken are refused by commands."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from often import some

from decrescendo.accounting import Accountant, GdpClt, Guarantee, Pld, Zcdp
from decrescendo.base import sealed
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.plans import Plan
from decrescendo.training import Run, Store, Task, cross_entropy, default_space, digits, tune

from .conftest import Invoke

SAYS: dict[str, dict[str, Any]] = {
    "less of epsilon": {"epsilon": 0.5, "epsilon_lower": 0.4},
    "less of delta": {"delta": 1e-12},
    "more examples": {"unit": "person", "examples_per_person": 50},
    "other people": {"unit": "person"},
}


def saved(plan: Plan, folder: Path, says: dict[str, Any]) -> None:
    """A run whose own guarantee says something else, under a fitting checksum."""
    Run(plan, plan.ledger, plan.guarantee, weights={}).save(folder)
    content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    del content["sha256"]
    content["guarantee"] |= says
    (folder / "run.json").write_text(sealed.seal(content, indent=1, finite=False), encoding="utf-8")


@pytest.mark.parametrize("kind", SAYS)
def test_a_run_says_no_better_than_its_plan(invoke: Invoke, plan_file: Path, tmp_path: Path, kind: str) -> None:
    """`verify` judged the plan and said *verified*; `statement` wrote what the run said: (0.5, ..) of (2, ..)."""
    saved(Plan.load(plan_file), tmp_path / "run", SAYS[kind])
    for command in ("verify", "statement", "account"):
        result = invoke(command, "run")
        assert result.exit_code == 2, result.output
        assert "must fit what was agreed: the guarantee must" in result.stderr
    with pytest.raises(FileRefused, match="must fit what was agreed"):
        Run.load(tmp_path / "run")


@pytest.mark.slow
def test_what_a_run_says_is_judged_where_its_plan_has_no_lower_end(
    invoke: Invoke, plan_file: Path, tmp_path: Path
) -> None:
    sure = Plan.load(plan_file)
    own = Guarantee(2.0, 1e-5, sure.budget.unit, "mine", "upper")
    loose = Plan(sure.budget, sure.sampling, sure.schedule, own)
    saved(loose, tmp_path / "good", {"epsilon": 1.9999, "accountant": "Pld"})
    assert invoke("statement", "good").exit_code == 0
    shown = " ".join(invoke("verify", "good").stdout.split())
    assert "said by the run: (2, 1e-05)-DP" in shown
    assert "mine is no accountant of this package: a plan's guarantee was not asked of it again" in shown
    for name, says, words in (
        (
            "low",
            {"epsilon": 0.5, "accountant": "Pld"},
            "a run's guarantee must not be below the true epsilon",
        ),
        ("own", {"epsilon": 1.9999}, "must name who certified its releases, Pld, got mine"),
        (
            "nobody",
            {"accountant": "an exact proof"},
            "must name who certified its releases, Pld, got an exact proof",
        ),
        (
            "exact",
            {"accountant": "Pld", "kind": "exact"},
            "must be called what it is, upper by Pld, got exact",
        ),
    ):
        saved(loose, tmp_path / name, says)
        for command in ("verify", "statement"):
            result = invoke(command, name)
            assert result.exit_code == 2, result.output
            assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize("accountant", ["mine", "Pld"])
@pytest.mark.parametrize("epsilon", [0.001, 1.9])
def test_a_plan_and_a_run_that_were_edited_alike_are_refused(
    invoke: Invoke, plan_file: Path, tmp_path: Path, accountant: str, epsilon: float
) -> None:
    """`statement` took the plan's own number for true: 1 of 4, under "my own" accountant."""
    sure = Plan.load(plan_file)
    low = Guarantee(epsilon, 1e-5, sure.budget.unit, accountant, "upper")
    saved(Plan(sure.budget, sure.sampling, sure.schedule, low), tmp_path / "low", {})
    for command in ("verify", "statement"):
        result = invoke(command, "low")
        assert result.exit_code == 2, result.output
        assert "a plan's guarantee must not be below the true epsilon" in " ".join(result.stderr.split())


@pytest.mark.parametrize("judge", [GdpClt(), Zcdp(batches_per_epoch=50)])
def test_an_estimate_may_be_below_the_truth_and_is_called_one(
    invoke: Invoke, plan_file: Path, tmp_path: Path, judge: Accountant
) -> None:
    """One that names its accountant with its setting was refused: `verify` asked another."""
    sure = Plan.load(plan_file)
    word = sure.price(judge)
    budget = replace(sure.budget, epsilon=10.0)
    saved(Plan(budget, sure.sampling, sure.schedule, word), tmp_path / "said", {})
    assert invoke("statement", "said").exit_code == 0
    if word.epsilon > (sure.price(Pld()).epsilon_lower or 0.0):
        assert f"{judge.name} again: " in " ".join(invoke("verify", "said").stdout.split())


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"kind": "exact"}, "must be called what it is, upper by Pld, got exact"),
        ({"accountant": "GdpClt"}, "must be called what it is, estimate by GdpClt, got upper"),
        ({"accountant": "Rdp"}, "must not be below what its accountant says"),
        ({"accountant": "Gaussian"}, "sample_rate"),
        ({"epsilon": 2.0, "epsilon_lower": 1.99999}, "must not be above the true epsilon"),
        ({"epsilon": 0.001, "epsilon_lower": None}, "must not be below the true epsilon"),
        ({"epsilon_lower": None}, ""),
    ],
)
def test_a_plan_says_what_its_accountant_says_and_calls_it_so(
    invoke: Invoke,
    plan_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: dict[str, Any],
    words: str,
) -> None:
    """Any kind, any name and any lower end were verified. What is wrong is found before the other library is asked, who
    takes a minute for an epsilon of a thousandth."""
    content = json.loads(plan_file.read_text(encoding="utf-8"))
    del content["sha256"]
    content["guarantee"] |= says
    (tmp_path / "plan.json").write_text(sealed.seal(content) + "\n", encoding="utf-8")
    with monkeypatch.context() as patched:
        if words:
            patched.setattr(Plan, "verify", None)
        result = invoke("verify", "plan.json")
    assert result.exit_code == (2 if words else 0), result.output
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("section", "says", "told"),
    some(
        [
            ("promise", {"epsilon": 0.1}, "promise.epsilon"),
            ("promise", {"delta": 1e-12}, "promise.delta"),
            ("provenance", {"random": "secure", "rows_independent": True}, "provenance"),
            ("schedule", {"steps_run": 1}, "schedule.steps_run"),
            ("reading", {"advantage": 0.01}, "reading.advantage"),
            ("promise", {"more": 1}, "promise.more"),
        ],
        1,
    ),
)
def test_a_statement_that_says_something_else_than_its_run_is_not_verified(
    invoke: Invoke, plan_file: Path, tmp_path: Path, section: str, says: dict[str, Any], told: str
) -> None:
    """`verify` looked at the run, and said *verified* beside a statement of any epsilon."""
    saved(Plan.load(plan_file), tmp_path / "run", {})
    first = invoke("verify", "run")
    assert "the statement beside the run says what the run says" in first.stdout, first.output
    file = tmp_path / "run" / "statement.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["sha256"]
    content[section] = says if content[section] is None else content[section] | says
    file.write_text(sealed.seal(content, indent=1, spaced=True), encoding="utf-8")
    result = invoke("verify", "run")
    assert result.exit_code == 2, result.output
    assert f"must say what the run says, got another {told}" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_a_page_that_says_something_else_than_its_facts_is_not_verified(
    invoke: Invoke, plan_file: Path, tmp_path: Path
) -> None:
    saved(Plan.load(plan_file), tmp_path / "run", {})
    page = tmp_path / "run" / "statement.md"
    (tmp_path / "declared.toml").write_text('data = "made up"\n')
    assert invoke("statement", "run", "--declare", "declared.toml", "--spent", "2").exit_code == 0
    assert invoke("verify", "run").exit_code == 0
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("**(2, ", "**(0.1, "), encoding="utf-8")
    assert text != page.read_text(encoding="utf-8")
    result = invoke("verify", "run")
    assert result.exit_code == 2
    assert "must say what statement.json says" in " ".join(result.stderr.split())
    page.unlink()
    assert invoke("verify", "run").exit_code == 2
    (tmp_path / "run" / "statement.json").unlink()
    assert "verified" in invoke("verify", "run").stdout  # there is nothing that could be wrong


MINE = """
from decrescendo.training import Task, cross_entropy, digits

def mine():
    rows = digits.digits()
    score = lambda model: {"a": 0}
    return Task(model=digits.digits_cnn, loss=cross_entropy, data=lambda: rows[0], rows=1438, score=score)
"""


def test_a_search_on_the_task_itself_is_not_free(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trained on the private rows again and again, and said that the search cost nothing."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    for name in ("digits", "mine:mine"):
        result = invoke("tune", name, "--epsilon", 1, "--on", name, "--trials", 1, "--out", "r.json")
        assert result.exit_code == 2
        assert "--on must name public data, got the task itself" in result.stderr
    other = invoke(
        "tune", "digits", "--epsilon", 1, "--on", "decrescendo.training.digits:task", "--trials", 1, "--out", "r.json"
    )  # fmt: skip
    assert other.exit_code == 2
    assert "a free search must be on other rows than the task's own" in other.stderr
    assert not (tmp_path / "r.json").exists()


def toy(data: Any, **more: Any) -> Task:
    return Task(model=torch.nn.Linear(2, 2), loss=cross_entropy, data=data, score=lambda model: {"zero": 0.0}, **more)


def test_rows_are_told_apart_and_not_their_names() -> None:
    from decrescendo import Budget

    def rows(first: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((40, 2), first), torch.zeros(40).long()

    def loader(first: float) -> Any:
        return lambda: rows(first)

    budget, once = Budget(2.0, 1e-3), loader(1.0)
    fixed = {"steps": 1, "batch": 10, "averaging": 0.0}
    same = [(toy(rows(1.0)), toy(rows(1.0))), (toy(once, rows=40), toy(once, rows=40))]
    own = toy(rows(1.0))
    same.append((own, own))
    for task, public in same:
        with pytest.raises(InvalidValue, match="must be on other rows"):
            tune(task, public, budget, default_space(task).changed({}, fixed), trials=1)
    others = [(toy(rows(1.0)), toy(rows(2.0))), (toy(loader(1.0), rows=40), toy(loader(2.0), rows=40))]
    for task, public in others:
        assert tune(task, public, budget, default_space(task).changed({}, fixed), trials=1).score == 0.0


def test_a_folder_of_checkpoints_that_is_taken_is_called_by_its_option(invoke: Invoke, tmp_path: Path) -> None:
    """It said that --out must be new, and to pass resume=True."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "something").touch()
    result = invoke("train", "digits", "--epsilon", 1, "--steps", 2, "--checkpoints", "kept", "--out", "run")
    assert result.exit_code == 2
    assert "--checkpoints must have a new or empty folder, got 'kept'" in result.stderr
    assert "pass --resume" in result.stderr


@pytest.mark.slow
def test_weights_lost_after_the_last_step_are_made_again(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, once the store called the run finished: its whole epsilon was gone."""
    options = ["--epsilon", 1, "--steps", 2, "--store", "s.db", "--checkpoints", "kept", "--out", "run"]
    assert invoke("ledger", "s.db", "--create", "--epsilon", 1, "--delta", 1e-3, "--rows", 1438).exit_code == 0

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Run, "save", fails)
        assert "No space left" in invoke("train", "digits", *options).stderr
    assert "finished" in invoke("ledger", "s.db").stdout
    result = invoke("train", "digits", *options, "--resume")
    assert result.exit_code == 0, result.output
    assert Run.load(tmp_path / "run").steps == 2


def test_a_score_that_fails_costs_no_budget_and_later_no_weights(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def second(*_: object) -> float:
        calls.append(0)
        if len(calls) > 1:
            raise KeyError("typo")
        return 0.5

    options = ["--epsilon", 1, "--steps", 2, "--store", "s.db"]
    invoke("ledger", "s.db", "--create", "--epsilon", 2, "--delta", 1e-3, "--rows", 1438)
    with monkeypatch.context() as patched:
        patched.setattr(digits, "accuracy", lambda *_: {}["typo"])
        assert isinstance(invoke("train", "digits", *options, "--out", "none").exception, KeyError)
    assert "reserved (0, 0)" in invoke("ledger", "s.db").stdout
    with monkeypatch.context() as patched:
        patched.setattr(digits, "accuracy", second)
        with pytest.warns(UserWarning, match="score failed.*KeyError"):
            invoke("train", "digits", *options, "--out", "run")
    assert dict(Run.load(tmp_path / "run").metrics) == {}


def test_an_audit_that_would_count_nothing_is_refused_before_it_trains(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("audit", "digits", "--epsilon", 1, "--steps", 2, "--canaries", 5)
    assert result.exit_code == 2
    assert "--canaries must be >= 20, got --canaries=5" in result.stderr
    result = invoke("audit", "digits", "--epsilon", 1, "--steps", 2, "--canaries", 20, "--seed", 0)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("where", [".", "", "/proc/nowhere", "/dev/null/run"])
def test_a_place_that_a_run_cannot_be_saved_in_is_refused_before_the_training(invoke: Invoke, where: str) -> None:
    """The training was done, its epsilon spent, and its weights lost."""
    result = invoke("train", "digits", "--epsilon", 1, "--steps", 1, "--out", where)
    assert result.exit_code == 2
    assert "--out must be " in result.stderr
    assert "Promise" not in result.stdout


def test_checkpoints_in_a_file_are_called_so(invoke: Invoke) -> None:
    result = invoke("train", "digits", "--epsilon", 1, "--steps", 1, "--checkpoints", "/dev/null")
    assert "--checkpoints must be in a folder, got a file" in result.stderr


def test_a_run_that_released_nothing_is_given_back_by_name(invoke: Invoke, plan_file: Path, tmp_path: Path) -> None:
    made = ["ledger", "s.db", "--create", "--epsilon", 2, "--delta", 1e-3, "--rows", 1438]
    assert invoke(*made).exit_code == 0
    with closing(Store(tmp_path / "s.db")) as store:
        lost = store.start(Plan.load(plan_file)).id  # of a process that was killed
    train = ["train", "digits", "--plan", plan_file, "--store", "s.db"]
    assert invoke(*train).exit_code == 2
    assert "must be of one run, got 'x'" in invoke("ledger", "s.db", "--give-back", "x").stderr
    assert "given back" in invoke("ledger", "s.db", "--give-back", lost[:8]).stdout
    assert invoke(*train).exit_code == 0
    with closing(Store(tmp_path / "s.db")) as store:
        spent = store.entries()[1].id
    result = invoke("ledger", "s.db", "--give-back", spent)
    assert result.exit_code == 2
    assert "must be of a run that has released nothing" in result.stderr
