"""The proof by its parts: labels of memory against brute force, rules against what moves, and what is refused."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from clipping_cases import Made, loss, normal
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as fn

from decrescendo.base.assumptions import assumed
from decrescendo.clipping import Engine, EngineSettings, Reference, register_rule
from decrescendo.clipping.rules.linear import LinearKernel
from decrescendo.errors import InvalidValue, UnsupportedModel
from decrescendo.row_independence.known_memory import Memory
from decrescendo.row_independence.labels import Mixed, Public, RowLayout
from decrescendo.row_independence.row_layout import span_of, view_of
from decrescendo.row_independence.trace import Event, Trace
from decrescendo.row_independence.tracer import Tracer

N = 5


@st.composite
def views(draw: Any) -> tuple[Tensor, RowLayout, Tensor]:
    """Memory with its examples somewhere, and some view of it."""
    before, inner, after = (draw(st.integers(1, 3)) for _ in range(3))
    whole = torch.arange(before * N * inner * after).reshape(before, N * inner, after)
    view = whole
    for _ in range(draw(st.integers(0, 4))):
        kind, dim = draw(st.integers(0, 5)), draw(st.integers(0, view.dim() - 1))
        size = view.shape[dim]
        if kind == 0:
            view = view.transpose(dim, draw(st.integers(0, view.dim() - 1)))
        elif kind == 1 and size > 1:
            start = draw(st.integers(0, size - 1))
            view = view.narrow(dim, start, draw(st.integers(1, size - start)))
        elif kind == 2 and view.dim() > 1:
            view = view.select(dim, draw(st.integers(0, size - 1)))
        elif kind == 3:
            view = view.unsqueeze(dim)
        elif kind == 4:
            factor = draw(st.sampled_from([f for f in range(1, size + 1) if size % f == 0]))
            view = view.unflatten(dim, (factor, size // factor))
        elif kind == 5 and view.is_contiguous() and view.dim() > 1 and dim + 1 < view.dim():
            view = view.flatten(dim, dim + 1)
    return whole, RowLayout(1, inner), view


@given(views())
def test_a_views_label_says_of_each_index_whose_it_is(case: tuple[Tensor, RowLayout, Tensor]) -> None:
    whole, place, view = case
    span = span_of(whole, place, N)
    assert span is not None
    owner = (torch.arange(whole.shape[1]) // place.inner % N)[None, :, None].expand_as(whole).flatten()[view]
    found = view_of(
        tuple(view.shape), view.stride(), view.storage_offset() * 8, 8, (span.step, span.base, span.units)
    ).place
    if found is None:
        return
    assert view.shape[found.dim] == found.outer * found.inner * N
    expected = torch.arange(view.shape[found.dim]) // found.inner % N
    shape = [1] * view.dim()
    shape[found.dim] = -1
    assert torch.equal(owner, expected.reshape(shape).expand_as(view))


def test_the_usual_views_do_have_a_label() -> None:
    """The power of the test above: it is not passed by never saying anything."""
    rows = torch.zeros(N, 4, 6)
    span = span_of(rows, RowLayout(0), N)
    assert span is not None
    usual: list[tuple[Callable[[Tensor], Tensor], RowLayout]] = [
        (lambda x: x, RowLayout(0)), (lambda x: x.transpose(0, 2), RowLayout(2)), (lambda x: x[:, 1:], RowLayout(0)),
        (lambda x: x.flatten(0, 1), RowLayout(0, 4)), (lambda x: x[:, 2, None], RowLayout(0)),
        (lambda x: x.mT, RowLayout(0)),
        (lambda x: x.unflatten(1, (2, 2)), RowLayout(0)), (lambda x: x.expand(3, N, 4, 6), RowLayout(1)),
    ]  # fmt: skip
    for make, place in usual:
        view = make(rows)
        found = view_of(
            tuple(view.shape), view.stride(), view.storage_offset() * 4, 4, (span.step, span.base, span.units)
        )
        assert found.place == place


def labelled(run: Callable[[Tensor], Any], x: Tensor) -> tuple[list[Tensor], list[Any]]:
    """What a function gives, and the labels of it."""
    watch, own = Tracer(N, Memory(), torch.initial_seed()), x.clone()
    watch.assign(own, RowLayout(0))
    with watch:
        out = run(own)
    made = [out] if isinstance(out, Tensor) else [t for t in out if isinstance(t, Tensor)]
    labels = [watch.label(t) for t in made]
    watch.end()
    return made, labels


WEIGHT = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
KERNEL = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(2))
# (n, 4, 6) in.
APART: dict[str, Callable[[Tensor], Any]] = {
    "product": lambda x: x @ WEIGHT, "product from the left": lambda x: KERNEL[:, :, 0] @ x,
    "products of each": lambda x: x @ x.mT, "softmax": lambda x: x.softmax(2), "sum": lambda x: x.sum(1),
    "mean, kept": lambda x: x.mean(2, keepdim=True), "convolution": lambda x: fn.conv1d(x, KERNEL),
    "grouped": lambda x: fn.conv1d(x.reshape(1, N * 4, 6), KERNEL.repeat(N, 1, 1), groups=N),
    "layer norm": lambda x: fn.layer_norm(x, (6,)), "group norm": lambda x: fn.group_norm(x, 2),
    "instance norm": lambda x: fn.instance_norm(x), "pooling": lambda x: fn.max_pool1d(x, 2),
    "padding": lambda x: fn.pad(x, (1, 2)), "sorted features": lambda x: x.sort(2), "top": lambda x: x.topk(2, 2),
    "running sum": lambda x: x.cumsum(1), "flip": lambda x: x.flip(1), "roll": lambda x: x.roll(2, 1),
    "folded": lambda x: x.flatten(0, 1) @ WEIGHT, "columns": lambda x: x.transpose(0, 1).contiguous() * 2,
    "two of each": lambda x: torch.cat([x, 2 * x]), "beside": lambda x: torch.cat([x, x * 2], 2),
    "stacked": lambda x: torch.stack([x, x], 1), "own entries": lambda x: x[torch.arange(N), 2],
    "gathered": lambda x: x.gather(2, x.argsort(2)),
    "scattered": lambda x: torch.zeros_like(x).scatter(2, x.argsort(2), x),
    "written": lambda x: torch.zeros(N, 6).copy_(x[:, 0]), "a column": lambda x: _column(x), "attention":
        lambda x: fn.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "attention to constants": lambda x: fn.scaled_dot_product_attention(x, WEIGHT[None, :4], WEIGHT[None, :4]),
    "interpolated": lambda x: fn.interpolate(x, 9), "Fourier": lambda x: torch.fft.rfft(x, dim=2).abs(),
    "inverse": lambda x: torch.linalg.inv(x @ x.mT + torch.eye(4)),
    "solve": lambda x: torch.linalg.solve(WEIGHT, x[:, 0].T),
    "distances": lambda x: torch.cdist(x, WEIGHT), "of constants": lambda x: torch.cdist(WEIGHT, x[:, 0]).T,
    "repeated": lambda x: x.repeat(2, 1, 3),
    "unfolded": lambda x: x.unfold(2, 3, 1) * 2, "where": lambda x: torch.where(x > 0, x, 0.0), "einsum":
        lambda x: torch.einsum("nij,jk->kni", x, WEIGHT), "var": lambda x: x.var(2),
    "norms": lambda x: x.norm(dim=(1, 2)),
    "cross entropy": lambda x: fn.cross_entropy(x[:, 0], (x[:, 1, 0] > 0).long(), reduction="none"),
    "gradient": lambda x: torch.autograd.grad(fn.layer_norm(x.requires_grad_().sin() @ WEIGHT, (6,)).pow(3).sum(), x),
    "back again": lambda x: x[_order()][_order().argsort()], "counted": lambda x: x / torch.full((N, 1, 1), 3.0),
    "rows of a table": lambda x: WEIGHT[(x[:, 0, 0] > 0).long()],
    "embedded": lambda x: fn.embedding((x > 0).long(), WEIGHT),
    "rows and columns of what is there": lambda x: _back_at(x, torch.ones_like(x).nonzero(as_tuple=True)),
    "rows and columns by values": lambda x: _back_at(x, (x > 0.3).nonzero(as_tuple=True)),
    "rows and columns of nothing": lambda x: _back_at(x, (x > 99).nonzero(as_tuple=True)),
    "gradient of pieces that overlap": lambda x: torch.autograd.grad(
        (x := x.contiguous().requires_grad_()).mul(1).as_strided((N, 4, 3, 4), (24, 6, 1, 1)).pow(3).sum(), x
    ),
    "added within": lambda x: torch.zeros(2 * N).index_add(0, torch.arange(4 * N) // 2, x[:, :, 0].flatten()),
    "rows of what is folded": lambda x: x.flatten(0, 1)[torch.arange(4 * N)[:, None], torch.arange(2)],
    "second rows of what is folded": lambda x: x.flatten(0, 1)[torch.arange(N) * 4 + 1],
    "gradient of rows of what is folded": lambda x: torch.autograd.grad(
        x.requires_grad_().flatten(0, 1)[torch.arange(N).repeat_interleave(2) * 4].pow(3).sum(), x
    ),
    "half the columns, folded": lambda x: x[:, :, 2:4].flatten(0, 1) * 2,
    "chosen alike and put back": lambda x: _put_back(x, torch.ones(N, 4, dtype=torch.bool)),
    "two chosen alike and put back": lambda x: _put_back(x, torch.tensor([[True, False, True, False]]).expand(N, 4)),
    "gradient of what is chosen alike": lambda x: torch.autograd.grad(
        x.requires_grad_()[torch.ones(N, 4, dtype=torch.bool)].pow(3).sum(), x
    ),
    "folded and put back": lambda x: _put_back(x.flatten(0, 1), torch.tensor([True, False] * 2 * N)),
    "sorted and back": lambda x: _sorted_and_back(x), "mask": lambda x: x.masked_fill(x > 1, 0.0),
}  # fmt: skip


def _column(x: Tensor) -> Tensor:
    out = torch.zeros(N, 3)
    out[:, 1] = x[:, 0, 0]
    out[:, 2] = 7
    return out


def _order() -> Tensor:
    return torch.tensor([2, 0, 1, 4, 3])


def _back_at(x: Tensor, at: tuple[Tensor, ...]) -> Tensor:
    out = torch.zeros_like(x)
    out[at] = x[at] * 2
    return out


def _put_back(x: Tensor, mask: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[mask] = x[mask] * 2
    return out


def _sorted_and_back(x: Tensor) -> Tensor:
    order = x[:, 0, 0].argsort()
    return (x[order] * 2)[order.argsort()]


@pytest.mark.parametrize("name", APART)
def test_what_is_said_to_be_an_examples_own_moves_with_that_example_alone(name: str) -> None:
    """The rules against what really moves: another value in one example, all others as they were."""
    x = torch.randn(N, 4, 6, generator=torch.Generator().manual_seed(3))
    made, labels = labelled(APART[name], x)
    for row in (0, 3):
        other = x.clone()
        other[row] += torch.randn(4, 6, generator=torch.Generator().manual_seed(4))
        moved, _ = labelled(APART[name], other)
        assert any(isinstance(label, RowLayout) for label in labels)
        for one, two, label in zip(made, moved, labels, strict=True):
            assert isinstance(label, RowLayout), label
            assert label.owners is None
            mine = torch.arange(one.shape[label.dim]) // label.inner % N == row
            rest = torch.nonzero(~mine).flatten()
            torch.testing.assert_close(
                one.index_select(label.dim, rest), two.index_select(label.dim, rest), equal_nan=True
            )


MIXED: dict[str, Callable[[Tensor], Any]] = {
    "centred": lambda x: x - x.mean(0), "attention over rows": lambda x: x[:, 0] @ x[:, 0].T,
    "sorted": lambda x: x.sort(0)[0],
    "batch norm": lambda x: fn.batch_norm(x, None, None, training=True), "flipped": lambda x: x.flip(0),
    "by place": lambda x: x * torch.arange(N)[:, None, None], "neighbours": lambda x: x[:4].view(2, 2, 4, 6).flip(1),
    "first": lambda x: x + x[:1], "cumulated": lambda x: x.cumsum(0), "softmax over rows": lambda x: x.softmax(0),
    "moved": lambda x: x[[1, 2, 3, 4, 0]] + x, "maximum": lambda x: x / x.amax(),
    "median": lambda x: (x > x.median()).float(),
    "every second": lambda x: x[::2],
    "parity": lambda x: torch.where((torch.arange(N) % 2 == 0)[:, None, None], x, -x),
    "numbers as data": lambda x: x[:, 0, 0].argsort() * 1.0, "one row written": lambda x: _written(x),
    "seeded": lambda x: x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0)),
    "put elsewhere": lambda x: _put_elsewhere(x, [0, 1, 2, 3, 4]),
    "put elsewhere, unevenly": lambda x: _put_elsewhere(x, [0, 2, 4, 6, 9]),
    "chosen of one and put back": lambda x: _put_back(x, torch.eye(N, dtype=torch.bool)[0]),
    "chosen by place and put back": lambda x: _put_back(x, torch.eye(N, 4, dtype=torch.bool)),
    "added to neighbours": lambda x: torch.zeros(2 * N).index_add(0, torch.arange(4 * N) // 2, x[:, :, 0].T.flatten()),
    "added within, by place": lambda x: torch.zeros(2 * N).index_add(0, _by_place(), x[:, 0, 0]),
    "rows of what is folded, by place": lambda x: x.flatten(0, 1)[torch.arange(N) * 4 + _by_place() % 2],
    "rows of what is folded, of others": lambda x: x.flatten(0, 1)[(torch.arange(N) * 4 + 4) % (4 * N)],
    "rows of what is folded, by numbers": lambda x: _by_numbers(x, (x[:, 0, 0] > -9).nonzero()[:, 0]),
    "put into what is folded, by place": lambda x: torch.zeros(2 * N, 6).index_put((_by_place(),), x[:, 0]),
    "a diagonal": lambda x: x[:, 0][(at := torch.arange(N)), at],
    "on a diagonal": lambda x: torch.zeros(N, N).index_put(((at := torch.arange(N)), at), x[:, 0, 0]),
    "rows as columns": lambda x: _rows_as_columns(x, 0), "rows as copied columns": lambda x: _rows_as_columns(x, 1),
    "rows as the columns of others": lambda x: x[(x > 0).nonzero(as_tuple=True)[0].flip(0), (x > 0).nonzero()[:, 1]],
    "rows for columns, swapped": lambda x: x[(swapped := (x > 0).nonzero().flip(1))[:, 2], swapped[:, 2] % 4],
    "runs": lambda x: (x[:, 0, 0] > 0).unique_consecutive() * 1.0,
    "selected numbers": lambda x: x[:, 0, 0] + (x[:, 0] > -9).nonzero()[:N, 0], "histogram": lambda x: x.histc(4),
}  # fmt: skip


def _by_numbers(x: Tensor, numbers: Tensor) -> Tensor:
    """Of each example the row that has its number."""
    return x.flatten(0, 1)[numbers * 5 - numbers // 4 * 4]


def _by_place() -> Tensor:
    """Each example's own pair of entries, of which the last has another than the others."""
    return 2 * torch.arange(N) + (torch.arange(N) == N - 1)


