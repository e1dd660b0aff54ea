"""Facts: training takes exactly the steps of its plan, with its noise and clipping, and records each one."""

import subprocess
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from drawn import normals
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from decrescendo.base.rng import Streams
from decrescendo.errors import (
    AccountingError,
    DecrescendoError,
    InvalidType,
    InvalidValue,
    PlanViolation,
    UnsupportedModel,
)
from decrescendo.training import Trainer, train
from decrescendo.training.loop.progress import Progress

from .conftest import ROWS, loss, make_model, make_plan, sgd

Pair = tuple[torch.Tensor, torch.Tensor]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_hand(model: nn.Module, data: Pair, plan: Any, seed: int, lr: float) -> None:
    """DP-SGD written out: one example after another, nothing shared with the library but the streams."""
    streams = Streams(seed)
    noise = streams.keyed("noise")
    draws = plan.sampling.batches(plan.steps, streams.numpy("sampling"))
    named = sorted(model.named_parameters())
    for t, indices in enumerate(draws):
        clip, z = plan.schedule.clip_norm[t], plan.schedule.noise_multiplier[t]
        total = {name: torch.zeros_like(p) for name, p in named}
        for i in indices:
            model.zero_grad()
            loss(model, (data[0][i : i + 1], data[1][i : i + 1])).sum().backward()
            norm = torch.sqrt(sum(p.grad.square().sum() for _, p in named))
            for name, p in named:
                total[name] += p.grad * (min(1.0, float(clip) / float(norm)) if norm else 1.0)
        drawn = normals(noise, {name: p.shape for name, p in named})
        with torch.no_grad():
            for name, p in named:
                noisy = total[name] + z * clip * drawn[name]
                p -= lr * noisy / plan.sampling.expected_batch_size
    model.zero_grad()


@pytest.mark.parametrize("batch", [8.0, 0.4])
def test_training_is_dp_sgd_written_out_by_hand(data: Pair, batch: float) -> None:
    plan = make_plan([2.0, 1.5, 1.2, 1.1, 1.0], [1.0, 0.8, 0.5, 0.3, 0.2], batch=batch)
    model, expected = make_model(), make_model()
    train(model, loss, data, plan, sgd(model), seed=11)
    by_hand(expected, data, plan, seed=11, lr=0.5)
    assert torch.allclose(weights(model), weights(expected), atol=1e-5)
    # The tolerance can tell: clipping 1 % harder is seen.
    other = make_model()
    wrong = make_plan(plan.schedule.noise_multiplier, plan.schedule.clip_norm * 0.99, batch=batch)
    by_hand(other, data, wrong, seed=11, lr=0.5)
    assert not torch.allclose(weights(model), weights(other), atol=1e-5)


