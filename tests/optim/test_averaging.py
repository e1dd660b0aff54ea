"""Facts: an average of the iterates is exactly that, and the training does not know that it is taken."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from decrescendo.accounting.budget import Budget
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim import averaged
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import constant, linear
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Progress, train


class Net(nn.Module):
    """A tied weight, a frozen one and a buffer: what a copy may get wrong."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(3, 2).requires_grad_(False)
        self.register_buffer("shift", torch.tensor(0.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.second(torch.tanh(self.first(inputs) + self.shift)))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return calibrate(Budget(4.0, 1e-3), PoissonSampling(60, 10), steps=9, privacy=constant(1.0), clip=linear(1.0, 0.5))


def run(plan: Plan, model: Net, callback: Any = None) -> list[torch.Tensor]:
    """The trained weight after every step."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(60, 3, generator=generator)
    seen: list[torch.Tensor] = []

    def both(progress: Any) -> None:
        seen.append(model.first.weight.detach().clone())
        if callback is not None:
            callback(progress)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    train(model, loss, (inputs, (inputs[:, 0] > 0).long()), plan, optimizer, seed=4, callback=both)
    return seen


def following(average: AveragedModel, model: nn.Module, *, start: int = 1) -> Callable[[Progress], None]:
    """A callback that counts the weights of the tail."""

    def update(progress: Progress) -> None:
        if progress.step >= start:
            average.update_parameters(model)

    return update


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 4])
def test_a_uniform_average_is_the_mean_of_the_tail_and_training_is_not_disturbed(plan: Plan, start: int) -> None:
    plain = run(plan, Net())
    model = Net()
    average = averaged(model)
    seen = run(plan, model, following(average, model, start=start))
    assert all(torch.equal(a, b) for a, b in zip(seen, plain, strict=True))
    mean = torch.stack(seen[start - 1 :]).double().mean(dim=0).float()
    torch.testing.assert_close(average.module.first.weight, mean, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(average.module.first.weight, seen[-1], rtol=1e-3)
    assert int(average.n_averaged) == plan.steps - start + 1


def test_an_exponential_average_starts_with_a_copy(plan: Plan) -> None:
    model = Net()
    average = averaged(model, decay=0.7)
    seen = run(plan, model, following(average, model, start=2))
    expected = seen[1].double()
    for weight in seen[2:]:
        expected = 0.7 * expected + 0.3 * weight.double()
    torch.testing.assert_close(average.module.first.weight, expected.float(), rtol=1e-5, atol=1e-7)


def test_ties_frozen_weights_buffers_and_names_are_the_model_s(plan: Plan) -> None:
    model = Net()
    average = averaged(model, decay=0.9)
    run(plan, model, following(average, model))
    copy = average.module
    assert copy.first.weight is copy.second.weight
    assert copy.first.weight.data_ptr() != model.first.weight.data_ptr()
    assert torch.equal(copy.frozen.weight, model.frozen.weight)
    assert torch.equal(copy.shift, model.shift)
    assert copy.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, float("nan")])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(InvalidValue, match="decay"):
        averaged(Net(), decay=decay)


def test_wrong_kinds_are_refused() -> None:
    with pytest.raises(InvalidType, match="model"):
        getattr(averaged, "__wrapped__", averaged)(3)
