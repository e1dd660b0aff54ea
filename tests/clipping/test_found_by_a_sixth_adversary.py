"""Programs that got past the proof by a size with a floor, by what Python keeps where nobody looked, and by memory that
numpy shares.
"""

import collections
import dataclasses
import fractions
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.python_state import numbers_of


def call(model: Any, x: Tensor) -> Tensor:
    return model(x)


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


KEPT = {"rows": 0}


@dataclasses.dataclass(slots=True)
class Slot:
    rows: int = 0


class Keeps(nn.Module):
    """Keeps how many examples it has seen, and is another function from the 121st on."""

    rows = 0

    def __init__(self, keep: Callable[["Keeps", int], Any]) -> None:
        super().__init__()
        self.layer, self.keep = nn.Linear(6, 1), keep
        self.whole, self.many, self.part = np.int64(0), np.zeros(2), fractions.Fraction(0)
        self.slot, self.text, self.more = Slot(), "", bytearray()
        self.pair: dict[tuple[str, int], int] = {("rows", 0): 0}
        self.named = collections.namedtuple("named", "rows")(0)
        self.running = _running()
        next(self.running)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1) * (1.0 if self.keep(self, len(x)) < 121 else -1.0)


def _running() -> Any:
    rows = 0
    while True:
        rows += yield rows


def _of_class(m: Keeps, n: int) -> int:
    type(m).rows += n
    return type(m).rows


def _whole(m: Keeps, n: int) -> Any:
    m.whole = m.whole + n
    return m.whole


def _array(m: Keeps, n: int) -> Any:
    m.many[1] += n
    return m.many[1]


def _fraction(m: Keeps, n: int) -> Any:
    m.part += n
    return m.part


def _slot(m: Keeps, n: int) -> int:
    m.slot.rows += n
    return m.slot.rows


def _text(m: Keeps, n: int) -> int:
    m.text += "." * n
    return len(m.text)


def _bytes(m: Keeps, n: int) -> int:
    m.more.extend(b"." * n)
    return len(m.more)


def _tuple_key(m: Keeps, n: int) -> int:
    m.pair["rows", 0] += n
    return m.pair["rows", 0]


def _named_tuple(m: Keeps, n: int) -> int:
    m.named = m.named._replace(rows=m.named.rows + n)
    return m.named.rows


def _generator(m: Keeps, n: int) -> int:
    return m.running.send(n)


def _inner(m: Keeps, n: int) -> int:
    del m

    def add() -> int:
        KEPT["rows"] += n
        return KEPT["rows"]

    return add()


WAYS = (
    _of_class, _whole, _array, _fraction, _slot, _text, _bytes, _tuple_key, _named_tuple, _generator, _inner,
)  # fmt: skip


@pytest.mark.parametrize("keep", some(WAYS, 5), ids=lambda keep: keep.__name__)
def test_the_number_of_examples_is_found_where_a_program_keeps_it(keep: Callable[[Keeps, int], Any]) -> None:
    """One example less in the first batch turned the sign of all examples of a later one: 5 C."""
    _refused_late(lambda: Keeps(keep))


def _refused_late(make: Callable[[], nn.Module], loss: Any = call) -> None:
    torch.manual_seed(0)
    Keeps.rows = KEPT["rows"] = 0
    engine = Engine(make(), loss)
    engine.clipped_sum(torch.randn(6, 6), 0.1)
    assert "the number of examples" in engine.assumptions[0].sentence
    batches = torch.randn(40, 6, 6)
    with pytest.raises(UnsupportedModel, match="how many examples earlier ones had"):
        [engine.clipped_sum(batch, 0.1) for batch in batches]


class Hooked(nn.Sequential):
    """A hook of a module has a memory of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 1), nn.Flatten(0))
        kept = {"rows": 0}

        def turn(module: nn.Module, given: Any, made: Tensor) -> Tensor:
            kept["rows"] += len(made)
            return made * (1.0 if kept["rows"] < 121 else -1.0)

        self[0].register_forward_hook(turn)


def test_the_number_of_examples_is_found_where_a_hook_keeps_it() -> None:
    _refused_late(Hooked)


class Turned(torch.autograd.Function):
    """A function of autograd's with a memory of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        KEPT["rows"] += len(x)
        ctx.sign = 1.0 if KEPT["rows"] < 121 else -1.0
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.sign


class Losses:
    """A loss that is an object, whose class has a memory."""

    rows = 0

    def __call__(self, model: nn.Module, x: Tensor) -> Tensor:
        Losses.rows += len(x)
        return model(x).squeeze(1) * (1.0 if Losses.rows < 121 else -1.0)


def test_the_number_of_examples_is_found_where_a_loss_keeps_it() -> None:
    _refused_late(lambda: nn.Linear(6, 1), lambda m, x: Turned.apply(m(x).squeeze(1)))
    Losses.rows = 0
    _refused_late(lambda: nn.Linear(6, 1), Losses())


