"""Facts: each command does what its help says, speaks JSON on request, and refuses in one line."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from often import some

import decrescendo as dc
from decrescendo.accounting import RenyiFilter, Truncated, smallest_cap
from decrescendo.accounting.budget import Budget
from decrescendo.accounting.ledger import Ledger
from decrescendo.cli import COMMANDS, options
from decrescendo.clipping import Engine, EngineSettings
from decrescendo.plans.named import SCHEDULES
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.report.ledgers import read_ledger
from decrescendo.training import OPTIMIZERS, find_task, train
from decrescendo.training.run import Run
from decrescendo.training.steering import Adaptive, FromSchedule

from .conftest import SMALL, Invoke, facts


def test_the_names_in_help_are_the_names_there_are() -> None:
    assert [name.value for name in options.Schedule] == list(SCHEDULES)
    assert [name.value for name in options.OptimizerName] == list(OPTIMIZERS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(invoke: Invoke, command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert command in invoke("--help").output
    assert f"Example: decrescendo {command}" in " ".join(result.output.split())
    assert "Where to start" in invoke("--help").output


def test_a_plan_meets_its_budget_and_is_saved(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("plan", *SMALL, "--schedule", "dynamic", "--save", "plan.json", "--plot", "plan.png", "--json")
    assert result.exit_code == 0, result.output
    found = facts(result)
    plan = Plan.load(tmp_path / "plan.json")
    assert found["guarantee"]["epsilon"] == plan.guarantee.epsilon <= 2.0
    assert found["guarantee"]["kind"] == "upper"
    assert found["noise_multiplier"][0] > found["noise_multiplier"][1]
    assert found["clip_norm"][0] > found["clip_norm"][1]
    assert (plan.steps, plan.sampling.dataset_size, plan.sampling.expected_batch_size) == (4, 1438, 200)
    assert (tmp_path / "plan.png").read_bytes()[:4] == b"\x89PNG"


def test_a_plan_is_described_in_words(invoke: Invoke) -> None:
    result = invoke("plan", *SMALL, "--schedule", "constant")
    assert result.exit_code == 0, result.output
    assert "upper bound" in result.stdout


def test_epochs_and_the_default_delta(invoke: Invoke) -> None:
    result = invoke("plan", "--epsilon", 2, "--dataset-size", 1000, "--batch", 100, "--epochs", 0.5, "--json")
    found = facts(result)
    assert found["steps"] == 5
    assert found["budget"]["delta"] == pytest.approx(1e-4)


@pytest.mark.slow
def test_a_plan_for_clients_counts_clients_and_no_other_command_takes_it_for_examples(
    invoke: Invoke, tmp_path: Path
) -> None:
    asked = [
        "plan",
        "--epsilon",
        2,
        "--unit",
        "client",
        "--clients",
        1000,
        "--clients-per-round",
        100,
        "--steps",
        3,
    ]
    result = invoke(*asked, "--save", "clients.json", "--json")
    assert result.exit_code == 0, result.output
    assert facts(result)["budget"] == {"epsilon": 2.0, "delta": 1e-4, "unit": "client"}
    plan = Plan.load(tmp_path / "clients.json")
    assert plan == dc.calibrate(
        dc.Budget(2.0, 1e-4, dc.Unit.CLIENT), dc.PoissonSampling(1000, 100), steps=3,
        privacy=dc.curves.growing_mu(1.25), clip=dc.curves.sensitivity_decay(1.0, 3.3),
    )  # fmt: skip
    assert "removing one client" in invoke(*asked).stdout
    assert "one client is protected" in invoke("account", "clients.json").stdout
    for command in (["train", "digits"], ["audit"], ["audit", "--attack", "opposed"]):
        refused = invoke(*command, "--plan", "clients.json", "--seed", 1)
        assert refused.exit_code == 2
        assert "must protect examples or people, got unit=client in clients.json" in refused.stderr
    # Of the same numbers a plan for examples has the same noise, and another promise.
    rows = facts(invoke("plan", "--epsilon", 2, "--dataset-size", 1000, "--batch", 100, "--steps", 3, "--json"))
    assert rows["noise_multiplier"] == facts(result)["noise_multiplier"]
    assert rows["budget"]["unit"] == rows["guarantee"]["unit"] == "example"


def test_a_plan_file_is_verified(invoke: Invoke, plan_file: Path) -> None:
    result = invoke("verify", plan_file)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("promised: (")
    assert "dp-accounting" in lines[2]
    assert lines[-1] == "verified"


def test_a_guarantee_that_is_too_good_is_not_verified(invoke: Invoke, plan_file: Path, tmp_path: Path) -> None:
    plan = Plan.load(plan_file)
    better = replace(plan.guarantee, epsilon=0.97 * plan.guarantee.epsilon, epsilon_lower=None)
    replace(plan, guarantee=better).save(tmp_path / "boast.json")
    result = invoke("verify", "boast.json")
    assert result.exit_code == 2
    assert "must not be below the true epsilon" in result.stderr


def test_training_by_a_plan_file_saves_a_run(invoke: Invoke, plan_file: Path, tmp_path: Path) -> None:
    result = invoke("train", "digits", "--plan", plan_file, "--seed", 7, "--out", "run", "--json")
    assert result.exit_code == 0, result.output
    found, run = facts(result), Run.load(tmp_path / "run")
    assert run.plan == Plan.load(plan_file)
    assert run.ledger == run.plan.ledger
    assert found["metrics"] == run.metrics
    assert 0 <= run.metrics["test_accuracy"] <= 1
    assert facts(invoke("account", "run", "--json")) == facts(invoke("account", plan_file, "--json"))
    assert found["steps_taken"] == 4


@pytest.mark.slow
def test_the_seed_decides_and_without_one_nothing_repeats(invoke: Invoke, plan_file: Path, tmp_path: Path) -> None:
    def weights(*arguments: Any) -> bytes:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        result = invoke("train", "digits", "--plan", plan_file, "--out", folder, *arguments)
        assert result.exit_code == 0, result.output
        assert ("knows the noise" in result.stderr) == ("--seed" in arguments)
        return (folder / "weights.safetensors").read_bytes()

    assert weights("--seed", 1) == weights("--seed", 1) != weights("--seed", 2)
    assert weights() != weights()


@pytest.mark.parametrize(
    "options",
    some(
        [
            ["--lr-decay", "cosine", "--momentum", 0.5],
            ["--optimizer", "adam", "--lr", 0.01],
            ["--lr-decay", "linear"],
            ["--threads", 1],
        ],
        2,
    ),
)
def test_options_of_training_run(invoke: Invoke, plan_file: Path, options: list[Any]) -> None:
    result = invoke("train", "digits", "--plan", plan_file, "--seed", 1, *options)
    assert result.exit_code == 0, result.output
    assert "test_accuracy" in result.stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    some(
        [
            (
                ["--microbatch-size", 7, "--capture", "off"],
                EngineSettings(cache_bytes=1000, microbatch_size=7, capture=False),
            ),
            (["--capture", "on"], EngineSettings(cache_bytes=1000, microbatch_size=50, capture=True)),
            (["--memory", "low"], EngineSettings(cache_bytes=1000, microbatch_size=50, memory="low")),
            ([], EngineSettings(cache_bytes=1000, microbatch_size=50)),
        ],
        1,
    ),
)
def test_the_engine_works_as_the_task_says_or_an_option(
    invoke: Invoke,
    plan_file: Path,
    options: list[Any],
    expected: EngineSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, seen = replace(find_task("digits"), engine=EngineSettings(cache_bytes=1000, microbatch_size=50)), []
    monkeypatch.setattr("decrescendo.training.digits.task", lambda: task)
    made = Engine.__init__

    def noted(self: Engine, model: Any, loss: Any, settings: EngineSettings, **rest: Any) -> None:
        seen.append(settings)
        made(self, model, loss, settings, **rest)

    monkeypatch.setattr(Engine, "__init__", noted)
    # (The run's type checker draws random numbers of Python's.)
    monkeypatch.setattr("decrescendo.clipping.checker.drawn_by_python", lambda held: ())
    result = invoke("train", "digits", "--plan", plan_file, "--seed", 1, *options)
    assert result.exit_code == 0, result.output
    assert seen == [expected]


@pytest.mark.parametrize("command", some(["audit", "tune", "one canary"], 1))
def test_audits_and_trials_have_the_engine_of_the_private_task(
    invoke: Invoke, plan_file: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may clip otherwise (`gamma`): it would be another mechanism that is attacked, or searched for."""
    public, wanted, seen = find_task("digits"), EngineSettings(gamma=0.01), []
    monkeypatch.setattr("decrescendo.training.digits.task", lambda: replace(public, engine=wanted))
    images, labels = public.load()
    others = replace(public, data=(images * 0.9, labels), rows=None)
    monkeypatch.setattr("decrescendo.training.digits.others", lambda: others, raising=False)
    made = Engine.__init__

    def noted(self: Engine, model: Any, loss: Any, settings: EngineSettings, **rest: Any) -> None:
        seen.append(settings)
        made(self, model, loss, settings, **rest)

    monkeypatch.setattr(Engine, "__init__", noted)
    if command == "audit":
        result = invoke("audit", "digits", "--plan", plan_file, "--seed", 1)
    elif command == "one canary":
        few = ["--attack", "one-canary", "--runs", 8, "--epsilon", 4, "--steps", 2]
        result = invoke("audit", "digits", *few, "--seed", 1)
    else:
        on = ["--on", "decrescendo.training.digits:others", "--trials", 1, "--out", tmp_path / "found.json"]
        result = invoke("tune", "digits", "--epsilon", 8, *on)
    assert result.exit_code == 0, result.output
    assert seen
    assert all(settings == wanted for settings in seen)


