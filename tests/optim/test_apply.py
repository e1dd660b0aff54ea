"""The last gate: optimisers step on what was noised, on nothing else, and as they always do."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from decrescendo.accounting.release import Release
from decrescendo.clipping import ClippedSum, Diagnostics, Engine
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim import apply
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.plans.sampling import PoissonSampling

RELEASE = Release(0.1, 1.0)
# Without the run-time type checker of the test run, which would raise before the library does.
bare = getattr(apply, "__wrapped__", apply)


def noisy_for(model: nn.Module, seed: int = 0) -> NoisyMean:
    generator = torch.Generator().manual_seed(seed)
    named = {n: torch.randn(p.shape, generator=generator) for n, p in model.named_parameters() if p.requires_grad}
    return NoisyMean(named, RELEASE)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    ],
    ids=["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"],
)
def test_three_steps_equal_the_optimiser_stepped_by_hand(build: Callable[..., torch.optim.Optimizer]) -> None:
    ours, theirs = net(), net()
    one, other = build(ours.parameters()), build(theirs.parameters())
    for step in range(3):
        noisy = noisy_for(ours, step)
        apply(noisy, ours, one)
        for name, parameter in theirs.named_parameters():
            parameter.grad = noisy.gradients[name].clone()
        other.step()
        other.zero_grad()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(left, right)
        assert left.grad is None


def test_infinite_clip_and_no_noise_is_sgd() -> None:
    """The whole gate, against plain training on the mean loss, to the rounding of float64."""
    loss = nn.CrossEntropyLoss(reduction="none")
    ours, theirs = net().double(), net().double()
    one = torch.optim.SGD(ours.parameters(), lr=0.5, momentum=0.9)
    other = torch.optim.SGD(theirs.parameters(), lr=0.5, momentum=0.9)
    sampling = PoissonSampling(dataset_size=64, expected_batch_size=16)
    engine = Engine(ours, lambda model, batch: loss(model(batch[0]), batch[1]))
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        x = torch.randn(16, 3, dtype=torch.float64, generator=generator)
        y = torch.randint(2, (16,), generator=generator)
        clipped = engine.clipped_sum((x, y), float("inf"))
        apply(privatise(clipped, 0.0, sampling, torch.Generator()), ours, one)
        other.zero_grad()
        loss(theirs(x), y).mean().backward()
        other.step()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)


def test_a_clipped_sum_is_refused_at_run_time() -> None:
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    clipped = ClippedSum(noisy_for(model).gradients, 1.0, Diagnostics(1, 0, 0, 0.0))
    with pytest.raises(InvalidType, match="NoisyMean, got ClippedSum"):
        bare(clipped, model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_clipped_sum_is_refused_by_the_type_checker(tmp_path: Path) -> None:
    good = """
import torch
from decrescendo.clipping import ClippedSum
from decrescendo.optim.noise import NoisyMean
from decrescendo.optim import apply

def step(value: {kind}, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    apply(value, model, optimizer)
"""
    errors = {}
    for kind in ("NoisyMean", "ClippedSum"):
        (tmp_path / f"{kind}.py").write_text(good.format(kind=kind))
    (tmp_path / "pyrefly.toml").write_text("")
    checker = Path(sys.executable).with_name("pyrefly")
    if not checker.exists():
        pytest.skip("pyrefly is not installed")
    command = [str(checker), "check", "--output-format", "json", "--python-interpreter-path", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = json.loads(done.stdout)["errors"]
    for kind in ("NoisyMean", "ClippedSum"):
        errors[kind] = [each["name"] for each in found if Path(each["path"]).stem == kind]
    assert errors == {"NoisyMean": [], "ClippedSum": ["bad-argument-type"]}


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_gradients_of_another_model_are_refused_before_anything_changes(change: str) -> None:
    model = net()
    gradients = dict(noisy_for(model).gradients)
    if change == "missing":
        del gradients["0.bias"]
    elif change == "unknown":
        gradients["stranger"] = torch.zeros(1)
    else:
        gradients["1.bias"] = torch.zeros(1)  # would broadcast
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InvalidValue, match={"missing": "0.bias", "unknown": "stranger", "shape": "1.bias"}[change]):
        apply(NoisyMean(gradients, RELEASE), model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_an_optimiser_of_another_model_is_refused() -> None:
    model = net()
    both = torch.optim.SGD([*model.parameters(), *net().parameters()], lr=1.0)
    with pytest.raises(InvalidValue, match="4 others"):
        apply(noisy_for(model), model, both)


def test_an_optimiser_that_misses_a_parameter_is_refused() -> None:
    model = net()
    with pytest.raises(InvalidValue, match=r"missing=\['0.bias', '0.weight'\]"):
        apply(noisy_for(model), model, torch.optim.SGD(model[1].parameters(), lr=1.0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "reason"), [(torch.optim.LBFGS, "closure"), (torch.optim.SparseAdam, "dense")])
def test_optimisers_that_cannot_step_on_a_given_dense_gradient_are_refused(
    kind: Callable[..., torch.optim.Optimizer], reason: str
) -> None:
    model = net()
    with pytest.raises(InvalidType, match=reason):
        apply(noisy_for(model), model, kind(model.parameters()))


def test_frozen_parameters_in_the_optimiser_do_not_move() -> None:
    model = net()
    model[0].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    apply(noisy_for(model), model, torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.5))
    assert torch.equal(model[0].weight, frozen)


def test_a_private_gradient_left_on_a_frozen_parameter_is_refused() -> None:
    model = net()
    model(torch.ones(1, 3)).sum().backward()
    model[0].requires_grad_(False)
    with pytest.raises(InvalidValue, match=r"0\.weight"):
        apply(noisy_for(model), model, torch.optim.SGD(model.parameters(), lr=1.0))


def test_a_private_gradient_left_on_a_trained_parameter_is_not_used() -> None:
    model, clean = net(), net()
    model(torch.ones(1, 3)).sum().backward()
    apply(noisy_for(model), model, torch.optim.SGD(model.parameters(), lr=1.0))
    apply(noisy_for(clean), clean, torch.optim.SGD(clean.parameters(), lr=1.0))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), clean.parameters(), strict=True))


def test_half_precision_parameters_get_gradients_of_their_own_dtype() -> None:
    model = nn.Linear(2, 1).bfloat16()
    apply(noisy_for(model), model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert model.weight.dtype == torch.bfloat16
