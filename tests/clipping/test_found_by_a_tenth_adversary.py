"""Programs that became others by what earlier passes left, where nothing was said of it."""

import copy
import itertools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import UnsupportedModel

LARGEST, LOCAL, MODULE = (
    ContextVar("largest", default=0),
    threading.local(),
    cast("Any", ModuleType("settings")),
)
MODULE.largest = 0


class Keeps(nn.Module):
    """Keeps something from pass to pass, by which it becomes another function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.largest, self.calls, self.kind, self.late = 0, 0, "usual", False
        self.act: Callable[[Tensor], Tensor] = functional.relu
        self.numbers, self.scales = itertools.count(), iter([1.0] * 9 + [1e-3] * 100)
        self.mask, self.scale, self.ticks = torch.zeros(0), torch.ones(()), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().sum(1)


def _largest(m: Keeps, x: Tensor) -> Tensor:
    m.largest = max(m.largest, len(x))
    return m(x) * (1e-3 if m.largest > 8 else 1.0)


def _afterwards(m: Keeps, x: Tensor) -> Tensor:
    losses = m(x) * (1e-3 if m.late else 1.0)
    m.late = m.late or len(x) > 8
    return losses


def _mask(m: Keeps, x: Tensor) -> Tensor:
    if len(x) > m.mask.numel():
        m.mask, m.scale = torch.zeros(len(x)), torch.full((), 1e-3 if len(x) > 8 else 1.0)
    return m(x) * m.scale


def _text(m: Keeps, x: Tensor) -> Tensor:
    m.kind = "large" if len(x) > 8 else m.kind
    return m(x) * (1e-3 if m.kind == "large" else 1.0)


def _function(m: Keeps, x: Tensor) -> Tensor:
    m.act = torch.tanh if len(x) > 8 else m.act
    return m.act(m.layer(x)).square().sum(1)


def _mode(m: Keeps, x: Tensor) -> Tensor:
    if len(x) > 8:
        m.eval()
    return m(x) * (1.0 if m.training else 1e-3)


def _calls(m: Keeps, x: Tensor) -> Tensor:
    m.calls += 1
    return m(x) * (1e-3 if m.calls > 9 else 1.0)


def _ticks(m: Keeps, x: Tensor) -> Tensor:
    m.ticks.add_(1)
    return m(x) * torch.where(m.ticks > 9, 1e-3, 1.0)


def _context(m: Keeps, x: Tensor) -> Tensor:
    LARGEST.set(max(LARGEST.get(), len(x)))
    return m(x) * (1e-3 if LARGEST.get() > 8 else 1.0)


def _thread(m: Keeps, x: Tensor) -> Tensor:
    LOCAL.largest = max(getattr(LOCAL, "largest", 0), len(x))
    return m(x) * (1e-3 if LOCAL.largest > 8 else 1.0)


def _module(m: Keeps, x: Tensor) -> Tensor:
    MODULE.largest = max(MODULE.largest, len(x))
    return m(x) * (1e-3 if MODULE.largest > 8 else 1.0)


def _parameter(m: Any, x: Tensor) -> Tensor:
    m.layer.weight.largest = max(getattr(m.layer.weight, "largest", 0), len(x))
    return m(x) * (1e-3 if m.layer.weight.largest > 8 else 1.0)


def _counter(m: Keeps, x: Tensor) -> Tensor:
    return m(x) * (1.0 if next(m.numbers) < 9 else 1e-3)


def _scales(m: Keeps, x: Tensor) -> Tensor:
    return m(x) * next(m.scales)


def _distance(loss: Any, one: list[Tensor], two: list[Tensor], settings: EngineSettings) -> tuple[float, Any]:
    """By how much one example more in one step moves any sum; and what was assumed."""
    sums: list[list[Tensor]] = []
    said: tuple[Assumption, ...] = ()
    for batches in (one, two):
        torch.manual_seed(0)
        engine = Engine(Keeps(), loss, settings)
        found = [engine.clipped_sum(batch, 1.0).gradients.values() for batch in batches]
        sums.append([torch.cat([gradient.flatten() for gradient in step]) for step in found])
        said += engine.assumptions
    return max(float((a - b).norm()) for a, b in zip(*sums, strict=True)), said


DATA = 10 * torch.randn(9, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("loss", "kept"),
    [
        (_largest, "Keeps.largest"), (_afterwards, "Keeps.late"), (_mask, "Keeps.scale"), (_text, "Keeps.kind"),
        (_function, "Keeps.act"), (_mode, "Keeps.training"), (_context, "loss.LARGEST"),
        (_thread, "loss.LOCAL.largest"), (_module, "loss.MODULE.largest"),
        (_parameter, "Keeps._modules.layer.weight.largest"),
    ],
)  # fmt: skip
def test_a_program_that_changes_by_the_largest_batch_so_far_is_said(loss: Any, kept: str) -> None:
    """Over two and three examples the largest was no other one: 2.2 to 3.5 C, and nothing was said."""
    one, two = [DATA[:8]] * 3, [DATA[:8], DATA, DATA[:8]]
    LARGEST.set(0)
    LOCAL.largest = MODULE.largest = 0
    distance, said = _distance(loss, one, two, EngineSettings())
    assert distance > 1
    assert assumed("stored-state", kept) in said


@pytest.mark.parametrize(
    "settings", [EngineSettings(), EngineSettings(microbatch_size=8)], ids=["empty", "parts"]
)
@pytest.mark.parametrize("loss", some([_calls, _ticks, _counter, _scales], 2))
def test_a_program_that_changes_by_how_often_it_was_called_is_said(
    loss: Any, settings: EngineSettings
) -> None:
    """There is no pass over an empty batch, and one more over nine examples in parts of eight: 3.5 C."""
    small = settings.microbatch_size is None
    less, more = (DATA[:0], DATA[:1]) if small else (DATA[:8], DATA)
    one, two = ([DATA[:8]] * 2 + [batch] + [DATA[:8]] * 6 for batch in (less, more))
    distance, said = _distance(loss, one, two, settings)
    assert distance > 1
    assert any(one.code == "stored-state" for one in said)


def test_constants_that_are_filled_again_in_each_pass_are_proven() -> None:
    def loss(m: Keeps, x: Tensor) -> Tensor:
        m.ticks.fill_(0.5)
        return m(x) * m.ticks

    engine = Engine(Keeps(), loss)
    for _ in range(3):
        engine.clipped_sum(DATA, 1.0)
    assert engine.assumptions == ()


def test_a_pass_that_freezes_a_parameter_is_refused_and_it_is_trained_afterwards() -> None:
    def loss(m: Keeps, x: Tensor) -> Tensor:
        losses = m(x)
        m.layer.bias.requires_grad_(requires_grad=len(x) < 9)
        return losses

    model = Keeps()
    engine = Engine(model, loss)
    engine.clipped_sum(DATA[:8], 1.0)
    with pytest.raises(UnsupportedModel, match=r"whether layer\.bias is trained"):
        engine.clipped_sum(DATA, 1.0)
    assert model.layer.bias.requires_grad


class Student(nn.Module):
    """Starts as its frozen teacher: losses and gradients cancel to what rounding leaves."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
        self.student = nn.Sequential(*layers)
        self.teacher = copy.deepcopy(self.student).requires_grad_(requires_grad=False)


