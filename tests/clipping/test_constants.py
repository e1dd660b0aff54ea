"""Constants of a pass: made as long as the batch, filled again, of arrays, and views of these."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn

from decrescendo.base.rng import Seeds
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


CONSTANT = torch.ones(5040)


CONSTANT[1::2] = -1


LONG: dict[str, Callable[[int], Tensor]] = {
    "slice": lambda n: CONSTANT[:n][-1:][0], "index": lambda n: CONSTANT[:n][-1].unsqueeze(0),
    "view": lambda n: CONSTANT.view(-1, n)[1, 0], "split": lambda n: CONSTANT.split(n)[0][-1:][0],
    "unfold": lambda n: CONSTANT.unfold(0, n, 1)[1, -1:], "made": lambda n: CONSTANT.clone().view(n, -1)[1, :1],
}  # fmt: skip


@pytest.mark.parametrize("view", some(LONG, 1))
def test_a_view_of_a_view_that_follows_the_number_of_examples_is_refused(view: str) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).squeeze(1) * LONG[view](x.shape[0])

    with pytest.raises(UnsupportedModel, match="depends on the number of examples"):
        Engine(nn.Linear(3, 1), loss).clipped_sum(data(), 1.0)


def _seen_by(model: nn.Module, x: Tensor, made: Callable[[Tensor], Tensor]) -> Tensor:
    """Losses that go by what is made, a number a row."""
    return (model(torch.ones_like(x)).squeeze(1) - made(x)).square()


TWICE: dict[str, Callable[[int], Tensor]] = {
    "softmax": lambda n: torch.zeros(n, 1).expand(n, n).softmax(1)[:, 0],
    "expand": lambda n: torch.ones(n, 1).expand(n, n).sum(1),
    "repeat": lambda n: torch.ones(n, 1).repeat(1, n).sum(1),
    "meshgrid": lambda n: (torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")[0] >= 0).sum(1),
    "interleave": lambda n: torch.ones(n, 1).repeat_interleave(n, 1).cumsum(1)[:, -1],
    "kept": lambda n: torch.arange(n)[:, None].expand(-1, n).ge(0).sum(1),
    "drawn": lambda n: torch.multinomial(torch.ones(n, 1).expand(n, n), 50, True).float().mean(1),
    "view": lambda n: torch.ones(3, 1).expand(3, n).t()[:, :1].expand(n, n).sum(1),
    "attention": lambda n: nn.functional.scaled_dot_product_attention(
        torch.ones(n, 1, 1), torch.ones(n, 1, 1).expand(n, n, 1), torch.ones(n, 1, 1).expand(n, n, 1).cumsum(1)
    ).flatten(),
}  # fmt: skip


@pytest.mark.parametrize("made", some(TWICE, 9))
def test_a_constant_as_long_as_the_batch_twice_follows_their_number(made: str) -> None:
    """17 C, *proven*, whole runs too: a loss divided by how many examples there are."""
    model, x = nn.Linear(1, 1, bias=False), torch.ones(ROWS, 1)
    engine = Engine(model, lambda m, x: _seen_by(m, x, lambda x: TWICE[made](len(x))), seeds=lambda: 1)
    with pytest.raises(UnsupportedModel):
        engine.clipped_sum(x, 1.0)


@pytest.mark.parametrize("size", [(1, 5), (5, 5)])
def test_a_constant_of_a_row_for_each_example_is_taken(size: tuple[int, int]) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        mask = torch.ones(size).tril().expand(len(x), *size)
        weights = torch.zeros(len(x), 1).expand(len(x), 5).softmax(1)
        return (model(x)[:, None] * mask * weights[:, None]).sum((1, 2))

    for rows in (5, ROWS, 2):
        model, x = nn.Linear(4, 5), torch.randn(rows, 4)
        found = Engine(model, loss).clipped_sum(x, 1.0)
        expected = Reference(model, loss).clipped_sum(x, 1.0)
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(found.gradients[name], gradient)


def test_a_mask_that_is_expanded_twice_is_no_reason_to_refuse() -> None:
    """Two dimensions had the small pass's number of examples, and no stride."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        count, mask = len(x), torch.ones(3, 3).tril()
        mask = mask[None, None].expand(count, 1, 3, 3).expand(count, 2, 3, 3)
        return (model(x)[:, None, None, :3] * mask).sum((1, 2, 3))

    engine = Engine(nn.Linear(3, 3), loss)
    engine.clipped_sum(data(), 1.0)
    assert not engine.assumptions


