"""Facts: the row of an embedding's padding_idx stays as it is, as in plain training; all others have noise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.accounting.release import Release
from decrescendo.optim import AdamBC, apply
from decrescendo.optim.noise import NoisyMean

PAD = 2


class Words(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.Embedding, *, tied: bool = False) -> None:
        super().__init__()
        self.words: Any = kind(6, 4, padding_idx=PAD)
        self.top = nn.Linear(4, 6, bias=False)
        if tied:
            self.top.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        found = self.words(ids)
        return self.top(found.sum(1) if found.dim() == 3 else found)


def trained(model: nn.Module, make: Callable[[Any], Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(6, (60, 5), generator=generator), torch.arange(60) % 6
    plan = dc.calibrate(dc.Budget(4.0, 1e-5), dc.PoissonSampling(60, 12), steps=4, clip=1.0)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    dc.train(model, loss, (ids, labels), plan, make(model.parameters()), seed=0)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    "make",
    [
        lambda held: torch.optim.SGD(held, lr=0.5, momentum=0.9),
        lambda held: torch.optim.Adam(held, lr=0.1),
        AdamBC,
    ],
    ids=["SGD", "Adam", "AdamBC"],
)
def test_noise_does_not_move_it(kind: type[nn.Module], make: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    model = Words(kind)
    before = model.words.weight.detach().clone()
    trained(model, make)
    assert torch.equal(model.words.weight[PAD], before[PAD])
    others = [row for row in range(6) if row != PAD]
    assert (model.words.weight[others] != before[others]).all()


def test_it_moves_where_another_module_has_the_weight_too() -> None:
    """A tied output layer has a gradient there: it must not be lost."""
    torch.manual_seed(0)
    model = Words(tied=True)
    before = model.words.weight.detach().clone()
    trained(model, lambda held: torch.optim.SGD(held, lr=0.5))
    assert (model.words.weight != before).all()


def test_other_rows_have_the_gradient_as_it_was_released() -> None:
    model = Words()
    noise = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    apply(
        NoisyMean({k: v.clone() for k, v in noise.items()}, Release(0.01, 1.0)),
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
    )
    noise["words.weight"][PAD] = 0
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name] - noise[name])
