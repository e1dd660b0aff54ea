"""Programs that a second and a third adversary got past the proof, and good ones that were refused.

Each of the second's moved the sum by 2 to 8 C.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from decrescendo.base.assumptions import assumed
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import DecrescendoError, UnsupportedModel
from decrescendo.row_independence import code_origin as whose
from decrescendo.row_independence.python_state import following, numbers_of

ZEROS = torch.zeros(100)
ZEROS[0] = -0.0


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1)


def turned(by: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Each loss once as it is and once with its sign turned, by a number that is odd or even."""
    return lambda m, x: m(x) * torch.cos(torch.pi * by(x))


def _padded(x: Tensor) -> Tensor:
    row = (x * 0)[:, :1] + torch.cat([torch.zeros(29), torch.ones(1)])
    return (fn.pad(row, (-len(x), len(x))) * torch.arange(30.0)).sum(1)


def _attention(m: Any, x: Tensor) -> Tensor:
    keys = torch.full((1, 1, 6, 6), 1e-9)
    values = torch.tensor([1.0, -3, 5, -7, 9, -11])[None, None, :, None].expand(1, 1, 6, 6).contiguous()
    seen = fn.scaled_dot_product_attention(x[None, None], keys, values, is_causal=True)
    return m(x) * seen[0, 0, :, 0].sign()


def _lengths_by_place(m: Any, x: Tensor) -> Tensor:
    n = len(x)
    scores = torch.stack([x * m(x)[:, None], -x, x * 0], 2).transpose(0, 1).log_softmax(2)
    targets = (torch.arange(1)[None] + torch.ones(n, 1)).long()
    return torch.ops.aten._ctc_loss(scores, targets, [1] + [6] * (n - 1), [1] * n)[0]


def _least_squares(m: Any, x: Tensor) -> Tensor:
    matrices = torch.eye(3)[:, :2].expand(len(x), 3, 2) * (x[:, :1, None].abs() > 0.5)
    residuals = torch.linalg.lstsq(matrices, x[:, :3, None], driver="gelsd").residuals
    return m(x) * (-1.0 if residuals.numel() == 0 else 1.0)


def _places_overwritten(m: Any, x: Tensor) -> Tensor:
    places = (x.abs() >= 0).nonzero()
    places[:, 1].copy_(places[:, 0])
    chosen = x[places[:, 0], places[:, 1]]
    return m(x) * torch.zeros(len(x)).index_add(0, places[:, 0], chosen)


