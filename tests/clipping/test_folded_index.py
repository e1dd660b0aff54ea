"""Rows chosen from all examples' rows in one list, by an index of own data and of the place where own rows begin."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from often import some
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

Batch = tuple[Tensor, Tensor]
N, D, K = 5, 4, 3
C = 0.05


def base(x: Tensor, times: int = N) -> Tensor:
    return torch.arange(len(x)) * times


def neighbours(x: Tensor) -> Tensor:
    """The K nearest points of each point of a cloud (rows x N x D): rows x N x K."""
    return (-torch.cdist(x, x)).topk(K)[1]


def cloud(m: nn.Module, x: Tensor, last: Tensor) -> Tensor:
    """The edge features of DGCNN."""
    index = neighbours(x) + base(x).view(-1, 1, 1)
    flat = x.reshape(len(x) * N, -1)
    near = flat[index.view(-1), :].view(len(x), N, K, D)
    return m(near - x.unsqueeze(2)).amax(2).sum((1, 2))


def last_one(m: nn.Module, x: Tensor, last: Tensor) -> Tensor:
    return m(x).reshape(-1, D)[last + base(x)].square().sum(1)


def counted_from_one(m: nn.Module, x: Tensor, last: Tensor) -> Tensor:
    """Lengths, of which the last row is one less."""
    starts = torch.arange(0, len(x) * N, N)
    return m(x).reshape(-1, D)[starts + (last + 1) - 1].square().sum(1)


def moved_and_turned(m: nn.Module, x: Tensor, last: Tensor) -> Tensor:
    index = ((torch.stack([last, 0 * last]) + base(x)).t() + 2 - 3).add(1)
    return m(x).flatten(0, 1)[index].square().sum((1, 2))


def by_index_select(m: nn.Module, x: Tensor, last: Tensor) -> Tensor:
    return m(x).flatten(0, 1).index_select(0, base(x) + last).square().sum(1)


def shifted(m: nn.Module, x: Tensor, last: Tensor) -> Tensor:
    """The one before, or the first: the same for each."""
    return m(x).flatten(0, 1)[(last - 1).clamp(min=0) + (base(x) + 0)].square().sum(1)


def in_columns(m: nn.Module, x: Tensor, last: Tensor) -> Tensor:
    index = (torch.stack([last, 0 * last]) + base(x)).t()
    return m(x).flatten(0, 1)[index].square().sum((1, 2))


HONEST = [cloud, last_one, counted_from_one, moved_and_turned, by_index_select, shifted, in_columns]


@pytest.mark.parametrize("program", HONEST)
@pytest.mark.parametrize("rows", some([1, 2, 3, 4, 7, 12], 2))
def test_own_rows_of_a_folded_list_are_exact(program: Callable[..., Tensor], rows: int) -> None:
    torch.manual_seed(rows)
    model = nn.Linear(D, D)
    batch = (torch.randn(rows, N, D), torch.randint(0, N, (rows,)))

    def loss(m: nn.Module, given: Any) -> Tensor:
        return program(m, *given)

    engine = Engine(model, loss)
    for _ in range(3):
        found, slow = engine.clipped_sum(batch, C), Reference(model, loss).clipped_sum(batch, C)
        for name, gradient in slow.gradients.items():
            torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-4, atol=1e-7)
        batch = (torch.randn(rows, N, D), torch.randint(0, N, (rows,)))
    assert engine.assumptions == ()


def odd(x: Tensor) -> Tensor:
    return torch.arange(len(x)) % 2


def written(index: Tensor, change: Callable[[Tensor], object]) -> Tensor:
    change(index)
    return index


HOSTILE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "by the parity of its place": lambda x, last: last.clamp(max=N - 2) + (base(x) + odd(x)),
    "other examples' rows": lambda x, last: last + base(x, N - 1),
    "the next example's": lambda x, last: (last + base(x) + N) % (len(x) * N),
    "in reverse order": lambda x, last: last + base(x).flip(0),
    "what all of them are": lambda x, last: last * 0 + base(x) + (x.sum() > 0),
    "what all of them are, first": lambda x, last: (last * 0 + (x.sum() > 0)) + base(x),
    "written to": lambda x, last: written(last * 0 + base(x), lambda i: i.add_(odd(x))),
    "written to in a view": lambda x, last: written(last * 0 + base(x), lambda i: i[::2].add_(1)),
    "written to by another dtype": lambda x, last: written(
        last * 0 + base(x), lambda i: i.view(torch.int32)[::4].add_(1)
    ),
    "written to by an index": lambda x, last: written(
        last * 0 + base(x), lambda i: i.index_put_((odd(x).nonzero()[:, 0],), torch.ones(len(x) // 2).long())
    ),
    "moved to the one before": lambda x, last: last * 0 + base(x) - N,
    "moved, and written to": lambda x, last: written(last * 0 + base(x) + 1 - 1, lambda i: i.add_(odd(x))),
    "moved in place": lambda x, last: written(last * 0 + base(x), lambda i: i.add_(1).sub_(1).add_(odd(x))),
    "taken from": lambda x, last: (len(x) * N - 1) - (last + base(x)),
    "moved by its place": lambda x, last: last.clamp(max=N - 2) + base(x) + odd(x),
    "taken twice": lambda x, last: (last * 0 + base(x)) + odd(x),
    "turned": lambda x, last: (last * 0 + base(x)).flip(0).flip(0) + odd(x),
    "scaled": lambda x, last: torch.add(last * 0, base(x, 1), alpha=N) + odd(x),
    "rolled": lambda x, last: (last * 0 + base(x)).roll(1),
    "the largest": lambda x, last: (last + base(x)).max() - 0 * last,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("rows", some([5, 2, 12], 1))
def test_rows_by_place_or_of_others_are_refused(name: str, rows: int) -> None:
    torch.manual_seed(1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, last = batch
        return m(x).flatten(0, 1)[HOSTILE[name](x, last)].square().sum(1)

    batch = (torch.randn(rows, N, D), torch.randint(0, N, (rows,)))
    with pytest.raises(UnsupportedModel):
        Engine(nn.Linear(D, D), loss).clipped_sum(batch, C)


def _last_first(x: Tensor) -> Tensor:
    """How many there are less one, at each example, as what is largest comes first."""
    return torch.arange(len(x)).sort(descending=True)[0] + torch.arange(len(x))


BY_NUMBER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "where rows begin": lambda x, last: last * 0 + (base(x), base(x) + 1)[len(x) % 2],
    "a number that is added": lambda x, last: last * 0 + base(x) + len(x) % 2,
    "a number that is taken off": lambda x, last: last * 0 + N - 1 + base(x) - len(x) % 2,
    "own data": lambda x, last: (last * 0, last * 0 + 2)[len(x) % 2] + base(x),
    "own data, second": lambda x, last: base(x) + (last * 0, last * 0 + 2)[len(x) % 2],
    "the index": lambda x, last: (last * 0 + base(x), last * 0 + (base(x) + 1))[len(x) % 2],
    "a constant in order": lambda x, last: last * 0 + (base(x) + _last_first(x) % 2),
}


@pytest.mark.parametrize("name", BY_NUMBER)
@pytest.mark.parametrize("rows", some([2, 3, 6, 7], 2))
def test_rows_by_how_many_examples_there_are_are_refused(name: str, rows: int) -> None:
    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, last = batch
        return m(x).flatten(0, 1)[BY_NUMBER[name](x, last)].square().sum(1)

    batch = (torch.randn(rows, N, D), torch.randint(0, N, (rows,)))
    with pytest.raises(UnsupportedModel):
        Engine(nn.Linear(D, D), loss).clipped_sum(batch, C)


@pytest.mark.parametrize("rows", [2, 3, 6, 7])
def test_constants_in_order_that_say_how_many_examples_there_are_are_refused(rows: int) -> None:
    def loss(m: nn.Module, x: Any) -> Tensor:
        odd = (_last_first(x) % 2).unsqueeze(1).bool()
        return torch.where(odd, m(x)[:, 0], m(x)[:, 1]).square().sum(1)

    with pytest.raises(UnsupportedModel):
        Engine(nn.Linear(D, D), loss).clipped_sum(torch.randn(rows, N, D), C)


def test_rows_in_another_order_and_back_again_are_exact() -> None:
    """The order is a constant, and so is its own order, which leads back."""
    model, x = nn.Linear(D, D), torch.randn(6, N, D)

    def loss(m: nn.Module, x: Any) -> Tensor:
        order = torch.arange(len(x)).flip(0)
        return m(x[order])[order.argsort()].square().sum((1, 2))

    engine = Engine(model, loss)
    found, slow = engine.clipped_sum(x, C), Reference(model, loss).clipped_sum(x, C)
    for name, gradient in slow.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-4, atol=1e-7)
    assert engine.assumptions == ()


def test_an_example_that_reaches_beyond_its_own_rows_is_refused_when_it_comes() -> None:
    """Accepted while each stays with its own; its neighbour's row is never given."""

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return last_one(m, *batch)

    engine = Engine(nn.Linear(D, D), loss)
    x, last = torch.randn(6, N, D), torch.full((6,), 2)
    engine.clipped_sum((x, last), C)
    for beyond in (N, -1):
        with pytest.raises(UnsupportedModel, match="other examples"):
            engine.clipped_sum((x, torch.tensor([0, beyond, 0, 1, 2, 3])), C)
    engine.clipped_sum((x, last), C)


def test_equal_constants_stay_in_their_order_which_is_still_by_place() -> None:
    def loss(m: nn.Module, x: Tensor, turned: bool) -> Tensor:
        equal, order = torch.ones(len(x)).sort(descending=True)
        odd = (order + (torch.arange(len(x)).flip(0) if turned else 0)) % 2
        return (m(x) * (equal[:, None] if not turned else 1 - 2 * odd[:, None])).sum(1)

    model, x = nn.Linear(D, D), torch.randn(7, D)
    found = Engine(model, lambda m, x: loss(m, x, False)).clipped_sum(x, C).gradients
    slow = Reference(model, lambda m, x: loss(m, x, False)).clipped_sum(x, C).gradients
    torch.testing.assert_close(found, slow)
    with pytest.raises(UnsupportedModel):
        Engine(model, lambda m, x: loss(m, x, True)).clipped_sum(x, C)
