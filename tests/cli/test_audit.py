"""Facts: `audit` attacks the training of a task or of a plan file, and exits with 1 if it is caught."""

from contextlib import closing
from pathlib import Path

import pytest
from broken_builds import BROKEN

from decrescendo.accounting.budget import Budget
from decrescendo.audit import AuditResult, attacks
from decrescendo.cli import options
from decrescendo.plans.plan import Plan
from decrescendo.training.store import Store

from .conftest import Invoke, facts

QUICK = ["--seed", 0, "--threads", 1]
SMALL = ["--epsilon", 4, "--delta", 1e-5, "--steps", 4, "--batch", 200]


def test_the_names_of_attacks_are_those_of_the_room() -> None:
    named = {name.value.replace("-", "_") for name in options.AttackName} - {"canaries"}
    assert named == set(attacks.__all__)


def test_digits_are_audited_and_nothing_but_the_result_is_written(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("audit", *SMALL, "--canaries", 400, "--out", "audit.json", *QUICK)
    assert result.exit_code == 0, result.output
    written = AuditResult.from_json((tmp_path / "audit.json").read_text())
    assert (written.method, written.canaries, written.verdict) == ("one run", 400, "nothing found")
    assert 3.9 < written.certified <= 4
    assert "nothing found, with confidence 0.95" in result.output
    # The weights are those of a training that lost rows to canaries: nobody gets them.
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"]


@pytest.mark.slow
def test_a_plan_file_is_audited_on_made_up_rows(invoke: Invoke, plan_file: Path) -> None:
    result = invoke("audit", "--plan", plan_file, "--canaries", 500, "--json", *QUICK)
    assert result.exit_code == 0, result.output
    found = facts(result)
    assert found["certified"] == Plan.load(plan_file).guarantee.epsilon
    assert found["verdict"] == "nothing found"


def test_a_broken_library_is_caught_with_exit_code_1(invoke: Invoke, plan_file: Path) -> None:
    with BROKEN["no noise"](Plan.load(plan_file)):
        result = invoke("audit", "--plan", plan_file, "--canaries", 500, *QUICK)
    assert result.exit_code == 1
    assert "BROKEN" in result.output


@pytest.mark.slow
def test_an_attack_of_many_runs(invoke: Invoke) -> None:
    result = invoke("audit", *SMALL, "--attack", "batch-size", "--runs", 20, "--confidence", 0.9, "--json", *QUICK)
    assert result.exit_code == 0, result.output
    assert (facts(result)["method"], facts(result)["runs"]) == ("many runs", 20)


@pytest.mark.slow
def test_the_plan_that_is_shown_is_the_one_that_is_attacked(invoke: Invoke) -> None:
    few = ["--runs", 8, "--confidence", 0.5, *QUICK]
    made = attacks.batch_size(Budget(4.0, 1e-5)).plan
    asked = ["--epsilon", 4, "--delta", 1e-5, "--steps", 300, "--batch", 200]
    shown = invoke("audit", *asked, "--attack", "batch-size", *few).output
    assert "batch-size attacks a training made for it" in shown
    assert made.describe() in shown
    assert made.steps != 300
    assert "made for it" not in invoke("audit", *SMALL, "--canaries", 40, *QUICK).output


@pytest.mark.slow
def test_an_audit_is_written_into_the_ledger_of_the_rows_it_trains_on(invoke: Invoke, tmp_path: Path) -> None:
    store = tmp_path / "digits.db"
    Store.create(store, Budget(5.0, 1e-4), dataset="digits", rows=1438).close()
    audit = ["audit", *SMALL, "--canaries", 400, "--store", store, *QUICK]
    assert invoke(*audit, "--out", "audit.json").exit_code == 0
    with closing(Store(store)) as opened:
        (entry,) = opened.entries()
    assert (entry.released.steps, entry.state) == (4, "finished")
    written = AuditResult.load(tmp_path / "audit.json")
    assert written.plan_sha256 == entry.agreed.sha256
    assert written.store == f"digits, run {entry.id}"
    again = invoke(*audit)  # 4 of 5 are gone
    assert again.exit_code == 2
    assert "all runs together must stay within" in again.output
    with closing(Store(store)) as opened:
        assert len(opened.entries()) == 1


def test_made_up_rows_are_in_no_ledger(invoke: Invoke, plan_file: Path) -> None:
    result = invoke("audit", "--plan", plan_file, "--store", "s.db", *QUICK)
    assert result.exit_code == 2
    assert "made-up rows, which are in no ledger" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--plan or --epsilon must be given"),
        (["--plan", "p.json", "--epsilon", 1], "got --plan and --epsilon"),
        ([*SMALL, "--out", "nowhere/a.json"], "a folder that exists"),
        ([*SMALL, "--canaries", 1438, *QUICK], "fewer than the 1438 rows"),
        ([*SMALL, "--attack", "opposed", "--store", "s.db"], "--store must be given with a task"),
        ([*SMALL, "--store", "s.db", *QUICK], "s.db"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(invoke: Invoke, arguments: list[object], words: str) -> None:
    result = invoke("audit", *arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


TEXTS = """
import torch
from torch import nn
from decrescendo.training import Task

def pad(items):
    (item,) = items
    return torch.nn.functional.pad(torch.tensor([item]), (0, WIDTH - len(item) % WIDTH))

class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
    def forward(self, ids):
        return self.words(ids).mean((1, 2))

def texts():
    rows = [[1 + (i + j) % 8 for j in range(1 + i % 3)] for i in range(60)]
    return Task(model=lambda seed: Mean(), loss=lambda model, ids: model(ids), data=rows, collate_fn=pad, batch=20)
"""


def test_a_task_of_texts_is_audited_where_they_are_padded_to_one_length(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "padded_texts.py").write_text(TEXTS.replace("WIDTH", "4"))
    (tmp_path / "ragged_texts.py").write_text(TEXTS.replace("WIDTH", "1"))
    asked = ["--epsilon", 4, "--delta", 1e-3, "--steps", 2, "--canaries", 20, *QUICK]
    result = invoke("audit", "padded_texts:texts", *asked)
    assert result.exit_code == 0, result.output
    assert "nothing found" in result.output
    refused = invoke("audit", "ragged_texts:texts", *asked)
    assert refused.exit_code == 2
    assert "Pad them to one length" in refused.output
