"""As many rows as the data select of each example, put together again by its number."""

from typing import Any

import pytest
import torch
from often import some
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel


def _expanded(lengths: Tensor, mask: Tensor) -> Tensor:
    return torch.arange(len(lengths))[:, None].expand_as(mask)[mask]


def _masked(lengths: Tensor, mask: Tensor) -> Tensor:
    return torch.arange(len(lengths))[:, None].expand_as(mask).masked_select(mask)


def _repeated(lengths: Tensor, mask: Tensor) -> Tensor:
    del mask
    return torch.arange(len(lengths)).repeat_interleave(lengths)


def _where(lengths: Tensor, mask: Tensor) -> Tensor:
    del lengths
    return torch.where(mask)[0]


def _added(h: Tensor, of: Tensor, count: int) -> Tensor:
    return torch.zeros(count, 4).index_add(0, of, h)


def _scattered(h: Tensor, of: Tensor, count: int) -> Tensor:
    return torch.zeros(count, 4).scatter_add(0, of[:, None].expand_as(h), h)


def _highest(h: Tensor, of: Tensor, count: int) -> Tensor:
    index = of[:, None].expand_as(h)
    return torch.zeros(count, 4).scatter_reduce(0, index, h, "amax", include_self=False)


def _attended(h: Tensor, of: Tensor, count: int) -> Tensor:
    """A softmax over the rows of each example, as libraries of graphs write it."""
    most = _highest(h.detach(), of, count).gather(0, of[:, None].expand_as(h))
    weights = (h - most).exp()
    return _scattered(weights / _scattered(weights, of, count)[of] * h, of, count)


@pytest.mark.parametrize("pool", some([_added, _scattered, _highest, _attended], 2))
@pytest.mark.parametrize("whose", [_expanded, _masked, _repeated, _where])
def test_rows_that_an_example_has_are_put_together_by_its_number(whose: Any, pool: Any) -> None:
    def loss(m: Any, b: tuple[Tensor, Tensor]) -> Tensor:
        x, lengths = b
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        return pool(m(x[mask]), whose(lengths, mask), len(x)).square().sum(1)

    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    engine = Engine(model, loss)
    for rows in (5, 1, 8, 2):
        batch = torch.randn(rows, 6, 3), torch.randint(0, 7, (rows,))
        found = engine.clipped_sum(batch, 1.0).gradients
        for name, gradient in Reference(model, loss).clipped_sum(batch, 1.0).gradients.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)
    engine.clipped_sum((torch.randn(3, 6, 3), torch.zeros(3, dtype=torch.long)), 1.0)  # nobody has a row


@pytest.mark.parametrize(
    "program",
    [
        lambda h, n: h.square().sum(1) * (1e-3 if _repeated(n, n).shape[0] > 15 else 1),
        lambda h, n: h.square().sum(1) * (1e-3 if _repeated(n, n)[None].shape[1] > 15 else 1),
        lambda h, n: h.square().sum(1) * torch.ones_like(_repeated(n, n)).sum(),
        lambda h, n: _scattered(h.repeat_interleave(n, 0), (_repeated(n, n) + 1) % len(n), len(n)).sum(1),
        lambda h, n: _scattered(h.repeat_interleave(n.sort()[0], 0), _repeated(n, n), len(n)).sum(1),
        lambda h, n: _scattered(h.repeat_interleave(n, 0).cumsum(0), _repeated(n, n), len(n)).sum(1),
        lambda h, n: h.gather(0, _repeated(n.flip(0), n)[: len(n), None].expand(-1, 4)).sum(1),
        lambda h, n: _added(h.repeat_interleave(n * 0 + n.sum(), 0), _repeated(n * 0 + n.sum(), n), len(n)).sum(1),
    ],
)  # fmt: skip
def test_examples_numbers_as_often_as_data_say_are_used_for_nothing_else(program: Any) -> None:
    engine = Engine(nn.Linear(3, 4), lambda m, b: program(m(b[0]), b[1]))
    with pytest.raises(UnsupportedModel):
        engine.clipped_sum((torch.randn(6, 3), torch.tensor([5, 1, 2, 3, 1, 4])), 1.0)