def _rows_as_columns(x: Tensor, copies: int) -> Tensor:
    """Each example's entry in the column of its own number: by its place."""
    rows, columns, _ = (x > 0).nonzero(as_tuple=True)
    found = x[:, 0][rows, rows + 0 if copies else rows]
    return torch.zeros(N, 4).index_put((rows, columns), found, accumulate=True)


def _put_elsewhere(x: Tensor, rows: list[int]) -> Tensor:
    """Each example's row where a constant mask has room for it: not its own place."""
    out, mask = torch.zeros(2 * N, 6), torch.zeros(2 * N, dtype=torch.bool)
    mask[rows] = True
    out[mask] = x[:, 0]
    return out


def _written(x: Tensor) -> Tensor:
    out = torch.zeros(N, 6)
    out[2] = x[2, 0]
    return out


@pytest.mark.parametrize("name", MIXED)
def test_what_is_not_an_examples_own_is_not_said_to_be(name: str) -> None:
    _, labels = labelled(MIXED[name], torch.randn(N, 4, 6))
    assert all(isinstance(label, Mixed) for label in labels), labels


def test_labels_of_constants() -> None:
    made: dict[Any, Callable[[Tensor], Tensor]] = {
        Public.FILL: lambda x: torch.zeros(3) + 2, Public.ANY: lambda x: torch.arange(3) * 2.0,
        Public.RANDOM: lambda x: torch.rand(3) < 0.5,
    }  # fmt: skip
    for label, run in made.items():
        assert labelled(run, torch.randn(N, 2))[1] == [label]