@given(
    schedule=st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.01, 5)), min_size=1, max_size=4),
    batch=st.floats(0.2, 30),
    seed=st.integers(0, 2**40),
)
def test_it_is_dp_sgd_for_every_schedule_batch_size_and_seed(
    schedule: list[tuple[float, float]], batch: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(ROWS, 3, generator=generator), torch.arange(ROWS) % 2
    noise, clip = zip(*schedule, strict=True)
    plan = make_plan(noise, clip, batch=batch, judge=False)
    model, expected = make_model(), make_model()
    with mock.patch(
        "decrescendo.training.loop.source.certify", return_value=plan.guarantee
    ):  # it costs more than the rest
        trainer = Trainer(model, loss, plan, sgd(model), seed=seed)
    for drawn in trainer.batches(data):
        trainer.step(drawn)
    by_hand(expected, data, plan, seed=seed, lr=0.5)
    assert torch.allclose(weights(model), weights(expected), atol=1e-4, rtol=1e-4)
    assert trainer.ledger == plan.ledger


def test_a_plan_that_cannot_be_judged_is_refused_before_the_training(
    data: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AccountingError("cannot")

    monkeypatch.setattr("decrescendo.training.loop.source.certify", refuse)
    model = make_model()
    before = weights(model)
    with pytest.raises(AccountingError, match="cannot"):
        train(model, loss, data, make_plan(), sgd(model), seed=0)
    assert torch.equal(weights(model), before)


@pytest.mark.gpu
def test_on_a_gpu_a_seed_gives_the_same_batches_and_other_noise(data: Pair) -> None:
    models, batches = [make_model(), make_model().to("cuda"), make_model().to("cuda")], []
    for model in models:
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=11)
        batches.append([])
        for batch in trainer.batches(data):
            batches[-1].append(batch if batch is None else batch[0].cpu())
            trainer.step(batch)
    assert torch.equal(weights(models[1]), weights(models[2]))
    assert not torch.allclose(weights(models[0]), weights(models[1]).cpu(), atol=1e-2)
    for on_cpu, on_gpu in zip(batches[0], batches[1], strict=True):
        assert (on_cpu is None) == (on_gpu is None)
        assert on_cpu is None or torch.equal(on_cpu, on_gpu)


def noise_of_a_run(plan: Any, scale: float = 1.0) -> torch.Tensor:
    """Standardised steps of a model whose gradients are zero: pure noise, in units of what the plan says."""
    model = nn.Linear(200, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    zero = lambda model, batch: model(batch).sum(dim=1) * 0.0  # noqa: E731
    trainer = Trainer(model, zero, plan, optimizer, seed=5)
    found = []
    for t, batch in enumerate(trainer.batches(torch.ones(ROWS, 200))):
        before = weights(model)
        trainer.step(batch)
        std = plan.schedule.noise_std[t] / plan.sampling.expected_batch_size * scale
        found.append((before - weights(model)) / std)
    return torch.stack(found)


def test_every_step_has_the_noise_of_the_plan_on_full_and_empty_batches() -> None:
    # 10 steps of 20,100 numbers: the deviation of one step is known to 0.5 %, of all to 0.16 %.
    plan = make_plan(np.linspace(3, 1, 10), np.linspace(2, 0.1, 10), batch=0.5)
    noise = noise_of_a_run(plan)
    counts = [len(b) for b in plan.sampling.batches(10, Streams(5).numpy("sampling"))]
    assert 0 in counts
    assert max(counts) > 0
    assert ((noise.std(dim=1) - 1).abs() < 0.025).all()
    assert abs(float(noise.std()) - 1) < 0.007
    assert abs(float(noise.mean())) < 0.01
    # And steps are independent of each other.
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.04
    # The same test must fail for noise 3 % off.
    assert abs(float(noise_of_a_run(plan, scale=1.03).std()) - 1) > 0.02


def test_empty_batches_count_and_are_noised(data: Pair) -> None:
    plan = make_plan([1.0] * 20, [1.0] * 20, batch=0.01)
    model = make_model()
    before = weights(model)
    run = train(model, loss, data, plan, sgd(model), seed=0)
    assert run.diagnostics is not None
    assert sum(run.diagnostics.examples) == 0
    assert run.ledger == plan.ledger
    assert not torch.equal(weights(model), before)


def test_a_run_is_decided_by_its_seed_alone(data: Pair) -> None:
    def run(seed: int, other: int) -> torch.Tensor:
        model = make_model()
        torch.manual_seed(other)
        np.random.seed(other)
        train(model, loss, data, make_plan(), sgd(model), seed=seed)
        return weights(model)

    assert torch.equal(run(3, 0), run(3, 1))
    assert not torch.equal(run(3, 0), run(4, 0))


def test_training_leaves_the_global_generators_alone(data: Pair) -> None:
    model = make_model()
    state, state_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    train(model, loss, data, make_plan(), sgd(model), seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], state_numpy)


def test_another_model_has_the_same_batches_and_the_same_noise(data: Pair) -> None:
    def run(activation: Any) -> tuple[torch.Tensor, Any]:
        model = make_model(activation)
        silent = lambda model, batch: loss(model, batch) * 0.0  # noqa: E731
        result = train(model, silent, data, make_plan(), sgd(model), seed=3)
        return weights(model), result.diagnostics.examples

    first, second = run(nn.Tanh), run(nn.ReLU)
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]


