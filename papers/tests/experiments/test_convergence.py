"""Early accuracy and late changes, and the claims that are made of them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from decrescendo_papers.experiments.pages.archive import Archive, Sources
from decrescendo_papers.experiments.pages.claims import corrected, figure_claims
from decrescendo_papers.experiments.pages.convergence_section import (
    convergence_words,
    early_accuracy,
    unsteadiness,
)
from decrescendo_papers.experiments.reproduce import FIGURES
from decrescendo_papers.experiments.results import Result
from decrescendo_papers.experiments.spec import Spec

STEPS = [1, 2, 4, *range(100, 5001, 100)]
FIGURE = FIGURES["convergence"]


def _run(spec: Spec, early: float, swing: float) -> Result:
    """One that has ``early`` for a quarter of the steps, and then goes up and down by ``swing``."""
    scores = [early if step <= 1300 else 0.9 + swing * (at % 2) for at, step in enumerate(STEPS)]
    trace = {
        "step": [float(step) for step in STEPS],
        "gradient_norm": [1.0] * len(STEPS),
        "test_accuracy": scores,
    }
    return Result(spec, metrics={"test_accuracy": 0.9}, trace=trace, seconds=1.0, machine={"device": "cpu"})


def test_the_measures_are_those_of_the_notes() -> None:
    run = _run(FIGURE.runs["mnist/0.4/growing mu"], 0.5, 0.02)
    assert early_accuracy(run) == pytest.approx(50)
    rising = dataclasses.replace(run, trace={**run.trace, "test_accuracy": [step / 5000 for step in STEPS]})
    assert early_accuracy(rising) == pytest.approx(100 * np.arange(1, 1251).mean() / 5000)  # not of recorded steps
    changes = [2.0 if at % 2 else -2.0 for at in range(25)]
    assert unsteadiness(run) == pytest.approx(np.std(changes, ddof=1))
    steady = dataclasses.replace(run, trace={**run.trace, "test_accuracy": np.linspace(0, 1, len(STEPS)).tolist()})
    assert unsteadiness(steady) == pytest.approx(0, abs=1e-9)  # growing all along is steady


@pytest.mark.parametrize(("slower", "outcome"), [(0.3, "holds"), (0.7, "fails")])
def test_a_claim_is_judged_over_paired_seeds(tmp_path: Path, slower: float, outcome: str) -> None:
    rng = np.random.default_rng(0)
    runs = [
        _run(spec.seeded(seed), (slower if name == "growing mu" else 0.5) + rng.normal(0, 0.01), swing)
        for key, spec in FIGURE.runs.items()
        for seed in range(4)
        for name, swing in [(key.split("/")[2], 0.01 if key.endswith("decay") else 0.03 + rng.normal(0, 0.001))]
    ]
    sources = Sources(Archive(runs), tmp_path)
    claims = [claim for claim in corrected(list(figure_claims(sources))) if "4.2" in claim.family]
    assert [claim.own_outcome for claim in claims] == [outcome, outcome, "holds", "holds"]
    assert {claim.pair.seeds for claim in claims} == {4}
    assert convergence_words(FIGURE, sources).count("(4 seeds)") == len(FIGURE.runs)
    assert "no run yet of mnist/0.4/dynamic DP-SGD" in convergence_words(FIGURE, Sources(Archive([]), tmp_path))
