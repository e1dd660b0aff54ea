"""What kernels of backward passes lay along the examples, called inside of a loss."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

ROWS = 8


aten: Any = torch.ops.aten


def _seen_by(model: nn.Module, x: Tensor, made: Callable[[Tensor], Tensor]) -> Tensor:
    """Losses that go by what is made, a number a row."""
    return (model(torch.ones_like(x)).squeeze(1) - made(x)).square()


def _by_place(n: int) -> Tensor:
    return torch.cos(torch.pi * torch.arange(n))


def _filters_gradient(x: Tensor) -> Tensor:
    rows, given = x[:, :, None].detach(), x.t()[None].detach().requires_grad_()
    made = nn.functional.conv1d(given.permute(0, 2, 1).reshape(1, len(x), 1), rows, groups=len(x))
    (found,) = torch.autograd.grad(made, given, _by_place(len(x))[None, :, None].contiguous())
    return found.flatten()


def _keys_gradient(x: Tensor) -> Tensor:
    ones, zeros, n = torch.ones(1, 1, 6, 1), torch.zeros(1, 1, 6, 1), len(x)
    keys, values = (x * 0)[None, None], (x * 0 + 1)[None, None]
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward
    found = back(ones, ones, keys, values, zeros, torch.zeros(1, 1, 6), 0.0, True)[2]
    return torch.cos(torch.pi * found[0, 0, :n, 0]) * x[:, 0]


def _bags(x: Tensor) -> Tensor:
    ids, offsets = (x[:, 0] * 0).long(), torch.arange(len(x))
    return torch.cos(torch.embedding_bag(torch.ones(5, 1), ids, offsets, False, 1)[1] * torch.pi) * x[:, 0]


def _bag_weights(x: Tensor) -> Tensor:
    ids, offsets = (x[:, 0] * 0).long(), torch.arange(len(x))
    back = aten._embedding_bag_per_sample_weights_backward
    return back(x, torch.ones(5, 1), ids, offsets, torch.zeros(len(x), dtype=torch.long), 0, -1)


@pytest.mark.parametrize("made", [_filters_gradient, _keys_gradient, _bags, _bag_weights])
def test_what_backward_kernels_lay_along_the_examples_is_refused(made: Callable[[Tensor], Tensor]) -> None:
    """Constants that go by the place, 11 to 15 C."""
    x = torch.tensor([[1.0], [-1.0]] * 3)
    with pytest.raises(UnsupportedModel):
        Engine(nn.Linear(1, 1), lambda m, x: _seen_by(m, x, made)).clipped_sum(x, 1.0)


def test_weights_in_bags_have_their_gradient_inside_of_a_loss() -> None:
    table = torch.randn(7, 4)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, ids = batch
        weights = x.detach().clone().requires_grad_()
        bags = nn.functional.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")
        (found,) = torch.autograd.grad(bags.square().sum(), weights)
        return model(found).sum(1)

    model, batch = nn.Linear(3, 2), (torch.randn(ROWS, 3), torch.randint(7, (ROWS, 3)))
    found = Engine(model, loss).clipped_sum(batch, 1.0)
    expected = Reference(model, loss).clipped_sum(batch, 1.0)
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient)


def test_a_part_of_the_batch_that_is_scattered_is_refused_in_words() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).squeeze(1) * torch.zeros(len(x)).scatter(0, torch.arange(len(x))[:2], x[:, 0])

    with pytest.raises(UnsupportedModel, match="part of the batch"):
        Engine(nn.Linear(4, 1), loss).clipped_sum(torch.randn(ROWS, 4), 1.0)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("multi_margin_loss", torch.zeros(ROWS).long()),
        ("multilabel_margin_loss", torch.tensor([[1, -1, -1, -1]])),
    ],
)
def test_a_mean_whose_gradient_divides_by_itself_is_refused(name: str, target: Tensor) -> None:
    def loss(model: nn.Module, x: Tensor, reduction: str) -> Tensor:
        inner = x.clone().requires_grad_()
        wanted = target[: len(x)] if target.dim() == 1 else target.expand(len(x), -1)
        found = getattr(nn.functional, name)(inner, wanted, reduction=reduction).sum()
        return model(x + torch.autograd.grad(found, inner)[0]).sum(1)

    model, x = nn.Linear(4, 1), torch.randn(ROWS, 4)
    assert Engine(model, functools.partial(loss, reduction="sum")).clipped_sum(x, 1.0).diagnostics.examples == 8
    with pytest.raises(UnsupportedModel, match="mean over the batch"):
        Engine(model, functools.partial(loss, reduction="mean")).clipped_sum(x, 1.0)
