"""A loss that follows the number of examples or the place in the batch is refused; rows of one's own are not."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import DecrescendoError, UnsupportedModel

TABLE = torch.arange(100.0)
ONES = torch.ones(100)
SIGNS = (torch.arange(100) * torch.pi).cos()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1)


def turned(by: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Each loss once as it is and once with its sign turned, by a number that is odd or even."""
    return lambda m, x: m(x) * torch.cos(torch.pi * by(x))


def _attention(m: Any, x: Tensor) -> Tensor:
    keys = torch.full((1, 1, 6, 6), 1e-9)
    values = torch.tensor([1.0, -3, 5, -7, 9, -11])[None, None, :, None].expand(1, 1, 6, 6).contiguous()
    seen = fn.scaled_dot_product_attention(x[None, None], keys, values, is_causal=True)
    return m(x) * seen[0, 0, :, 0].sign()


def _least_squares(m: Any, x: Tensor) -> Tensor:
    matrices = torch.eye(3)[:, :2].expand(len(x), 3, 2) * (x[:, :1, None].abs() > 0.5)
    residuals = torch.linalg.lstsq(matrices, x[:, :3, None], driver="gelsd").residuals
    return m(x) * (-1.0 if residuals.numel() == 0 else 1.0)


def _mixed_bias(m: Any, x: Tensor) -> Tensor:
    n = len(x)
    found = fn.conv1d((x * 0)[None], torch.ones(n, 1, 6), bias=x.sum().expand(n), groups=n)
    return m(x) * found[0, :, 0].sign()


BY_NUMBER_OR_PLACE: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "new ones": turned(lambda x: x.new_ones(len(x)).sum()),
    "ones like rows of others": turned(lambda x: torch.ones_like(x.flip(0)).sum() / 6),
    "filled": turned(lambda x: x[:, 0].clone().fill_(1.0).sum()),
    "copied": turned(lambda x: x[:, 0].clone().copy_(torch.ones(1)).sum()),
    "rows of others filled": turned(lambda x: x[:, 0].flip(0).fill_(1.0).sum()),
    "how many random numbers": turned(lambda x: (torch.rand(2 * len(x)) * 0 + 0.5).sum()),
    "random like": turned(lambda x: (torch.rand_like(x) * 0 + 1).square().sum() / 6),
    "drawn in place": turned(lambda x: (torch.empty_like(x).exponential_() * 0 + 1).sum() / 6),
    "drawn into new": turned(lambda x: (x.new_empty(len(x), 1).bernoulli_(0.5) * 0 + 1).sum()),
    "a number shown often": turned(lambda x: (torch.tensor(1.0).expand(len(x), 1) * 2).sum()),
    "a law of the number": lambda m, x: m(x * torch.distributions.Normal(0.0, float(len(x))).sample((len(x), 1))),
    "a law of the number, shown often": lambda m, x: m(
        x * torch.normal(0.0, torch.tensor(1.0).expand(len(x), 1).sum().expand(len(x), 1))
    ),
    "a law of the place": lambda m, x: m(x * torch.normal(0.0, torch.arange(len(x))[:, None] + 1.0)),
    "places shown often": turned(
        lambda x: (torch.arange(float(len(x)))[:, None].expand(-1, 3).mul(1).mean(1) - 2.5).sign()[:, None]
    ),
    "boundaries": turned(lambda x: torch.bucketize(x[:, 0].abs() * 100 + 50, torch.arange(len(x)).float())),
    "sorted": turned(lambda x: torch.searchsorted(torch.arange(len(x)).float(), x[:, 0].abs() * 100 + 50)),
    "scattered": turned(
        lambda x: torch.cat([x * 0 + 1] * 4, 1).scatter(1, torch.arange(len(x)).expand(len(x), -1), 0.0).sum(1)
    ),
    "a table": turned(
        lambda x: 1 / fn.embedding((x[:, 0] * 0).long() + 1, torch.linspace(0, 1, len(x))[:, None])[:, 0]
    ),
    "a line at one place": turned(lambda x: 1 / torch.linspace(0, 1, len(x))[torch.tensor([1])]),
    "a line over its places": turned(
        lambda x: (1 / (torch.linspace(0, 1, 2 * len(x)).view(-1, 2)[:, 1] / (2 * torch.arange(len(x)) + 1))).round()
        / 2
        + 0.5
    ),
    "the last of a range": turned(lambda x: torch.arange(2 * len(x))[torch.tensor([-1])] * 0.5 + 0.5),
    "gathered": turned(
        lambda x: 1
        / torch.linspace(0, 1, len(x))[None].expand(3, -1).contiguous().gather(0, (x[:, :2] * 0).long())[:, 1]
    ),
    "a kernel": turned(
        lambda x: fn.conv1d(torch.cat([x * 0 + 1] * 3, 1)[:, None], torch.ones(1, 1, len(x)), stride=100)[:, 0, 0]
    ),
    "a bound of random numbers": turned(
        lambda x: torch.randint(0, 5 * len(x), (1,), generator=torch.Generator().manual_seed(3))
    ),
    "attention by place": _attention,
    "a shape by all ranks": _least_squares,
    "a bias of all": _mixed_bias,
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NUMBER_OR_PLACE)
def test_a_loss_by_the_number_or_the_place_is_refused(name: str) -> None:
    torch.manual_seed(0)
    engine = Engine(Small(), BY_NUMBER_OR_PLACE[name], seeds=lambda: 3)
    batch = torch.randn(6, 6) * 3
    batch[0, 0] = 0.1
    with pytest.raises(DecrescendoError):
        engine.clipped_sum(batch, 0.1)