class Items(Dataset[Any]):
    def __init__(self, data: Pair) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[0][index], self.data[1][index]


def test_every_kind_of_data_gives_the_same_run(data: Pair) -> None:
    def run(rows: object, of: Any = loss) -> torch.Tensor:
        model = make_model()
        train(model, of, rows, make_plan(), sgd(model), seed=3)
        return weights(model)

    plain = run(data)
    assert torch.equal(plain, run(list(data)))
    assert torch.equal(plain, run(TensorDataset(*data)))
    assert torch.equal(plain, run(Items(data)))
    named = {"x": data[0], "y": data[1]}
    assert torch.equal(plain, run(named, lambda model, batch: loss(model, (batch["x"], batch["y"]))))


def trainer_for(data: Pair, plan: Any = None) -> Trainer:
    model = make_model()
    return Trainer(model, loss, plan or make_plan(), sgd(model), seed=0)


def test_the_own_loop_is_the_loop(data: Pair) -> None:
    model = make_model()
    train(model, loss, data, make_plan(), sgd(model), seed=0)
    trainer = trainer_for(data)
    releases = [trainer.step(batch).release for batch in trainer.batches(data)]
    run = trainer.finish()
    assert torch.equal(torch.cat([w.flatten() for w in run.weights.values()]), weights(model))
    assert [r.noise_multiplier for r in releases] == [2.0, 1.5, 1.2]
    assert run.ledger == trainer.ledger == make_plan().ledger


def test_the_step_in_two_halves_is_the_step(data: Pair) -> None:
    """What fills ``.grad``, and a loop of somebody else's that steps the optimiser and clears it."""
    whole, halves = make_model(), make_model()
    train(whole, loss, data, make_plan(), sgd(whole), seed=3)
    optimizer = sgd(halves)
    trainer = Trainer(halves, loss, make_plan(), optimizer, seed=3)
    for batch in trainer.batches(data):
        result = trainer.fill_gradients(batch)
        assert result.step == trainer.ledger.steps  # recorded before the optimiser moves
        assert all(p.grad is not None for p in halves.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), halves.parameters(), strict=True))
    assert trainer.finish().ledger == make_plan().ledger


def test_a_step_beyond_the_plan_is_refused(data: Pair) -> None:
    trainer = trainer_for(data)
    for batch in trainer.batches(data):
        trainer.step(batch)
    assert list(trainer.batches(data)) == []
    with pytest.raises(PlanViolation, match="within the 3 steps"):
        trainer.step(None)
    assert trainer.ledger.steps == 3


def test_skipping_a_batch_is_refused(data: Pair) -> None:
    # "if batch is None: continue" would show which batches were empty.
    trainer = trainer_for(data, make_plan([1.0] * 50, [1.0] * 50, batch=0.5))
    nonempty = (batch for batch in trainer.batches(data) if batch is not None)
    with pytest.raises(PlanViolation, match="every drawn batch must be given to step"):
        list(map(trainer.step, nonempty))


def test_a_batch_is_used_once(data: Pair) -> None:
    trainer = trainer_for(data)
    batch = next(trainer.batches(data))
    trainer.step(batch)
    with pytest.raises(PlanViolation, match="a batch of its own"):
        trainer.step(batch)
    assert trainer.ledger.steps == 1


@pytest.mark.parametrize("change", [lambda b: None, lambda b: (b[0][1:], b[1][1:])])
def test_a_batch_keeps_its_rows(data: Pair, change: Any) -> None:
    trainer = trainer_for(data)
    batch = next(b for b in trainer.batches(data) if b is not None)
    with pytest.raises(PlanViolation, match="the batch just drawn"):
        trainer.step(change(batch))
    assert trainer.ledger.steps == 0