def run(run_: Callable[[Any, Tensor], Tensor], rows: int = 8, **parts: Any) -> None:
    model = Made(run_, layer=nn.Linear(4, 3), **parts)
    Engine(model, loss, seeds=lambda: 1).clipped_sum((torch.randn(rows, 4), torch.zeros(rows).long()), 1.0)


LAID: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a slice of a table": lambda m, x: m.layer(x + m.table[: len(x)]),
    "a slice of a trained table": lambda m, x: m.layer(x + m.trained[: len(x)]),
    "parity": lambda m, x: m.layer(x * (1 - 2.0 * (torch.arange(len(x)) % 2))[:, None]),
    "weights of losses": lambda m, x: m.layer(x) * torch.linspace(0.1, 2, len(x))[:, None],
}


@pytest.mark.parametrize("name", LAID)
def test_a_constant_laid_along_the_examples_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"laid along|another example"):
        run(
            LAID[name],
            table=nn.Parameter(torch.randn(20, 4), requires_grad=False),
            trained=nn.Parameter(torch.zeros(20, 4)),
        )


def test_a_constant_mask_of_as_many_rows_is_indexed_by_their_numbers() -> None:
    """As Transformers does with a mask of ones that a decoder makes for itself."""

    def masked(m: Any, x: Tensor) -> Tensor:
        rows, places = torch.arange(len(x))[:, None], torch.arange(4)[None]
        return m.layer(x * (torch.ones(len(x), 4, dtype=torch.bool)[rows, places] & (places < 3)))

    run(masked)
    with pytest.raises(UnsupportedModel):
        run(lambda m, x: m.layer(x) * (torch.arange(len(x)) * 1.0)[torch.arange(len(x))][:, None])


