"""Random numbers in a pass: laws that take as many as they want, checkpoints that draw again, NumPy's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from decrescendo.base.rng import Seeds
from decrescendo.clipping import Engine
from decrescendo.errors import UnsupportedModel

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


def scaled(factor: Callable[[Tensor], Any]) -> Callable[[nn.Module, Tensor], Tensor]:
    """A loss whose sign, or scale, hangs on one number for all examples."""
    return lambda model, x: model(torch.ones_like(x)).sum(1) * factor(x)


def test_a_checkpoint_draws_the_same_again() -> None:
    def part(model: nn.Module, x: Tensor) -> Tensor:
        noise = torch.poisson(x * 3)
        return model(nn.functional.dropout(x + noise, 0.5))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(part, model, x, use_reentrant=False).sum(1)

    def plain(model: nn.Module, x: Tensor) -> Tensor:
        return part(model, x).sum(1)

    model = nn.Linear(3, 1)
    found = [Engine(model, one, seeds=lambda: 5).per_example_norms(data()) for one in (loss, plain)]
    torch.testing.assert_close(*found)


def test_a_number_of_the_data_bounds_no_random_numbers() -> None:
    def factor(x: Tensor) -> Tensor:
        return torch.randint_like(torch.zeros(3), (x[0, 0] * 100 + 2).long()).sum()

    with pytest.raises(UnsupportedModel, match="bounded by a number"):
        Engine(nn.Linear(3, 1), scaled(factor), seeds=lambda: 5).per_example_norms(data())


@pytest.mark.parametrize("law", ["Gamma", "Beta", "Poisson"])
def test_a_law_that_takes_as_many_as_it_wants_is_accepted(law: str) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        given = (x, 1.0) if law != "Poisson" else (x,)
        return model(getattr(torch.distributions, law)(*given).sample()).sum(1)

    engine = Engine(nn.Linear(3, 1), loss, seeds=lambda: 5)
    engine.per_example_norms(data())
    assert not engine.assumptions


@pytest.mark.parametrize("law", [torch.distributions.Beta(2.0, 2.0), torch.distributions.Gamma(2.0, 1.0)])
def test_random_laws_before_dropout_are_no_reason_to_refuse(law: torch.distributions.Distribution) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.dropout(model(x), 0.5).sum(1) * law.sample((x.shape[0],))

    engine = Engine(nn.Linear(3, 2), loss, seeds=Seeds.of(0))
    engine.clipped_sum(data(), 1.0)
    assert {one.code for one in engine.assumptions} <= {"tensors-read"}


def test_numpys_global_numbers_are_those_of_the_pass() -> None:
    """They went on from pass to pass: how many there were showed in all that follow, or small passes drew others."""

    def loss(m: Any, x: Tensor) -> Tensor:
        drawn.append(float(np.random.rand()))
        np.random.randn()
        return m(x).square().sum(1) * (1.0 if drawn[-1] < 0.5 else 1e-3)  # a layer left out

    drawn: list[float] = []
    np.random.seed(3)
    np.random.randn()  # it makes two at a time, and keeps one
    numpys = np.random.RandomState(3)
    expected = numpys.randn(), numpys.randn(), numpys.rand()
    seeds = iter(range(100))
    engine = Engine(nn.Linear(3, 1), loss, seeds=lambda: next(seeds))
    for _ in range(10):
        engine.clipped_sum(data(), 1.0)
    assert {number < 0.5 for number in drawn} == {False, True}
    assert (np.random.randn(), np.random.rand()) == expected[1:]
