"""Facts: training with no noise is plain SGD, goes through the same door, and says that it is not private."""

import json
import math
from pathlib import Path

import pytest
import torch

import decrescendo as dc
from decrescendo.accounting import Pld, RenyiFilter, ZcdpFilter
from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue
from decrescendo.plans import Plan, PoissonSampling, Schedule, allocate, calibrate
from decrescendo.training import Checkpoints, Run, Store, train

from .conftest import ROWS, loss, make_model, make_plan, sgd

FULL = PoissonSampling(ROWS, ROWS)
Data = tuple[torch.Tensor, torch.Tensor]


def trained(plan: Plan, data: Data, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> Run:
    model = make_model()
    return train(model, loss, data, plan, optimizer(model.parameters(), lr=0.1), seed=0)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_no_noise_and_no_clipping_is_plain_training(data: Data, optimizer: type[torch.optim.Optimizer]) -> None:
    run = trained(Plan.without_privacy(FULL, steps=5), data, optimizer)
    model = make_model()
    plain = optimizer(model.parameters(), lr=0.1)
    for _ in range(5):
        plain.zero_grad()
        loss(model, data).mean().backward()
        plain.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(run.weights[name], value, rtol=1e-5, atol=1e-6)


def test_clipping_alone_moves_each_example_by_at_most_its_clip_norm(data: Data) -> None:
    run = trained(Plan.without_privacy(PoissonSampling(ROWS, 1), steps=1, clip=1e-3), data)
    model = make_model()
    moved = sum((run.weights[name] - value).square().sum().item() for name, value in model.state_dict().items())
    assert run.diagnostics is not None
    examples = run.diagnostics.examples[0]
    assert math.sqrt(moved) <= 0.1 * 1e-3 * examples * 1.001
    assert run.diagnostics.clipped == (examples,)


def test_a_clip_curve_is_taken_as_it_is() -> None:
    plan = Plan.without_privacy(FULL, steps=3, clip=dc.curves.linear(3.0, 1.0))
    assert plan.clip_norm.tolist() == dc.curves.evaluate("clip", dc.curves.linear(3.0, 1.0), 3).tolist()
    assert plan.schedule.noise_std.tolist() == [0.0] * 3


def test_it_says_everywhere_that_there_is_no_privacy(data: Data, tmp_path: Path) -> None:
    plan = Plan.without_privacy(PoissonSampling(ROWS, 8), steps=3)
    run = trained(plan, data)
    assert run.guarantee.epsilon == plan.guarantee.epsilon == math.inf
    assert not plan.private
    for text in (str(plan), plan.describe(), str(run), run.describe(), str(run.guarantee)):
        assert "NO PRIVACY" in text
        assert "-DP" not in text
    run.save(tmp_path / "run")
    page = (tmp_path / "run/statement.md").read_text(encoding="utf-8")
    assert page.splitlines()[2].startswith("**NO PRIVACY for any example: epsilon is infinite.**")
    assert "Protected: nobody" in page
    facts = json.loads((tmp_path / "run/statement.json").read_text(encoding="utf-8"))
    assert facts["promise"]["epsilon"] is facts["promise"]["asked_epsilon"] is None
    assert facts["reading"]["advantage"] == 1


def test_a_training_that_ends_early_has_no_privacy_either(data: Data) -> None:
    model = make_model()
    plan = Plan.without_privacy(PoissonSampling(ROWS, 8), steps=3)
    run = train(model, loss, data, plan, sgd(model), seed=0, callback=lambda progress: progress.step == 2)
    assert (run.steps, run.guarantee.epsilon) == (2, math.inf)


@pytest.mark.parametrize("batch", [1e-9, 1.0, ROWS])
def test_the_accountant_agrees(batch: float) -> None:
    """At the plan's delta a release without noise has no finite epsilon, however rarely records take part."""
    plan = Plan.without_privacy(PoissonSampling(ROWS, batch), steps=1)
    assert Pld().bracket(plan.ledger, plan.budget.delta) == (math.inf, math.inf)


@pytest.mark.parametrize("clip", [math.inf, 2.0, [1.0, 0.5, 0.25]])
def test_plans_and_runs_without_privacy_are_read_back(data: Data, tmp_path: Path, clip: object) -> None:
    plan = Plan.without_privacy(PoissonSampling(ROWS, 8), steps=3, clip=clip)  # type: ignore[arg-type]
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert (tmp_path / "plan.json").read_text(encoding="utf-8") == plan.to_json()
    run = trained(plan, data)
    run.save(tmp_path / "run", include_diagnostics=True)
    again = Run.load(tmp_path / "run")
    assert (again.plan, again.ledger, again.guarantee) == (plan, run.ledger, run.guarantee)
    assert again.diagnostics == run.diagnostics


def test_it_goes_on_after_a_crash_as_any_plan(data: Data, tmp_path: Path) -> None:
    plan = Plan.without_privacy(PoissonSampling(ROWS, 8), steps=4)
    whole = trained(plan, data)
    for stop in (2, 4):
        model = make_model()
        run = train(
            model, loss, data, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0,
            checkpoints=Checkpoints(tmp_path, every=1, resume=stop > 2),
            callback=lambda progress, stop=stop: progress.step == stop,
        )  # fmt: skip
    assert all(torch.equal(run.weights[name], value) for name, value in whole.weights.items())


SAMPLING = PoissonSampling(ROWS, 8)


def audited(plan: Plan) -> object:
    rows = torch.zeros(ROWS, 3), torch.zeros(ROWS, dtype=torch.long)
    return dc.audit.one_run(make_model(), loss, rows, plan, sgd, canaries=8, seed=0)


UNLIMITED = Budget.unlimited(1e-6)
ONE = dc.curves.constant(1.0)


@pytest.mark.parametrize(
    "promise",
    [
        lambda: calibrate(UNLIMITED, SAMPLING, steps=3, privacy=ONE, clip=ONE),
        lambda: allocate(UNLIMITED, SAMPLING, steps=3, influence=ONE, clip=ONE),
        lambda: RenyiFilter(UNLIMITED, 16),
        lambda: ZcdpFilter(UNLIMITED),
        lambda: dc.plans.AdaptivePlan(UNLIMITED, SAMPLING, "ZcdpFilter", 3, "fixed"),
        lambda: Store.create("/nowhere/ledger.db", UNLIMITED, dataset="patients", rows=ROWS),
        lambda: Budget(math.inf, 1e-6),
        lambda: audited(Plan.without_privacy(SAMPLING, steps=3)),
    ],
)
def test_nothing_is_promised_within_no_budget(promise: object) -> None:
    with pytest.raises(DecrescendoError, match="epsilon"):
        promise()  # type: ignore[operator]


def test_no_store_takes_it(tmp_path: Path) -> None:
    for rule in ("sum", "renyi:16", "declared"):
        store = Store.create(
            tmp_path / f"{rule[:3]}.db", Budget(1.0, 1e-5), dataset="patients", rows=ROWS, composition=rule
        )
        with pytest.raises(DecrescendoError, match=r"noise|within"):
            store.start(Plan.without_privacy(SAMPLING, steps=3))
        assert store.entries() == []
        store.close()


def test_no_plan_mixes_a_promise_with_no_budget() -> None:
    guarantee = Guarantee(0.5, 1e-6, Unit.EXAMPLE, "Pld", "upper")
    nothing = Guarantee(math.inf, 1e-6, Unit.EXAMPLE, "Pld", "upper")
    with pytest.raises(InvalidValue, match="no noise and no guarantee"):
        Plan(UNLIMITED, SAMPLING, Schedule([1.0], [1.0]), guarantee)
    with pytest.raises(InvalidValue, match="no noise and no guarantee"):
        Plan(UNLIMITED, SAMPLING, Schedule([1.0, 0.0], [1.0, 1.0]), nothing)
    with pytest.raises(InvalidValue, match="within its budget"):
        Plan(Budget(1.0, 1e-6), SAMPLING, Schedule([0.0], [1.0]), nothing)
    with pytest.raises(InvalidValue, match="finite clip norms"):
        Plan(Budget(1.0, 1e-6), SAMPLING, Schedule([0.0], [math.inf]), guarantee)


def test_noise_needs_a_finite_clip_norm() -> None:
    with pytest.raises(InvalidValue, match=r"clip_norm\[1\]=inf"):
        Schedule([0.0, 1.0], [math.inf, math.inf])


def test_a_file_cannot_say_that_it_promises_something(tmp_path: Path) -> None:
    from decrescendo.base import sealed

    body = json.loads(Plan.without_privacy(SAMPLING, steps=2).to_json())
    del body["sha256"]
    for change in (
        {"privacy": "some"}, {"clip_norm": [None, -1.0]}, {"clip_norm": []}, {"clip_norm": 3}, {"clip_norm": ["a"]},
        {"guarantee": {"epsilon": 1.0}}, {"sampling": {"dataset_size": 0, "expected_batch_size": 1}}, {"version": 3},
    ):  # fmt: skip
        with pytest.raises(FileRefused):
            Plan.from_json(sealed.seal(body | change))


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, 1e-20])
def test_clip_norms_are_checked_as_ever(clip: float, data: Data) -> None:
    with pytest.raises(InvalidValue, match="clip_norm"):
        trained(Plan.without_privacy(SAMPLING, steps=1, clip=clip), data)


def test_old_plans_are_the_files_they_were() -> None:
    """Version 1 as it was written before plans without privacy were: the same bytes and the same digest."""
    plan = make_plan((2.0, 1.0), (1.0, 0.5), judge=False)
    body = json.loads(plan.to_json())
    assert (body["version"], list(body)) == (
        1,
        ["format", "version", "budget", "sampling", "schedule", "guarantee", "sha256"],
    )
    assert plan.sha256 == "9c424c8ea4fe668ef3a406296a839af551c7fc7b41f584cf38bd691f10301489"
