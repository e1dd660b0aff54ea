"""Facts: the optimal schedule follows what is known of the training, shows itself, and says what it rests on."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decrescendo as dc
from decrescendo.plan import Plan
from decrescendo.theory.allocation import allocate, noise_cost
from decrescendo.theory.weights import noise_weights

from .conftest import SMALL, Invoke, facts

OPTIMAL = ["plan", *SMALL, "--schedule", "optimal", "--rho-c", "1"]
BUDGET, SAMPLING = dc.Budget(2.0, 1e-5), dc.PoissonSampling(1438, 200)


def saved(invoke: Invoke, tmp_path: Path, *options: Any) -> tuple[Plan, dict[str, Any]]:
    result = invoke(*OPTIMAL, *options, "--save", "plan.json", "--json")
    assert result.exit_code == 0, result.output
    return Plan.load(tmp_path / "plan.json"), facts(result)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        (["--lr-schedule", "cosine"], [(1 + math.cos(math.pi * t / 4)) ** 2 for t in range(4)]),
        (["--lr-schedule", "linear"], [16, 9, 4, 1]),
        (["--lr-schedule", "none", "--curvature", 0.5, "--lr", 1.5], [1, 4, 16, 64]),
        (["--momentum", 0.9], noise_weights([1.0] * 4, momentum=0.9)),
        (["--influence-growth", 16], [1, 2, 4, 8]),
        (["--influence", "q.json"], [1, 5, 2, 7]),
    ],
)
def test_the_plan_is_the_best_for_what_is_known(
    invoke: Invoke, tmp_path: Path, options: list[Any], weight: Any
) -> None:
    (tmp_path / "q.json").write_text("[1, 5, 2, 7]")
    plan, found = saved(invoke, tmp_path, *options)
    clip = dc.constant(1.0)
    best = allocate(BUDGET, SAMPLING, steps=4, weight=[float(q) for q in weight], clip=clip)
    assert plan.noise_multiplier == pytest.approx(best.noise_multiplier, rel=1e-6)
    assert plan.guarantee.epsilon <= 2.0
    even = dc.calibrate(BUDGET, SAMPLING, steps=4, privacy=clip, clip=clip)
    q = [float(value) for value in weight]
    assert found["noise_term_over_uniform"] == pytest.approx(noise_cost(plan, q) / noise_cost(even, q))


def test_the_noise_is_that_of_the_clip_curve_too(invoke: Invoke, tmp_path: Path) -> None:
    falling, _ = saved(invoke, tmp_path, "--lr-schedule", "none", "--rho-c", 9)
    assert falling.noise_multiplier[-1] > 1.5 * falling.noise_multiplier[0]


def test_without_options_it_is_du_s_closed_form_as_before(invoke: Invoke, tmp_path: Path) -> None:
    plan, found = saved(invoke, tmp_path, "--rho-c", 4)
    mu = np.sqrt(plan.clip_norm)
    assert plan.noise_multiplier * mu == pytest.approx(np.full(4, plan.noise_multiplier[0] * mu[0]))
    assert "rests_on" not in found


def test_a_file_of_lines_is_the_same_file(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(json.dumps([1, 5, 2, 7]))
    (tmp_path / "q.txt").write_text("1\n5\n2\n7\n")
    first, _ = saved(invoke, tmp_path, "--influence", "q.json")
    assert first == saved(invoke, tmp_path, "--influence", "q.txt")[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Du Eq. (52)-(55)"),
        (["--lr-schedule", "cosine"], "eta_t (cosine to zero): noise weighs eta_t^2"),
        (["--curvature", 0.5, "--lr", 0.1], "PL constant m = 0.5, smoothness M = 1/lr = 10"),
        (["--momentum", 0.5], "momentum 0.5"),
        (["--influence-growth", 3], "exponentially by 3"),
    ],
)
def test_it_draws_the_noise_and_says_what_it_rests_on(invoke: Invoke, options: list[Any], words: str) -> None:
    lines = invoke(*OPTIMAL, *options).stdout.splitlines()
    assert any(line.startswith("noise multiplier z_t") for line in lines)
    assert any("█" in line or "▁" in line for line in lines)
    (sentence,) = [line for line in lines if line.startswith("rests on")]
    assert words in sentence
    if options:
        assert "below uniform noise in the same budget" in lines[-1]


def test_the_picture_has_uniform_noise_beside_it(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(
        "decrescendo.report.figure.draw_schedules", lambda plans, path: shown.append(dict(plans))
    )
    assert invoke(*OPTIMAL, "--lr-schedule", "cosine", "--plot", "p.png").exit_code == 0
    assert list(shown[0]) == ["optimal", "uniform"]
    assert np.ptp(shown[0]["uniform"].noise_multiplier) == 0
