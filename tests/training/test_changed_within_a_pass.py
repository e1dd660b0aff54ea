"""What a pass changes of the optimiser or the weights beside its losses is refused before it is released."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.errors import UnsupportedModel
from decrescendo.training import Trainer

from .conftest import loss, make_plan

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