def _pairs(m: Any, x: Tensor) -> Tensor:
    n = len(x)
    h = m.layer(torch.cat([x, x.roll(1, 1)]).tanh())
    return (h[:n] - h[n:]).square().sum(1)


def _least_squares_of_each(m: Any, x: Tensor) -> Tensor:
    return torch.linalg.lstsq(x.view(-1, 3, 2), (x[:, :3] * m(x)[:, None])[:, :, None]).solution.sum((1, 2))


EXACT: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "pairs put side by side and cut": _pairs,
    "least squares of each": _least_squares_of_each,
    "a column of random numbers that are none": lambda m, x: m(x * x.new_empty(len(x), 1).bernoulli_(1.0)),
}


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", EXACT)
def test_a_plain_program_is_exact(name: str, rows: int) -> None:
    torch.manual_seed(0)
    model, batch = Small(), torch.randn(rows, 6)
    found = Engine(model, EXACT[name], seeds=lambda: 3).clipped_sum(batch, 0.1).gradients
    expected = Reference(model, EXACT[name]).clipped_sum(batch, 0.1).gradients
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-6)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(()))


def flipped(m: Any, x: Tensor, by: Tensor) -> Tensor:
    return m.layer(x).sum(1) * torch.cos(torch.pi * by)


def _generator(m: Any, x: Tensor) -> Tensor:
    own = torch.Generator().manual_seed(5)
    torch.rand(len(x), generator=own)
    return m.layer(x).sum(1) * (torch.rand((), generator=own) - 0.5).sign()


def _ctc(m: Any, x: Tensor) -> Tensor:
    n = len(x)
    scores = torch.stack([x * m.scale, -x * m.scale, x * 0], 2).transpose(0, 1).log_softmax(2)
    targets = (torch.arange(1)[None] + torch.ones(n, 1)).long()
    return fn.ctc_loss(scores, targets, tuple(4 if i % 2 else 1 for i in range(n)), (1,) * n, reduction="none")


def _hook(m: Any, x: Tensor) -> Tensor:
    weight = m.layer.weight * 1.0
    weight.register_hook(lambda g: g * -1)
    return fn.linear(x, weight + 0.0).sum(1)


SCALED: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "the state of a generator": _generator,
    "lengths by place": _ctc,
    "a hook on a derived weight": _hook,
    "arange": lambda m, x: flipped(m, x, torch.arange(len(x), 2 * len(x), len(x))),
    "linspace": lambda m, x: flipped(m, x, torch.linspace(len(x), len(x), 1)),
    "slice": lambda m, x: flipped(m, x, TABLE[len(x) : 2 * len(x) : len(x)]),
    "a view of a slice": lambda m, x: flipped(m, x, ONES[: len(x)].unsqueeze(0).sum()),
    "scatter": lambda m, x: (x * 0 + 1).scatter(1, torch.zeros(1, 1).long(), -1.0)[:, 0] * x[:, 1] * m.scale,
    "index_copy": lambda m, x: (
        x.index_copy(1, torch.tensor([0]), SIGNS[: len(x)].view(len(x), 1))[:, 0] * x[:, 1] * m.scale
    ),
    "bilinear": lambda m, x: (
        fn.bilinear(SIGNS[torch.arange(len(x))].unsqueeze(1), x, torch.ones(4, 1, 4))[:, 0] * m.scale
    ),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_scale_by_the_number_or_the_place_is_refused(name: str) -> None:
    torch.manual_seed(0)
    engine = Engine(Scaled(), SCALED[name], seeds=lambda: 3)
    batch = torch.randn(6, 4) * 3 + 2
    batch[0] = 11
    with pytest.raises(DecrescendoError):
        engine.clipped_sum(batch, 0.1)


