"""Facts: logs hold what is public and nothing else unasked; what is private is called so. Each logger that is installed
writes for real, and its own reader reads it back."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.errors import InvalidType, InvalidValue, MissingExtra
from decrescendo.integrations.loggers import Log, mlflow, tensorboard, wandb
from decrescendo.training.steering import ClipController

ROWS, STEPS = 60, 4
PUBLIC = {
    f"public/{name}"
    for name in ("noise_multiplier", "clip_norm", "expected_batch_size", "epsilon_spent", "learning_rate")
}
PRIVATE = {f"private/{name}" for name in ("loss", "clipped_share", "nonfinite")}


@pytest.fixture(scope="module")
def plan() -> dc.Plan:
    return dc.calibrate(
        dc.Budget(2.0, 1e-3), dc.PoissonSampling(ROWS, 30), steps=STEPS,
        privacy=dc.curves.growing_mu(2.0), clip=dc.curves.sensitivity_decay(1.0, 2.0),
    )  # fmt: skip


def train(plan: dc.Plan, make: Callable[[torch.optim.Optimizer], Log], *, data_seed: int = 0) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().sum(dim=1)

    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    generator = torch.Generator().manual_seed(data_seed)
    data = torch.randn(ROWS, 2, generator=generator), torch.randn(ROWS, 1, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    dc.train(model, loss, data, plan, optimizer, seed=0, callback=make(optimizer))


def logged(plan: dc.Plan, *, private: bool = False, data_seed: int = 0) -> list[tuple[int, dict[str, float]]]:
    found: list[tuple[int, dict[str, float]]] = []

    def write(values: Mapping[str, float], step: int) -> None:
        found.append((step, dict(values)))

    train(plan, lambda optimizer: Log(plan, write, optimizer=optimizer, private=private), data_seed=data_seed)
    return found


def check(plan: dc.Plan, read: Callable[[str], list[tuple[int, float]]]) -> None:
    """What a logger's own reader says, by name, is what the plan says."""
    steps = range(1, STEPS + 1)
    expected = {
        "public/noise_multiplier": plan.noise_multiplier, "public/clip_norm": plan.clip_norm,
        "public/expected_batch_size": [30.0] * STEPS, "public/learning_rate": [0.25] * STEPS,
    }  # fmt: skip
    for name, values in expected.items():
        assert [step for step, _ in read(name)] == list(steps)
        assert [value for _, value in read(name)] == pytest.approx(list(values), rel=1e-6)
    spent = [value for _, value in read("public/epsilon_spent")]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(plan.guarantee.epsilon, rel=1e-6)


def test_the_log_is_the_plan_and_the_same_whatever_the_data_are(plan: dc.Plan) -> None:
    found = logged(plan)
    assert [set(values) for _, values in found] == [PUBLIC] * STEPS
    check(plan, lambda name: [(step, values[name]) for step, values in found])
    assert found == logged(plan, data_seed=1)


def test_what_is_private_is_asked_for_and_called_so(plan: dc.Plan) -> None:
    found, other = logged(plan, private=True), logged(plan, private=True, data_seed=1)
    assert [set(values) for _, values in found] == [PUBLIC | PRIVATE] * STEPS
    assert all(0 <= values["private/clipped_share"] <= 1 for _, values in found)
    assert found != other
    assert [{k: v for k, v in values.items() if k in PUBLIC} for _, values in found] == [v for _, v in logged(plan)]


def test_an_empty_batch_has_no_mean() -> None:
    few = dc.calibrate(
        dc.Budget(2.0, 1e-3), dc.PoissonSampling(ROWS, 0.2), steps=3,
        privacy=dc.curves.constant(1.0), clip=dc.curves.constant(1.0),
    )  # fmt: skip
    found = logged(few, private=True)
    assert any("private/loss" not in values for _, values in found)


def test_an_adaptive_run_is_refused() -> None:
    with pytest.raises((InvalidType, TypeError)):
        Log("plan", lambda values, step: None)  # type: ignore[arg-type]


