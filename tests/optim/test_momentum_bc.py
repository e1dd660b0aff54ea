"""Facts: MomentumBC is Hong et al. Eq. (3); without momentum it is gradient descent; it costs nothing but is fed noise.
Private gradient descent is the gate at sample rate 1: every example in every batch, the stated variance, the ledger."""

import copy
import math

import numpy as np
import pytest
import torch
from drawn import normals
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from decrescendo.accounting import Gaussian, Pld, Zcdp
from decrescendo.accounting.budget import Budget
from decrescendo.accounting.ledger import Ledger
from decrescendo.base.rng import Streams
from decrescendo.clipping import Engine
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim import MomentumBC
from decrescendo.optim.noise import privatise
from decrescendo.plans import curves
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Trainer, train

ROWS, STEPS, RATE, BETA = 12, 7, 0.3, 0.6


def by_hand(gradients: np.ndarray, lr: float, beta: float) -> np.ndarray:
    """Weights after steps from zero; every average written out as a weighted sum of all gradients so far."""
    weights = np.zeros(gradients.shape[1])
    for t in range(1, len(gradients) + 1):
        ages = np.arange(t)[::-1]
        weights -= lr * (1 - beta) / (1 - beta**t) * (beta**ages) @ gradients[:t]
    return weights


@given(
    beta=st.sampled_from([0.0, 0.3, 0.9, 0.999]), lr=st.floats(1e-3, 2.0), steps=st.integers(1, 30),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_steps_are_weighted_sums_of_all_gradients(beta: float, lr: float, steps: int, seed: int) -> None:
    gradients = np.random.default_rng(seed).standard_normal((steps, 5))
    parts = [
        torch.zeros(2, dtype=torch.float64, requires_grad=True),
        torch.zeros(3, dtype=torch.float64, requires_grad=True),
    ]
    optimizer = MomentumBC(parts, lr=lr, momentum=beta)
    for row in torch.from_numpy(gradients):
        parts[0].grad, parts[1].grad = row[:2].clone(), row[2:].clone()
        optimizer.step()
    np.testing.assert_allclose(torch.cat([part.detach() for part in parts]), by_hand(gradients, lr, beta), rtol=1e-9)
    if beta == 0:
        np.testing.assert_allclose(by_hand(gradients, lr, beta), -lr * gradients.sum(axis=0), rtol=1e-9, atol=1e-12)


def test_saved_and_loaded_it_goes_on_the_same() -> None:
    gradients = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    ends: list[torch.Tensor] = []
    for stop in (3, 6):
        weight = torch.zeros(3, requires_grad=True)
        optimizer = MomentumBC([weight], lr=0.1, momentum=0.8)
        for t, row in enumerate(gradients):
            if t == stop:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = MomentumBC([weight], lr=7.0, momentum=0.1)
                optimizer.load_state_dict(state)
            weight.grad = row.clone()
            optimizer.step()
        ends.append(weight.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize(("lr", "momentum"), [(-0.1, 0.5), (0.1, 1.0), (0.1, -0.1), (math.nan, 0.5)])
def test_numbers_out_of_range_are_refused(lr: float, momentum: float) -> None:
    with pytest.raises(InvalidValue):
        MomentumBC([torch.zeros(1, requires_grad=True)], lr=lr, momentum=momentum)


def test_closures_are_refused() -> None:
    with pytest.raises(InvalidType, match="another release"):
        MomentumBC([torch.zeros(1, requires_grad=True)]).step(lambda: 0.0)


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return inputs, inputs @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (model(batch[0]).squeeze(-1) - batch[1]).square() / 2


def linear() -> nn.Module:
    model = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    return model


@pytest.mark.parametrize("beta", [0.0, BETA])
def test_a_full_batch_run_is_algorithm_1_written_out(beta: float) -> None:
    """Every example's gradient, clipped; the sum noised from the run's stream; divided by the declared N; Eq. (3)."""
    plan = calibrate(
        Budget(3.0, 1e-6), PoissonSampling(ROWS, ROWS), steps=STEPS, privacy=curves.growing_mu(2.0),
        clip=curves.constant(0.7), accountant=Zcdp(),
    )  # fmt: skip
    model, (inputs, targets) = linear(), examples()
    run = train(model, loss, (inputs, targets), plan, MomentumBC(model.parameters(), lr=RATE, momentum=beta), seed=5)
    noise, weights, noisy = Streams(5).keyed("noise"), np.zeros(3), list[np.ndarray]()
    for z, clip in zip(plan.noise_multiplier, plan.clip_norm, strict=True):
        total = np.zeros(3)
        for x, y in zip(inputs.numpy(), targets.numpy(), strict=True):
            gradient = (weights @ x - y) * x
            total += gradient * min(1.0, clip / np.linalg.norm(gradient))
        drawn = normals(noise, {"weight": (1, 3)})["weight"].numpy()[0]
        noisy.append((total + z * clip * drawn) / ROWS)
        weights = by_hand(np.array(noisy), RATE, beta)
    np.testing.assert_allclose(model.weight.detach()[0], weights, rtol=1e-5)
    assert run.ledger == Ledger.of(plan.noise_multiplier, 1.0)
    assert run.ledger.releases[0].sample_rate == 1.0


def test_every_example_is_in_every_full_batch() -> None:
    sampling = PoissonSampling(ROWS, ROWS)
    for seed in range(20):
        for batch in sampling.batches(3, np.random.default_rng(seed)):
            np.testing.assert_array_equal(np.sort(batch), np.arange(ROWS))


@given(seed=st.integers(0, 10_000), gone=st.integers(0, ROWS - 1), clip=st.floats(0.01, 5.0))
def test_one_example_moves_the_full_sum_by_at_most_the_clip_norm(seed: int, gone: int, clip: float) -> None:
    """Adding or removing one, and whatever the weights are; the divisor is declared, so the mean moves by C / N."""
    model, (inputs, targets) = linear(), examples()
    with torch.no_grad():
        model.weight.normal_(generator=torch.Generator().manual_seed(seed))
    stay = torch.arange(ROWS) != gone
    engine = Engine(model, loss)
    whole, less = (
        engine.clipped_sum((inputs, targets), clip),
        engine.clipped_sum((inputs[stay], targets[stay]), clip),
    )
    assert whole.sensitivity == less.sensitivity == clip
    moved = torch.linalg.vector_norm(whole.gradients["weight"] - less.gradients["weight"])
    assert moved <= clip * (1 + 1e-12)
    sampling = PoissonSampling(ROWS, ROWS)
    means = [privatise(one, 0.0, sampling, torch.Generator()).gradients["weight"] for one in (whole, less)]
    assert torch.linalg.vector_norm(means[0] - means[1]) <= clip / ROWS * (1 + 1e-12)


def test_budgets_of_full_batches_are_those_of_the_gaussian() -> None:
    """R of the paper; without subsampling the exact epsilon is that of one Gaussian, which `Pld` brackets."""
    budget, sampling = Budget(4.0, 1e-8), PoissonSampling(1000, 1000)
    plan = calibrate(
        budget,
        sampling,
        steps=100,
        privacy=curves.growing_mu(2.9),
        clip=curves.constant(4.0),
        accountant=Zcdp(),
    )
    assert np.sum(plan.noise_multiplier**-2.0) == pytest.approx(0.392704, rel=2e-4)
    assert np.sum(plan.noise_multiplier**-2.0) <= 0.392704 * (1 + 1e-5)
    exact, pld = (one.epsilon(plan.ledger, budget.delta).value for one in (Gaussian(), Pld()))
    assert exact <= pld <= exact * (1 + 1e-4)
    assert pld < 4.0


@pytest.mark.parametrize("beta", [0.0, BETA])
def test_the_noise_in_the_weights_has_the_variance_that_the_theory_says(beta: float) -> None:
    """Zero gradients, so that only noise moves the weights; a chi-square test, which 3 % more noise fails."""
    size, plan = 20_000, calibrate(
        Budget(3.0, 1e-6), PoissonSampling(2, 2), steps=STEPS, privacy=curves.growing_mu(3.0),
        clip=curves.constant(0.5), accountant=Zcdp(),
    )  # fmt: skip
    model = nn.Linear(size, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    data = torch.zeros(2, size, dtype=torch.float64)
    trainer = Trainer(
        model,
        lambda model, batch: model(batch).squeeze(-1),
        plan,
        MomentumBC(model.parameters(), lr=1.0, momentum=beta),
        seed=1,
    )
    for batch in trainer.batches(data):
        trainer.step(batch)
    # What one unit of noise at step i leaves at the end: the sum of its weights in all later averages.
    left = np.array(
        [sum((1 - beta) * beta ** (t - i) / (1 - beta**t) for t in range(i, STEPS + 1)) for i in range(1, STEPS + 1)]
    )
    variance = float(np.sum((left * plan.noise_multiplier * plan.clip_norm / 2) ** 2))
    statistic = float(model.weight.detach().square().sum()) / variance
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], size)
    assert low < statistic < high
    assert not low < 1.03**2 * statistic < high or not low < statistic / 1.03**2 < high
