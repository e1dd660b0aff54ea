"""What honest loops do between steps, and a run lists nothing of."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.optim import AdamBC, averaged
from decrescendo.training import Trainer
from decrescendo.training.tasks.evaluate import accuracy

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def run_of(
    data: Data,
    between: Callable[[nn.Module, Any], object],
    make: Callable[[nn.Module], Any] = adam,
    **settings: Any,
) -> Any:
    """A run of three steps, with ``between`` after each; it may change the optimiser and the model."""
    model = make_model()
    optimizer = make(model)
    trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, **settings)
    for batch in trainer.batches(data):
        trainer.step(batch)
        between(model, optimizer)
    return trainer.finish()


@pytest.mark.parametrize(
    "make",
    [
        sgd, adam,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        lambda model: torch.optim.AdamW(model.parameters(), foreach=True, amsgrad=True),
        lambda model: torch.optim.AdamW(model.parameters(), fused=True),
        lambda model: torch.optim.Adafactor(model.parameters()),
        lambda model: torch.optim.ASGD(model.parameters()),
        lambda model: AdamBC(model.parameters(), lr=0.1),
    ],
)  # fmt: skip
def test_what_an_optimiser_writes_in_its_steps(data: Data, make: Callable[[nn.Module], Any]) -> None:
    assert not run_of(data, lambda model, _: loss(model, data).sum().backward(), make).assumptions


def test_averages_and_prints_of_the_weights(data: Data) -> None:
    averages: list[Any] = []

    def between(model: nn.Module, optimizer: Any) -> None:
        if not averages:
            averages.append(averaged(model, decay=0.9))
        averages[0].update_parameters(model)
        print(
            loss(model, data).mean().item(),
            optimizer.param_groups[0]["lr"],
            optimizer.state_dict().keys(),
        )

    assert not run_of(data, between).assumptions


class Net(nn.Module):
    """With settings of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.drop = nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5)
        self.last = nn.Linear(4, 2)
        self.scale, self.table, self.kind = 1.0, {"scale": [1.0]}, "plain"
        self.offset, self.large = torch.zeros(3), torch.zeros(70_000)
        self.register_buffer("fixed", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.act(self.first(x + self.offset + self.fixed + self.large[:3])))
        return self.last(hidden) * self.scale * self.table["scale"][0] * (2 if self.kind == "other" else 1)


def run_changed(data: Data, change: Callable[[Any, Tensor], object], the_loss: Any = loss) -> tuple[Any, list[Any]]:
    model = Net()
    trainer = Trainer(model, the_loss, make_plan(), sgd(model), seed=0)
    for number, batch in enumerate(trainer.batches(data)):
        trainer.step(batch)
        if number == 0:
            change(model, data[0])
    return trainer.finish(), list(model.parameters())


@pytest.mark.parametrize(
    "change",
    [
        lambda m, x: (m.eval(), m(x), m.train()),
        lambda m, x: setattr(m, "scale", 1.0 * 1),
        lambda m, x: accuracy(m, x, torch.zeros(ROWS).long()),
        lambda m, x: copy.deepcopy(m).requires_grad_(False),
        lambda m, x: m.state_dict(),
        lambda m, x: m.register_forward_hook(lambda module, given, made: None).remove(),
        lambda m, x: m.zero_grad(),
    ],
)
def test_a_model_that_is_as_it_was(data: Data, change: Callable[[Any, Tensor], object]) -> None:
    assert [one.code for one in run_changed(data, change)[0].assumptions] == ["tensors-read"]


def test_what_a_pass_keeps_itself(data: Data) -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = make_model(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen = self.inner(x)
            return self.seen

    model = Keeps()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    for batch in trainer.batches(data):
        trainer.step(batch)
    assert not trainer.finish().assumptions
    # And so is what is done after the last pass.
    model.eval()