COUNTED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "divided": lambda m, x: m.layer(x) / len(x),
    "a sum of ones": lambda m, x: m.layer(x) / torch.ones(len(x)).sum(),
    "a branch": lambda m, x: m.layer(x) * (2 if len(x) > 5 else 1),
    "a length": lambda m, x: m.layer(x * torch.full((4,), float(x.shape[0]))),
    "places from the end": lambda m, x: m.layer(x) * _from_the_end(torch.arange(len(x)))[:, None],
    "places from the end, the same": lambda m, x: m.layer(x) * _from_the_end(torch.arange(len(x))).amax(),
    "a table's sum": lambda m, x: m.layer(x * m.table[: len(x)].sum(0)),
    "a factor of another argument": lambda m, x: (
        torch.addmm(m.table[0, :3], x, m.layer.weight.t(), beta=0.5)
        if len(x) == 2
        else torch.addmm(m.table[0, :3], x, m.layer.weight.t(), alpha=0.5)
    ),
    "a softmax of constants": lambda m, x: m.layer(x) * torch.zeros(len(x)).softmax(0)[:, None],
}


def _from_the_end(places: Tensor) -> Tensor:
    return (places * 1.0)[places.flip(0)]


@pytest.mark.parametrize("name", COUNTED)
def test_what_depends_on_the_number_of_examples_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"number of examples|other example"):
        run(COUNTED[name], table=nn.Parameter(torch.randn(20, 4), requires_grad=False))


