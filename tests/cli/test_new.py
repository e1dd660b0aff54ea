"""Facts: a script that is written runs as it is; what is typed wrongly is named as it was typed; silence is short."""

import importlib
import io
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import decrescendo as dc
from decrescendo.clipping import Diagnostics
from decrescendo.training.digits import ROWS
from decrescendo.training.loop import progress
from decrescendo.training.loop.progress import Progress, bar
from decrescendo.training.run import Run
from decrescendo.training.tasks.script import DIGITS, script

from .conftest import SMALL, Invoke

speaking = importlib.import_module("decrescendo.cli.app")  # the package's `app` is what it makes


def test_a_new_script_trains_saves_and_is_a_task(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = invoke("new", "patients")
    assert result.exit_code == 0, result.output
    assert "now:     python patients.py" in result.stdout
    text = (tmp_path / "patients.py").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 120
    (tmp_path / "patients.py").write_text(text.replace("steps=200", "steps=6"), encoding="utf-8")
    runpy.run_path("patients.py", run_name="__main__")
    assert "written: runs/patients/statement.md" in capsys.readouterr().out
    run = Run.load(tmp_path / "runs/patients")
    assert (run.steps, run.assumptions, run.provenance and run.provenance.random) == (6, (), "secure")
    assert run.plan.sampling.dataset_size == ROWS
    with pytest.raises(SystemExit, match="never overwritten"):
        runpy.run_path("patients.py", run_name="__main__")
    monkeypatch.delitem(sys.modules, "patients", raising=False)
    trained = invoke("train", "patients:task", "--epsilon", 3, "--steps", 3, "--seed", 1, "--json")
    assert trained.exit_code == 0, trained.output


def test_a_script_for_other_data_runs_on_as_many_made_up_rows() -> None:
    assert DIGITS == ROWS
    sampling = "dc.PoissonSampling(300, 30)"
    code = f"dc.calibrate(dc.Budget(2.0, 1e-3), {sampling}, steps=2, privacy=[1.0, 2.0], clip=[1.0, 1.0])"
    made: dict[str, Any] = {}
    exec(script(code, rows=300), made)
    task, model = made["task"](), made["build"]()
    run = dc.train(model, task.loss, task.load(), made["plan"](), torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
    assert (task.count, run.steps, run.assumptions) == (300, 2, ())
    assert 0 <= task.scores(model)["test_accuracy"] <= 1


@pytest.mark.parametrize("name", ["two words", "a-b", "1st", "class", ""])
def test_a_name_that_no_module_has_is_refused(invoke: Invoke, tmp_path: Path, name: str) -> None:
    result = invoke("new", name)
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "NAME must be a Python name" in result.stderr


def test_a_file_that_exists_is_left_alone(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("1\n")
    assert "which exists" in invoke("new", "mine").stderr
    assert (tmp_path / "mine.py").read_text() == "1\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", *SMALL[:-4], "--batch", "5000", "--steps", "4"], "--batch must be <= dataset_size"),
        (["plan", *SMALL, "--clip", "-1"], "--clip must be > 0, got --clip=-1"),
        (["plan", *SMALL, "--rho-mu", "0"], "--rho-mu must be > 0"),
        (["plan", *SMALL[:-1], "0"], "--steps must be >= 1, got --steps=0"),
        (["plan", "--epsilon", "-2", *SMALL[2:]], "--epsilon must be > 0"),
        (["plan", *SMALL[:2], "--delta", "2", *SMALL[4:]], "--delta must be > 0 and < 1, got --delta=2"),
    ],
)  # fmt: skip
def test_errors_name_the_option_that_was_typed(invoke: Invoke, arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_a_wrong_name_lists_the_right_ones(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nearby.py").write_text("def task(): ...\ndef other(): ...\ndef loss(model, batch): ...\n")
    monkeypatch.delitem(sys.modules, "nearby", raising=False)
    said = {
        "digts": "or one of digits",
        "nearby:tsk": "Did you mean nearby:task?",
        "nearby:x": "Did you mean nearby:task or nearby:other?",
        "nearby:loss": "a function of (model, batch). Did you mean nearby:task or nearby:other?",
        "nearbi:task": "Did you mean nearby:task?",
    }
    for name, words in said.items():
        assert words in " ".join(invoke("train", name, "--epsilon", 1).stderr.split())
    assert "Did you mean 'plan'" in invoke("plam").output
    assert "sensitivity-decay" in " ".join(invoke("plan", *SMALL, "--schedule", "sensitive").output.split())


class TestOutputThatIsNoTerminal:
    def test_a_training_says_a_line_every_few_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter([0.0, 2.0, 6.0, 7.0, 12.5, 13.0])
        monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
        file = io.StringIO()

        class Nothing:
            def at_step(self, step: int) -> float:
                raise AssertionError("nobody reads epsilon here")

        with bar(5, console=Console(file=file)) as show:
            for step, seconds in enumerate((2.0, 6.0, 7.0, 12.5, 13.0), start=1):
                show(Progress(step, 5, seconds, Diagnostics(1, 0, 0, 0.0), Nothing()))
        assert file.getvalue().splitlines() == [
            "training: 2 of 5 steps, 0:00:06 passed, 0:00:09 left",
            "training: 4 of 5 steps, 0:00:12 passed, 0:00:03 left",
            "training: 5 of 5 steps, 0:00:13 passed, 0:00:00 left",
        ]

    def test_other_work_does_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = io.StringIO()
        monkeypatch.setattr(speaking, "err", Console(file=file))
        monkeypatch.setattr(speaking, "EVERY", 0.02)
        with speaking.working("auditing"):
            for _ in range(500):
                if file.getvalue().count("\n") > 1:
                    break
                speaking.time.sleep(0.01)
        assert re.match(r"auditing, \d+ s so far\n", file.getvalue())
        monkeypatch.setattr(speaking, "EVERY", 60)
        before = file.getvalue()
        with speaking.working("auditing"):
            pass
        assert file.getvalue() == before


def test_tables_fit_eighty_columns(
    invoke: Invoke, plan_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(speaking.out, "_width", 80)
    for arguments in (
        ["account", plan_file],
        ["ledger", "s.db", "--create", "--epsilon", 9, "--delta", 0.1, "--rows", 9],
    ):
        result = invoke(*arguments)
        assert result.exit_code == 0, result.output
        assert all(len(line) <= 80 for line in result.stdout.splitlines() if "│" in line or "┃" in line)
        assert "…" not in result.stdout


def test_options_without_an_effect_and_files_of_others_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    assert invoke("plan", *SMALL, "--save", plan).exit_code == 0
    assert invoke("plan", *SMALL, "--save", plan).exit_code == 0  # the same once more
    for arguments, words in (
        (["plan", *SMALL, "--clip", "2", "--save", plan], "--save must name a new file"),
        (["plan", *SMALL, "--schedule", "constant", "--rho-c", "3"], "--rho-c must be left out with --schedule"),
        (["plan", *SMALL, "--schedule", "sensitivity-decay", "--rho-mu", "3"], "--rho-mu must be left out"),
        (["train", "digits", "--plan", plan, "--rho-mu", "3"], "a plan file says it all, got --plan and --rho-mu"),
        (["train", "digits", "--plan", plan, "--largest-loss", "3"], "--largest-loss must come with --telemetry loss"),
    ):  # fmt: skip
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert words in " ".join(result.stderr.split())