def _floor(x: Tensor) -> Tensor:
    """As large with two examples as with three, and as the batch from there on."""
    return torch.ones(max(len(x), 3)).sum() % 2


def _slices(x: Tensor) -> Tensor:
    """Two slices that are one with three examples: which of them is taken shows with five."""
    table = torch.arange(40.0)
    first, second = table[:3], table[: len(x)]
    return (first if len(x) < 4 else second).sum() % 2


def _rest(x: Tensor) -> Tensor:
    """Empty with two examples and with three."""
    return torch.ones(len(x))[3:].sum() % 2


def _selected(x: Tensor) -> Tensor:
    places = torch.arange(len(x))
    return torch.ones_like(places[places >= 3]).sum() % 2


def _beside(x: Tensor) -> Tensor:
    return torch.ones_like(torch.ones(len(x), len(x)).diagonal(3)).sum() % 2


def _sorted(x: Tensor) -> Tensor:
    return torch.ones_like(x[:, 0].sort()[0][3:]).sum() % 2


@pytest.mark.parametrize("number", [_floor, _slices, _rest, _selected, _beside, _sorted])
def test_a_size_that_follows_the_batch_from_three_examples_on_is_refused(
    number: Callable[[Tensor], Tensor],
) -> None:
    """One example more turned the sign of all others: 6 C at eight rows, and the run was proven."""
    torch.manual_seed(0)
    engine = Engine(nn.Linear(6, 1), lambda m, x: m(x).squeeze(1) * torch.where(number(x) == 0, 1.0, -1.0))
    with pytest.raises(UnsupportedModel):
        [engine.clipped_sum(torch.randn(rows, 6), 0.1) for rows in (3, 4, 5, 8)]


def _lost(x: Tensor) -> Tensor:
    """What reaches no loss by its numbers; how long it is follows the batch from four examples on."""
    return x.detach().sum(0)[:1].repeat(1 if len(x) < 4 else 1 + len(x) % 2)


SHOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "like it": lambda x: torch.ones_like(_lost(x)),
    "drawn like it": lambda x: torch.rand_like(_lost(x)).ceil(),
    "written over": lambda x: _lost(x).fill_(1.0),
    "copied over": lambda x: _lost(x).copy_(torch.ones(1)),
    "resized": lambda x: torch.zeros(1).resize_as_(_lost(x)).fill_(1.0),
    "like a constant": lambda x: torch.ones_like(torch.ones(len(x)).cumsum(0)[:1].clone().repeat(max(len(x), 3))),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_shape_of_what_reaches_no_loss_is_compared(name: str) -> None:
    """One example more turned the sign of all others: 6 C at eight rows, and the run was proven."""
    torch.manual_seed(0)
    engine = Engine(nn.Linear(6, 1), lambda m, x: m(x).squeeze(1) * (3 - 2 * SHOWN[name](x).sum()), seeds=lambda: 0)
    engine.clipped_sum(torch.randn(3, 6), 0.1)
    with pytest.raises(UnsupportedModel):
        [engine.clipped_sum(torch.randn(rows, 6), 0.1) for rows in (4, 5, 8)]


def test_statistics_that_reach_no_loss_may_have_any_shape() -> None:
    def program(m: nn.Module, x: Tensor) -> Tensor:
        alike, steps = x @ x.T, x.detach()[1:] - x.detach()[:-1]
        torch.ones_like(alike), alike.fill_(0.0), steps.mul_(2.0).T.mean() / len(x)
        return m(x + torch.zeros_like(x.detach().mean(0))).squeeze(1)

    engine = Engine(nn.Linear(6, 1), program)
    for rows in (3, 1, 5, 8):
        engine.clipped_sum(torch.randn(rows, 6), 1.0)
    assert engine.assumptions == ()