CHOSEN: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "of two parts of the batch": lambda m, a, b: m(a if len(a) % 2 else b),
    "of two results of one operation": lambda m, a, b: m(a) * _either(a.aminmax(dim=1), len(a) % 2)[:, None],
    "of two copies": lambda m, a, b: m([a * 2, a * 2 + b][0 if len(a) % 2 else 1]),
    "of two written": lambda m, a, b: m(_either(_both_written(a, b), len(a) % 2)),
    "of two rows of a table": lambda m, a, b: m(a * ROWS[len(a) % 2]),
    "of a longer part of a table": lambda m, a, b: m(a * PARTS[len(a) % 2].sum()),
    "of two rows of a table made in the pass": lambda m, a, b: m(
        a * _either(torch.arange(8.0).view(2, 4).unbind(), len(a) % 2)
    ),
    "of two rows of a parameter": lambda m, a, b: m(a) * m.weight.t()[len(a) % 2].detach(),
    "of two readings of the same bytes": lambda m, a, b: (
        m(a) * _either((2 * a, (2 * a).view(torch.int32)), len(a) % 2).sum(1, keepdim=True)
    ),
}
TABLE = torch.randn(2, 4, generator=torch.Generator().manual_seed(5))
ROWS, PARTS = TABLE.unbind(), (TABLE[:1], TABLE)


def _either(pair: Any, which: int) -> Tensor:
    return pair[which]


def _both_written(a: Tensor, b: Tensor) -> list[Tensor]:
    pair = [torch.zeros_like(a), torch.zeros_like(b)]
    torch._foreach_add_(pair, [a, b])
    return pair


@pytest.mark.parametrize("name", CHOSEN)
def test_a_choice_by_the_number_of_examples_is_refused(name: str) -> None:
    """Both have the same shape and label: only which one it is tells them apart."""
    model = nn.Linear(4, 3)

    def chosen(model: nn.Module, batch: Any) -> Tensor:
        return CHOSEN[name](model, *batch).square().sum(1)

    with pytest.raises(UnsupportedModel, match=r"number of examples|same for any number"):
        Engine(model, chosen).clipped_sum((torch.randn(6, 4), torch.randn(6, 4)), 1.0)


def test_one_number_in_two_places_is_compared_exactly() -> None:
    """The power of the comparison: the last digit of a number, another tensor, one operation more."""
    first = Trace(4, [Event("mul", (0.5,), (1, 2))])
    assert not first.differs(Trace(2, [Event("mul", (0.5,), (1, 2))]))
    for event in (
        Event("mul", (0.5000000001,), (1, 2)),
        Event("mul", (0.5,), (2, 1)),
        Event("div", (0.5,), (1, 2)),
    ):
        assert first.differs(Trace(2, [event]))
    assert first.differs(Trace(2, [*first.events, *first.events]))
    grown = Trace(4, [Event("zeros", ((8, 3),), (), sized=(0,))])
    assert not grown.differs(Trace(2, [Event("zeros", ((4, 3),), (), sized=(0,))]))
    assert grown.differs(Trace(2, [Event("zeros", ((3, 3),), (), sized=(0,))]))


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 3), None

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x) if self.last is None else self.layer(x) + self.last.mean()
        self.last = (x * 2).detach()
        return out


def test_what_an_earlier_pass_made_does_not_come_back() -> None:
    engine = Engine(Remembers(), loss)

    def passes() -> None:
        for rows in (8, 6, 8):
            engine.clipped_sum((torch.randn(rows, 4), torch.zeros(rows).long()), 1.0)

    with pytest.raises(UnsupportedModel, match=r"earlier pass|same for any number"):
        passes()


def test_the_batch_itself_does_not_come_back_either() -> None:
    held: list[Tensor] = []

    def keeping(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0]) + (0 if not held else held[0].sum() * 0)
        held[:] = [given[0]]
        return fn.cross_entropy(out, batch[1], reduction="none")

    engine = Engine(nn.Linear(4, 3), keeping)
    given = (torch.randn(8, 4), torch.zeros(8).long())

    def passes() -> None:
        for _ in range(3):
            engine.clipped_sum(given, 1.0)

    with pytest.raises(UnsupportedModel):
        passes()


STEERED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a sum's sign": lambda m, x: m.layer(x) * (1 if x.sum() > 0 else -1),
    "a mean as a number": lambda m, x: m.layer(x) * float(x.mean()),
    "a whole number": lambda m, x: m.layer(x) * int((x > 0).sum()),
    "a list": lambda m, x: m.layer(x) * x[0].tolist()[0],
    "numpy": lambda m, x: m.layer(x) * float(x.numpy().mean()),
    "a number of runs": lambda m, x: m.layer(x) * len((x > 0).int().flatten().unique_consecutive()),
    "printed": lambda m, x: m.layer(x) * len(repr(x)),
}


@pytest.mark.parametrize("name", STEERED)
def test_a_read_that_steers_is_refused(name: str) -> None:
    torch.manual_seed(0)  # a number that happens to be the batch's is refused in other words
    with pytest.raises(UnsupportedModel, match=r"steer|leave torch|number of them in Python"):
        run(STEERED[name], rows=13)


