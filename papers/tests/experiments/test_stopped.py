"""Facts: with noise fixed beforehand a plan has the steps that its accountant allows, and not one more."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from often import some

from decrescendo import Budget, Ledger, PoissonSampling, accounting, curves
from decrescendo.errors import ImpossibleBudget, InvalidValue
from decrescendo_papers.experiments import tasks
from decrescendo_papers.experiments.perform import perform, plan_of
from decrescendo_papers.experiments.results import Result, find, line_of, save
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.stopped import fixed_noise, until_spent
from decrescendo_papers.experiments.table1 import TABLE1

from .conftest import toy_data, toy_task

SPEC = Spec(
    task="toy", method="exponential-decay", accountant="zcdp", epsilon=3.0, delta=1e-5, steps=60, batch=12, seed=0,
    clip=1.0, learning_rate=0.5, noise=10.0, noise_decay=0.1,
)  # fmt: skip
SAMPLING = PoissonSampling(60, 12)  # five batches an epoch
EPOCHS = 12


def slowly(spec: Spec, judge: accounting.Accountant) -> int:
    """Steps counted one by one, with the noise of the library's own curve."""
    noise = spec.noise / curves.exponential_noise_decay(spec.noise_decay, epochs=EPOCHS)(
        np.arange(1, spec.steps + 1) / spec.steps
    )
    for steps in range(1, spec.steps + 1):
        if judge.epsilon(Ledger.of(noise[:steps], sample_rate=0.2), spec.delta).value > spec.epsilon:
            return steps - 1
    return spec.steps


@pytest.mark.parametrize("epsilon", some([0.5, 0.8, 1.5, 3.0, 50.0], 2))
@pytest.mark.parametrize(
    "judge",
    [accounting.Zcdp(batches_per_epoch=5), accounting.Zcdp(), accounting.GdpClt()],
    ids=lambda judge: repr(judge),
)
def test_it_is_the_longest_plan_within_the_budget(judge: accounting.Accountant, epsilon: float) -> None:
    spec = dataclasses.replace(SPEC, epsilon=epsilon)
    longest = slowly(spec, judge)
    if longest == 0:
        with pytest.raises(ImpossibleBudget, match="must allow a first step"):
            until_spent(spec, Budget(epsilon, spec.delta), SAMPLING, judge)
        return
    plan = until_spent(spec, Budget(epsilon, spec.delta), SAMPLING, judge)
    assert plan.steps == longest
    assert (plan.noise_multiplier == fixed_noise(spec, 5)[:longest]).all()
    assert (plan.clip_norm == spec.clip).all()
    assert plan.guarantee == judge.certify(plan.ledger, plan.budget)
    assert plan.guarantee.epsilon <= epsilon


@pytest.mark.slow
def test_one_step_more_is_certified_above_the_budget() -> None:
    plan = until_spent(SPEC, Budget(0.8, SPEC.delta), SAMPLING, accounting.Pld())
    more = Ledger.of(fixed_noise(SPEC, 5)[: plan.steps + 1], sample_rate=0.2)
    assert len(more) == plan.steps + 1 < SPEC.steps
    assert plan.guarantee.kind == "upper"
    assert plan.guarantee.epsilon <= 0.8 < accounting.Pld().epsilon(more, SPEC.delta).value


def test_an_epoch_that_is_begun_is_paid_whole_where_batches_count_as_disjoint() -> None:
    plan = until_spent(SPEC, Budget(1.0, SPEC.delta), SAMPLING, accounting.Zcdp(batches_per_epoch=5))
    assert plan.steps % 5 == 0
    rho = sum(1 / (2 * (10 * math.exp(-0.1 * epoch)) ** 2) for epoch in range(plan.steps // 5))
    assert plan.guarantee.epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / SPEC.delta)))


@pytest.mark.parametrize("changes", [{"method": "constant"}, {"noise": 0.0}])
def test_what_does_not_go_together_has_no_plan(changes: dict[str, object]) -> None:
    spec = dataclasses.replace(SPEC, task="mnist", **changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="must be of method='exponential-decay' with noise > 0"):
        plan_of(spec)


@pytest.mark.parametrize("changes", [{"noise": -1.0}, {"noise_decay": -0.1}, {"method": "none"}])
def test_no_spec_has_noise_that_is_none(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match="noise"):
        dataclasses.replace(SPEC, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "steps"), [(3.0, 60), (1.0, 15), (0.4, 0)])
def test_the_result_says_how_many_steps_it_took(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, epsilon: float, steps: int
) -> None:
    monkeypatch.setitem(tasks.TASKS, "toy", toy_task(lambda: toy_data(1)))
    spec = dataclasses.replace(SPEC, task="toy", epsilon=epsilon)
    result = perform(spec)
    assert bool(result.refused) == (steps == 0)
    if steps:
        assert result.steps == plan_of(spec).steps
        assert result.noise_multiplier == (10.0, plan_of(spec).noise_multiplier[-1])
        assert result.certified is not None
    save(tmp_path, result)
    assert find(tmp_path, spec) == result


def test_results_of_before_are_the_lines_that_they_were() -> None:
    result = Result(dataclasses.replace(SPEC, noise=0.0, noise_decay=0.0), refused="no")
    assert "steps" not in {**json.loads(line_of(result)), "spec": {}}
    assert {"noise", "noise_decay"}.isdisjoint(json.loads(line_of(result))["spec"])


def test_table_1_runs_it_in_both_blocks_with_the_numbers_of_yu_et_al() -> None:
    specs = TABLE1.specs([0], only=["mnist/*/zcdp-stopped"])
    assert [(spec.accountant, spec.epsilon) for spec in specs] == [
        ("zcdp", 0.4), ("zcdp", 0.6), ("zcdp", 1.2), ("pld", 0.4), ("pld", 0.6), ("pld", 1.2)
    ]  # fmt: skip
    for spec in specs:
        assert (spec.noise, spec.noise_decay, spec.steps, spec.rho_mu) == (10.0, 0.0138, 48_000, 1.0)
