"""Benign: operations in place on views whose base has the examples behind another dimension."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.program import BENIGN_SIZES, CLASSES, HIDDEN, Shelf, labelled, square

_SIZES: dict[str, Any] = {"sizes": BENIGN_SIZES}
views = Shelf("in place on views of memory in another order", defaults=_SIZES)
WIDTH, TIME = 4, 5


def norm(act: nn.Module, *, affine: bool = False, dims: int = 2) -> Callable[[], dict[str, Any]]:
    """Normalisation of each example's channels, which torch does over (1, n * channels, ..)."""

    def parts() -> dict[str, Any]:
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1]
        return {"s": nn.Sequential(conv(2, 4, 3, padding=1), instance(4, affine=affine), act, conv(4, CLASSES, 1))}

    return parts


for _act in (
    nn.ReLU(inplace=True),
    nn.LeakyReLU(0.2, inplace=True),
    nn.ELU(inplace=True),
    nn.Hardtanh(inplace=True),
    nn.SiLU(inplace=True),
):
    for _dims, _shape in ((1, (2, 7)), (2, (2, 4, 6)), (3, (2, 3, 4, 2))):
        for _affine in (False, True):
            views.net(
                {f"InstanceNorm{_dims}d, {type(_act).__name__}, affine {_affine}": lambda m, x: m.s(x)},
                norm(_act, affine=_affine, dims=_dims),
                square, batch=labelled(*_shape),
            )  # fmt: skip


def _dense(m: Any, x: Tensor) -> Tensor:
    for conv in m.s:
        x = torch.cat([x, conv(fn.relu(fn.instance_norm(x), inplace=True))], 1)
    return x


def _residual(m: Any, x: Tensor) -> Tensor:
    h = fn.leaky_relu(fn.instance_norm(m.a(x)), inplace=True)
    r = fn.instance_norm(m.b(h))
    r += h
    return fn.leaky_relu(r, inplace=True)


def _to_image(m: Any, x: Tensor) -> Tensor:
    a = fn.instance_norm(m.a(x))
    b = fn.instance_norm(m.b(fn.leaky_relu(a, 0.2, inplace=True)))
    return m.u(fn.relu(torch.cat([a, b], 1), inplace=True)).tanh()


views.net(
    {"a dense block of InstanceNorm": _dense},
    lambda: {"s": nn.ModuleList(nn.Conv2d(2 + 2 * k, 2, 3, padding=1) for k in range(3))},
    square, batch=labelled(2, 4, 4),
)  # fmt: skip
views.net(
    {"a residual block of InstanceNorm": _residual, "encoder, skip and decoder with InstanceNorm": _to_image},
    lambda: {
        "a": nn.Conv2d(2, 4, 3, padding=1), "b": nn.Conv2d(4, 4, 3, padding=1), "u": nn.ConvTranspose2d(8, 2, 2, 2),
    },
    square, batch=labelled(2, 4, 4),
)  # fmt: skip


def _written(write: Callable[[Tensor], object]) -> Callable[[Any, Tensor], Tensor]:
    """Something is done in place to a view of hidden features of (time, n, width)."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).transpose(0, 1).contiguous()
        write(h)
        return m.b(h).transpose(0, 1)

    return run


def _used(write: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """The view that was written is used, which has the examples along dimension 1."""
    return lambda m, x: write(m.a(x).transpose(0, 1).contiguous()).transpose(0, 1).flatten(1)


def _back(z: Tensor, steps: int) -> Tensor:
    return z.view(steps, -1, z.shape[-1])


def sequences() -> dict[str, Any]:
    return {"a": nn.Linear(3, WIDTH), "b": nn.Linear(WIDTH, CLASSES)}


_WRITES: dict[str, Callable[[Tensor], object]] = {
    "folded time, ReLU": lambda h: h.view(-1, WIDTH).relu_(),
    "last step doubled": lambda h: h[-1].mul_(2.0),
    "later steps, folded": lambda h: h[1:].view(-1, WIDTH).relu_(),
    "some steps and columns, folded": lambda h: h[2:4].view(-1, WIDTH)[:, 1:3].sigmoid_(),
    "halves of the width": lambda h: [part.mul_(k) for k, part in ((2, h[..., :2]), (3, h[..., 2:]))],
    "a constant row added": lambda h: h.view(-1, WIDTH).add_(torch.arange(4.0)),
    "negatives filled": lambda h: h.view(-1, WIDTH).masked_fill_(h.view(-1, WIDTH) < 0, 0.1),
    "a column filled": lambda h: h.view(-1, WIDTH).masked_fill_(torch.arange(WIDTH) == 2, 0.5),
    "permuted, one column": lambda h: h.permute(2, 1, 0)[1].exp_(),
    "every second column of the transposed": lambda h: h.view(-1, WIDTH).t()[::2].mul_(3.0),
    "every second step": lambda h: h[::2].mul_(2.0),
    "a step added to another": lambda h: h[0].add_(h[1]),
    "two steps cleared": lambda h: h[1:3].zero_(),
    "a step, part of its columns": lambda h: h.select(0, 2).narrow(1, 1, 2).mul_(torch.tensor([2.0, 3.0])),
}
_USES: dict[str, Callable[[Tensor], Tensor]] = {
    "folded time, ReLU, used": lambda h: _back(h.view(-1, WIDTH).relu_(), TIME),
    "last step doubled, used": lambda h: h[-1:].mul_(2.0),
    "last step selected, used": lambda h: h[-1].mul_(2.0)[None],
    "some steps and columns, folded, used": lambda h: _back(h[2:4].flatten(0, 1)[:, 1:3].sigmoid_(), 2),
    "three steps, folded, used": lambda h: _back(h[2:].flatten(0, 1).tanh_(), 3),
    "every second step and column, used": lambda h: h[::2, :, 1::2].mul_(2.0),
    "a row of constants added, used": lambda h: h[1:].add_(torch.arange(4.0)),
    "columns in another order, used": lambda h: h.permute(2, 1, 0)[1:3, :, 2:].tanh_(),
}
for _loss, _how in ((square, ""), (lambda m, b: m(b[0]).flatten(1).sum(1), ", linear loss")):
    _given: dict[str, Any] = {"batch": labelled(TIME, 3)}
    views.net({name + _how: _written(f) for name, f in _WRITES.items()}, sequences, _loss, **_given)
    views.net({name + _how: _used(f) for name, f in _USES.items()}, sequences, _loss, **_given)


def _last_state(m: Any, x: Tensor) -> Tensor:
    h = m.r(x.transpose(0, 1))[1]
    h[-1].mul_(1.5)
    return m.b(h[-1])


views.net(
    {"the last state, scaled": _last_state, "the last state, scaled and used": lambda m, x: m.b(
        m.r(x.transpose(0, 1))[1][-1].mul_(1.5)
    )},
    lambda: {"r": nn.GRU(3, HIDDEN, 2), "b": nn.Linear(HIDDEN, CLASSES)},
    square, batch=labelled(TIME, 3),
)  # fmt: skip
PROGRAMS = views.programs
