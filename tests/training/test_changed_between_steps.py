"""What a callback changes of model, loss and data between two steps: nothing of it is seen (pitfalls.md)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.errors import InvalidValue
from decrescendo.training import Run, Trainer, train

from .conftest import loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


def run_of(data: Data, between: Callable[[Any, Any], object], the_loss: Any = loss) -> Run:
    """A run of three steps, with ``between(model, optimizer)`` after each."""
    model = make_model(nn.Dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainer = Trainer(model, the_loss, make_plan(), optimizer, seed=0)
    for batch in trainer.batches(data):
        trainer.step(batch)
        between(model, optimizer)
    return trainer.finish()


@pytest.mark.parametrize(
    "change",
    [lambda model, _: model.train(not model.training), lambda model, _: setattr(model[1], "p", 0.1)],
    ids=["a mode", "a setting"],
)
def test_a_setting_of_the_model_that_is_other_than_in_the_pass_before_assumes_nothing(
    data: Data, change: Callable[[Any, Any], object]
) -> None:
    assert run_of(data, change).assumptions == ()


def test_a_number_that_the_loss_reads_and_a_callback_sets_is_not_seen(data: Data) -> None:
    factor = [1.0]

    def scaled(model: nn.Module, batch: Data) -> Tensor:
        return factor[0] * loss(model, batch)

    def change(*_: object) -> None:
        factor[0] += float(data[0][0].abs().mean())

    assert run_of(data, change, scaled).assumptions == ()


def test_of_a_teacher_in_the_loss_is_said_that_it_is_read_and_nothing_else(data: Data) -> None:
    """Trained on the same rows by an earlier run, and written to between steps: neither is listed."""
    teacher = make_model()
    train(teacher, loss, data, make_plan(), sgd(teacher), seed=0)

    def distilled(model: nn.Module, batch: Data) -> Tensor:
        return (model(batch[0]) - teacher(batch[0]).detach()).square().sum(1)

    def fit(*_: object) -> None:
        with torch.no_grad():
            next(teacher.parameters()).add_(data[0].mean())

    for change in (lambda *_: None, fit):
        assert [one.code for one in run_of(data, change, distilled).assumptions] == ["tensors-read"]


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer, x: optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"].add_(x.mean()),
        lambda optimizer, x: optimizer.register_step_post_hook(lambda *_: None),
    ],
    ids=["a moment", "a hook"],
)
def test_what_an_optimiser_remembers_and_its_hooks_are_not_seen(
    data: Data, change: Callable[[Any, Tensor], object]
) -> None:
    assert run_of(data, lambda _, optimizer: change(optimizer, data[0])).assumptions == ()


def test_rows_of_the_data_that_are_written_over_are_refused(data: Data) -> None:
    with pytest.raises(InvalidValue, match="do not shuffle, sort or overwrite"):
        run_of(data, lambda *_: data[0].sub_(data[0].mean(0)))
