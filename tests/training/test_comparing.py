"""Plans compared on public rows: what is trained is what `train` trains, and what is told is what was found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.plans import Plan
from decrescendo.training import Task, accuracy, compare, cross_entropy, initialised, rows, train
from decrescendo.training.search.comparison_runs import ComparedRun

ROWS, PUBLIC = 300, 50
X = torch.randn(PUBLIC, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def plan_of(clip: Any = (1.0,) * 4, unit: dc.Unit = dc.Unit.EXAMPLE, **budget: Any) -> Plan:
    return dc.calibrate(
        dc.Budget(2.0, 1e-4, unit, **budget), dc.PoissonSampling(ROWS, 30), steps=4,
        privacy=dc.curves.constant(1.0), clip=clip,
    )  # fmt: skip


def build(seed: int) -> nn.Module:
    return initialised(lambda: nn.Linear(3, 2), seed)


def weight_of(model: nn.Module) -> dict[str, float]:
    return {"weight": float(model.get_parameter("weight").detach()[0, 0])}


TASK = Task(model=build, loss=cross_entropy, data=(X, Y), score=weight_of, learning_rate=0.3)


@pytest.mark.slow
def test_it_is_training_on_repeated_rows_with_the_plans_noise() -> None:
    plans = {"one": plan_of(), "two": plan_of(dc.curves.linear(2.0, 0.5))}
    found = compare(plans, TASK, seeds=2, learning_rate=0.2, momentum=0.5)
    repeated = rows((X[torch.arange(ROWS) % PUBLIC], Y[torch.arange(ROWS) % PUBLIC]))
    for name, plan in plans.items():
        for seed in (0, 1):
            model = TASK.fresh(seed, None)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
            train(model, cross_entropy, repeated, plan, optimizer, seed=seed)
            assert found.scores[name][seed] == pytest.approx(weight_of(model)["weight"], rel=1e-5)
    assert list(found.scores) == ["one", "two"]
    assert found.best == max(found.scores, key=lambda name: sum(found.scores[name]))


def test_data_sets_persons_and_fewer_rows_than_public_ones() -> None:
    """A list of examples with a collate function, repeated or cut; each public row as a person."""
    listed = replace(TASK, data=list(zip(X, Y, strict=True)), collate_fn=torch.utils.data.default_collate)
    few = dc.calibrate(dc.Budget(2.0, 1e-3), dc.PoissonSampling(20, 10), steps=2, privacy=[1.0] * 2, clip=[1.0] * 2)
    people = plan_of(unit=dc.Unit.PERSON, examples_per_person=2)
    found = compare({"few": few, "people": people}, listed, seeds=1)
    assert all(len(scores) == 1 for scores in found.scores.values())
    assert found.describe().count("sd") == found.describe().count("se ") == 0
    assert "few (2, 0.001)-DP per example, people (2, 0.0001)-DP per person" in found.table()
    assert "Budgets differ" not in compare({"few": few, "again": few}, listed, seeds=1).table()


def test_each_plan_may_have_a_falling_rate_of_its_own(tmp_path: Path) -> None:
    plan = plan_of()
    both = compare({"still": plan, "falls": plan}, TASK, seeds=1, lr_decay={"still": "none", "falls": "linear"},
                   out=tmp_path / "both")  # fmt: skip
    for name, decay in (("still", "none"), ("falls", "linear")):
        assert both.scores[name] == compare({name: plan}, TASK, seeds=1, lr_decay=decay).scores[name]
        told: list[ComparedRun] = []
        # The same runs, by whichever form they are asked for.
        compare({name: plan}, TASK, seeds=1, lr_decay=decay, out=tmp_path / "both", tell=told.append)
        assert len(told) == 1
    assert len((tmp_path / "both" / "runs.jsonl").read_text().splitlines()) == 2
    assert both.scores["still"] != both.scores["falls"]
    with pytest.raises(InvalidValue, match="lr_decay by name must have one for each plan, still, falls, got one for"):
        compare({"still": plan, "falls": plan}, TASK, lr_decay={"still": "none"})
    for wrong in ("bogus", {"still": "bogus"}):
        with pytest.raises(InvalidValue, match="lr_decay must be none, linear or cosine, got 'bogus' for 'still'"):
            compare({"still": plan}, TASK, lr_decay=wrong)
    with pytest.raises(InvalidType, match="lr_decay"):
        compare({"still": plan}, TASK, lr_decay=["none"])  # type: ignore[arg-type]


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at least one plan"):
        compare({}, TASK)
    with pytest.raises(InvalidValue, match="must have a score"):
        compare({"a": plan_of()}, replace(TASK, score=None))
    with pytest.raises(InvalidValue, match=r"finite, got nan by the plan 'a' and seed 0"):
        compare({"a": plan_of()}, replace(TASK, score=lambda model: {"x": float("nan")}))
    with pytest.raises(InvalidValue, match="seeds"):
        compare({"a": plan_of()}, TASK, seeds=0)
    strata = dc.StratifiedPoissonSampling({"a": (200, 20), "b": (100, 30)})
    plan = dc.calibrate(dc.Budget(2.0, 1e-4), strata, steps=2, privacy=[1.0] * 2, clip=[1.0] * 2)
    with pytest.raises(InvalidValue, match="have no strata"):
        compare({"a": plan}, TASK, seeds=1)


def test_a_better_plan_is_told_from_a_worse_one() -> None:
    """Noise ten times as large, over ten seeds: the difference is many standard errors."""
    loud = dc.calibrate(dc.Budget(0.05, 1e-6), dc.PoissonSampling(ROWS, 30), steps=4, privacy=[1.0] * 4, clip=[1.0] * 4)
    task = replace(TASK, score=lambda model: {"accuracy": accuracy(model, X, Y)}, learning_rate=1.0)
    quiet = Plan.without_privacy(plan_of().sampling, steps=4)
    found = compare({"quiet": quiet, "loud": loud}, task, seeds=8)
    assert found.best == "quiet"
    assert "Budgets differ" in found.table()
    line = found.describe().splitlines()[1]
    apart, error = (float(word.strip("()")) for word in (line.split()[4], line.split()[6]))
    assert apart < -5 * error < 0
