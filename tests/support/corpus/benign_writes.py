"""Benign: trained weights written into entries of each row, in every form of an index."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from corpus.program import BENIGN_SIZES, CLASSES, Shelf, labelled, weight

TOKENS, FEATURES = 4, 5
# Of a model with weights, hidden rows (n, tokens, features), inputs of the same shape.
Write = Callable[[Any, Tensor, Tensor], Any]
ALL = slice(None)

_SIZES: dict[str, Any] = {"sizes": BENIGN_SIZES}
into_rows = Shelf("weights written into rows", defaults=_SIZES)
into_zeros = Shelf("weights written into zeros", defaults=_SIZES)
other_order = Shelf("weights written into time-first rows", defaults=_SIZES)
classes = Shelf("weights of another class", defaults=_SIZES)


def parts() -> dict[str, Any]:
    return {
        "c": nn.Linear(FEATURES, FEATURES),
        "b": nn.Linear(FEATURES, CLASSES),
        "v": weight(FEATURES),
        "s": nn.Parameter(torch.tensor(0.3)),
        "P": weight(40, FEATURES),
    }


def rows_of(write: Write) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.c(x)
        write(m, h, x)
        return m.b(h.tanh().mean(1))

    return run


def zeros_of(write: Write) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), TOKENS, FEATURES)
        write(m, h, x)
        return m.b((h + m.c(x)).tanh().mean(1))

    return run


def time_first_of(write: Write) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.c(x).transpose(0, 1).contiguous()
        write(m, h.transpose(0, 1), x)
        return m.b(h.tanh().mean(0))

    return run


def put(h: Tensor, index: Any, value: Any) -> None:
    h[index] = value


_FIXED, _COLUMNS = torch.tensor([True, False, False, True]), torch.tensor([True, False, False, True, True])
WRITES: dict[str, Write] = {
    "a class token": lambda m, h, x: put(h, (ALL, 0), m.v),
    "a number in the last column": lambda m, h, x: put(h, (..., -1), m.s),
    "two tokens": lambda m, h, x: put(h, (ALL, slice(1, 3)), m.P[:2]),
    "two tokens, by a list": lambda m, h, x: put(h, (ALL, [0, 2]), m.P[:2]),
    "two tokens, expanded": lambda m, h, x: put(
        h, (ALL, slice(1, 3)), m.P[:2].expand(len(x), 2, FEATURES)
    ),
    "tokens of a fixed mask": lambda m, h, x: put(h, (ALL, _FIXED), m.v[None, None]),
    "columns of a fixed mask": lambda m, h, x: put(h, (..., _COLUMNS), m.v[:1]),
    "tokens of its own mask": lambda m, h, x: put(h, (x[..., 0] > 0.3, ALL), m.v),
    "tokens of its own mask, a row": lambda m, h, x: put(h, x[..., 0] > 0.3, m.v[None]),
    "a column of its own mask": lambda m, h, x: put(h, (x[..., 0] > 0.3, 0), m.s),
    "rows of a mask, from the second token": lambda m, h, x: put(
        h, (x[:, 0, 0] > 0.3, slice(1, None)), m.v
    ),
    "the places of its own mask": lambda m, h, x: put(h, (x[..., 0] > 0.3).nonzero(as_tuple=True), m.v),
    "one token of its own choice": lambda m, h, x: put(
        h, (torch.arange(len(x)), x[:, :, 0].argmax(1)), m.c(torch.ones(FEATURES))
    ),
    "added to a token": lambda m, h, x: h[:, 0].add_(m.v),
    "every second token scaled": lambda m, h, x: h[:, ::2, 1:].mul_(m.v[1:]),
    "a token subtracted twice": lambda m, h, x: h.select(1, 0).sub_(m.v, alpha=2.0),
    "copied to a token": lambda m, h, x: h[:, 2].copy_(m.v),
    "a token filled": lambda m, h, x: h[:, 0].fill_(m.s),
    "one token after another": lambda m, h, x: [h[:, t].add_(m.P[t]) for t in range(TOKENS)],
    "scattered": lambda m, h, x: h.scatter_(
        1, x[:, :1].gt(0).long(), m.v.expand(len(x), 1, FEATURES)
    ),
    "a token, its scale, a mask": lambda m, h, x: (
        put(h, (ALL, 0), m.v),
        h[:, 0].mul_(m.s),
        put(h, x[..., 0] > 0, m.v),
    ),
}  # fmt: skip
_BATCH = labelled(TOKENS, FEATURES)
into_rows.net({name: rows_of(write) for name, write in WRITES.items()}, parts, batch=_BATCH)
into_zeros.net({f"{name}, in zeros": zeros_of(w) for name, w in WRITES.items()}, parts, batch=_BATCH)
other_order.net({f"{name}, time first": time_first_of(w) for name, w in WRITES.items()}, parts, batch=_BATCH)


class _Tagged(Tensor):
    """A subclass that does nothing but be one."""


def _tagged(w: Tensor) -> Tensor:
    return w.as_subclass(_Tagged)


classes.net(
    {
        "the second chunk of a weight": lambda m, x: x @ _tagged(m.w.chunk(2)[1]).T,
        "a middle part of a weight": lambda m, x: x @ _tagged(m.w.split([2, 3, 1])[1]).T,
        "both chunks of a weight": lambda m, x: sum((x**k) @ _tagged(part).T for k, part in enumerate(m.w.chunk(2), 1)),
        "columns of a weight": lambda m, x: x[:, 4:] @ _tagged(m.w.chunk(2, 1)[1])[:3].T,
        "rows one by one": lambda m, x: torch.stack(
            [(x * _tagged(row)).as_subclass(Tensor).sum(1) for row in m.w.unbind()[2:5]], 1
        ),
        "one of two factors": lambda m, x: x @ _tagged(torch.linalg.qr(m.w[:3].T).R.T @ m.w[3:]).T,
    },
    lambda: {"w": weight(6, 8)},
    loss=lambda m, b: nn.functional.cross_entropy(m(b[0]).as_subclass(Tensor), b[1], reduction="none"),
)

PROGRAMS = into_rows.programs + into_zeros.programs + other_order.programs + classes.programs
