"""Views by strides and offsets that grow with the batch: what autograd replays of operations in place on views."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as fn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.strides import grid_of

T, C = 5, 4


class Sequences(nn.Module):
    """Hidden features of (time, n, width), of which a view is written in place."""

    def __init__(self, write: str = "") -> None:
        super().__init__()
        self.write = write
        self.first, self.last = nn.Linear(3, C), nn.Linear(C, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).transpose(0, 1).contiguous()
        if self.write == "dropout":
            h = fn.dropout(h.view(-1, C), 0.5, inplace=True).view(h.shape)
        elif self.write == "last":
            h[-1].mul_(2.0)
        return self.last(h).transpose(0, 1).flatten(1).square()


def _sum(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sum(1)


def test_dropout_in_place_on_a_folded_view_is_accepted() -> None:
    engine = Engine(Sequences("dropout"), _sum, seeds=lambda: 5)
    for n in (3, 1, 2, 8):
        assert engine.clipped_sum(torch.randn(n, T, 3), 0.5).gradients["first.weight"].isfinite().all()


@pytest.mark.parametrize("order", [(1, 2, 3, 5, 8), (8, 5, 3, 2, 1)])
def test_a_step_written_behind_time_is_exact_for_any_number_of_examples(order: tuple[int, ...]) -> None:
    model = Sequences("last").double()
    engine, slow = Engine(model, _sum), Reference(model, _sum)
    for n in order:
        x = torch.randn(n, T, 3, dtype=torch.float64)
        mine, its = (one.clipped_sum(x, 0.5).gradients for one in (engine, slow))
        assert all(torch.allclose(mine[name], its[name], atol=1e-12) for name in its)


def test_strides_that_stop_growing_after_a_pass_was_accepted_are_refused() -> None:
    """What was accepted of few examples is no reason to take another view of many."""

    class Rows(Sequences):
        def forward(self, x: Tensor) -> Tensor:
            h, n = self.first(x).transpose(0, 1).contiguous(), len(x)
            h.as_strided((min(n, 4), C), (C, 1), (T - 1) * n * C).mul_(2.0)
            return self.last(h).transpose(0, 1).flatten(1)

    engine = Engine(Rows(), _sum)
    engine.clipped_sum(torch.randn(4, T, 3), 0.5)
    with pytest.raises(UnsupportedModel):
        engine.clipped_sum(torch.randn(8, T, 3), 0.5)


@given(st.data())
def test_a_grid_shows_what_the_view_shows(data: st.DataObject) -> None:
    """Slices of the grid, taken by the digits alone, have the numbers of the view."""
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    view = torch.arange(torch.Size(shape).numel()).view(shape)
    total = view.numel()
    for dim in range(view.dim()):
        start = data.draw(st.integers(0, view.shape[dim] - 1))
        step = data.draw(st.integers(1, 3))
        stop = data.draw(st.integers(start + 1, view.shape[dim]))
        index = [slice(None)] * view.dim()
        index[dim] = slice(start, stop, step)
        view = view[tuple(index)]
    view = view.permute(data.draw(st.permutations(range(view.dim()))))
    found = grid_of(total, view.shape, view.stride(), int(view.storage_offset()))
    if found is None:
        return
    (count, radices, sizes), (offset, digits) = found
    assert count == total == torch.Size(radices).numel()
    grid = torch.arange(total).view(radices)
    rest = torch.zeros(1, len(radices), dtype=torch.long) + torch.tensor(offset)
    for parts, steps in zip(sizes, digits, strict=True):
        for size, step in reversed(list(zip(parts, steps, strict=True))):
            rest = (rest[:, None] + torch.arange(size)[None, :, None] * torch.tensor(step)).flatten(0, 1)
    assert torch.equal(grid[tuple(rest.T)], view.flatten())


@pytest.mark.parametrize("n", [2, 3, 7])
def test_an_offset_that_is_the_number_of_examples_is_another_grid(n: int) -> None:
    one, other = (grid_of(100, (3,), (1,), at) for at in (n, n + 1))
    assert one is not None
    assert other is not None
    assert one[1] != other[1]
