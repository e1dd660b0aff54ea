"""Facts: people are drawn and clipped as a whole, whatever their number of examples, and padding has no part in it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.clipping import Engine, EngineSettings
from decrescendo.errors import InvalidValue
from decrescendo.training import by_person, person_loss


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data(count: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, generator=generator), torch.arange(count) % 3


@pytest.mark.parametrize("clip_norm", [0.3, 1e6], ids=["clipped", "whole"])
def test_the_sum_is_that_of_each_persons_mean_gradient_clipped(clip_norm: float) -> None:
    """Against a backward pass a person, over their own rows alone."""
    inputs, labels = data()
    model, people = nn.Linear(4, 3), np.random.default_rng(0).integers(0, 9, 30)
    found = Engine(model, person_loss(loss), EngineSettings()).clipped_sum(
        by_person((inputs, labels), people, most=9), clip_norm
    )
    expected = torch.zeros(15)
    for person in np.unique(people):
        own = torch.from_numpy(people == person)
        gradients = torch.autograd.grad(loss(model, (inputs[own], labels[own])).mean(), list(model.parameters()))
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        expected += flat * min(1.0, clip_norm / float(flat.norm()))
    got = torch.cat([found.gradients[name].flatten() for name, _ in model.named_parameters()])
    assert torch.allclose(got, expected, atol=1e-5)


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=25), st.integers(1, 30))
def test_every_example_is_in_its_persons_row_once(people: list[str], most: int) -> None:
    numbers = torch.arange(len(people))
    grouped, weights = by_person(numbers, people, most=most)
    names = list(dict.fromkeys(people))
    assert weights.shape == grouped.shape == (len(names), most)
    for name, row, weight in zip(names, grouped.tolist(), weights, strict=True):
        own = [i for i, one in enumerate(people) if one == name][:most]
        assert row[: len(own)] == own
        assert {*row} == {*own}  # padding is the person's own
        assert weight.tolist() == pytest.approx([1 / len(own)] * len(own) + [0.0] * (len(row) - len(own)))


def test_no_person_hangs_on_how_many_examples_another_has() -> None:
    """A loss may look at all of a row, also at its padding: no row may be longer because somebody came."""
    numbers = torch.randn(9, 3)
    fewer, weights = by_person(numbers[:4], [0, 0, 1, 2], most=5)
    grouped, others = by_person(numbers, [0, 0, 1, 2, 3, 3, 3, 3, 3], most=5)
    assert torch.equal(grouped[:3], fewer)
    assert torch.equal(others[:3], weights)


def test_examples_that_are_infinite_in_padding_touch_nobody() -> None:
    """A person whose loss is infinite counts as nothing; the others' sum stays finite."""
    inputs, labels = data(4)
    inputs[0] = torch.inf
    grouped = by_person((inputs, labels), ["a", "b", "b", "c"], most=2)
    model = nn.Linear(4, 3)
    found = Engine(model, person_loss(loss), EngineSettings()).clipped_sum(grouped, 1.0)
    assert found.diagnostics.nonfinite == 1
    assert all(torch.isfinite(value).all() for value in found.gradients.values())


def test_a_training_protects_people() -> None:
    people = [row * row // 90 for row in range(30)]
    grouped = by_person(data(), people, most=6)
    count = len(set(people))
    plan = dc.calibrate(dc.Budget(4.0, 1e-3, dc.Unit.PERSON), dc.PoissonSampling(count, 3), steps=3, clip=1.0)
    model = nn.Linear(4, 3)
    run = dc.train(
        model, person_loss(scored), grouped, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0,
        people=range(count), telemetry=dc.Telemetry(loss=True, accuracy=True),
    )  # fmt: skip
    assert "per person" in str(run.guarantee.promise)
    assert len(run.telemetry) == 3


def scored(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return loss(model, batch), model(batch[0]).argmax(1) == batch[1]


@pytest.mark.parametrize(("people", "most"), [([0, 1], 3), ([0] * 4, 0), ([0, None, 1, 2], 3)], ids=str)
def test_what_cannot_be_grouped_is_refused(people: Any, most: int) -> None:
    with pytest.raises(InvalidValue):
        by_person(data(4), people, most=most)
    with pytest.raises(InvalidValue, match="at least one example"):
        by_person(data(0), [], most=3)
