"""Strata from the command line."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import decrescendo as dc
from decrescendo.training import Task, cross_entropy

from .conftest import Invoke, facts

TWO = ["--stratum", "common:900:45", "--stratum", "a:b:100:15"]
ASKED = ["plan", "--epsilon", 2, "--delta", 1e-5, "--steps", 20, *TWO]


def test_a_plan_of_strata_is_that_of_the_library(invoke: Invoke, tmp_path: Path) -> None:
    made = facts(invoke(*ASKED, "--schedule", "constant", "--save", tmp_path / "plan.json", "--json"))
    sampling = dc.StratifiedPoissonSampling({"common": (900, 45), "a:b": (100, 15)})
    plan = dc.Plan.load(tmp_path / "plan.json")
    assert plan.sampling == sampling
    assert made["strata"] == {"common": [900, 45.0], "a:b": [100, 15.0]}
    assert made["dataset_size"] == 1000
    wanted = dc.calibrate(dc.Budget(2.0, 1e-5), sampling, steps=20, clip=1.0)
    assert float(plan.noise_multiplier[0]) == pytest.approx(float(wanted.noise_multiplier[0]))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--dataset-size", 1000], "--stratum must come without --dataset-size"),
        (["--batch", 60, "--max-batch-size", "90"], "must come without --batch, --max-batch-size"),
        (["--random-allocation"], "must come without --random-allocation"),
        (["--schedule", "optimal", "--lr-schedule", "linear"], "must come without --lr-schedule"),
        (["--stratum", "common:1:1"], "must name each stratum once, got 'common' twice"),
        (["--stratum", "rare:9"], "must be NAME:RECORDS:EXPECTED, as in rare:100:10, got 'rare:9'"),
        (["--stratum", "rare:9:10"], "must not be expected to hold more than all records"),
        (["--unit", "client"], "--unit client"),
    ],
)
def test_what_says_it_twice_or_wrongly_is_refused(more: list[object], words: str, invoke: Invoke) -> None:
    result = invoke(*ASKED, *more)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_a_task_trains_with_the_rates_of_its_strata(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = torch.tensor([1] * 30 + [0] * 90)

    def toy() -> Task:
        data = torch.randn(120, 3, generator=torch.Generator().manual_seed(0)), labels
        names = ["rare" if label else "common" for label in labels.tolist()]
        return Task(model=torch.nn.Linear(3, 2), loss=cross_entropy, data=data, strata=names, batch=40)

    monkeypatch.setitem(sys.modules, "hospital", SimpleNamespace(toy=toy))
    asked = ["train", "hospital:toy", "--epsilon", 3, "--steps", 2, "--seed", 1]
    two = ["--stratum", "common:90:9", "--stratum", "rare:30:15"]
    result = invoke(*asked, *two, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    run = dc.Run.load(tmp_path / "run")
    assert run.plan.sampling == dc.StratifiedPoissonSampling({"common": (90, 9.0), "rare": (30, 15.0)})
    for more, words in (
        ([*two, "--batch", 9], "--stratum must come without --batch"),
        (two[:2], "--stratum must name all 120 rows of the task, got 90"),
    ):
        result = invoke(*asked, *more)
        assert result.exit_code == 2
        assert words in " ".join(result.stderr.split())