def test_an_own_loop_may_pause_and_go_on(data: Pair) -> None:
    whole, parts = trainer_for(data), trainer_for(data)
    for batch in whole.batches(data):
        whole.step(batch)
    for batch in parts.batches(data):
        parts.step(batch)
        break
    for batch in parts.batches(data):
        parts.step(batch)
    one, two = whole.finish().weights, parts.finish().weights
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_crash_in_the_optimizer_does_not_hide_the_release(data: Pair) -> None:
    class Breaks(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("power cut")

    model = make_model()
    trainer = Trainer(model, loss, make_plan(), Breaks(model.parameters(), lr=0.1), seed=0)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.step(next(trainer.batches(data)))
    assert trainer.ledger == make_plan().ledger.first(1)


def test_nonfinite_gradients_are_counted_and_harmless(data: Pair) -> None:
    inputs = data[0].clone()
    inputs[::3] = float("nan")
    model, shown = make_model(), []
    run = train(
        model, loss, (inputs, data[1]), make_plan(batch=20), sgd(model), seed=0,
        callback=lambda p: shown.append(p.diagnostics.nonfinite), require_finite=False,
    )  # fmt: skip
    assert run.diagnostics is not None
    assert sum(run.diagnostics.nonfinite) > 0
    assert list(run.diagnostics.nonfinite) == shown
    assert torch.isfinite(weights(model)).all()


def test_the_callback_sees_each_step_and_may_end_the_run(data: Pair) -> None:
    seen: list[Progress] = []

    def stop_after_two(progress: Progress) -> bool:
        seen.append(progress)
        return progress.step == 2

    model = make_model()
    run = train(model, loss, data, make_plan(), sgd(model), seed=0, callback=stop_after_two)
    assert [(p.step, p.steps) for p in seen] == [(1, 3), (2, 3)]
    assert all(p.seconds >= 0 for p in seen)
    assert run.ledger == make_plan().ledger.first(2)
    # When to stop may depend on the releases: then only the whole plan's epsilon is a guarantee.
    assert run.guarantee == make_plan().guarantee
    assert "2 of 3 planned" in run.describe()


def test_a_callback_may_step_a_learning_rate_scheduler(data: Pair) -> None:
    model = make_model()
    optimizer = sgd(model, lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=3)
    rates = []

    def callback(progress: Progress) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()

    train(model, loss, data, make_plan(), optimizer, seed=0, callback=callback)
    assert rates == pytest.approx([1.0, 0.7, 0.4])


class RunningMean(nn.Module):
    """Looks row by row, and quietly keeps a mean of the raw data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean += x.detach().mean(dim=0)
        return self.linear(x)


@pytest.mark.parametrize("build", [RunningMean, lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))])
def test_buffers_that_hold_raw_data_are_refused(data: Pair, build: Any) -> None:
    model = build()
    with pytest.raises(UnsupportedModel):
        train(model, loss, data, make_plan(batch=20), sgd(model), seed=0)


class CodeBook(nn.Module):
    """Moves a frozen parameter towards its inputs, unseen by autograd's version counters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.code = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.code.data += x.detach().mean(dim=0)
        return self.linear(x)


def test_a_frozen_parameter_that_holds_raw_data_is_refused(data: Pair) -> None:
    model = CodeBook()
    with pytest.raises(UnsupportedModel, match=r"must not change .*got a change of code"):
        train(model, loss, data, make_plan(batch=20), sgd(model), seed=0)


def test_layers_may_be_thawed_and_frozen_between_steps(data: Pair) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)

    def callback(progress: Progress) -> None:
        model[0].requires_grad_(progress.step % 2 == 1)

    assert train(model, loss, data, make_plan(), sgd(model), seed=0, callback=callback).steps == 3


