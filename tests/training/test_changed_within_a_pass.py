"""What a pass changes of the optimiser or the weights beside its losses is refused before it is released."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import EngineSettings
from decrescendo.errors import UnsupportedModel
from decrescendo.training import Trainer

from .conftest import ROWS, loss, make_plan

Data = tuple[Tensor, Tensor]


class Gated(nn.Linear):
    """With a trained parameter that no loss uses."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.gate = nn.Parameter(torch.zeros(3))


def sets_the_rate(optimizer: torch.optim.Optimizer, model: Gated, x: Tensor, losses: Tensor) -> None:
    optimizer.param_groups[0]["lr"] = x.sum()


def has_a_hook_write(optimizer: torch.optim.Optimizer, model: Gated, x: Tensor, losses: Tensor) -> None:
    losses.register_hook(lambda _: setattr(model.gate, "data", x.sum(0)))


@pytest.mark.parametrize("does", [sets_the_rate, has_a_hook_write], ids=["a rate", "a hook's write"])
@pytest.mark.parametrize("filled", [False, True])
def test_a_pass_may_not_change_what_trains(data: Data, does: Any, filled: bool) -> None:
    model = Gated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    late = [False]

    def one_loss(model: Any, batch: Data) -> Tensor:
        losses = loss(model, batch)
        if late[0]:
            does(optimizer, model, batch[0], losses)
        return losses

    trainer = Trainer(model, one_loss, make_plan(), optimizer, seed=3)

    def steps() -> None:
        for batch in trainer.batches(data):
            if filled:
                trainer.fill_gradients(batch)
                optimizer.step()
            else:
                trainer.step(batch)
            late[0] = True

    with pytest.raises(UnsupportedModel):
        steps()


def test_weights_are_hashed_around_each_pass_but_not_around_a_replayed_one(data: Data) -> None:
    """No code runs in a replay. In the step that first changes weights, what it goes by has changed: it is none."""
    model, late = Gated(), [False]

    def one_loss(model: Any, batch: Data) -> Tensor:
        losses = loss(model, batch)
        if late[0]:
            has_a_hook_write(optimizer, model, batch[0], losses)
        return losses

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = make_plan(noise=[2.0] * 30, clip=[1.0] * 30, batch=ROWS)  # full batches: all have one size
    trainer = Trainer(model, one_loss, plan, optimizer, seed=3, settings=EngineSettings(capture=True))
    hashed, taken, now = 0, list[int](), trainer._between._now

    def counted() -> dict[str, bytes]:
        nonlocal hashed
        hashed += 1
        return now()

    trainer._between._now = counted  # type: ignore[method-assign]

    def steps() -> None:
        for batch in trainer.batches(data):
            before = hashed
            trainer.step(batch)
            taken.append(hashed - before)
            late[0] = len(taken) == 20

    with pytest.raises(UnsupportedModel):
        steps()
    assert len(taken) == 20
    assert set(taken) == {2, 3}
    assert taken[0] == 3
