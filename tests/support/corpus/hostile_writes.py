"""Hostile: weights written into entries of rows by place, by number, or by other rows; a part of the batch's order."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from corpus.benign_writes import (
    ALL,
    FEATURES,
    TOKENS,
    Write,
    parts,
    put,
    rows_of,
    time_first_of,
    zeros_of,
)
from corpus.program import CLASSES, Net, Shelf, ce, labelled

by_place = Shelf("weights written by place", defaults={"sizes": (5, 2, 3, 8)})
mined = Shelf("a part of the order of the batch", defaults={"sizes": (5, 2, 3, 8)})


def _own(x: Tensor) -> Tensor:
    return (x[:, 0, 0].abs() * TOKENS).long() % TOKENS


WRITES: dict[str, Write] = {
    "into the first row": lambda m, h, x: put(h, 0, m.v),
    "into the last row's first token": lambda m, h, x: put(h, (-1, 0), m.v),
    "into two rows": lambda m, h, x: put(h, slice(None, 2), m.v),
    "into every second row": lambda m, h, x: put(h, slice(None, None, 2), m.v),
    "a weight for each place": lambda m, h, x: put(h, (ALL, 0), m.P[: len(x)]),
    "a weight for each place, copied": lambda m, h, x: h[:, 0].copy_(m.P[: len(x)]),
    "a weight for each place, added": lambda m, h, x: h[:, 0].add_(m.P[: len(x)]),
    "a weight of the number of rows": lambda m, h, x: put(h, (ALL, 0), m.P[len(x)]),
    "a mean of as many weights": lambda m, h, x: put(h, (ALL, 0), m.P[: len(x)].mean(0)),
    "a weight times the batch's mean": lambda m, h, x: put(h, (ALL, 0), m.v * x.mean()),
    "a weight over the number of rows": lambda m, h, x: put(h, (ALL, 0), m.v / len(x)),
    "a token by the place": lambda m, h, x: put(
        h, (torch.arange(len(x)), torch.arange(len(x)) % TOKENS), m.v
    ),
    "the token of another": lambda m, h, x: put(h, (torch.arange(len(x)), _own(x).roll(1)), m.v),
    "the tokens of all": lambda m, h, x: put(h, (ALL, _own(x)), m.v),
    "the greatest token of all": lambda m, h, x: put(
        h, (torch.arange(len(x)), _own(x).max().expand(len(x))), m.v
    ),
    "columns where any row is positive": lambda m, h, x: put(h, (ALL, (x[..., 0] > 0.5).any(0)), m.v),
    "rows above the mean, from the second token": lambda m, h, x: put(
        h, (x[:, 0, 0] > x[:, 0, 0].mean(), slice(1, None)), m.v
    ),
    "places above the mean": lambda m, h, x: put(
        h, (x[..., 0] > x[..., 0].mean()).nonzero(as_tuple=True), m.v
    ),
    "the first row scaled": lambda m, h, x: h[0].mul_(m.v),
    "all rows but one scaled": lambda m, h, x: h[1:].mul_(m.v),
    "the mean of all added": lambda m, h, x: h[:, 0].addcmul_(m.v, x.mean((0, 1))),
    "another's row added": lambda m, h, x: h[:, 0].addcmul_(m.v, x[:, 0].roll(1, 0)),
    "added once for each row": lambda m, h, x: [h[:, 0].add_(m.v) for _ in range(len(x))],
    "each row by its number": lambda m, h, x: [row.add_(m.v * at) for at, row in enumerate(h)],
}  # fmt: skip
_BATCH = labelled(TOKENS, FEATURES)
for _kind, _form in (("rows", rows_of), ("zeros", zeros_of), ("time-first rows", time_first_of)):
    by_place.net(
        {f"{name}, {_kind}": _form(w) for name, w in WRITES.items() if (_kind, "scaled") != ("zeros", name[-6:])},
        parts,
        batch=_BATCH,
    )


def _ordered(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows that come in their order, so that a part of it is the rows that come first."""
    x = torch.randn(n, TOKENS, FEATURES, generator=g)
    x[:, 0, 0] = torch.linspace(-1, 1, n)
    return x, torch.randint(CLASSES, (n,), generator=g)


def _order(x: Tensor) -> Tensor:
    return x[:, 0, 0].argsort()


def _set(losses: Tensor, index: Tensor) -> Tensor:
    losses = losses.clone()
    losses[index] = 0.0
    return losses


def _of_losses(f: Callable[[Tensor, Tensor], Tensor]) -> Any:
    return lambda m, b: f(ce(m, b), b[0])


mined.losses(
    {
        name: _of_losses(f)
        for name, f in {
            "the least left out": lambda y, x: _set(y, _order(x)[:1]),
            "the two least left out": lambda y, x: _set(y, _order(x)[:2]),
            "all but the greatest left out": lambda y, x: _set(y, _order(x)[:-1]),
            "half left out": lambda y, x: _set(y, _order(x)[: len(x) // 2]),
            "every second left out": lambda y, x: _set(y, _order(x)[::2]),
            "the two least filled": lambda y, x: y.index_fill(0, _order(x)[:2], 0.0),
            "the least filled": lambda y, x: y.index_fill(0, x[:, 0, 0].argmin(), 0.0),
            "the least by topk": lambda y, x: _set(y, (-x[:, 0, 0]).topk(1).indices),
            "weights of the two least": lambda y, x: (
                y * torch.ones(len(x)).index_fill(0, _order(x)[:2], 0.0)
            ),
            "weights put to the two least": lambda y, x: (
                y * torch.ones(len(x)).index_put((_order(x)[:2],), torch.tensor(0.5), accumulate=True)
            ),
            "two of those that are small": lambda y, x: _set(
                y, (x[:, 0, 0] < 0.5).nonzero().squeeze(1)[:2]
            ),
            "all but one of those that are small": lambda y, x: _set(
                y, (x[:, 0, 0] < 0.5).nonzero().squeeze(1)[1:]
            ),
            "two of those that are small, filled": lambda y, x: y.index_fill(
                0, (x[:, 0, 0] < 0.5).nonzero().squeeze(1)[:2], 0.0
            ),
            "their rank": lambda y, x: y * _order(x).argsort().float(),
            "the first two of a list": lambda y, x: _set(y, torch.arange(2)[: len(x)]),
        }.items()
    },
    model=lambda: Net(lambda m, x: m.b(m.c(x).tanh().mean(1)), **parts()),
    batch=_ordered,
)  # fmt: skip
mined.net(
    {
        "a weight into the two least": rows_of(lambda m, h, x: put(h, (_order(x)[:2], 0), m.v)),
        "the two least doubled": rows_of(lambda m, h, x: put(h, _order(x)[:2], h[_order(x)[:2]] * 2)),
    },
    parts,
    batch=_ordered,
)

PROGRAMS = by_place.programs + mined.programs