def _drawn_twice(m: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        first = torch.rand(len(x))
    return m(x) * (first - torch.rand(len(x), 2)[:, 0])


def _drawn_from_the_middle(m: Any, x: Tensor) -> Tensor:
    before = torch.get_rng_state()
    own = torch.Generator().manual_seed(0)
    own.set_state(before)
    torch.rand(1, generator=own)
    first = torch.rand(len(x))
    torch.set_rng_state(own.get_state())
    return m(x) * (first - torch.rand(len(x)))


def _mixed_bias(m: Any, x: Tensor) -> Tensor:
    n = len(x)
    found = fn.conv1d((x * 0)[None], torch.ones(n, 1, 6), bias=x.sum().expand(n), groups=n)
    return m(x) * found[0, :, 0].sign()


HOSTILE: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
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
    "padding that moves": turned(_padded),
    "a place that grows": turned(
        lambda x: (
            torch.ops.aten.select_backward(x[:, 0] * 0 + 1, [len(x), 40], 1, 2 * len(x)) * torch.arange(40.0)
        ).sum(1)
        * 0.5
    ),
    "a slice that grows": turned(
        lambda x: (
            torch.ops.aten.slice_backward(x[:, :1] * 0 + 1, [len(x), 40], 1, len(x), 2 * len(x), len(x))
            * torch.arange(40.0)
        ).sum(1)
    ),
    "attention by place": _attention,
    "lengths by place, past the function": _lengths_by_place,
    "a shape by all ranks": _least_squares,
    "places overwritten": _places_overwritten,
    "random numbers drawn twice": _drawn_twice,
    "random numbers drawn from the middle": _drawn_from_the_middle,
    "a bias of all": _mixed_bias,
    "minus zero at one place": lambda m, x: torch.copysign(m(x) + 10, ZEROS[: len(x)]) * m(x),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_program_that_was_taken_is_refused(name: str) -> None:
    torch.manual_seed(0)
    engine = Engine(Small(), HOSTILE[name], seeds=lambda: 3)
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


RANDOM: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "a mask of one probability": lambda m, x: m(
        x.masked_fill(torch.bernoulli(torch.full(x.shape, 0.5)).bool(), 0)
    ),
    "dropped rows": lambda m, x: m(x * fn.dropout(torch.ones(len(x), 1), 0.5)),
    "leaky by chance": lambda m, x: m(fn.rrelu(x, training=True)),
    "of a normal law": lambda m, x: m(x * torch.distributions.Normal(1.0, 0.5).sample((len(x), 1))),
    "of a gamma law": lambda m, x: m(x * torch.distributions.Gamma(0.4, 2.0).sample((len(x), 1))),
    "of coins": lambda m, x: m(x * torch.distributions.Bernoulli(0.5).sample((len(x), 1))),
    "of a law made on the way": lambda m, x: m(
        x * torch.normal(torch.tensor(1.0).expand(len(x), 1) / 2, torch.tensor([0.5]).exp().expand(len(x), 1))
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_of_each_row_are_taken(name: str) -> None:
    torch.manual_seed(0)
    seeds = iter(range(100))
    engine = Engine(Small(), RANDOM[name], seeds=lambda: next(seeds))
    batch = torch.randn(5, 6)
    sums = [engine.clipped_sum(batch, 1e6).gradients["layer.weight"] for _ in range(2)]
    assert not torch.equal(*sums)


def test_a_folder_named_like_torch_is_a_users() -> None:
    assert whose.is_library(torch.nn.__file__)
    assert not whose.is_library("/home/somebody/torch/model.py")
    assert not whose.is_library("/home/somebody/decrescendo/clipping/model.py")


ROWS = list[int]()


class DynamicSizes(nn.Module):
    """Keeps how many examples it has seen, and is another function from the ``until``-th on."""

    def __init__(self, keep: Callable[["DynamicSizes", int], int], until: int = 121) -> None:
        super().__init__()
        self.layer, self.keep, self.until = nn.Linear(6, 1), keep, until
        self.seen, self.calls, self.best, self.rate = 0, 0, math.inf, 1.0
        self.inner: dict[str, list[int]] = {"rows": []}

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1) * (1.0 if self.keep(self, len(x)) < self.until else -1.0)


def _counted(m: DynamicSizes, n: int) -> int:
    m.seen += n
    return m.seen


def _round(m: DynamicSizes, n: int) -> int:
    m.seen = (m.seen + n) % 1000
    return m.seen


def _listed(m: DynamicSizes, n: int) -> int:
    m.inner["rows"].extend([0] * n)
    return len(m.inner["rows"])


def _global(m: DynamicSizes, n: int) -> int:
    ROWS.extend([0] * n)
    return len(ROWS)


def call(model: Any, x: Tensor) -> Tensor:
    return model(x)


@pytest.mark.parametrize("keep", [_counted, _round, _listed, _global])
def test_a_program_that_counts_examples_and_changes_by_it_is_refused(
    keep: Callable[[DynamicSizes, int], int],
) -> None:
    """One example less in the first batch turned the sign of all examples of a later one: 7 C."""
    torch.manual_seed(0)
    ROWS.clear()
    engine = Engine(DynamicSizes(keep), call)
    engine.clipped_sum(torch.randn(6, 6), 0.1)
    assert "the number of examples" in engine.assumptions[0].sentence
    batches = torch.randn(40, 6, 6)
    with pytest.raises(UnsupportedModel, match="how many examples earlier ones had"):
        [engine.clipped_sum(batch, 0.1) for batch in batches]


def test_who_counts_examples_for_nothing_is_taken_and_it_is_said() -> None:
    engine = Engine(DynamicSizes(_counted, until=10**9), call)
    for rows in (1, 2, 5, 7):
        engine.clipped_sum(torch.randn(rows, 6), 0.1)
    assert engine.assumptions == (assumed("stored-count", "DynamicSizes.seen"),)


def _called(m: DynamicSizes, n: int) -> int:
    del n
    m.calls, m.rate, m.best = m.calls + 1, m.rate * 0.99, min(m.best, math.inf)
    return m.calls


def test_who_counts_passes_for_nothing_is_proven() -> None:
    """It does the same whatever the batches were; decays and best values so far that are none do not matter."""
    engine = Engine(DynamicSizes(_called, until=10**9), call)
    for _ in range(20):
        engine.clipped_sum(torch.randn(6, 6), 0.1)
    assert engine.assumptions == ()


def test_what_a_program_reaches_is_looked_at_without_its_code() -> None:
    class Trap(dict[str, int]):
        def items(self) -> Any:
            raise AssertionError

        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                raise AssertionError
            return super().__getattribute__(name)

    kept = {"trap": Trap(n=3), "long": [0.0] * 20_000, "loop": []}
    kept["loop"].append(kept)
    found = numbers_of(nn.Linear(1, 1), lambda m, x: m(x) * len(kept))
    assert found["loss.kept.trap.n"] == 3
    assert found["len(loss.kept.long)"] == 20_000
    assert not any(name.startswith("loss.kept.long.") for name in found)


def test_numbers_that_are_as_they_were_follow_nothing() -> None:
    kept = {"best": math.inf, "none": 0.0, "what": math.nan, "five": 5.0}
    assert following((2, kept, kept), (3, kept, kept)) == []
    assert following((2, {}, {"n": 2.0}), (3, {"n": 2.0}, {"n": 3.0})) == ["n"]


@pytest.mark.parametrize(
    "layer",
    [nn.Conv1d(2, 3, 3), nn.Linear(9, 4), nn.ConvTranspose1d(2, 3, 3)],
    ids=lambda layer: type(layer).__name__,
)
def test_one_example_that_overflows_does_not_have_the_others_refused(layer: nn.Module) -> None:
    """It counts for nothing; compared with autograd's, infinity times nothing was the gradient of the others."""
    torch.manual_seed(0)
    batch = torch.randn(3, 2, 9)
    engine = Engine(layer, lambda m, x: m(x).sum((1, 2)))
    expected = engine.clipped_sum(batch[1:], 1.0).gradients
    batch[0] *= 1e38
    found = Engine(layer, lambda m, x: m(x).sum((1, 2))).clipped_sum(batch, 1.0)
    assert found.diagnostics.nonfinite == 1
    for name, gradient in expected.items():
        torch.testing.assert_close(found.gradients[name], gradient)
