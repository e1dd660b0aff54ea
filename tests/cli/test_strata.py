"""Strata from the command line."""

from pathlib import Path

import pytest

import decrescendo as dc

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
