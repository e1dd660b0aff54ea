"""What a loop makes of a batch may not come back into its loss as if it were public."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from decrescendo.errors import UnsupportedModel
from decrescendo.integrations.opacus import PrivacyEngine

Make = Callable[[Any, Tensor, Tensor, dict[str, Any]], Tensor]


def loop(make: Make, steps: int = 3, prepare: Callable[[Any, dict[str, Any]], None] | None = None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    model.register_buffer("c", torch.zeros(3))
    rows = TensorDataset(torch.randn(40, 3), torch.randint(3, (40,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: dict[str, Any] = {"q": torch.zeros(3), "w": torch.zeros(3), "correct": torch.zeros(())}
    private, optimizer, loader = PrivacyEngine(secure_mode=True).make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(rows, batch_size=20), noise_multiplier=1.0,
        max_grad_norm=1.0,
    )  # fmt: skip
    if prepare is not None:
        prepare(private, kept)
    for _ in range(steps):
        for x, y in loader:
            optimizer.zero_grad()
            make(private, x, y, kept).backward()
            optimizer.step()


def plain(model: Any, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return (nn.functional.cross_entropy(model(x), y, reduction="none") * weight.sum()).mean()


def class_means(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    means = torch.zeros(3, 3)
    means[0] = x.detach().mean(0)
    return ((model(x) - means[y]) ** 2).mean(1).mean()


def moving(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    loss = plain(model, x, y, 1 + kept["q"])
    kept["q"].mul_(0.9).add_(x.detach().mean(0))
    return loss


def copied(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    kept["q"].copy_(x.mean(0))
    return plain(model, x, y, kept["q"])


def into(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    torch.mean(x, 0, out=kept["q"])
    return plain(model, x, y, kept["q"])


def data(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    kept["q"].data = x.mean(0).data
    return plain(model, x, y, kept["q"])


def counted(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    kept["w"].index_add_(0, y, torch.ones(len(y)))
    return plain(model, x, y, kept["w"])


def bank(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    view = kept["q"][1:]
    view.copy_(x[0, 1:])
    return plain(model, x, y, kept["q"])


def buffer(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    model.c.add_(x.detach().mean(0))
    return plain(model, x, y, torch.ones(1))


def number(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
    return plain(model, x, y, torch.tensor([1.0, float(x.abs().max())]))


@pytest.mark.parametrize("make", [class_means, moving, copied, into, data, counted, bank, buffer, number])
def test_what_was_made_of_a_batch_is_no_constant(make: Make) -> None:
    with pytest.raises(UnsupportedModel):
        loop(make)


def test_a_copy_of_the_private_model_is_not_taken_for_it() -> None:
    def prepare(private: Any, kept: dict[str, Any]) -> None:
        kept["teacher"] = copy.deepcopy(private)

    def distilled(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
        with torch.no_grad():
            wanted = kept["teacher"](x)
        return (model(x) - wanted).square().mean(1).mean()

    with pytest.raises(UnsupportedModel, match="got a copy of it"):
        loop(distilled, prepare=prepare)


def test_metrics_beside_the_loss_and_public_constants_are_taken() -> None:
    def scored(model: Any, x: Tensor, y: Tensor, kept: dict[str, Any]) -> Tensor:
        outputs = model(x)
        losses = nn.functional.cross_entropy(outputs, y, reduction="none") * kept["quarter"]
        loss = losses.mean()
        kept["correct"].add_((outputs.argmax(1) == y).sum())
        kept["last"] = loss.item(), f"{loss:.2f}"
        return loss

    def prepare(private: Any, kept: dict[str, Any]) -> None:
        kept["quarter"] = torch.tensor(0.25)

    loop(scored, prepare=prepare)