def test_a_read_that_steers_nothing_is_allowed() -> None:
    """A number for the log is NaN; a branch that skips needless work is not taken."""
    seen: list[float] = []

    def logging(model: nn.Module, batch: Any) -> Tensor:
        x, mask = batch
        seen.append(float(x.mean()))
        hidden = x if mask.all() else x * mask
        return model(hidden).square().sum(1)

    model, x = nn.Linear(4, 3).double(), torch.randn(9, 4).double()
    engine = Engine(model, logging)
    for mask in (torch.ones(9, 4), (torch.rand(9, 4) < 0.5).float(), torch.ones(9, 4)):
        found = engine.clipped_sum((x, mask), 0.5).gradients["weight"]
        plain = Reference(model, lambda m, b: m(b[0] * b[1]).square().sum(1)).clipped_sum((x, mask), 0.5)
        torch.testing.assert_close(found, plain.gradients["weight"])
    assert engine.assumptions == ()
    assert any(number != number for number in seen)


def test_a_check_that_raises_gets_the_other_answer() -> None:
    def checked(m: Any, x: Tensor) -> Tensor:
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        return m.layer(x)

    run(checked)


def test_how_many_runs_of_equal_data_there_are_is_not_told() -> None:
    """The last token of each text is found by a mask, of which sequence models first ask whether it has one each."""

    def last(m: Any, x: Tensor) -> Tensor:
        ends = x == x.amax(1, keepdim=True)
        if len(torch.unique_consecutive(ends.sum(1))) > 1:
            raise ValueError("every example must have one end")
        return m.layer(x * 1.0) * x[ends].view(len(x), 1)

    model, batch = (
        Made(last, layer=nn.Linear(4, 3)).double(),
        (torch.randn(8, 4).double(), torch.zeros(8).long()),
    )
    found = Engine(model, loss).clipped_sum(batch, 0.5).gradients["layer.weight"]
    torch.testing.assert_close(found, Reference(model, loss).clipped_sum(batch, 0.5).gradients["layer.weight"])


def test_a_declared_line_is_read_and_listed() -> None:
    model = Made(lambda m, x: m.layer(x) * (2 if x.sum() > 99 else 1), layer=nn.Linear(4, 3))
    engine = Engine(model, loss, EngineSettings(declared=("test_proof.py",)))
    engine.clipped_sum((torch.randn(8, 4), torch.zeros(8).long()), 1.0)
    (assumption,) = engine.assumptions
    assert (assumption.code, engine.rows_independent) == ("rows-declared-line", False)
    assert "test_proof.py" in assumption.sentence


def test_random_numbers_need_a_stream_of_the_runs_own() -> None:
    model, batch = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), (torch.randn(8, 4), torch.zeros(8).long())
    with pytest.raises(UnsupportedModel, match="stream of the run"):
        Engine(model, loss).clipped_sum(batch, 1.0)
    before = torch.get_rng_state()
    one = Engine(model, loss, seeds=lambda: 4).clipped_sum(batch, 1.0).gradients
    torch.manual_seed(99)
    two = Engine(model, loss, seeds=lambda: 4).clipped_sum(batch, 1.0).gradients
    torch.set_rng_state(before)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_dropout_beside_a_look_at_a_padding_mask_is_no_steering() -> None:
    """An example alone is compared with the random numbers that its row got: any padded text in training mode."""
    run(lambda m, x: m.layer(fn.dropout(x if (x > 0).all() else x * 1.0, 0.3)))
    with pytest.raises(UnsupportedModel, match="steer"):
        run(lambda m, x: m.layer(fn.dropout(x, 0.3)) * (1 if (x[:, 0] > 0).all() else 2))