def _distilled(m: Student, x: Tensor) -> Tensor:
    return (m.student(x) - m.teacher(x)).square().sum(1)


def _byol(m: Student, x: Tensor) -> Tensor:
    return 2 - 2 * functional.cosine_similarity(m.student(x), m.teacher(x))


def _normalised(m: Student, x: Tensor) -> Tensor:
    return m.student[:2](x).flatten(1).sum(1)  # without its bias a sum of zeros


@pytest.mark.parametrize("loss", some([_distilled, _byol, _normalised], 1))
def test_losses_that_cancel_to_rounding_are_taken(loss: Any) -> None:
    """The recorded group norm rounds otherwise than torch's: of a loss of zero that was all of it, and refused."""
    for seed in range(4):
        torch.manual_seed(seed)
        model = Student()
        before = copy.deepcopy(model.state_dict())
        Engine(model, loss).clipped_sum(torch.randn(5, 2, 6), 1.0)
        assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def _spoken(longest_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.ones(6, dtype=torch.long)
    lengths[0 if longest_first else -1] = 3
    return 3 * torch.randn(6, 8, 4), torch.randint(1, 5, (6, 3)), lengths


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_the_longest_target_may_be_any_examples(zero_infinity: bool) -> None:
    """Where it was not one of the first two, what the CTC loss keeps was wider than over these, and refused."""

    def loss(m: Any, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        scores = m(b[0]).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(
            scores, b[1], torch.full_like(b[2], 8), b[2], reduction="none", zero_infinity=zero_infinity
        )

    torch.manual_seed(0)
    model = nn.Linear(4, 5)
    engine = Engine(model, loss)
    for first in (False, True, False):
        batch = _spoken(first)
        found = engine.clipped_sum(batch, 1.0).gradients
        expected = Reference(model, loss).clipped_sum(batch, 1.0).gradients
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)


def test_how_long_the_longest_target_is_does_not_show() -> None:
    """In the shape of what ``torch._ctc_loss`` gives beside the losses: 2.8 C."""

    def loss(m: Any, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        scores = m(b[0]).log_softmax(-1).transpose(0, 1)
        found, kept = torch._ctc_loss(scores, b[1], torch.full_like(b[2], 8), b[2])
        return found * (1e-3 if kept.shape[2] > 3 else 1.0)

    with pytest.raises(UnsupportedModel, match="shows the longest target"):
        Engine(nn.Linear(4, 5), loss).clipped_sum(_spoken(longest_first=True), 1.0)


def test_numpys_global_numbers_are_those_of_the_pass() -> None:
    """They went on from pass to pass: how many there were showed in all that follow, or small passes drew others."""

    def loss(m: Keeps, x: Tensor) -> Tensor:
        drawn.append(float(np.random.rand()))
        np.random.randn()
        return m(x) * (1.0 if drawn[-1] < 0.5 else 1e-3)  # a layer left out

    drawn: list[float] = []
    np.random.seed(3)
    np.random.randn()  # it makes two at a time, and keeps one
    numpys = np.random.RandomState(3)
    expected = numpys.randn(), numpys.randn(), numpys.rand()
    seeds = iter(range(100))
    engine = Engine(Keeps(), loss, seeds=lambda: next(seeds))
    for _ in range(10):
        engine.clipped_sum(DATA, 1.0)
    assert {number < 0.5 for number in drawn} == {False, True}
    assert (np.random.randn(), np.random.rand()) == expected[1:]


def test_a_table_as_long_as_the_batch_by_coincidence_leaves_copies_of_others_alone() -> None:
    """Three rows of a table were taken for three examples, in one pass; what came after them had other numbers there,
    and queries laid along the examples were taken for another coincidence."""

    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)
            self.table, self.queries = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(9, 8))

        def forward(self, x: Tensor) -> Tensor:
            table = self.table[:3].unsqueeze(0).repeat(3, 1, 1).flatten(0, 1).unsqueeze(1)
            queries = self.queries.unsqueeze(1).repeat(1, x.shape[0], 1)
            return self.second(table + self.first(x).transpose(0, 1) + queries).square().sum((0, 2))

    torch.manual_seed(0)
    model, batch = Queries(), torch.randn(5, 9, 8)
    found = Engine(model, lambda m, x: m(x)).clipped_sum(batch, 1.0).gradients
    for name, gradient in Reference(model, lambda m, x: m(x)).clipped_sum(batch, 1.0).gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)


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


