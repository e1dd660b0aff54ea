"""Facts: Adam behind the gate is Du's Algorithm 4; AdamBC takes off exactly the noise that was added, as it moves."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from drawn import normals, on_grid
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.release import Release
from decrescendo.base.rng import Streams
from decrescendo.clipping import ClippedSum, Diagnostics, Engine, Reference
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim import AdamBC, NoiseAware, apply
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.plans import curves
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import train

RELEASE = Release(0.1, 1.0)
FLOOR = 1e-8
Rule = Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]


def adam_bc_by_hand(
    gradients: np.ndarray, stds: np.ndarray, lr: float, betas: tuple[float, float], floor: float
) -> np.ndarray:
    """Weights after steps from zero, one coordinate and one step after another; sums written out, no recursion."""
    b1, b2 = betas
    weights = np.zeros(gradients.shape[1])
    for t in range(1, len(gradients) + 1):
        ages = t - 1 - np.arange(t)
        first, second = (1 - b1) * b1**ages, (1 - b2) * b2**ages
        for j in range(gradients.shape[1]):
            m = np.sum(first * gradients[:t, j]) / (1 - b1**t)
            v = np.sum(second * gradients[:t, j] ** 2) / (1 - b2**t)
            phi = np.sum(second * stds[:t] ** 2) / (1 - b2**t)
            weights[j] -= lr * m / math.sqrt(max(v - phi, floor))
    return weights


class Bare(nn.Module):
    """One vector of weights, in float64 so that the formula shows to its last digits."""

    def __init__(self, size: int, start: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((size,), start, dtype=torch.float64))


def mean_of(gradient: np.ndarray | torch.Tensor, std: float | None) -> NoisyMean:
    return NoisyMean({"w": torch.as_tensor(gradient)}, RELEASE, std)


def drive(model: Bare, optimizer: torch.optim.Optimizer, gradients: np.ndarray, stds: np.ndarray) -> np.ndarray:
    for gradient, std in zip(gradients, stds, strict=True):
        apply(mean_of(gradient, float(std)), model, optimizer)
    return model.w.detach().numpy().copy()


def noisy_gradients(steps: int = 12, size: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    stds = np.geomspace(0.5, 0.02, steps)
    return 0.3 + stds[:, None] * generator.standard_normal((steps, size)), stds


def test_moving_noise_against_the_formula_written_out() -> None:
    gradients, stds = noisy_gradients()
    model = Bare(5)
    ours = drive(model, AdamBC(model.parameters(), lr=0.1, betas=(0.8, 0.9), floor=FLOOR), gradients, stds)
    by_hand = adam_bc_by_hand(gradients, stds, 0.1, (0.8, 0.9), FLOOR)
    np.testing.assert_allclose(ours, by_hand, rtol=1e-9)
    # Power: a correction by the latest noise alone, or by the mean variance, is another optimiser.
    for wrong in (np.full_like(stds, stds[-1]), np.full_like(stds, math.sqrt(np.mean(stds**2)))):
        other = adam_bc_by_hand(gradients, wrong, 0.1, (0.8, 0.9), FLOOR)
        assert not np.allclose(ours, other, rtol=1e-3)


def test_constant_noise_is_dp_adam_bc_as_published() -> None:
    """Tang et al., Algorithm 1: max(v^_t - (sigma C / B)^2, gamma') with one constant for the whole run."""
    sigma, clip, batch, lr, b1, b2 = 1.3, 0.7, 8, 0.05, 0.9, 0.999
    generator = np.random.default_rng(1)
    std = sigma * clip / batch
    gradients = 0.1 + std * generator.standard_normal((30, 4))
    m, v, published = np.zeros(4), np.zeros(4), np.zeros(4)
    for t, g in enumerate(gradients, start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        divisor = np.sqrt(np.maximum(v / (1 - b2**t) - (sigma * clip / batch) ** 2, FLOOR))
        published -= lr * m / (1 - b1**t) / divisor
    model = Bare(4)
    ours = drive(model, AdamBC(model.parameters(), lr=lr, floor=FLOOR), gradients, np.full(30, std))
    np.testing.assert_allclose(ours, published, rtol=1e-9)


def test_with_constant_noise_the_relative_floor_is_a_published_floor() -> None:
    gradients = 0.1 * np.random.default_rng(2).standard_normal((20, 6))
    stds = np.full(20, 0.1)
    one, other = Bare(6), Bare(6)
    relative = drive(one, AdamBC(one.parameters(), floor=1e-12, relative_floor=0.2), gradients, stds)
    absolute = drive(other, AdamBC(other.parameters(), floor=0.2 * 0.1**2), gradients, stds)
    np.testing.assert_allclose(relative, absolute, rtol=1e-12)
    third = Bare(6)
    assert not np.allclose(drive(third, AdamBC(third.parameters(), floor=1e-12), gradients, stds), absolute, rtol=1e-2)


def test_without_noise_and_floor_it_is_adam() -> None:
    gradients, _ = noisy_gradients()
    one, other = Bare(5), Bare(5)
    ours = drive(one, AdamBC(one.parameters(), lr=0.1, floor=1e-60), gradients, np.zeros(12))
    adam = drive(other, torch.optim.Adam(other.parameters(), lr=0.1, eps=0.0), gradients, np.zeros(12))
    np.testing.assert_allclose(ours, adam, rtol=1e-12)


def test_weight_decay_is_that_of_adamw() -> None:
    gradients, _ = noisy_gradients()
    one, other = Bare(5, 2.0), Bare(5, 2.0)
    ours = drive(one, AdamBC(one.parameters(), lr=0.1, floor=1e-60, weight_decay=0.3), gradients, np.zeros(12))
    theirs = torch.optim.AdamW(other.parameters(), lr=0.1, eps=0.0, weight_decay=0.3)
    np.testing.assert_allclose(ours, drive(other, theirs, gradients, np.zeros(12)), rtol=1e-12)


@given(
    rows=st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 2)), min_size=1, max_size=8),
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.999)),
    floor=st.floats(1e-6, 1.0),
)
def test_it_is_the_formula_for_every_sequence(
    rows: list[tuple[float, float, float]], betas: tuple[float, float], floor: float
) -> None:
    gradients, stds = np.array([row[:2] for row in rows]), np.array([row[2] for row in rows])
    model = Bare(2)
    ours = drive(model, AdamBC(model.parameters(), lr=0.1, betas=betas, floor=floor), gradients, stds)
    np.testing.assert_allclose(ours, adam_bc_by_hand(gradients, stds, 0.1, betas, floor), rtol=1e-6, atol=1e-9)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=10), st.floats(1e-4, 1))
