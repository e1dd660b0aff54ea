"""What commands say, and find out before the work, to somebody who meets them for the first time."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

import decrescendo as dc
from decrescendo.audit import AuditResult
from decrescendo.errors import InvalidValue
from decrescendo.training import digits

from .conftest import Invoke


@pytest.mark.slow
def test_what_was_declared_stays_when_an_audit_is_added(invoke: Invoke, tmp_path: Path) -> None:
    invoke("train", "digits", "--epsilon", 4, "--steps", 2, "--out", "run", "--seed", 0)
    (tmp_path / "d.toml").write_text('data = "visits of 2019"', encoding="utf-8")
    result = AuditResult(
        method="one run", attack="made up", certified=4.0, delta=1e-5, confidence=0.95, runs=1, canaries=20, lower=0.1,
        lower_by_curve=0.2, counts={},
    )  # fmt: skip
    (tmp_path / "audit.json").write_text(result.to_json(), encoding="utf-8")
    for more in (["--declare", "d.toml"], ["--audit", "audit.json"], []):
        assert invoke("statement", "run", *more).exit_code == 0
        page = (tmp_path / "run/statement.md").read_text(encoding="utf-8")
        assert "- Data: visits of 2019" in page
    assert "- attack: made up" in page
    assert "if they were not made up" in page
    (tmp_path / "run/statement.json").write_text("{}", encoding="utf-8")
    assert "what was declared before is lost" in invoke("statement", "run").stderr
    assert invoke("verify", "run").exit_code == 0


@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(os, "setresuid"), reason="nobody else to be")
def test_a_folder_that_cannot_be_written_to_is_found_before_the_work(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    def fails(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", fails)
    monkeypatch.setattr("decrescendo.audit.one_run", lambda *_, **__: pytest.fail("it worked before it looked"))
    for command in (
        ["audit", "digits", "--epsilon", 1, "--steps", 2, "--out", "a.json"],
        ["tune", "digits", "--epsilon", 1, "--on", "digits:digits", "--trials", 1, "--out", "r.json"],
    ):
        found = invoke(*command)
        assert (found.exit_code, "Permission denied" in found.stderr) == (2, True), found.output


def test_the_version_is_told(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"decrescendo {dc.__version__}\n"


def test_a_large_delta_is_said(invoke: Invoke) -> None:
    asked = ["plan", "--epsilon", 2, "--dataset-size", 500, "--batch", 50, "--steps", 10]
    assert "times the 500 examples is 150" in invoke(*asked, "--delta", 0.3).stdout
    assert "times the" not in invoke(*asked, "--delta", 1e-5).stdout


def test_names_in_rooms_are_said_where_they_are_looked_for_at_the_top() -> None:
    with pytest.raises(AttributeError, match=r"It is dc\.clipping\.EngineSettings"):
        _ = dc.EngineSettings
    with pytest.raises(AttributeError, match=r"no attribute 'nowhere'$"):
        _ = dc.nowhere
    assert set(dir(dc.curves)) == set(dc.curves.__all__)


@pytest.mark.parametrize(
    ("privacy", "clip", "words"),
    [
        ([1, 1], [float("inf")] * 2, r"clip must be > 0 and finite at every step, got clip\[0\]=inf"),
        ([1, 1], [1.0] * 3, r"clip must have one value a step \(2\), got 3 values"),
        (lambda u: 1.0, [1, 1], "one value for each entry of an array of progress"),
    ],
)
def test_arrays_are_called_by_what_they_are_of(privacy: object, clip: object, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        dc.calibrate(
            dc.Budget(2.0, 1e-3),
            dc.PoissonSampling(60, 10),
            steps=2,
            privacy=privacy,
            clip=clip,  # type: ignore[arg-type]
        )


def test_only_what_is_named_is_searched(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two schedules were compared under batches, rates and clip norms of their own, which nobody had named."""
    task = digits.task()
    images, classes = task.load()
    public = replace(task, data=(images * 0.9, classes), rows=None, score=lambda model: {"accuracy": 0.5})
    monkeypatch.setattr(digits, "others", lambda: public, raising=False)
    few = ["tune", "digits", "--epsilon", 8, "--on", "decrescendo.training.digits:others", "--trials", 2]
    few += ["--out", tmp_path / "r.json"]
    found = invoke(*few, "--vary", "schedule=constant,dynamic", "--only", "--fix", "epochs=0.5")
    assert found.exit_code == 0, found.output
    trials = dc.training.Recipe.load(tmp_path / "r.json").trials
    assert [set(trial.values) for trial in trials] == [{"schedule"}] * 2
    assert invoke(*few, "--only").exit_code == 2


def test_that_nothing_is_kept_is_said_before_the_training(invoke: Invoke) -> None:
    found = invoke("train", "digits", "--epsilon", 2, "--steps", 1, "--seed", 0)
    assert "nothing will be kept" in found.stderr
    assert (
        "nothing will be kept"
        not in invoke("train", "digits", "--epsilon", 2, "--steps", 1, "--seed", 0, "--out", "run").stderr
    )


def test_the_commands_in_a_new_script_are_commands(invoke: Invoke, tmp_path: Path) -> None:
    """The line that attacks the training ended in "--plan or --epsilon must be given"."""
    assert invoke("new", "patients").exit_code == 0
    script = (tmp_path / "patients.py").read_text(encoding="utf-8")
    (attack,) = (line.split("#")[0].split() for line in script.splitlines() if "decrescendo audit" in line)
    # Seeded: of honest trainings 1 in 20 at most is called broken, and one was.
    found = invoke(*attack[1:], "--steps", 1, "--canaries", 20, "--seed", 0)
    assert found.exit_code == 0, found.output
