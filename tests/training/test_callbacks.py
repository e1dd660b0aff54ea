"""Facts: several callbacks are one list of them; each is called after each step, and any of them ends the training."""

import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.clipping import Batch
from decrescendo.errors import InvalidType
from decrescendo.plans import Plan, PoissonSampling
from decrescendo.training import Callback, Progress, Run, fit

PLAN = Plan.without_privacy(PoissonSampling(20, 5), steps=4)
DATA = torch.zeros(20, 1), torch.ones(20, 1)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().sum(dim=1)


def trained(callback: list[Callback] | tuple[Callback, ...], *, through: str = "train") -> Run:
    model = nn.Linear(1, 1)
    if through == "fit":
        run, _ = fit(model, loss, DATA, PLAN, seed=0, optimizer="sgd", learning_rate=0.1, callback=callback)
        return run
    return dc.train(model, loss, DATA, PLAN, torch.optim.SGD(model.parameters(), lr=0.1), seed=0, callback=callback)


@pytest.mark.parametrize("through", ["train", "fit"])
def test_a_list_is_called_in_its_order(through: str) -> None:
    seen: list[tuple[str, int]] = []

    def first(progress: Progress) -> bool:
        seen.append(("first", progress.step))
        return progress.step == 2

    def second(progress: Progress) -> None:
        seen.append(("second", progress.step))

    run = trained([first, second], through=through)
    assert run.steps == 2
    assert seen == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]
    assert trained(()).steps == 4


def test_what_is_no_callback_is_named_before_the_training() -> None:
    with pytest.raises(InvalidType, match=r"callback\[1\] must be a function of a Progress, got int"):
        trained([print, 3])  # type: ignore[list-item]


@pytest.mark.parametrize("answer", [3, torch.tensor([True, False])])
def test_an_answer_is_a_bool_or_none(answer: object) -> None:
    """`lambda progress: file.write(..)` returns a number, which must not end a run."""
    with pytest.raises(InvalidType, match="must return True to end the training"):
        trained([lambda _: answer])  # pyrefly: ignore[bad-argument-type]
