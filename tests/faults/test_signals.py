"""Ctrl-C and SIGTERM in the middle of a real training: one line, the shell's exit code, nothing lost or hidden."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from decrescendo.cli import app
from decrescendo.plans.plan import Plan
from decrescendo.training.run import Run
from decrescendo.training.store import Store

STEPS = 20
LIFE = Path(__file__).with_name("life.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, a store with room for three runs of it, and the run that nobody disturbed."""
    place = tmp_path_factory.mktemp("signals")
    small = [
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--dataset-size",
        "1438",
        "--batch",
        "20",
        "--steps",
        str(STEPS),
    ]
    calls = (
        ["plan", *small, "--schedule", "constant", "--save", str(place / "plan.json")],
        ["train", "digits", "--plan", str(place / "plan.json"), "--seed", "1", "--out", str(place / "calm"),
         "--checkpoints", str(place / "calm-kept"), "--threads", "1"],
    )  # fmt: skip
    for call in calls:
        result = CliRunner().invoke(app, call)
        assert result.exit_code == 0, result.output
    return place


def _train(folder: Path, work: Path) -> list[str]:
    return [
        "train", "digits", "--plan", str(folder / "plan.json"), "--seed", "1", "--store", str(work / "store.db"),
        "--checkpoints", str(work / "kept"), "--out", str(work / "run"), "--threads", "1",
    ]  # fmt: skip


def _start(folder: Path, work: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(LIFE), str(work), *_train(folder, work)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _seen(work: Path) -> int:
    path = work / "seen"
    return max((int(line) for line in path.read_text().splitlines()), default=0) if path.exists() else 0


@pytest.mark.parametrize(
    ("sent", "code", "word"),
    [
        (signal.SIGINT, 130, "Ctrl-C"),
        pytest.param(signal.SIGTERM, 143, "SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_training_that_is_stopped_goes_on(
    folder: Path, tmp_path: Path, sent: signal.Signals, code: int, word: str
) -> None:
    made = [
        "ledger",
        str(tmp_path / "store.db"),
        "--create",
        "--epsilon",
        "2.5",
        "--delta",
        "1e-4",
        "--rows",
        "1438",
    ]
    assert CliRunner().invoke(app, made).exit_code == 0
    life = _start(folder, tmp_path)
    while life.poll() is None and _seen(tmp_path) < 3:
        time.sleep(0.005)
    life.send_signal(sent)
    _, err = life.communicate(timeout=120)
    assert life.returncode == code, err
    assert f"stopped by {word}. Every release was written down before it was used" in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()
    # The ledger lists at least what was seen, and the run is resumable: it was not at its end.
    store = Store(tmp_path / "store.db")
    assert 3 <= _seen(tmp_path) <= store.entries()[0].released.steps < STEPS
    store.close()
    assert [path.name for path in tmp_path.rglob(".*")] == []
    again = CliRunner().invoke(app, [*_train(folder, tmp_path), "--resume"])
    assert again.exit_code == 0, again.output
    store = Store(tmp_path / "store.db")
    (entry,) = store.entries()
    assert (entry.released, entry.state) == (Plan.load(folder / "plan.json").ledger, "finished")
    store.close()
    # The same bits as undisturbed, and steps that were done again counted once.
    name = "weights.safetensors"
    calm, rough = load_file(folder / "calm" / name), load_file(tmp_path / "run" / name)
    assert {key: value.numpy().tobytes() for key, value in calm.items()} == {
        key: value.numpy().tobytes() for key, value in rough.items()
    }
    assert Run.load(tmp_path / "run").ledger == entry.released
