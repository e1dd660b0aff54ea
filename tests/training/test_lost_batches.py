"""Batches that are drawn and never seen by the loop (no memory on the device, an interruption) are drawn again."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from often import some
from torch import Tensor, nn

from decrescendo.accounting import Budget, RenyiFilter
from decrescendo.base.rng import Secure
from decrescendo.plans import PoissonSampling, RandomAllocation, calibrate
from decrescendo.training import Trainer
from decrescendo.training.loop.drawing import Drawing
from decrescendo.training.steering import Adaptive, Settings

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


class Lost(RuntimeError):
    """A batch that did not come to its device."""


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches, by their number from 0, that are lost on their way once."""
    lost, seen = list[int](), list[int]()
    move = Drawing._to_device

    def moved(self: Drawing, tensor: Tensor) -> Tensor:
        seen.append(0)
        if lost and len(seen) - 1 == lost[0]:
            seen.pop()
            lost.pop(0)
            raise Lost
        return move(self, tensor)

    monkeypatch.setattr(Drawing, "_to_device", moved)
    return lost


def all_batches(trainer: Trainer, data: Any) -> Iterator[Any]:
    """Of a loop that goes on after what was lost."""
    left = True
    while left:
        try:
            for batch in trainer.batches(data):
                trainer.step(batch)
                yield batch
            left = False
        except Lost:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("number", some([0, 1, 2, 3], 1))
def test_each_record_is_still_in_one_batch_of_an_epoch(losing: list[int], number: int) -> None:
    """The last batch of an epoch came from another epoch: of 40 records 9 took part twice, under a guarantee for
    those that take part once."""
    plan = calibrate(Budget(8.0, 1e-5), RandomAllocation(ROWS, 2), steps=4, privacy=[1.0] * 4, clip=[1.0] * 4)
    losing.append(number)
    model = nn.Linear(1, 1)
    trainer = Trainer(model, lambda model, x: model(x).sum(1), plan, sgd(model), seed=Secure())
    drawn = [batch.flatten().tolist() for batch in all_batches(trainer, torch.arange(float(ROWS))[:, None])]
    assert not losing
    for epoch in (drawn[:2], drawn[2:]):
        assert sorted(epoch[0] + epoch[1]) == list(range(ROWS))


def test_what_is_drawn_again_is_the_same(data: Data, losing: list[int]) -> None:
    weights: list[Tensor] = []
    for lost in ([], [2]):
        losing[:] = lost
        model = make_model()
        assert len(list(all_batches(Trainer(model, loss, make_plan(), sgd(model), seed=0), data))) == 3
        weights.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)


def test_a_granted_step_is_paid_for_once(data: Data, losing: list[int]) -> None:
    """The policy was asked again, its next answer was taken, and the run at its end had "no guarantee"."""
    losing.append(1)
    guard = RenyiFilter(Budget(8.0, 1e-3), order=8)
    adaptive = Adaptive(PoissonSampling(ROWS, 8), guard, lambda past: Settings(9.0 - past.step, 1.0), 3)
    model = make_model()
    trainer = Trainer(model, loss, adaptive, sgd(model), seed=0)
    assert len(list(all_batches(trainer, data))) == 3
    assert trainer.finish().ledger.noise_multiplier.tolist() == [9.0, 8.0, 7.0]
