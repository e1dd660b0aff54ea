"""Whether ids are among known ones, each example's own."""

import functools

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

ROWS = 8


def test_whether_tokens_are_special_ones_is_each_examples_own() -> None:
    """It was refused, as an operation without a rule."""
    model, tokens, special = nn.Embedding(9, 3), torch.arange(32).reshape(8, 4) % 9, torch.tensor([0, 3])

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x).sum(2) * ~torch.isin(x, special)).sum(1)

    found, expected = (kind(model, loss).clipped_sum(tokens, 0.5) for kind in (Engine, Reference))
    torch.testing.assert_close(found.gradients["weight"], expected.gradients["weight"])
    with pytest.raises(UnsupportedModel, match="no example's loss may depend on another"):
        Engine(model, lambda model, x: model(x).sum((1, 2)) * torch.isin(special, x).sum()).clipped_sum(tokens, 0.5)


def test_ids_that_are_said_to_be_unique_are_compared_with_those_of_others() -> None:
    known = torch.arange(200)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor], unique: bool) -> Tensor:
        x, ids = batch
        return model(x).squeeze(1) * torch.isin(ids, known, assume_unique=unique).any(1)

    batch = torch.ones(ROWS, 1), torch.arange(8 * ROWS).reshape(ROWS, 8)
    model = nn.Linear(1, 1)
    assert Engine(model, functools.partial(loss, unique=False)).clipped_sum(batch, 1.0).diagnostics.examples == 8
    with pytest.raises(UnsupportedModel, match="said to be unique"):
        Engine(model, functools.partial(loss, unique=True)).clipped_sum(batch, 1.0)
