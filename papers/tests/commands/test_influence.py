"""Facts: `influence` measures on public data without opening the private ones, and its plan is what `train` takes."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from decrescendo.plans import curves
from decrescendo.plans.plan import Plan
from decrescendo.training import initialised
from decrescendo_papers.data import Dataset, gaussian_rows
from decrescendo_papers.experiments import stand_ins, tasks
from decrescendo_papers.experiments.perform import data_of
from decrescendo_papers.experiments.stand_ins import StandIn
from decrescendo_papers.experiments.tasks import Task

from .conftest import Invoke, facts

ROWS = 60
COMMAND = [
    "influence", "mnist35-pca", "--on", "gaussian-2", "--epsilon", 4, "--delta", 1e-6, "--steps", 6, "--seeds", 2,
    "--results", "kept", "--threads", 1,
]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task with few rows and a small model, and private data that raise."""

    def closed() -> Dataset:
        raise AssertionError("the private data were opened")

    def build(seed: int) -> nn.Module:
        return initialised(lambda: nn.Linear(60, 2), seed)

    data_of.cache_clear()
    task = Task("mnist35-pca", closed, {"paper": build}, 4.0, 0.1, ROWS, 6, ROWS, "here", images=False)
    monkeypatch.setitem(tasks.TASKS, "mnist35-pca", task)
    stand_in = StandIn("gaussian-2", lambda: gaussian_rows(2, 2 * ROWS), ("mnist35-pca",), "made up")
    monkeypatch.setitem(stand_ins.STAND_INS, "gaussian-2", stand_in)


@pytest.mark.slow
def test_the_plan_has_the_noise_of_the_fit_and_the_budget_asked_for(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke(*COMMAND, "--out", "plan.json", "--plot", "curve.png", "--json")
    assert result.exit_code == 0, result.output
    found = facts(result)
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.guarantee.accountant == "Pld"
    assert 4.0 * (1 - 1e-3) < plan.guarantee.epsilon <= 4.0
    relative = plan.noise_multiplier * curves.evaluate("privacy", curves.growing_mu(found["rho_mu"]), 6)
    np.testing.assert_allclose(relative, relative[0])
    assert [row["step"] for row in found["influence"]] == sorted({row["step"] for row in found["influence"]})
    assert all(row["low"] <= row["mean"] <= row["high"] for row in found["influence"])
    assert (tmp_path / "curve.png").stat().st_size > 5000
    assert len(list((tmp_path / "kept").rglob("*.jsonl"))) == 1


@pytest.mark.slow
def test_a_second_call_measures_nothing_again_and_other_settings_do(invoke: Invoke, tmp_path: Path) -> None:
    first = invoke(*COMMAND)
    assert first.exit_code == 0, first.output
    assert "exponential fit: influence times" in first.stdout
    (path,) = (tmp_path / "kept").rglob("*.jsonl")
    before = path.stat().st_mtime_ns
    assert invoke(*COMMAND).stdout == first.stdout
    assert path.stat().st_mtime_ns == before
    assert invoke(*COMMAND, "--lr", 0.2, "--optimizer", "momentum-bc", "--momentum", 0.5).exit_code == 0
    assert len(list((tmp_path / "kept").rglob("*.jsonl"))) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "nowhere/plan.json"], "folder that exists"),
        (["--epochs", 2], "at most one of --steps and --epochs"),
        (["--on", "imdb-public"], "--on"),
        (["--momentum", 0.5, "--optimizer", "adam"], "momentum must be 0 with adam"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(invoke: Invoke, tmp_path: Path, options: list[object], words: str) -> None:
    result = invoke(*COMMAND, *options)
    assert result.exit_code != 0
    assert words in result.output
    assert not list(tmp_path.rglob("plan.json"))