def test_training_from_a_budget_uses_the_settings_of_the_task(invoke: Invoke) -> None:
    result = invoke("train", "digits", "--epsilon", 2, "--steps", 3, "--seed", 1, "--json")
    found = facts(result)
    assert found["expected_batch_size"] == find_task("digits").batch
    assert found["budget"]["delta"] == find_task("digits").delta
    assert found["steps"] == 3
    assert (found["rows_independent"], found["assumptions"]) == (True, [])


@pytest.mark.slow
def test_a_function_of_ones_own_is_trained_and_audited(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    result = invoke("train", "mine:mine", "--epsilon", 2, "--steps", 3, "--seed", 1, "--out", "run", "--json")
    assert result.exit_code == 0, result.output
    found = facts(result)
    assert (found["dataset_size"], found["expected_batch_size"], found["metrics"]) == (300, 30, {})
    assert Run.load(tmp_path / "run").weights["weight"].shape == (2, 4)
    audited = invoke("audit", "mine:mine", "--epsilon", 2, "--steps", 3, "--canaries", 60, "--seed", 0)
    assert audited.exit_code == 0, audited.output


@pytest.mark.slow
def test_the_accountant_of_a_plan_can_be_chosen(invoke: Invoke) -> None:
    found = {name: facts(invoke("plan", *SMALL, "--accountant", name, "--json")) for name in ("pld", "rdp", "clt")}
    assert {name: one["guarantee"]["kind"] for name, one in found.items()} == {
        "pld": "upper", "rdp": "upper", "clt": "estimate",
    }  # fmt: skip
    first = {name: one["noise_multiplier"][0] for name, one in found.items()}
    assert first["clt"] < first["pld"] < first["rdp"]


@pytest.mark.slow
def test_a_moving_batch_is_trained_with(invoke: Invoke) -> None:
    asked = ["--epsilon", 2, "--batch", 50, "--batch-end", 150, "--steps", 4]
    result = invoke("train", "digits", *asked, "--seed", 1, "--json")
    assert result.exit_code == 0, result.output
    assert facts(result)["expected_batch_size"] == pytest.approx([75, 150])
    assert invoke("audit", "digits", *asked, "--canaries", 20, "--seed", 1, "--json").exit_code == 0
    refused = invoke("train", "digits", *asked[:-2], "--batch-end", 5000, "--steps", 4, "--seed", 1)
    assert "--batch-end must be > 0 and <= 1438" in refused.stderr


@pytest.mark.slow
def test_batches_of_at_most_so_many_rows_are_planned_verified_and_trained(invoke: Invoke, tmp_path: Path) -> None:
    asked = ["--epsilon", 2, "--batch", 50, "--steps", 4]
    file = tmp_path / "plan.json"
    made = invoke("plan", *asked, "--dataset-size", 1438, "--max-batch-size", "auto", "--save", file, "--json")
    cap = facts(made)["max_batch_size"]
    drawn = Ledger.of([1.0] * 4, 50 / 1438)
    assert cap == smallest_cap(drawn, 1438, 2.0, 1 / 14_380)
    assert facts(made)["guarantee"]["accountant"] == "Truncated(Pld)"
    assert "Truncated(Pld) again: epsilon at most" in invoke("verify", file).stdout
    account = facts(invoke("account", file, "--json"))
    assert account["max_batch_size"] == cap
    assert account["accountants"][0]["bound"]["value"] == facts(made)["guarantee"]["epsilon"]
    run = facts(invoke("train", "digits", "--plan", file, "--seed", 1, "--json"))
    assert run["guarantee"] == facts(made)["guarantee"]
    moving = invoke("train", "digits", *asked, "--batch-end", 90, "--max-batch-size", "auto", "--seed", 1, "--json")
    assert facts(moving)["max_batch_size"] > cap
    for wrong, words in (
        ("many", "a whole number or auto"),
        (60, "must leave some of delta"),
        (0, "must be >= 1"),
    ):
        assert words in invoke("train", "digits", *asked, "--max-batch-size", wrong, "--seed", 1).stderr
    assert f"must be the plan's {cap}" in invoke("account", file, "--max-batch-size", cap + 1).stderr
    compute = [
        "--epsilon",
        2,
        "--dataset-size",
        1438,
        "--steps",
        4,
        "--schedule",
        "optimal",
        "--compute",
        200,
    ]
    assert "must be a number with --compute" in invoke("plan", *compute, "--max-batch-size", "auto").stderr


@pytest.mark.slow
def test_each_example_once_an_epoch_is_planned_verified_and_trained(invoke: Invoke, tmp_path: Path) -> None:
    asked, file = ["--epsilon", 2, "--batch", 100, "--random-allocation"], tmp_path / "plan.json"
    made = facts(invoke("plan", *asked, "--epochs", 2, "--dataset-size", 1438, "--save", file, "--json"))
    assert (made["steps_per_epoch"], made["steps"]) == (14, 28)
    assert made["expected_batch_size"] == 1438 / 14
    assert made["guarantee"]["accountant"] == "Allocated"
    assert "Allocated again: epsilon in" in invoke("verify", file).stdout
    account = facts(invoke("account", file, "--json"))
    assert account["accountants"][0]["bound"]["value"] == made["guarantee"]["epsilon"]
    run = facts(invoke("train", "digits", "--plan", file, "--seed", 1, "--json"))
    assert run["guarantee"] == made["guarantee"]
    again = facts(invoke("train", "digits", *asked, "--epochs", 2, "--delta", 1 / 14_380, "--seed", 1, "--json"))
    assert again["steps_per_epoch"] == 14
    for more, words in (
        (["--steps", 20], "whole epochs of 14 steps, got --steps=20"),
        (["--epochs", 2, "--batch-end", 200], "must have one expected size"),
        (["--epochs", 2, "--accountant", "rdp"], "accountant must be Allocated"),
    ):
        assert words in invoke("train", "digits", *asked, *more, "--seed", 1).stderr
    searched = ["--steps", 28, "--schedule", "optimal", "--lr-schedule", "linear"]
    assert "must come without --compute" in invoke("plan", *asked, "--dataset-size", 1438, *searched).stderr
    clients = ["--unit", "client", "--clients", 90, "--clients-per-round", 9, "--steps", 20]
    assert "got --unit client" in invoke("plan", "--epsilon", 2, "--random-allocation", *clients).stderr


@pytest.mark.slow
def test_a_clip_norm_that_follows_the_gradients_is_trained_with(invoke: Invoke, tmp_path: Path) -> None:
    asked = ["train", "digits", "--epsilon", 2, "--batch", 50, "--steps", 4, "--clip-quantile", 0.5]
    shown = invoke(*asked, "--clip", 0.3, "--seed", 1, "--out", tmp_path / "run")
    assert shown.exit_code == 0, shown.output
    assert "C_t follows the 0.5 quantile" in shown.stdout
    run = Run.load(tmp_path / "run")
    assert run.clip_norm[0] == 0.3
    assert len(set(run.clip_norm)) == 4
    assert run.guarantee == run.plan.guarantee
    assert np.ptp(run.ledger.noise_multiplier) > 0  # growing-mu
    assert "C_t followed the norms of the gradients" in (tmp_path / "run/statement.md").read_text()
    moving = invoke(*asked, "--schedule", "dynamic", "--seed", 1)
    assert moving.exit_code == 0, moving.output


@pytest.mark.slow
def test_numbers_beside_the_gradients_are_released_and_shown(invoke: Invoke, tmp_path: Path) -> None:
    asked = ["train", "digits", "--epsilon", 2, "--batch", 50, "--steps", 4, "--seed", 1]
    shown = invoke(*asked, "--telemetry", "loss, accuracy", "--largest-loss", 4, "--out", tmp_path / "run")
    assert shown.exit_code == 0, shown.output
    assert "(mean of 4 steps), released while training" in shown.stdout
    told = Run.load(tmp_path / "run").telemetry
    assert (len(told), told[0].telemetry.norms, told[0].telemetry.loss_range) == (4, 0, (0.0, 4.0))
    facts = json.loads(invoke(*asked, "--telemetry", "norms", "--json").stdout)
    assert facts["telemetry"][-1].keys() == {"clipped_share"}
    assert "must name norms, loss or accuracy, got norm" in invoke(*asked, "--telemetry", "norm").stderr


@pytest.mark.slow
def test_account_says_what_batches_that_are_cut_cost(invoke: Invoke, tmp_path: Path) -> None:
    noise = tmp_path / "noise.json"
    noise.write_text("[1.0, 1.0, 1.0]")
    given = ["account", noise, "--delta", 1e-5, "--sample-rate", 0.1, "--json"]
    whole = facts(invoke(*given))
    cut = facts(invoke(*given, "--max-batch-size", 155, "--rows", 1000))
    assert (cut["max_batch_size"], cut["rows"]) == (155, 1000)
    judge = Truncated()
    ledger = Ledger.of([1.0] * 3, 0.1).cut(1000, 155)
    assert cut["accountants"][0]["bound"]["value"] == judge.epsilon(ledger, 1e-5).value
    assert cut["accountants"][0]["bound"]["value"] > whole["accountants"][0]["bound"]["value"]
    assert cut["accountants"][0]["lower"] is None
    assert "max_batch_size" not in whole
    assert (
        "truncated to at most 155 of 1000 rows" in invoke(*given[:-1], "--max-batch-size", 155, "--rows", 1000).stdout
    )
    for alone in (["--rows", 1000], ["--max-batch-size", 155]):
        refused = invoke(*given, *alone)
        assert refused.exit_code != 0
        assert "must be given together" in refused.stderr


def test_account_takes_the_rows_of_a_plan(invoke: Invoke, plan_file: Path) -> None:
    rows = Plan.load(plan_file).sampling.dataset_size
    assert facts(invoke("account", plan_file, "--max-batch-size", rows, "--json"))["rows"] == rows
    refused = invoke("account", plan_file, "--max-batch-size", rows, "--rows", rows + 1)
    assert refused.exit_code != 0
    assert f"--rows must be the plan's {rows}" in refused.stderr


def test_account_names_what_is_a_bound(invoke: Invoke, plan_file: Path) -> None:
    result = invoke("account", plan_file, "--json")
    assert result.exit_code == 0, result.output
    found = {row["accountant"]: row for row in facts(result)["accountants"]}
    pld = found["Pld"]
    assert pld["lower"] <= pld["bound"]["value"] <= 2.0
    assert pld["bound"]["kind"] == "upper"
    assert found["Rdp"]["bound"]["value"] > pld["lower"]
    assert found["GdpClt"]["bound"]["kind"] == "estimate"
    assert found["Gaussian"]["bound"] is None
    assert found["Gaussian"]["reason"]
    assert facts(result)["unit"] == "example"
    table = invoke("account", plan_file).stdout
    for words in (
        "one example is protected",
        "upper bound",
        "estimate, not a bound",
        "not applicable",
        "true epsilon",
    ):
        assert words in table


@pytest.mark.parametrize(
    ("name", "text", "rate"),
    [
        ("z.json", "[2.0, 1.5, 1.5]", 0.1),
        ("z.csv", "2.0\n1.5\n1.5\n", 0.1),
        ("z.csv", "noise_multiplier,sample_rate,count\n2.0,0.1,1\n1.5,0.1,2\n", None),
        ("z.csv", "count,noise_multiplier\n1,2.0\n2,1.5\n", 0.1),
        ("z.csv", "\ufeff2.0\r\n\r\n1.5\r\n1.5\r\n", 0.1),
    ],
)
def test_every_form_of_a_ledger_is_the_same_ledger(tmp_path: Path, name: str, text: str, rate: float | None) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    ledger, delta = read_ledger(tmp_path / name, sample_rate=rate)
    assert ledger.distinct() == Ledger.of([2.0, 1.5, 1.5], 0.1).distinct()
    assert delta is None


def test_no_noise_costs_infinity_in_valid_json(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "z.json").write_text("[0.0]")
    result = invoke("account", "z.json", "--delta", 1e-5, "--sample-rate", 0.1, "--json")
    assert facts(result)["accountants"][0]["bound"]["value"] == "inf"


MINE = """
import torch
from torch import nn
import decrescendo as dc
from decrescendo.training import cross_entropy

def mine():
    inputs = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    return nn.Linear(4, 2), cross_entropy, (inputs, (inputs[:, 0] > 0).long())

def other():
    rows = torch.zeros(60_000, 1), torch.zeros(60_000).long()
    return dc.training.Task(model=nn.Linear(1, 2), loss=cross_entropy, data=rows)

def wrong():
    return 3
"""
OPTIMAL = [*SMALL, "--schedule", "optimal"]

BAD: dict[str, tuple[list[Any], str]] = {
    "epsilon": (["plan", *SMALL, "--epsilon", -1], "epsilon must be > 0"),
    "delta": (["plan", *SMALL, "--delta", 1.5], "delta must be"),
    "batch": (["plan", *SMALL, "--batch", 5000], "--batch must be <= dataset_size"),
    "steps": (["plan", *SMALL, "--steps", 0], "steps must be >= 1"),
    "steps and epochs": (["plan", *SMALL, "--epochs", 2], "exactly one of --steps and --epochs"),
    "neither": (["plan", "--epsilon", 1, "--dataset-size", 9, "--batch", 3], "got neither"),
    "epochs": (["plan", *SMALL[:-2], "--epochs", -2], "epochs must be > 0"),
    "clip": (["plan", *SMALL, "--clip", 0], "clip must be > 0"),
    "rho": (["plan", *SMALL, "--rho-c", -3], "--rho-c must be > 0"),
    "clients as rows": (
        ["plan", "--epsilon", 1, "--steps", 3, "--unit", "client", "--dataset-size", 50, "--batch", 5],
        "--unit client must come with --clients and --clients-per-round, got --dataset-size, --batch for examples",
    ),
    "rows as clients": (
        ["plan", *SMALL, "--clients", 50],
        "--unit example must come with --dataset-size and --batch, got --clients for clients",
    ),
    "no clients": (
        ["plan", "--epsilon", 1, "--steps", 3, "--unit", "client", "--clients", 50],
        "got no --clients-per-round",
    ),
    "too many clients a round": (
        [
            "plan",
            "--epsilon",
            1,
            "--steps",
            3,
            "--unit",
            "client",
            "--clients",
            50,
            "--clients-per-round",
            60,
        ],
        "--clients-per-round must be > 0 and <= 50, got --clients-per-round=60",
    ),
    "no rows": (["plan", "--epsilon", 1, "--steps", 3], "got no --dataset-size and no --batch"),
    "no budget": (["train", "digits", "--seed", 1], "--plan or --epsilon"),
    "two budgets": (["train", "digits", "--plan", "PLAN", "--epsilon", 1], "got --plan and --epsilon"),
    "missing plan": (["train", "digits", "--plan", "nowhere.json"], "nowhere.json"),
    "seed": (["train", "digits", "--plan", "PLAN", "--seed", -1], "seed must be >= 0"),
    "lr": (["train", "digits", "--plan", "PLAN", "--seed", 1, "--lr", 0], "--lr must be > 0"),
    "momentum": (["train", "digits", "--plan", "PLAN", "--seed", 1, "--momentum", 1], "momentum must be"),
    "adam": (
        ["train", "digits", "--plan", "PLAN", "--seed", 1, "--optimizer", "adam", "--momentum", 0.5],
        "momentum must be 0 with adam",
    ),
    "not optimal": (["plan", *SMALL, "--lr-schedule", "cosine"], "must come with --schedule optimal"),
    "curvature alone": (["plan", *OPTIMAL, "--curvature", 0.1], "got only --curvature"),
    "lr alone": (["plan", *OPTIMAL, "--lr", 0.1], "got only --lr"),
    "too curved": (["plan", *OPTIMAL, "--curvature", 5, "--lr", 0.5], "must be below 1"),
    "noise momentum": (["plan", *OPTIMAL, "--momentum", 1], "momentum must be"),
    "two influences": (["plan", *OPTIMAL, "--influence-growth", 2, "--momentum", 0.9], "must come alone"),
    "growth": (["plan", *OPTIMAL, "--influence-growth", 0], "--influence-growth must be > 0"),
    "short influence": (["plan", *OPTIMAL, "--influence", "z.json"], "an influence for each of the 4 steps"),
    "broken influence": (["plan", *OPTIMAL, "--influence", "broken.json"], "one number a line"),
    "text influence": (["plan", *OPTIMAL, "--influence", "text.csv"], "one number a line"),
    "missing influence": (["plan", *OPTIMAL, "--influence", "nowhere.json"], "nowhere.json"),
    "save": (["plan", *SMALL, "--save", "nowhere/plan.json"], "folder that exists"),
    "plot": (["plan", *SMALL, "--plot", "nowhere/plan.png"], "folder that exists"),
    "out in a file": (
        ["train", "digits", "--plan", "PLAN", "--seed", 1, "--out", "z.json/run"],
        "in a place that can be written",
    ),
    "out": (["train", "digits", "--plan", "PLAN", "--seed", 1, "--out", "full"], "new or empty"),
    "other task": (["train", "mine:other", "--plan", "PLAN", "--seed", 1], "plan's 1438 rows, got 60000"),
    "no such task": (["train", "mine:nothing", "--plan", "PLAN"], "must name a function"),
    "no such module": (["train", "no_such_module:task", "--plan", "PLAN"], "no_such_module"),
    "no task": (["train", "mnist", "--plan", "PLAN"], "task must be module:function"),
    "not a task": (["train", "mine:wrong", "--plan", "PLAN"], "must return a Task or (model, loss, data)"),
    "recipe and lr": (["train", "digits", "--recipe", "r.json", "--lr", 1], "got --recipe and --lr"),
    "foreign recipe": (["train", "digits", "--recipe", "foreign.json"], "foreign.json"),
    "no rate": (["account", "z.json", "--delta", 1e-5], "--sample-rate must be given"),
    "rate twice": (["account", "PLAN", "--sample-rate", 0.1], "--sample-rate must not be given"),
    "rate": (["account", "z.json", "--delta", 1e-5, "--sample-rate", 2], "--sample-rate must be"),
    "no delta": (["account", "z.json", "--sample-rate", 0.1], "--delta must be given"),
    "text": (["account", "text.csv", "--delta", 1e-5, "--sample-rate", 0.1], "must hold numbers"),
    "underscores": (["account", "odd.csv", "--delta", 1e-5, "--sample-rate", 0.1], "must hold numbers"),
    "truth values": (["account", "true.json", "--delta", 1e-5, "--sample-rate", 0.1], "JSON list of numbers"),
    "columns": (["account", "columns.csv", "--delta", 1e-5], "must have columns"),
    "ragged": (["account", "ragged.csv", "--delta", 1e-5], "must have 2 values a line"),
    "names alone": (["account", "names.csv", "--delta", 1e-5], "got only the names of columns"),
    "a long field": (["account", "long.csv", "--delta", 1e-5, "--sample-rate", 0.1], "field larger than"),
    "empty": (["account", "empty.csv", "--delta", 1e-5], "got an empty file"),
    "broken": (["account", "broken.json", "--delta", 1e-5, "--sample-rate", 0.1], "JSON list"),
    "strings": (["account", "strings.json", "--delta", 1e-5, "--sample-rate", 0.1], "JSON list of numbers"),
    "negative": (["account", "negative.json", "--delta", 1e-5, "--sample-rate", 0.1], "noise_multiplier"),
    "foreign": (["account", "foreign.json"], "foreign.json"),
    "verify": (["verify", "foreign.json"], "foreign.json"),
    "binary": (["verify", "full/weights"], "full/weights"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_input_is_one_clear_line_and_leaves_nothing(
    invoke: Invoke, tmp_path: Path, plan_file: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "z.json": "[2.0]", "text.csv": "2.0\nhello\n", "odd.csv": "1_0.0\n", "true.json": "[true]",
        "columns.csv": "noise_multiplier,sigma\n1,2\n", "names.csv": "noise_multiplier,sample_rate\n",
        "long.csv": "1" * 140_000,
        "ragged.csv": "noise_multiplier,sample_rate\n1\n", "empty.csv": "\n", "broken.json": "[1, 2",
        "strings.json": '["a"]', "negative.json": "[-1.0]", "foreign.json": '{"name": "another program"}',
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "weights").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what Python keeps of mine.py is Python's
    before = sorted(tmp_path.rglob("*"))
    arguments, words = BAD[case]
    result = invoke(*(plan_file if argument == "PLAN" else argument for argument in arguments))
    assert result.exit_code == 2
    assert result.stderr.strip().splitlines()[-1].startswith("error: ")
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_plan_is_refused_everywhere(invoke: Invoke, plan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text(plan_file.read_text()[:-20])
    for arguments in (
        ["verify", "cut.json"],
        ["account", "cut.json"],
        ["train", "digits", "--plan", "cut.json"],
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "cut.json" in result.stderr


@pytest.mark.slow
def test_the_installed_command_answers_on_its_own(plan_file: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "decrescendo", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )

    good = run("account", str(plan_file), "--json")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["steps"] == 4
    bad = run("plan", *SMALL, "--clip", "-1")
    assert bad.returncode == 2
    assert bad.stdout == ""
    assert bad.stderr.startswith("error: --clip must be > 0, got --clip=-1")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [(["plan", *SMALL], "torch"), (["--help"], "numpy"), (["tune", "--help"], "numpy")],
)
def test_planning_needs_no_torch_and_help_no_numpy(tmp_path: Path, arguments: list[str], absent: str) -> None:
    code = (
        "import sys\nfrom decrescendo.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"assert {absent!r} not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_whose_noise_was_decided_on_the_way_is_verified_by_its_filter(invoke: Invoke, tmp_path: Path) -> None:
    plan = Adaptive(
        PoissonSampling(40, 8),
        RenyiFilter(Budget(8.0, 1e-5), 4),
        FromSchedule(Schedule([3.0, 0.01], [1.0, 1.0])),
        9,
    )
    model = torch.nn.Linear(3, 2)
    loss = lambda model, batch: model(batch).square().sum(dim=1)  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, loss, torch.randn(40, 3), plan, optimizer, seed=0).save(tmp_path / "adaptive")
    verified = invoke("verify", "adaptive")
    assert verified.exit_code == 0, verified.output
    assert "RenyiFilter(order=4) again: 1 releases granted" in verified.stdout
    assert verified.stdout.rstrip().endswith("verified")
    found = facts(invoke("account", "adaptive", "--json"))
    assert (found["guarantee"]["epsilon"], found["guarantee"]["accountant"]) == (8.0, "RenyiFilter(order=4)")
    assert found["accountants"][0]["bound"]["value"] < 8.0
    shown = invoke("account", "adaptive")
    assert "guarantee: (8, 1e-05)-DP" in shown.output
    assert "guarantee nothing here" in shown.output.replace("\n", " ")


def test_a_folder_without_a_run_cannot_be_verified(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused = invoke("verify", "empty")
    assert refused.exit_code != 0
    assert "run.json must be a readable file" in refused.output.replace("\n", " ")