def test_no_step_is_longer_than_the_floor_allows(rows: list[tuple[float, float]], floor: float) -> None:
    model = Bare(1)
    optimizer = AdamBC(model.parameters(), lr=1.0, floor=floor)
    for gradient, std in rows:
        before = model.w.item()
        apply(mean_of(np.array([gradient]), std), model, optimizer)
        assert abs(model.w.item() - before) <= 1 / math.sqrt(floor) * (1 + 1e-12)


def test_the_second_moment_without_its_noise_is_the_squared_clean_gradient() -> None:
    """100,000 coordinates with the same clean gradient, noise that falls by ten: a z-test on the mean of v^ - phi^."""
    size, steps, beta2 = 100_000, 40, 0.95
    clean = np.linspace(0.1, 0.02, steps)
    stds = np.geomspace(0.3, 0.03, steps)
    model, generator = Bare(size), np.random.default_rng(3)
    bc = AdamBC(model.parameters(), betas=(0.9, beta2))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, beta2))
    for g, std in zip(clean, stds, strict=True):
        noisy = mean_of(g + std * generator.standard_normal(size), float(std))
        apply(noisy, model, bc)
        apply(noisy, model, adam)
    weights = (1 - beta2) * beta2 ** (steps - 1 - np.arange(steps)) / (1 - beta2**steps)
    truth = float(np.sum(weights * clean**2))
    state = bc.state[model.w]

    def z_score(square: torch.Tensor, noise: float) -> float:
        estimate = (square.numpy() - noise) / (1 - beta2**steps)
        return float((estimate.mean() - truth) / (estimate.std() / math.sqrt(size)))

    assert abs(z_score(state["exp_avg_sq"], state["noise_variance"])) < 4
    assert z_score(adam.state[model.w]["exp_avg_sq"], 0.0) > 100
    # Power: noise declared 3 % too large or too small is seen, and so is a correction that does not follow it.
    for factor in (0.97, 1.03):
        assert abs(z_score(state["exp_avg_sq"], state["noise_variance"] * factor**2)) > 20
    assert abs(z_score(state["exp_avg_sq"], float(stds[-1] ** 2) * (1 - beta2**steps))) > 100


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def examples(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return inputs, (inputs[:, 0] > 0).long()


def algorithm_4(model: nn.Module, plan: Plan, data: Any, seed: int, rule: Rule) -> None:
    """Du et al., Algorithm 4, one example after another; ``rule`` is the update from all gradients so far."""
    streams = Streams(seed)
    noise = streams.keyed("noise")
    named = sorted(model.named_parameters())
    history: dict[str, list[np.ndarray]] = {name: [] for name, _ in named}
    for t, indices in enumerate(plan.sampling.batches(plan.steps, streams.numpy("sampling"))):
        clip, z = plan.clip_norm[t], plan.noise_multiplier[t]
        total = {name: torch.zeros_like(p) for name, p in named}
        for i in indices:
            model.zero_grad()
            loss(model, (data[0][i : i + 1], data[1][i : i + 1])).sum().backward()
            norm = float(torch.sqrt(sum(p.grad.square().sum() for _, p in named)))
            for name, p in named:
                total[name] += p.grad * min(1.0, clip / norm)
        normal = normals(noise, {name: p.shape for name, p in named})
        for name, p in named:
            drawn = normal[name]
            noisy = on_grid(total[name] + z * clip * drawn, z * clip)
            history[name].append((noisy / plan.sampling.expected_batch_size).numpy())
            with torch.no_grad():
                p -= torch.as_tensor(rule(np.stack(history[name]), plan.noise_multiplier, plan.clip_norm, t + 1))


@pytest.fixture(scope="module")
def moving_plan() -> Plan:
    return calibrate(
        Budget(4.0, 1e-3), PoissonSampling(60, 10), steps=12,
        privacy=curves.growing_mu(2.0), clip=curves.sensitivity_decay(0.8, rho_c=3.0),
    )  # fmt: skip


def averages(history: np.ndarray, t: int, beta: float) -> np.ndarray:
    weights = (1 - beta) * beta ** (t - 1 - np.arange(t)) / (1 - beta**t)
    return np.tensordot(weights, history, axes=1)


def weights_of(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def test_training_with_torch_s_adam_is_algorithm_4(moving_plan: Plan) -> None:
    def adam(history: np.ndarray, z: np.ndarray, c: np.ndarray, t: int) -> np.ndarray:
        return 0.1 * averages(history, t, 0.9) / (np.sqrt(averages(history**2, t, 0.999)) + 1e-8)

    ours, by_hand = net(), net()
    train(ours, loss, examples(60), moving_plan, torch.optim.Adam(ours.parameters(), lr=0.1), seed=3)
    algorithm_4(by_hand, moving_plan, examples(60), 3, adam)
    np.testing.assert_allclose(weights_of(ours), weights_of(by_hand), rtol=1e-6, atol=1e-7)


def test_training_with_adam_bc_takes_off_the_noise_of_the_plan(moving_plan: Plan) -> None:
    batch = moving_plan.sampling.expected_batch_size

    def rule(correct: bool) -> Rule:
        def corrected(history: np.ndarray, z: np.ndarray, c: np.ndarray, t: int) -> np.ndarray:
            variance = (z * c / batch) ** 2 if correct else np.full_like(z, (z[0] * c[0] / batch) ** 2)
            phi = averages(variance[:t], t, 0.99)
            square = np.maximum(averages(history**2, t, 0.99) - phi, 1e-3)
            return 0.1 * averages(history, t, 0.9) / np.sqrt(square)

        return corrected

    ours, by_hand, constant = net(), net(), net()
    optimizer = AdamBC(ours.parameters(), lr=0.1, betas=(0.9, 0.99), floor=1e-3)
    run = train(ours, loss, examples(60), moving_plan, optimizer, seed=3)
    algorithm_4(by_hand, moving_plan, examples(60), 3, rule(True))
    np.testing.assert_allclose(weights_of(ours), weights_of(by_hand), rtol=1e-6, atol=1e-7)
    # Post-processing: the guarantee is the plan's.
    assert run.ledger == moving_plan.ledger
    # Power: the published constant correction gives other weights here.
    algorithm_4(constant, moving_plan, examples(60), 3, rule(False))
    assert not np.allclose(weights_of(ours), weights_of(constant), rtol=1e-2)


@pytest.mark.parametrize(
    "clipper",
    [Engine, Reference],
    ids=["Engine", "Reference"],
)
@pytest.mark.parametrize("rows", [0, 7])
def test_the_noise_that_is_told_is_the_noise_that_was_added(clipper: Callable[..., Any], rows: int) -> None:
    z, clip, sampling, model = 1.7, 0.3, PoissonSampling(100, 8), net()
    batch = examples(rows) if rows else None
    summed = clipper(model, loss).clipped_sum(batch, clip)
    noisy = privatise(summed, z, sampling, torch.Generator().manual_seed(5))
    assert noisy.noise_std == z * clip / 8
    generator = torch.Generator().manual_seed(5)
    for name in sorted(noisy.gradients):
        drawn = torch.randn(noisy.gradients[name].shape, dtype=torch.float64, generator=generator)
        added = noisy.gradients[name] - summed.gradients[name] / 8
        torch.testing.assert_close(added, drawn * noisy.noise_std, rtol=1e-12, atol=1e-15)


def test_a_mean_without_noise_says_so() -> None:
    clipped = ClippedSum({"w": torch.ones(2)}, math.inf, Diagnostics(3, 0, 0, 0.0))
    assert privatise(clipped, 0.0, PoissonSampling(10, 2), torch.Generator()).noise_std == 0


def test_only_noise_aware_optimisers_are_told() -> None:
    assert isinstance(AdamBC(Bare(1).parameters()), NoiseAware)
    assert not isinstance(torch.optim.Adam(Bare(1).parameters()), NoiseAware)


def test_a_step_outside_of_apply_is_refused_and_changes_nothing() -> None:
    model = Bare(2)
    optimizer = AdamBC(model.parameters())
    apply(mean_of(np.ones(2), 0.5), model, optimizer)
    before, state = model.w.detach().clone(), copy.deepcopy(optimizer.state_dict())
    model.w.grad = torch.ones(2, dtype=torch.float64)
    with pytest.raises(InvalidValue, match=r"outside of apply\. Use"):
        optimizer.step()
    assert torch.equal(model.w, before)
    assert optimizer.state_dict()["state"][0]["step"] == state["state"][0]["step"] == 1


def test_a_mean_that_does_not_say_its_noise_is_refused_by_those_who_must_know() -> None:
    model = Bare(2)
    with pytest.raises(InvalidValue, match="noise_std=None"):
        apply(mean_of(np.ones(2), None), model, AdamBC(model.parameters()))
    assert model.w.grad is None
    assert model.w.tolist() == [0.0, 0.0]
    apply(mean_of(np.ones(2), None), model, torch.optim.Adam(model.parameters()))


def test_noise_told_for_a_step_that_failed_is_forgotten() -> None:
    model = Bare(2)
    optimizer = AdamBC(model.parameters())

    def fail(*_: object) -> None:
        raise RuntimeError("from a hook")

    hook = optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="from a hook"):
        apply(mean_of(np.ones(2), 0.5), model, optimizer)
    hook.remove()
    with pytest.raises(InvalidValue, match="outside of apply"):
        optimizer.step()


@pytest.mark.parametrize("std", [-1.0, math.inf, math.nan])
def test_a_deviation_out_of_range_is_refused(std: float) -> None:
    with pytest.raises(InvalidValue, match="noise_std"):
        mean_of(np.ones(1), std)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"lr": -0.1}, "lr"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": (-0.1, 0.9)}, "betas"),
        ({"floor": 0.0}, "floor"),
        ({"floor": 1e-80}, "square root"),
        ({"relative_floor": -1.0}, "relative_floor"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_settings_out_of_range_are_refused_also_in_a_group(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        AdamBC(Bare(1).parameters(), **setting)
    with pytest.raises(InvalidValue, match=words):
        AdamBC([{"params": list(Bare(1).parameters()), **setting}])


def test_half_precision_parameters_and_closures_are_refused() -> None:
    with pytest.raises(InvalidType, match="bfloat16"):
        AdamBC(nn.Linear(1, 1).bfloat16().parameters())
    with pytest.raises(InvalidType, match="closure"):
        AdamBC(Bare(1).parameters()).step(lambda: 0.0)


def test_state_survives_saving_to_the_last_bit() -> None:
    gradients, stds = noisy_gradients()
    straight, first = nn.Linear(5, 1, bias=False), nn.Linear(5, 1, bias=False)
    first.load_state_dict(straight.state_dict())

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, part: slice) -> None:
        for gradient, std in zip(gradients[part], stds[part], strict=True):
            mean = NoisyMean({"weight": torch.tensor(gradient[None]).float()}, RELEASE, float(std))
            apply(mean, model, optimizer)

    steps(straight, AdamBC(straight.parameters(), lr=0.1), slice(0, 12))
    early = AdamBC(first.parameters(), lr=0.1)
    steps(first, early, slice(0, 5))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": early.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    second = nn.Linear(5, 1, bias=False)
    second.load_state_dict(saved["model"])
    late = AdamBC(second.parameters(), lr=0.7)
    late.load_state_dict(saved["optimizer"])
    steps(second, late, slice(5, 12))
    assert torch.equal(second.weight, straight.weight)
    twin = copy.deepcopy(late)  # forgets nothing that a step needs
    assert twin.state_dict()["state"][0]["noise_variance"] == late.state_dict()["state"][0]["noise_variance"]
    with pytest.raises(InvalidValue, match="outside of apply"):
        twin.step()


def test_schedulers_and_groups_reach_the_update() -> None:
    gradients, stds = noisy_gradients(steps=4)
    model = nn.ParameterDict({"a": torch.zeros(5).double(), "b": torch.zeros(5).double()})
    optimizer = AdamBC([{"params": [model["a"]]}, {"params": [model["b"]], "betas": (0.5, 0.5)}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 2 else 0.0)
    for gradient, std in zip(gradients, stds, strict=True):
        both = {name: torch.tensor(gradient) for name in ("a", "b")}
        apply(NoisyMean(both, RELEASE, float(std)), model, optimizer)
        scheduler.step()
    for name, betas in (("a", (0.9, 0.999)), ("b", (0.5, 0.5))):
        by_hand = adam_bc_by_hand(gradients[:2], stds[:2], 0.1, betas, FLOOR)
        np.testing.assert_allclose(model[name].detach().numpy(), by_hand, rtol=1e-9)


def test_a_parameter_that_was_frozen_for_a_while_has_its_own_time() -> None:
    gradients, stds = noisy_gradients(steps=6)
    model = nn.ParameterDict({"a": torch.zeros(5).double(), "b": torch.zeros(5).double()})
    optimizer = AdamBC(model.parameters(), lr=0.1)
    for step, (gradient, std) in enumerate(zip(gradients, stds, strict=True)):
        model["b"].requires_grad_(step >= 3)
        names = ("a", "b") if step >= 3 else ("a",)
        apply(NoisyMean({n: torch.tensor(gradient) for n in names}, RELEASE, float(std)), model, optimizer)
    for name, part in (("a", slice(0, 6)), ("b", slice(3, 6))):
        by_hand = adam_bc_by_hand(gradients[part], stds[part], 0.1, (0.9, 0.999), FLOOR)
        np.testing.assert_allclose(model[name].detach().numpy(), by_hand, rtol=1e-9)