def test_nested_tensors_are_refused_in_words() -> None:
    """It was torch's own error, about tensors without data."""

    def used(m: Any, x: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor_from_jagged(x.reshape(-1, 3), torch.arange(len(x) + 1))
        return m(rows).to_padded_tensor(0.0).sum((1, 2))

    def beside(m: Any, x: Tensor) -> Tensor:
        rows = torch.nested.as_nested_tensor(x[:, None], layout=torch.jagged)
        return m(x).sum(1) * rows.to_padded_tensor(0.0).sum((1, 2))

    for loss, words in (
        (used, "and a nested one"),
        (beside, "no rule for aten::_jagged_to_padded_dense_forward"),
    ):
        with pytest.raises(UnsupportedModel, match=words):
            Engine(nn.Linear(3, 4), loss).clipped_sum(DATA, 1.0)


def test_a_tensor_whose_memory_was_given_up_is_no_error() -> None:
    model = nn.Linear(3, 1)
    model.spare = torch.ones(4)
    model.spare.untyped_storage().resize_(0)
    engine = Engine(model, lambda model, x: model(x)[:, 0])
    for rows in (4, 5):
        engine.clipped_sum(torch.randn(rows, 3), 1.0)
    assert engine.assumptions == ()


class _Sign(torch.autograd.Function):
    """Signs, with the gradient of what they are signs of."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_a_weight_behind_a_function_of_ones_own_is_refused_and_the_way_out_is_the_same() -> None:
    def refused(model: nn.Module, x: Tensor) -> Tensor:
        return functional.linear(x, _Sign.apply(model.weight), model.bias).square().sum(1)

    def taken(model: nn.Module, x: Tensor) -> Tensor:
        w = cast("Tensor", model.weight)
        return functional.linear(x, w + (w.sign() - w).detach(), model.bias).square().sum(1)

    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    with pytest.raises(UnsupportedModel, match=r"w \+ \(q\(w\) - w\)\.detach\(\)"):
        Engine(model, refused).clipped_sum(x, 1.0)
    found, expected = (made(model, taken).clipped_sum(x, 1.0).gradients for made in (Engine, Reference))
    plain = Reference(model, refused).clipped_sum(x, 1.0).gradients
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
        torch.testing.assert_close(gradient, plain[name])