def test_what_cannot_be_logged_to_is_one_sentence(plan: dc.Plan) -> None:
    with pytest.raises(InvalidType, match=r"writer must have add_scalar, got 'logs'\. Give a SummaryWriter"):
        unchecked(tensorboard)("logs", plan)
    with pytest.raises(InvalidType, match=r"run must have log, got None\. Give what wandb\.init\(\) returned"):
        unchecked(wandb)(None, plan)
    for wrong, words in (
        ({"optimizer": [1]}, "optimizer must be a Optimizer, got list"),
        ({"private": "no"}, "private must be a bool, got str"),  # which is true
    ):
        with pytest.raises(InvalidType, match=words):
            unchecked(Log.__init__)(object.__new__(Log), plan, lambda values, step: None, **wrong)
    with pytest.raises(InvalidType, match=r"writer must have add_scalar, got Plan\. Give"):
        unchecked(tensorboard)(plan, plan)
    fewer = dc.calibrate(
        dc.Budget(2.0, 1e-3), dc.PoissonSampling(ROWS, 30), steps=2,
        privacy=dc.curves.constant(1.0), clip=dc.curves.constant(1.0),
    )  # fmt: skip
    with pytest.raises(InvalidValue, match="got one of 2 steps for a training of 4"):
        train(plan, lambda optimizer: Log(fewer, lambda values, step: None))
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        InvalidType, match="callback must be a function of a Progress, or a list of such functions, got str"
    ):
        unchecked(dc.train)(model, None, None, plan, optimizer, seed=0, callback="print")


def unchecked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without the type checker of the test run, as users call it."""
    return getattr(function, "__wrapped__", function)


def test_tensorboard(plan: dc.Plan, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            train(plan, lambda optimizer: tensorboard(writer, plan, optimizer=optimizer))
        events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == PUBLIC
    check(plan, lambda name: [(event.step, event.value) for event in events.Scalars(name)])


def test_mlflow(plan: dc.Plan, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("mlflow")
        library.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
        try:
            with library.start_run() as active:
                train(plan, lambda optimizer: mlflow(plan, optimizer=optimizer))
            client = library.MlflowClient()
            assert set(client.get_run(active.info.run_id).data.metrics) == PUBLIC
            check(
                plan,
                lambda name: [(m.step, m.value) for m in client.get_metric_history(active.info.run_id, name)],
            )
        finally:
            library.set_tracking_uri("")


def test_wandb(plan: dc.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline: a file is written, and nothing is sent."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("wandb")
        with library.init(dir=str(tmp_path), project="test") as run:
            train(plan, lambda optimizer: wandb(run, plan, optimizer=optimizer))
            run.log({}, step=STEPS + 1)  # a step is complete when the next one begins
            summary = {name: value for name, value in dict(run.summary).items() if not name.startswith("_")}
    assert set(summary) == PUBLIC
    assert summary["public/clip_norm"] == pytest.approx(plan.clip_norm[-1])
    assert list(tmp_path.rglob("*.wandb"))


def test_a_logger_that_is_not_installed_is_named(plan: dc.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtra, match="pip install mlflow"):
        mlflow(plan)


def test_a_clip_norm_that_follows_the_gradients_is_logged_as_it_was() -> None:
    """What was logged was C_0, at every step."""
    flat = dc.curves.constant(1.0)
    plan = dc.calibrate(dc.Budget(2.0, 1e-3), dc.PoissonSampling(ROWS, 30), steps=STEPS, privacy=flat, clip=flat)
    model, found = nn.Linear(2, 1), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    data = torch.ones(ROWS, 2), torch.ones(ROWS, 1)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().sum(dim=1)

    log = Log(plan, lambda values, step: found.append(values["public/clip_norm"]))
    run = dc.train(model, loss, data, ClipController(plan, target=0.5), optimizer, seed=0, callback=log)
    assert tuple(found) == run.clip_norm
    assert len(set(found)) == STEPS


def test_what_was_released_beside_the_gradients_is_logged_with_its_standard_error(plan: dc.Plan) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().sum(dim=1)

    model, found = nn.Linear(2, 1), list[dict[str, float]]()
    data = torch.ones(ROWS, 2), torch.ones(ROWS, 1)
    log = Log(plan, lambda values, step: found.append(dict(values)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    told = dc.Telemetry(norms=4, loss=True)
    run = dc.train(model, loss, data, plan, optimizer, seed=0, callback=log, telemetry=told)
    for values, reading in zip(found, run.telemetry, strict=True):
        names = {name.partition("/")[2] for name in values if name.startswith("telemetry/")}
        assert names == {"loss", "loss_standard_error", "clipped_share", "clipped_share_standard_error"}
        assert reading.loss is not None
        assert values["telemetry/loss"] == reading.loss.value
        assert values["telemetry/loss_standard_error"] == reading.loss.standard_error
