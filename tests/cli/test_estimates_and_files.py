"""Estimates are called so by every command; what is no file, no table or no result is refused by name."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import decrescendo as dc
from decrescendo.accounting import GdpClt, Pld
from decrescendo.audit import AuditResult, one_run
from decrescendo.base import write_whole
from decrescendo.cli import app
from decrescendo.errors import FileRefused
from decrescendo.training import cross_entropy
from decrescendo.training.statement import state

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2


def asked(*words: str) -> str:
    found = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))
    return found.output.replace("\n", " ")


def an_estimate(steps: int = 4) -> dc.Plan:
    """By the central limit theorem: 2 is asked for, and more is spent."""
    one, sampling = dc.curves.constant(1.0), dc.PoissonSampling(40, 8)
    return dc.calibrate(dc.Budget(2.0, 1e-3), sampling, steps=steps, privacy=one, clip=one, accountant=GdpClt())


class TestAnEstimateIsNoPromise:
    def test_an_audit_is_held_against_what_is_certified(self) -> None:
        """A correct training could be called broken for what an estimate left out, and the estimate certified."""
        plan, model = an_estimate(), nn.Linear(3, 2)
        found = one_run(
            model,
            cross_entropy,
            (X, Y),
            plan,
            lambda held: torch.optim.SGD(held.parameters(), lr=0.1),
            seed=0,
            canaries=20,
        )
        assert found.certified == Pld().certify(plan.ledger, plan.budget).epsilon > 2.01

    def test_neither_a_run_nor_its_statement_calls_it_one(self) -> None:
        plan, model = an_estimate(), nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = dc.train(model, cross_entropy, (X, Y), plan, optimizer, seed=0)
        page = state(plan, run.ledger, run.guarantee, provenance=run.provenance).to_markdown()
        assert "estimated: epsilon 2 at delta 0.001 by GdpClt, which promises nothing" in run.describe()
        assert "Promised before the start: nothing. Epsilon 2 was estimated, by GdpClt." in page
        assert "promised: " not in run.describe()

    def test_a_ledger_says_by_what_a_run_was_planned(self, tmp_path: Path) -> None:
        store = dc.Store.create(tmp_path / "s.db", dc.Budget(9.0, 1e-2), dataset="d", rows=40)
        store.start(an_estimate())
        store.close()
        words = asked("ledger", str(tmp_path / "s.db")).replace("│", " ").split()
        assert {"(2,", "0.001)", "estimate"} <= {*words}


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """As root it went, and was called written."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(FileRefused, match="must be a file or not there"):
            write_whole(path, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert "must be a file or not there" in asked(
        "plan",
        "--epsilon",
        "2",
        "--dataset-size",
        "100",
        "--batch",
        "10",
        "--steps",
        "3",
        "--save",
        str(pipe),
    )


@pytest.mark.parametrize("name", ["torch", "json", "decrescendo.py"])
def test_a_script_has_no_name_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be imported in its place."""
    monkeypatch.chdir(tmp_path)
    assert "must not be the name of an installed module" in asked("new", name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_audits_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "j.json").write_text(json.dumps([1]))
    with pytest.raises(FileRefused, match=r"j\.json: .*no object"):
        AuditResult.load(tmp_path / "j.json")


def test_a_table_with_semicolons_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("noise_multiplier;sample_rate;count\n1,0;0,1;3\n")
    assert "must have commas between values" in asked("account", str(tmp_path / "c.csv"))
