"""Hostile: operations in place on views whose base has the examples behind another dimension, which mix them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from corpus.benign_views import TIME, WIDTH, sequences
from corpus.program import CLASSES, Shelf, labelled, square

views = Shelf("in place on views of memory in another order", defaults={"batch": labelled(TIME, 3)})


def _written(write: Callable[[Tensor, int], object]) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).transpose(0, 1).contiguous()
        write(h, len(x))
        return m.b(h).transpose(0, 1)

    return run


views.net(
    {name: _written(f) for name, f in {
        "the batch's mean added to folded time": lambda h, n: h.view(-1, WIDTH).add_(h.mean((0, 1))),
        "the last step centred": lambda h, n: h[-1].sub_(h[-1].mean(0)),
        "all but the first row of folded time": lambda h, n: h.view(-1, WIDTH)[1:].mul_(2.0),
        "all but the last row of the first step": lambda h, n: h.view(-1, WIDTH)[: n - 1].mul_(2.0),
        "rows from the second on, by strides": lambda h, n: h.as_strided((n, WIDTH), (WIDTH, 1), WIDTH).mul_(2.0),
        "the last row, by an offset": lambda h, n: h.as_strided((WIDTH,), (1,), (n - 1) * WIDTH).mul_(2.0),
        "times the number of rows": lambda h, n: h.view(-1, WIDTH).mul_(n),
        "numbers from the number of rows on": lambda h, n: h.view(-1)[n : n + 2].mul_(2.0),
        "a step by the number of rows": lambda h, n: h.as_strided(
            (n, WIDTH), (WIDTH, 1), min(n // 3, 4) * n * WIDTH
        ).mul_(2.0),
        "a step reversed along the rows": lambda h, n: h[-1].copy_(h[-1].flip(0).clone()),
        "memory in the other order": lambda h, n: h.view(n, TIME, WIDTH)[:, 0].mul_(2.0),
        "a row's memory shifted by its place": lambda h, n: h.as_strided(
            (n, WIDTH), ((n + 1) * WIDTH, 1), 0
        )[:TIME - 1].mul_(2.0),
        "a row of steps, by a stride": lambda h, n: h.as_strided((TIME, WIDTH), (n * WIDTH, 1), 0).mul_(2.0),
    }.items()},
    sequences, square,
)  # fmt: skip

SERIES = torch.arange(100.0) / 10


def _filled(fill: Callable[[int], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A constant that was filled, or is read, by strides made of the number of rows."""
    return lambda m, x: m.b(m.a(x) * (1 + fill(len(x))))


def _put(total: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
    found = torch.zeros(total)
    found.as_strided(shape, stride, offset).fill_(1.0)
    return found


views.net(
    {name: _filled(f) for name, f in {
        "zeros filled from the number of rows on": lambda n: _put(100, (3,), (1,), n)[5],
        "zeros as long as the rows, filled from their number on": lambda n: _put(12 * n, (3,), (1,), n)[5],
        "zeros filled at steps of the number of rows": lambda n: _put(100, (4,), (n,), 0)[15],
        "the last of as many zeros filled": lambda n: _put(4 * n, (4,), (1,), 4 * (n - 1)).view(n, 1, 4),
        "half of as many zeros filled": lambda n: _put(4 * n, (2 * n,), (1,), 2 * n).view(n, 1, 4),
        "a series by an offset": lambda n: SERIES.as_strided((1,), (1,), n),
        "a series by a stride": lambda n: SERIES.as_strided((2,), (n,)).sum(),
        "a series made in the pass by an offset": lambda n: (SERIES * 1).as_strided((1,), (1,), n),
        "a series made in the pass by a stride": lambda n: torch.arange(12.0 * n).as_strided((4,), (3 * n,)).sum(),
    }.items()},
    sequences, square,
)  # fmt: skip


class _OverTheBatch(nn.Module):
    """As InstanceNorm sees it, but over all examples."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(1, -1, *x.shape[2:])
        flat.sub_(flat.mean((1, 2, 3), keepdim=True))
        return x


views.net(
    {"normalised over instances of all examples": lambda m, x: m.s(x)},
    lambda: {"s": nn.Sequential(nn.Conv2d(2, 4, 3), _OverTheBatch(), nn.Tanh(), nn.Conv2d(4, CLASSES, 2))},
    square, batch=labelled(2, 4, 4),
)  # fmt: skip
PROGRAMS = views.programs