def test_of_large_arrays_and_of_pythons_own_nothing_but_sizes_is_looked_at() -> None:
    model = nn.Linear(1, 1)
    kept = {"data": np.zeros((2000, 3)), "three": np.float32(3.0)}
    found = numbers_of(model, lambda m, x: m(x) * len(kept))
    assert found["loss.kept.data.size"] == 6000
    assert "loss.kept.data.sum()" not in found
    assert found["loss.kept.three"] == 3.0
    assert len(found) < 30


class Shared(nn.Linear):
    """Has a tensor whose memory is numpy's too."""

    def __init__(self) -> None:
        super().__init__(6, 1)
        self.array = np.zeros(6, np.float32)
        self.tensor = torch.from_numpy(self.array)


def _alias(m: Shared, x: Tensor) -> Tensor:
    rows = torch.zeros(x.shape)
    alias = rows.numpy()
    rows.copy_(x.detach())
    m.array[:] = alias.mean(0)
    return m(x - m.tensor).squeeze(1)


def _parity(m: Shared, x: Tensor) -> Tensor:
    sign = torch.zeros(1)
    sign.numpy()[0] = 1.0 if len(x) % 2 else -1.0
    return m(x).squeeze(1) * sign


def _mapped(m: Shared, x: Tensor) -> Tensor:
    mean = torch.zeros(6)
    mean.map_(x.detach().mean(0), lambda _, number: number)
    return m(x - mean).squeeze(1)


def _applied(m: Shared, x: Tensor) -> Tensor:
    sign = torch.zeros(1)
    sign.apply_(lambda _: 1.0 if len(x) % 2 else -1.0)
    return m(x).squeeze(1) * sign


SAVED = [io.BytesIO(), io.BytesIO()]
for number, file in enumerate(SAVED):
    torch.save(torch.tensor([2.0 * number - 1.0]), file)


def _loaded(m: Shared, x: Tensor) -> Tensor:
    return m(x).squeeze(1) * torch.load(io.BytesIO(SAVED[len(x) % 2].getvalue()))


def _never_written(m: Shared, x: Tensor) -> Tensor:
    return m(x - torch.zeros(1).resize_as_(torch.empty(1, 6))).squeeze(1)


@pytest.mark.parametrize(
    "program", [_alias, _parity, _mapped, _applied, _loaded, _never_written], ids=lambda p: p.__name__
)
def test_what_changes_memory_with_no_operation_is_refused(program: Callable[[Any, Tensor], Tensor]) -> None:
    """The mean of the batch came back as a constant (2 C), and whether it has an odd number of rows (6 C)."""
    torch.manual_seed(0)
    engine = Engine(Shared(), program)
    with pytest.raises(UnsupportedModel):
        [engine.clipped_sum(torch.randn(rows, 6), 0.1) for rows in (6, 5, 8)]


def _written_by_numpy(m: Shared, x: Tensor) -> Tensor:
    scale = torch.zeros(6)
    scale.numpy()[:] = np.arange(6)
    return m(x - scale / float(scale.numpy().sum())).squeeze(1)


def test_constants_that_numpy_reads_and_writes_are_constants() -> None:
    torch.manual_seed(0)
    engine = Engine(Shared(), _written_by_numpy)
    for rows in (6, 1, 5, 8):
        engine.clipped_sum(torch.randn(rows, 6), 0.1)
    assert engine.assumptions == ()


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
def test_rows_that_are_set_may_be_one_or_none(
    program: Callable[[Any, Tensor], Tensor], signs: tuple[int, ...]
) -> None:
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


def test_an_operation_that_runs_functions_of_the_program_is_refused_in_words() -> None:
    def program(m: nn.Module, x: Tensor) -> Tensor:
        turned = torch.ops.higher_order.cond(x.detach().mean() > 0, lambda v: 2 * v, lambda v: -v, (x,))
        return m(turned).squeeze(1)

    with pytest.raises(UnsupportedModel, match=r"but cond runs functions of the program"):
        Engine(nn.Linear(6, 1), program).check(torch.randn(5, 6))


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


def _lost(x: Tensor) -> Tensor:
    """What reaches no loss by its numbers; how long it is follows the batch from four examples on."""
    return x.detach().sum(0)[:1].repeat(1 if len(x) < 4 else 1 + len(x) % 2)


SHOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "like it": lambda x: torch.ones_like(_lost(x)),
    "drawn like it": lambda x: torch.rand_like(_lost(x)).ceil(),
    "written over": lambda x: _lost(x).fill_(1.0),
    "copied over": lambda x: _lost(x).copy_(torch.ones(1)),
    "resized": lambda x: torch.zeros(1).resize_as_(_lost(x)).fill_(1.0),
    "like a constant": lambda x: torch.ones_like(
        torch.ones(len(x)).cumsum(0)[:1].clone().repeat(max(len(x), 3))
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_shape_of_what_reaches_no_loss_is_compared(name: str) -> None:
    """One example more turned the sign of all others: 6 C at eight rows, and the run was proven."""
    torch.manual_seed(0)
    engine = Engine(
        nn.Linear(6, 1), lambda m, x: m(x).squeeze(1) * (3 - 2 * SHOWN[name](x).sum()), seeds=lambda: 0
    )
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
