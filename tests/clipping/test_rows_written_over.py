"""Rows that data selected, and constants, are written over: what shows and what does not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel


def call(model: Any, x: Tensor) -> Tensor:
    return model(x)


def _doubled(m: nn.Module, x: Tensor) -> Tensor:
    chosen, made = x[:, 0] > 0, torch.zeros_like(x)
    made[chosen] = x[chosen] * 2
    return m(x + made).squeeze(1)


def _doubled_by_numbers(m: nn.Module, x: Tensor) -> Tensor:
    chosen, made = torch.where(x[:, 0] > 0)[0], torch.zeros_like(x)
    made[chosen] = x[chosen] * 2
    return m(x + made).squeeze(1)


@pytest.mark.parametrize("program", [_doubled, _doubled_by_numbers])
@pytest.mark.parametrize("signs", [(1, 1, 1), (1, -1, 1), (-1, -1, 1, 1), (-1, -1, -1, -1), (1, -1, -1, -1)])
def test_rows_that_are_set_may_be_one_or_none(program: Callable[[Any, Tensor], Tensor], signs: tuple[int, ...]) -> None:
    """torch leaves the first dimension of one row out, and the proof lost whose it is."""
    torch.manual_seed(0)
    model, batch = nn.Linear(6, 1), torch.randn(len(signs), 6)
    batch[:, 0] = torch.tensor(signs)
    engine = Engine(model, program)
    found = engine.clipped_sum(batch, 1.0).gradients
    expected = Reference(model, program).clipped_sum(batch, 1.0).gradients
    torch.testing.assert_close(found, expected)
    assert engine.assumptions == ()


def test_a_number_beside_an_output_that_is_given_is_taken() -> None:
    def program(m: nn.Module, x: Tensor) -> Tensor:
        half = torch.mul(x.detach(), 0.5, out=torch.empty_like(x))
        return m(x - half).squeeze(1)

    engine = Engine(nn.Linear(6, 1), program)
    engine.clipped_sum(torch.randn(5, 6), 1.0)
    assert engine.assumptions == ()


def test_slopes_by_chance_are_each_entrys_own() -> None:
    """What the layer writes beside its output, the noise, is made entry by entry too: it keeps no statistics."""
    model = nn.Sequential(nn.Linear(6, 4), nn.RReLU(), nn.Linear(4, 1), nn.Flatten(0))
    engine = Engine(model, call, seeds=lambda: 0)
    for rows in (5, 3):
        engine.clipped_sum(torch.randn(rows, 6), 1.0)
    assert engine.assumptions == ()
    model.eval()
    batch = torch.randn(5, 6)
    expected = Reference(model, call).clipped_sum(batch, 1.0).gradients
    torch.testing.assert_close(engine.clipped_sum(batch, 1.0).gradients, expected)


def _positive(x: Tensor) -> Tensor:
    return x[:, 0][x[:, 0] > 0]


COUNTED: dict[str, Callable[[Tensor], Tensor]] = {
    "filled": lambda x: _positive(x).clone().fill_(1).sum(),
    "in order": lambda x: torch.masked_select(x[:, 0].sort()[0], x[:, 0].sort()[0] > 0).fill_(1).sum(),
    "zero and one": lambda x: _positive(x).zero_().add(1).sum(),
    "copied over": lambda x: _positive(x).copy_(torch.ones(1)).sum(),
    "drawn": lambda x: _positive(x).uniform_(0.9, 1.0).ceil().sum(),
    "sums filled": lambda x: _positive(x).cumsum(0).fill_(1).sum(),
    "resized": lambda x: torch.zeros(1).resize_as_(_positive(x)).fill_(1).sum(),
    "their numbers filled": lambda x: (x[:, 0] > 0).nonzero().fill_(1).sum(),
}


@pytest.mark.parametrize("name", COUNTED)
def test_how_many_rows_data_selected_shows_in_nothing_that_is_written_over_them(name: str) -> None:
    """One example turned the sign of all others, 8 C: the first batch had as many selected of two as of three."""
    torch.manual_seed(0)
    batch = torch.randn(8, 6)
    batch[:, 0] = torch.tensor([1.0, 2.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0])

    def program(m: nn.Module, x: Tensor) -> Tensor:
        return m(x).squeeze(1) * (1 - 2 * (COUNTED[name](x.detach().clone()) % 2))

    engine = Engine(nn.Linear(6, 1), program, seeds=lambda: 0)
    with pytest.raises(UnsupportedModel):
        [engine.clipped_sum(batch[:rows], 0.1) for rows in (4, 8, 7, 5)]


def test_rows_that_data_selected_may_be_written_over_and_put_back() -> None:
    def program(m: nn.Module, x: Tensor) -> Tensor:
        chosen, made = x[:, 0] > 0, torch.zeros_like(x)
        made[chosen] = x[chosen].clone().fill_(2.0)
        return m(x + made + x.detach().clone().zero_()).squeeze(1)

    torch.manual_seed(0)
    engine = Engine(nn.Linear(6, 1), program)
    for rows in (3, 1, 5, 8):
        engine.clipped_sum(torch.randn(rows, 6), 1.0)
    assert engine.assumptions == ()