def test_a_seed_set_in_the_pass_is_refused() -> None:
    def seeding(m: Any, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return m.layer(fn.dropout(x))

    with pytest.raises(UnsupportedModel, match="seeded"):
        run(seeding)


def test_weights_changed_in_place_through_a_view_are_measured_as_they_are() -> None:
    def gained(m: Any, x: Tensor) -> Tensor:
        w = m.w.clone()
        w[:, 0] *= 100.0
        return x @ w.T

    model, batch = Made(gained, w=normal(3, 4)), (torch.randn(9, 4), torch.zeros(9).long())
    found = Engine(model, loss).clipped_sum(batch, 1.0).gradients["w"]
    torch.testing.assert_close(
        found, Reference(model, loss).clipped_sum(batch, 1.0).gradients["w"], rtol=1e-4, atol=1e-5
    )


def test_an_operation_without_a_rule_is_refused_by_name_until_it_has_one() -> None:
    @torch.library.custom_op("decrescendo_tests::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return 2 * x

    doubled.register_autograd(lambda ctx, d: 2 * d)
    model, batch = (
        Made(lambda m, x: doubled(m.layer(x)), layer=nn.Linear(4, 3)),
        (torch.randn(8, 4), torch.zeros(8).long()),
    )
    with pytest.raises(
        UnsupportedModel,
        match=r"no rule for decrescendo_tests::doubled\.default\(Tensor x\) .*register_rule",
    ):
        Engine(model, loss).clipped_sum(batch, 1.0)
    register_rule("decrescendo_tests::doubled", "nd->nd")
    engine = Engine(model, loss)
    engine.clipped_sum(batch, 1.0)
    assert engine.assumptions == (assumed("rows-declared-operation", "decrescendo_tests::doubled"),)
    assert not engine.rows_independent


def test_a_rule_that_is_registered_again_holds_at_once_also_in_engines_made_before() -> None:
    """A first text that was too permissive is taken back by a second one; it stayed for the whole process."""
    batch = torch.randn(8, 4), torch.zeros(8).long()

    @torch.library.custom_op("decrescendo_tests::tripled", mutates_args=())
    def tripled(x: Tensor) -> Tensor:
        return 3 * x

    tripled.register_autograd(lambda ctx, d: 3 * d)
    tripled.register_fake(torch.empty_like)
    model = Made(lambda m, x: tripled(m.layer(x)), layer=nn.Linear(4, 3))
    name = "decrescendo_tests::tripled"
    register_rule(name, "nd->nd")
    engine = Engine(model, loss)
    for _ in range(3):
        engine.clipped_sum(batch, 1.0)
    register_rule(name, "Nd->Nd")
    for one in (engine, Engine(model, loss)):
        with pytest.raises(UnsupportedModel, match=r"in tripled several examples are put together"):
            one.clipped_sum(batch, 1.0)
    register_rule(name, "nd->nd")
    engine.clipped_sum(batch, 1.0)
    register_rule(name, "nd->nd")  # the same again changes nothing
    engine.clipped_sum(batch, 1.0)


@pytest.mark.parametrize(("name", "text"), [("aten::mm", "ik->ik"), ("mine", "i->i"), ("my::op", "ik")])
def test_a_rule_must_be_for_an_operation_of_ones_own(name: str, text: str) -> None:
    with pytest.raises(InvalidValue, match="operation of your own"):
        register_rule(name, text)


def test_a_batch_of_one_row_is_as_any_other() -> None:
    model = Made(lambda m, x: m.layer(x.squeeze()), layer=nn.Linear(4, 3))
    batch = (torch.randn(1, 4), torch.zeros(1).long())
    found = Engine(model, loss).clipped_sum(batch, 1.0)
    assert found.diagnostics.examples == 1
    plain = Made(lambda m, x: m.layer(x), layer=model.layer)
    torch.testing.assert_close(
        found.gradients["layer.weight"],
        Reference(plain, loss).clipped_sum(batch, 1.0).gradients["layer.weight"],
    )


def test_layers_left_out_at_random_are_left_out_alike_for_any_number_of_examples() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.out = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = fn.dropout(x, 0.2)
                if torch.rand(()) > 0.5:
                    x = layer(x).tanh()
            return self.out(x)

    seeds = iter(range(100))
    engine = Engine(Dropped(), loss, seeds=lambda: next(seeds))
    for rows in (8, 5, 1, 9):
        engine.clipped_sum((torch.randn(rows, 4), torch.zeros(rows).long()), 1.0)


def _overwritten_input(m: Any, x: Tensor) -> Tensor:
    h = x.clone()
    out = m.layer(h)
    h.data.copy_(x.mean(0, keepdim=True).expand_as(x))
    return out


def _overwritten_factor(m: Any, x: Tensor) -> Tensor:
    h = x.clone()
    out = m.layer(h * m.factor)
    h.data.copy_(x.mean(0, keepdim=True).expand_as(x))
    return out


def _overwritten_mask_of_a_weight(m: Any, x: Tensor) -> Tensor:
    mask = torch.ones(3, 4)
    weight = m.layer.weight * mask
    out = fn.linear(x, weight + 0)
    mask.data.copy_(x.mean().sign().expand(3, 4))
    return out


@pytest.mark.parametrize("program", [_overwritten_input, _overwritten_factor, _overwritten_mask_of_a_weight])
def test_what_is_read_after_the_pass_is_not_overwritten_past_autograd(program: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"changed through \.data"):
        run(program, factor=nn.Parameter(torch.ones(4)))


LENGTHS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "as a number": lambda m, x: m.layer(x) * torch.full((1,), float(len(x[x > 0]))).cos(),
    "as a whole number": lambda m, x: m.layer(x) * torch.full((1,), len(x[x > 0]), dtype=torch.float32).cos(),
    "as a sum of ones": lambda m, x: m.layer(x) * torch.ones(len(x[x > 0])).sum().cos(),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_the_number_of_selected_rows_steers_nothing(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="the number of rows that they select"):
        run(LENGTHS[name])


class _TurnedByNumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.count = len(h)
        return h * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        turned = -gradients[0]
        return turned if ctx.count > 4 else gradients[0]


def test_which_gradient_arrives_and_which_losses_are_returned_is_compared() -> None:
    with pytest.raises(UnsupportedModel, match="any number of examples"):
        run(lambda m, x: _TurnedByNumber.apply(m.layer(x)))

    def either(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch)
        losses = [out.square().sum(1), (out * 2).square().sum(1)]
        return losses[len(batch) % 2]

    with pytest.raises(UnsupportedModel, match="any number of examples"):
        Engine(nn.Linear(4, 3), either).clipped_sum(torch.randn(6, 4), 1.0)


def test_states_and_fillings_of_recurrent_layers_are_compared() -> None:
    lstm = nn.GRU(4, 3, batch_first=True)
    states = [torch.zeros(1, 1, 3), torch.ones(1, 1, 3)]

    def started(model: Any, batch: Tensor) -> Tensor:
        n = len(batch)
        return model(batch, states[n % 2].expand(1, n, 3).contiguous())[0].square().sum((1, 2))

    with pytest.raises(UnsupportedModel):
        Engine(lstm, started).clipped_sum(torch.randn(6, 5, 4), 1.0)

    def filled(model: Any, batch: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(batch, torch.full((len(batch),), 4), batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(
            model(packed)[0], batch_first=True, padding_value=float(len(batch)), total_length=5
        )
        return out.square().sum((1, 2))

    with pytest.raises(UnsupportedModel):
        Engine(lstm, filled).clipped_sum(torch.randn(6, 5, 4), 1.0)


def behind_zeros() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    nn.init.zeros_(model[2].weight)
    return model


def test_gradients_that_are_zero_at_first_are_compared_when_they_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a layer of zeros nothing shows that a rule is wrong."""
    right = LinearKernel.scaled_sum

    def wrong(kernel: LinearKernel, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        found = right(kernel, slot, d, factors)
        return 2 * found if found.shape == (3, 4) else found

    monkeypatch.setattr(LinearKernel, "scaled_sum", wrong)
    for first in (1.0, math.nan):
        model, rows = behind_zeros(), torch.randn(6, 4)
        engine = Engine(model, lambda model, batch: (model(batch)[:, 0] - 1).square(), EngineSettings(capture=False))
        engine.clipped_sum(torch.cat([first * rows[:1], rows[1:]]), 1.0)
        engine.clipped_sum(rows, 1.0)  # nothing has moved
        model[2].weight.data += 0.1  # as torch's fused optimisers, which raise no version
        with pytest.raises(UnsupportedModel, match=r"must be autograd's, got 0\.weight"):
            engine.clipped_sum(rows, 1.0)


def test_gradients_are_compared_again_once_and_not_where_they_stay_zero() -> None:
    model = nn.ModuleList([behind_zeros(), nn.Linear(4, 1)])
    engine = Engine(model, lambda model, batch: model[0](batch)[:, 0] + 0 * model[1](batch)[:, 0])
    passes = list[int]()
    for step in range(6):
        engine.clipped_sum(torch.randn(6, 4), 1.0)
        passes.append(engine._checker.comparison.runs)
        with torch.no_grad():
            model[0][2].weight.add_(0.1 * (step == 1))
    assert [after - before for before, after in pairwise(passes)] == [1, 2, 1, 1, 1]


def test_a_program_that_counts_rows_behind_zeros_is_refused_as_before() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.seen = behind_zeros(), 0

        def forward(self, x: Tensor) -> Tensor:
            out = self.inner(x)[:, 0]
            if self.seen > 40:
                out = out * 2
            self.seen += len(x)
            return out

    model, rows = Counting(), torch.randn(64, 4)
    engine = Engine(model, lambda model, batch: (model(batch) - 1).square(), EngineSettings(capture=False))
    engine.clipped_sum(rows, 1.0)
    with pytest.raises(UnsupportedModel, match=r"keeps their number in \w+\.seen"):
        engine.clipped_sum(rows, 1.0)


def test_an_operation_that_writes_to_what_its_schema_does_not_name_is_refused() -> None:
    @torch.library.custom_op("decrescendo_tests::centred", mutates_args=())
    def centred(x: Tensor) -> Tensor:
        x.sub_(x.mean(0))
        return torch.zeros(())

    def centres(m: Made, x: Tensor) -> Tensor:
        x = x.clone()
        centred(x)
        return m.layer(x)

    batch = torch.randn(8, 4), torch.zeros(8).long()
    with pytest.raises(UnsupportedModel, match=r"tests::centred\.default\(Tensor x\) .* wrote to 'x'"):
        Engine(Made(centres, layer=nn.Linear(4, 3)), loss).clipped_sum(batch, 1.0)


@pytest.mark.parametrize("made", ["a view", "an array", "a buffer"])
def test_nothing_of_the_data_is_written_where_numpy_reads(made: str) -> None:
    def looks(m: Made, x: Tensor) -> Tensor:
        totals, seen = torch.zeros(4), np.zeros(4, dtype=np.float32)
        if made == "a view":
            seen = totals.numpy()
        elif made == "an array":
            totals = torch.from_numpy(seen)
        else:
            held = bytearray(16)
            totals, seen = torch.frombuffer(held, dtype=torch.float32), np.frombuffer(held, dtype=np.float32)
        totals.copy_(x.sum(0))
        return m.layer(x) * (2 if seen.sum() > 0 else 1)

    batch = torch.randn(8, 4), torch.zeros(8).long()
    with pytest.raises(UnsupportedModel, match="no pass may write the data into memory that NumPy shares"):
        Engine(Made(looks, layer=nn.Linear(4, 3)), loss).clipped_sum(batch, 1.0)