def meta_model() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"seed": -1}, InvalidValue, "seed must be >= 0"),
        ({"data": "train.csv"}, InvalidType, "data must be"),
        ({"data": (torch.zeros(39, 3), torch.zeros(39).long())}, InvalidValue, "plan's 40 rows, got 39"),
        ({"data": (torch.zeros(40, 3), torch.zeros(39).long())}, InvalidValue, r"\[39, 40\]"),
        ({"model": meta_model()}, UnsupportedModel, "meta device"),
        ({"model": make_model().requires_grad_(False)}, InvalidValue, "requires_grad=True"),
        ({"optimizer": sgd(make_model())}, InvalidValue, "this model only"),
        ({"loss": lambda m, b: loss(m, b).mean()}, UnsupportedModel, "one loss per example"),
        ({"loss": lambda m, b: loss(m, b).detach()}, UnsupportedModel, "losses"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_wrong_inputs_are_one_clear_error(
    data: Pair, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    model = make_model()
    given = {"model": model, "loss": loss, "data": data, "plan": make_plan(), "seed": 0} | change
    given.setdefault("optimizer", sgd(given["model"], lr=0.1))
    seed = given.pop("seed")
    with pytest.raises(error, match=words) as caught:
        train(given["model"], given["loss"], given["data"], given["plan"], given["optimizer"], seed=seed)
    assert isinstance(caught.value, DecrescendoError)


def test_there_is_no_default_seed(data: Pair) -> None:
    model = make_model()
    with pytest.raises(TypeError, match="seed"):
        train(model, loss, data, make_plan(), sgd(model))  # type: ignore[call-arg]


WRONG_TYPES = """
import torch
from decrescendo.errors import InvalidType
from decrescendo.training import Trainer, train

model = torch.nn.Linear(3, 2)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
for given in ((model, "plan.json", sgd), (torch.zeros(2), None, sgd)):
    try:
        train(given[0], None, (), given[1], given[2], seed=0)
    except InvalidType as error:
        print(error)
"""


@pytest.mark.slow
def test_wrong_types_are_named_without_the_test_hook() -> None:
    # In a process of its own: here the hook's type checks would answer first.
    done = subprocess.run([sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("plan must be a Plan, got str")
    assert lines[1].startswith("plan must be a Plan, got NoneType")


def test_a_release_that_nothing_used_is_said(data: Pair) -> None:
    model = make_model()
    optimizer = sgd(model)
    trainer = Trainer(model, loss, make_plan(), optimizer, seed=0)
    batches = trainer.batches(data)
    trainer.fill_gradients(next(batches))
    optimizer.step()
    trainer.fill_gradients(next(batches))
    with pytest.warns(UserWarning, match="a noisy mean was not used"):
        trainer.fill_gradients(next(batches))


def test_batches_without_a_finite_gradient_are_said() -> None:
    model, plan = make_model(), make_plan(batch=30)
    with pytest.warns(UserWarning, match="noise alone was released") as said:
        train(
            model,
            loss,
            (torch.full((ROWS, 3), torch.nan), torch.zeros(ROWS).long()),
            plan,
            sgd(model),
            seed=0,
            require_finite=False,
        )
    assert len(said) == 1


def test_errors_of_the_loss_say_how_it_is_called(data: Pair) -> None:
    model = make_model()
    with pytest.raises(TypeError) as caught:
        train(model, nn.functional.cross_entropy, data, make_plan(), sgd(model), seed=0)
    assert "loss(model, batch)" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError) as caught_again:
        train(model, loss, (data[0].double(), data[1]), make_plan(), sgd(model), seed=0)
    assert "The batch has torch.float64, torch.int64, the model torch.float32" in caught_again.value.__notes__[0]


def test_a_training_in_inference_mode_is_refused() -> None:
    model = make_model()
    with torch.inference_mode(), pytest.raises(InvalidValue, match="inference_mode"):
        Trainer(model, loss, make_plan(), sgd(model), seed=0)