def test_a_constant_that_each_pass_fills_before_it_uses_it_is_not() -> None:
    buffer, noise = torch.ones(3), torch.ones(3)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        buffer.data.zero_()
        buffer[:2] = 1.0
        noise.normal_()
        return model(x * buffer * noise).sum(1)

    engine = Engine(nn.Linear(3, 1), loss, seeds=Seeds.of(0))
    for _ in range(3):
        engine.clipped_sum(data(), 1.0)
    assert not [one for one in engine.assumptions if "what a pass fills" in str(one)]


def test_constants_that_are_filled_again_in_each_pass_are_proven() -> None:
    ticks = torch.zeros(())

    def loss(m: Any, x: Tensor) -> Tensor:
        ticks.fill_(0.5)
        return m(x).square().sum(1) * ticks

    engine = Engine(nn.Linear(3, 2), loss)
    for _ in range(3):
        engine.clipped_sum(data(), 1.0)
    assert engine.assumptions == ()


def test_honest_arrays_are_taken_and_may_change_between_passes() -> None:
    """What torch wrote, or a loop between two passes, is no change in a pass."""
    table, model = np.linspace(1, 2, 3, dtype=np.float32), nn.Linear(3, 1)
    outside, counted = torch.from_numpy(table), torch.zeros(1)
    counted.numpy()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        inside = torch.from_numpy(np.arange(3, dtype=np.float32))
        many = torch.tensor(list(range(100)), dtype=torch.float32)  # torch's own memory: the data may go there
        many[:3] += 0.0
        total = torch.zeros(ROWS if len(x) == ROWS else len(x))
        total += x.sum(1)
        return model(x * outside + inside).sum(1) + 0.0 * total

    engine = Engine(model, loss)
    for scale in (1.0, 2.0, 3.0):
        table[:] = scale
        found = engine.clipped_sum(data(), 0.5)
        expected = Reference(model, loss).clipped_sum(data(), 0.5)
        for name, value in found.gradients.items():
            torch.testing.assert_close(value, expected.gradients[name])
    assert {one.code for one in engine.assumptions} <= {"replayed-passes", "tensors-read"}


def test_a_tensor_whose_memory_was_given_up_is_no_error() -> None:
    model = nn.Linear(3, 1)
    model.spare = torch.ones(4)
    model.spare.untyped_storage().resize_(0)
    engine = Engine(model, lambda model, x: model(x)[:, 0])
    for rows in (4, 5):
        engine.clipped_sum(torch.randn(rows, 3), 1.0)
    assert engine.assumptions == ()


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


@pytest.mark.parametrize(
    "fill",
    [
        lambda empty: None,
        lambda empty: empty.fill_(2.0),
        lambda empty: (empty[0].fill_(1.0), empty[1:].fill_(2.0)),
        lambda empty: empty.numpy().fill(2.0),
        lambda empty: torch.ones(3, out=empty),
        lambda empty: empty.add_(2.0),
    ],
)
def test_an_empty_tensor_that_operations_fill_is_a_constant(fill: Callable[[Tensor], object]) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        fill(empty := torch.empty(3))
        return model(x).square().sum(1) * (1 + empty.sum())

    engine = Engine(nn.Linear(3, 1), loss)
    engine.per_example_norms(data())
    assert not engine.assumptions
