"""Weights written into parts of the examples, parts of an order, and parts of a weight: exact, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 1)
        self.token, self.table = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(6, 5))


class Tagged(Tensor):
    """A subclass that does nothing but be one."""


def _written(write: Callable[[Any, Tensor, Tensor], Any], *, zeros: bool, time_first: bool) -> Any:
    def loss(m: Any, x: Tensor) -> Tensor:
        h = m.layer(x)
        if time_first:
            h = h.transpose(0, 1).contiguous().transpose(0, 1)
        into = torch.zeros(len(x), 4, 5) if zeros else h
        write(m, into, x)
        return m.head((into + m.layer(x)).tanh().mean(1)).squeeze(1).square()

    return loss


def _put(h: Tensor, index: Any, value: Any) -> None:
    h[index] = value


def _check(loss: Any, batch: Callable[[int], Tensor] = lambda rows: torch.randn(rows, 4, 5)) -> None:
    torch.manual_seed(0)
    model = Tokens()
    engine, slow = Engine(model, loss), Reference(model, loss)
    for rows in (5, 2, 3, 1, 8):
        given = batch(rows)
        found, expected = (one.clipped_sum(given, 0.5).gradients for one in (engine, slow))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


ALL = slice(None)


@pytest.mark.parametrize("form", ["rows", "zeros", "time first"])
@pytest.mark.parametrize(
    "write",
    [
        lambda m, h, x: _put(h, (ALL, 0), m.token),
        lambda m, h, x: _put(h, (ALL, torch.tensor([True, False, False, True])), m.token),
        lambda m, h, x: _put(h, (x[:, 0, 0] > 0, slice(1, None)), m.token),
        lambda m, h, x: _put(h, (torch.arange(len(x)), x[:, :, 0].argmax(1)), m.token),
        lambda m, h, x: _put(h, (ALL, [0, 2]), m.table[:2]),
        lambda m, h, x: h[:, 2].copy_(m.token),
        lambda m, h, x: h[:, ::2].mul_(m.token),
    ],
    ids=["a class token", "a fixed mask", "rows and tokens", "its own token", "a list", "copied", "scaled"],
)
def test_a_trained_weight_written_into_a_part_of_each_row_is_exact(write: Any, form: str) -> None:
    _check(_written(write, zeros=form == "zeros", time_first=form == "time first"))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    "write",
    [
        lambda m, h, x: _put(h, (ALL, 0), m.table[: len(x)]),
        lambda m, h, x: _put(h, (0, 0), m.token),
        lambda m, h, x: _put(h, (torch.arange(len(x)), torch.arange(len(x)) % 4), m.token),
        lambda m, h, x: h[:, 0].copy_(m.table[: len(x)]),
    ],
    ids=["by place", "the first row", "a token by place", "copied by place"],
)
def test_a_trained_weight_written_by_the_place_of_a_row_is_refused(write: Any, zeros: bool) -> None:
    for rows in (5, 3):
        with pytest.raises(UnsupportedModel):
            Engine(Tokens(), _written(write, zeros=zeros, time_first=False)).clipped_sum(torch.randn(rows, 4, 5), 0.5)


def _mined(change: Callable[[Tensor, Tensor], Tensor]) -> Any:
    def loss(m: Any, x: Tensor) -> Tensor:
        return change(m.head(m.layer(x).tanh().mean(1)).squeeze(1).square(), x[:, 0, 0].argsort())

    return loss


@pytest.mark.parametrize(
    "change",
    [
        lambda losses, order: losses.index_put((order[:2],), torch.tensor(0.0)),
        lambda losses, order: losses.index_fill(0, order[:2], 0.0),
        lambda losses, order: losses.index_put((order[::2],), torch.tensor(0.0)),
    ],
    ids=["put", "filled", "every second"],
)
def test_the_least_of_a_batch_are_refused_also_where_they_come_first_in_it(change: Any) -> None:
    """Rows that come in their order: then a part of the order is what a part of the places is."""
    rows = torch.randn(5, 4, 5)
    rows[:, 0, 0] = torch.linspace(-1, 1, 5)
    with pytest.raises(UnsupportedModel, match="an index chooses rows of other examples"):
        Engine(Tokens(), _mined(change)).clipped_sum(rows, 0.5)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_chunk_of_a_weight_as_another_class_is_that_chunk(part: int) -> None:
    def loss(m: Any, x: Tensor) -> Tensor:
        chunk = m.table.chunk(3)[part].as_subclass(Tagged)
        return (x.mean(1) @ chunk.T).as_subclass(Tensor).square().sum(1) + m.head(m.layer(x)).mean((1, 2))

    _check(loss)


def test_a_constant_with_strides_of_the_number_of_examples_is_refused() -> None:
    table = torch.linspace(-1, 1, 99)

    def loss(m: Any, x: Tensor) -> Tensor:
        return m.head(m.layer(x).mean(1) + torch.ops.aten._reshape_alias(table, [5], [len(x)])).squeeze(1)

    with pytest.raises(UnsupportedModel, match="the numbers"):
        Engine(Tokens(), loss).clipped_sum(torch.randn(5, 4, 5), 0.5)
