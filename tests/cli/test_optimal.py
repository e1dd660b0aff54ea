"""Facts: the optimal schedule follows what is known of the training, shows itself, and says what it rests on."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import decrescendo as dc
from decrescendo.cli.optimal import Known
from decrescendo.cli.options import Decay
from decrescendo.errors import DecrescendoError
from decrescendo.plans.allocation import allocate, noise_cost
from decrescendo.plans.noise_influence import noise_influence
from decrescendo.plans.plan import Plan
from decrescendo.training import decay_scheduler

from .conftest import SMALL, Invoke, facts

OPTIMAL = ["plan", *SMALL, "--schedule", "optimal", "--rho-c", "1"]
BUDGET, SAMPLING = dc.Budget(2.0, 1e-5), dc.PoissonSampling(1438, 200)


def known(**options: Any) -> Known:
    given: dict[str, Any] = dict.fromkeys(
        ("lr_schedule", "lr", "curvature", "momentum", "influence", "influence_growth")
    )
    return Known(**(given | options))


@pytest.mark.parametrize(
    ("options", "influence"),
    [
        ({"lr_schedule": Decay.COSINE}, [(1 + math.cos(math.pi * t / 4)) ** 2 for t in range(4)]),
        ({"lr_schedule": Decay.LINEAR}, [16, 9, 4, 1]),
        ({"curvature": 0.5, "lr": 1.5}, [1, 4, 16, 64]),
        ({"momentum": 0.9}, noise_influence([1.0] * 4, momentum=0.9)),
        ({"influence_growth": 16}, [1, 2, 4, 8]),
    ],
)
def test_options_are_the_influences_they_describe(options: dict[str, Any], influence: Any) -> None:
    found = known(**options).influences(4)
    assert found / found.max() == pytest.approx(np.array(influence) / max(influence))


@pytest.mark.parametrize("decay", Decay)
def test_the_rate_is_that_of_the_schedulers_of_training(decay: Decay) -> None:
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler, rates = decay_scheduler(sgd, decay.value, 6), []
    for _ in range(6):
        rates.append(scheduler.get_last_lr()[0])
        sgd.step()
        scheduler.step()
    assert known(lr_schedule=decay).influences(6) == pytest.approx(noise_influence(rates))


@pytest.mark.parametrize("text", ["[1, 5, 2, 7]", "1\n5\n2\n7\n", "\ufeff1 5 2 7"])
def test_a_file_of_influences_may_be_a_list_or_lines(tmp_path: Path, text: str) -> None:
    (tmp_path / "q").write_text(text, encoding="utf-8")
    assert known(influence=tmp_path / "q").influences(4).tolist() == [1, 5, 2, 7]


@pytest.mark.parametrize("text", ["[true, 1, 2, 3]", "1_0 1 2 3", "[1, 2, 3", "1 2 three 4", "1 2 -3 4"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "q").write_text(text, encoding="utf-8")
    with pytest.raises(DecrescendoError, match=r"influence|JSON list of numbers"):
        known(influence=tmp_path / "q").influences(4)


def test_the_plan_is_the_best_for_what_is_known(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[tuple[tuple[Any, ...], dict[str, Any], Plan]] = []

    def solve(*given: Any, **options: Any) -> Plan:
        plan = allocate(*given, **options)
        solved.append((given, options, plan))
        return plan

    monkeypatch.setattr("decrescendo.plans.allocation.allocate", solve)
    options = ["--lr-schedule", "linear", "--rho-c", 9, "--save", "plan.json", "--json"]
    result = invoke(*OPTIMAL, *options)
    assert result.exit_code == 0, result.output
    plan, found = Plan.load(tmp_path / "plan.json"), facts(result)
    clip, influence = dc.curves.sensitivity_decay(1.0, rho_c=9), [16.0, 9.0, 4.0, 1.0]
    even = dc.calibrate(BUDGET, SAMPLING, steps=4, privacy=dc.curves.constant(1.0), clip=clip)
    ((given, asked, best),) = solved
    assert plan == best
    assert given == (BUDGET, SAMPLING)
    assert asked["steps"] == 4
    assert list(asked["influence"] / asked["influence"][-1]) == pytest.approx(influence)
    assert list(best.clip_norm) == list(even.clip_norm)
    assert found["noise_term_over_uniform"] == pytest.approx(noise_cost(plan, influence) / noise_cost(even, influence))
    assert found["rests_on"] == known(lr_schedule=Decay.LINEAR).rests_on()


def test_without_options_it_is_du_s_closed_form_as_before(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke(*OPTIMAL, "--rho-c", 4, "--save", "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    mu = np.sqrt(plan.clip_norm)
    assert plan.noise_multiplier * mu == pytest.approx(np.full(4, plan.noise_multiplier[0] * mu[0]))
    assert "rests on mu_t ~ sqrt(C_t), Du Eq. (52)-(55)" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"lr_schedule": Decay.COSINE},
            "eta_t (cosine to zero): noise weighs eta_t^2, and none of it is forgotten",
        ),
        ({"curvature": 0.5, "lr": 0.1}, "PL constant m = 0.5, smoothness M = 1/lr = 10"),
        ({"momentum": 0.5}, "momentum 0.5"),
        ({"influence_growth": 3.0}, "exponentially by 3"),
        ({"influence": Path("q.json")}, "influences in q.json"),
    ],
)
def test_a_sentence_says_what_it_rests_on(options: dict[str, Any], words: str) -> None:
    sentence = known(**options).rests_on()
    assert sentence.startswith("rests on")
    assert words in sentence


@pytest.mark.slow
def test_the_noise_is_drawn_beside_uniform_noise_and_says_what_it_rests_on(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("decrescendo.report.figure.draw_schedules", lambda plans, path: shown.append(dict(plans)))
    result = invoke(*OPTIMAL, "--lr-schedule", "cosine", "--plot", "p.png")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any(line.startswith("noise multiplier z_t") for line in lines)
    assert any("┤" in line and "█" in line for line in lines)
    assert known(lr_schedule=Decay.COSINE).rests_on() in lines
    assert any("below uniform noise in the same budget" in line for line in lines)
    assert list(shown[0]) == ["optimal", "uniform"]
    assert np.ptp(shown[0]["uniform"].noise_multiplier) == 0


@pytest.mark.slow
def test_compute_decides_how_the_batch_moves(invoke: Invoke, tmp_path: Path) -> None:
    asked = [
        "plan",
        "--epsilon",
        1,
        "--dataset-size",
        5_000,
        "--steps",
        6,
        "--schedule",
        "optimal",
        "--rho-c",
        1,
    ]
    result = invoke(*asked, "--compute", 3_000, "--lr-schedule", "linear", "--save", "plan.json", "--json")
    assert result.exit_code == 0, result.output
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.batch_size.sum() == pytest.approx(3_000)
    assert plan.batch_size[0] > 2 * plan.batch_size[-1]  # a falling rate: early noise matters more
    assert facts(result)["noise_term_over_uniform"] < 0.9
    assert "expected batch size B_t" in invoke(*asked, "--compute", 3_000, "--lr-schedule", "linear").stdout
    too_much = invoke(*asked, "--compute", 30_001)
    assert (too_much.exit_code, "--compute must be at most --steps times" in too_much.stderr) == (2, True)
    for more, words in (
        (["--batch", 10], "--compute must come without --batch"),
        (["--schedule", "dynamic"], "--compute must come with --schedule optimal and --steps"),
    ):
        refused = invoke(*asked, "--compute", 3_000, *more)
        assert refused.exit_code == 2
        assert words in refused.stderr
