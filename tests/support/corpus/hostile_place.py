"""Hostile: an example's place in the batch, or the number of examples, reaches its gradient."""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.program import CLASSES, WIDE, Net, Shelf, ce, labelled, mlp, scored, square, tokens, weight

place = Shelf("place in the batch")
number = Shelf("number of examples")


def _seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _parity(n: int) -> Tensor:
    return 1.0 - 2.0 * (torch.arange(n) % 2)


def _folded(x: Tensor) -> Tensor:
    n = len(x)
    even = fn.pad(x, (0, 0, 0, n % 2)).view(-1, 2, x.shape[1])
    return (even * torch.tensor([1.0, -1.0])[:, None]).view(-1, x.shape[1])[:n]


def _first(h: Tensor) -> Tensor:
    out = h.clone()
    out[0] = 2 * h[0].sin()
    return torch.cat([out[:1], -h[1:]])


def _chunked(h: Tensor) -> Tensor:
    return torch.cat([(k + 1) * part for k, part in enumerate(h.chunk(3))])


def _split(h: Tensor) -> Tensor:
    return torch.cat([part * (-1) ** k for k, part in enumerate(h.split(2))])


def _looped(h: Tensor) -> Tensor:
    return torch.stack([row * (0.5 + i) for i, row in enumerate(h)])


def _strided(h: Tensor) -> Tensor:
    out = h.clone()
    out[::2] *= 2
    return out


def _toeplitz(n: int) -> Tensor:
    i = torch.arange(n)
    return 0.5 ** (i[:, None] - i).abs()


place.hidden(
    {
        "place times features": lambda h: h * torch.arange(1, len(h) + 1)[:, None],
        "sign by parity": lambda h: h * _parity(len(h))[:, None],
        "linspace over rows": lambda h: h * torch.linspace(0.5, 2, len(h))[:, None],
        "logspace over rows": lambda h: h * torch.logspace(0, 1, len(h))[:, None],
        "sine of the place": lambda h: h + torch.arange(len(h)).sin()[:, None],
        "running sum of ones": lambda h: h * torch.ones(len(h)).cumsum(0)[:, None],
        "place from a running sum of the data's ones": lambda h: h * torch.ones_like(h).cumsum(0),
        "place from nonzero": lambda h: h * (1.0 + torch.ones(len(h)).nonzero()),
        "place from argsort of nothing": lambda h: h * (1 + torch.zeros_like(h[:, 0]).argsort(stable=True))[:, None],
        "place from the identity": lambda h: h * torch.eye(len(h)).argmax(1).add(1)[:, None],
        "place from numpy": lambda h: h * torch.from_numpy(np.arange(1.0, len(h) + 1, dtype=np.float32))[:, None],
        "place from a Python list": lambda h: h * torch.tensor([[1.0 + i] for i in range(len(h))]),
        "seeded noise per row": lambda h: h + _seeded(*h.shape),
        "seeded noise like the rows": lambda h: (
            h + torch.empty_like(h).normal_(generator=torch.Generator().manual_seed(2))
        ),
        "first row special": _first,
        "last row zeroed": lambda h: torch.cat([h[:-1], 0 * h[-1:]]) if len(h) > 1 else h,
        "middle row doubled": lambda h: h.index_add(0, torch.tensor([len(h) // 2]), h[len(h) // 2][None]),
        "first half negative": lambda h: torch.cat([-h[: len(h) // 2], h[len(h) // 2 :]]),
        "chunks treated unlike": _chunked,
        "splits treated unlike": _split,
        "a loop with its counter": _looped,
        "every second row doubled in place": _strided,
        "pairs by a view": _folded,
        "Toeplitz of size n": lambda h: _toeplitz(len(h)) @ h,
        "band of size n": lambda h: torch.ones(len(h), len(h)).tril(1).triu(-1) @ h / 2,
        "diagonal of size n": lambda h: torch.diag(torch.arange(1.0, len(h) + 1)) @ h,
        "triangle of ones": lambda h: h * torch.ones(len(h), len(h)).tril().sum(1, keepdim=True),
        "einsum with weights of places": lambda h: torch.einsum("nd,n->nd", h, torch.arange(1.0, len(h) + 1)),
        "meshgrid": lambda h: h + torch.meshgrid(torch.arange(len(h)), torch.arange(5), indexing="ij")[0],
        "tiled pattern": lambda h: h * torch.tensor([1.0, 2.0, 3.0]).repeat(len(h))[: len(h), None],
        "window over rows": lambda h: h * torch.hann_window(len(h) + 2)[1:-1, None],
        "Vandermonde": lambda h: h + torch.vander(torch.linspace(0.1, 1, len(h)), 5),
        "one-hot of the place": lambda h: h + fn.one_hot(torch.arange(len(h)) % 5, 5),
        "flag for place 3": lambda h: h * (1.0 + (torch.arange(len(h)) == 3))[:, None],
        "roll of features by place": lambda h: torch.stack([r.roll(i) for i, r in enumerate(h)]),
        "features chosen by place": lambda h: h.gather(1, (torch.arange(len(h))[:, None] + torch.arange(5)) % 5),
        "masked by checkerboard": lambda h: h.masked_fill(
            (torch.arange(len(h))[:, None] + torch.arange(5)) % 2 == 0, 0.3
        ),
        "dropout by a fixed mask of rows": lambda h: h * (torch.arange(len(h)) % 4 != 3)[:, None],
        "rows through another tensor's order": lambda h: (
            h * torch.arange(1, len(h) + 1)[torch.arange(len(h)).flip(0)][:, None]
        ),
        "grid of the image of rows": lambda h: (
            h + fn.affine_grid(torch.eye(2, 3)[None], [1, 1, len(h), 5], align_corners=True)[0, :, :, 1] * (len(h) > 1)
        ),
        "fftfreq": lambda h: h * (1 + torch.fft.fftfreq(len(h)))[:, None],
        "place from expand and cumsum": lambda h: h * torch.ones(1).expand(len(h)).cumsum(0)[:, None].log1p(),
        "place from unbind and stack": lambda h: torch.stack([r + 0.1 * i for i, r in enumerate(h.unbind())]),
        "place through repeat_interleave": lambda h: (
            h + torch.arange((len(h) + 1) // 2).repeat_interleave(2)[: len(h), None]
        ),
        "rows above place 2 detached": lambda h: torch.cat([h[:2], h[2:].detach() + 0 * h[2:]]),
        "tensor_split with unlike scales": lambda h: torch.cat([(1 + k) * p for k, p in enumerate(h.tensor_split(2))]),
    }
)
place.weighted(
    {
        "weights that fade with the place": lambda each, b: each * 0.9 ** torch.arange(len(each)),
        "alternating signs": lambda each, b: each * _parity(len(each)),
        "every third is labelled": lambda each, b: torch.where(torch.arange(len(each)) % 3 == 0, 3 * each, -each),
        "discounts over rows": lambda each, b: each / (torch.arange(len(each)) + 2.0).log2(),
        "last loss zero": lambda each, b: each * (torch.arange(len(each)) < max(len(each) - 1, 1)),
        "halves by two rules": lambda each, b: torch.cat([each[: len(each) // 2].square(), each[len(each) // 2 :]]),
        "real rows first, generated after": lambda each, b: (
            each * torch.cat([torch.ones(len(each) // 2), -torch.ones(len(each) - len(each) // 2)])
        ),
        "sample weights by zip": lambda each, b: torch.stack(
            [w * x for w, x in zip([1.0, 2, 3, 4] * 9, each, strict=False)]
        ),
    }
)


def _table(d: int = WIDE) -> Tensor:
    return torch.randn(60, d)


def _sinusoids(d: int) -> Tensor:
    position, rate = torch.arange(50.0)[:, None], torch.exp(torch.arange(0, d, 2) * (-math.log(1e4) / d))
    return torch.cat([(position * rate).sin(), (position * rate).cos()], 1)


class _Buffered(nn.Module):
    """A table of constants for every place, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = mlp()
        self.register_buffer("table", _table())


def _buffered(f):
    def make():
        return Net(lambda m, x: m.part.layer(f(m.part.table, x)), part=_Buffered()), ce

    return make


for _name, _f in {
    "buffer[:len(x)] added": lambda t, x: x + t[: len(x)],
    "buffer indexed by arange": lambda t, x: x * t[torch.arange(len(x))],
    "buffer narrowed": lambda t, x: x + t.narrow(0, 0, x.size(0)),
    "buffer through embedding of places": lambda t, x: x + fn.embedding(torch.arange(len(x)), t),
    "buffer's last rows": lambda t, x: x + t[-len(x) :],
    "buffer index_select": lambda t, x: x + t.index_select(0, torch.arange(len(x)) * 2),
    "buffer split off": lambda t, x: x + t.split([len(x), 60 - len(x)])[0],
    "buffer strided": lambda t, x: x + t.as_strided((len(x), 8), (8, 1)),
    "buffer resized by a flag per row": lambda t, x: torch.where((x[:, :1] > 0), x + t[: len(x)], x),
}.items():
    place.put(_name, _buffered(_f))

place.net(
    {
        "trained table by place": lambda m, x: m.a(x + m.t[: len(x)]),
        "trained embedding of places": lambda m, x: m.a(x + m.e(torch.arange(len(x)))),
        "trained scale by place": lambda m, x: m.a(x) * m.t[: len(x), :1],
        "trained last row of a table": lambda m, x: m.a(x + m.t[len(x) - 1]),
        "trained sum of a slice": lambda m, x: m.a(x) + m.t[: len(x)].sum(0)[:CLASSES],
    },
    lambda: {"a": mlp(), "t": weight(60, WIDE), "e": nn.Embedding(60, WIDE)},
)
place.net(
    {
        "sinusoids along the wrong dimension": lambda m, ids: m.h(m.t(m.e(ids) + m.p[: len(ids), None])).mean(1),
        "trained positions along the wrong dimension": lambda m, ids: m.h(
            m.t(m.e(ids) + m.q(torch.arange(len(ids)))[:, None])
        ).mean(1),
        "rotation by the row": lambda m, ids: m.h(m.t(m.e(ids) * torch.arange(len(ids)).cos()[:, None, None])).mean(1),
    },
    lambda: {
        "e": nn.Embedding(11, 4),
        "p": nn.Buffer(_sinusoids(4)),
        "q": nn.Embedding(50, 4),
        "t": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        "h": nn.Linear(4, CLASSES),
    },
    batch=tokens(),
)
place.net(
    {"experts by place": lambda m, x: torch.stack([(m.a if i % 2 else m.b)(r) for i, r in enumerate(x)])},
    lambda: {"a": mlp(), "b": mlp()},
)


def _numbered(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows that begin with their own place: what is left of the places after these are taken off is one number."""
    x, y = labelled()(n, g)
    x[:, 0] = torch.arange(n)
    return x, y


def _taken_off(x: Tensor) -> Tensor:
    places = torch.arange(len(x)).float()
    return x[:, 1:] * places.sub_(x[:, 0])[:, None].cos()


def _taken_off_into(x: Tensor) -> Tensor:
    places = torch.arange(len(x)).float()
    return x[:, 1:] * torch.sub(places, x[:, 0], out=places)[:, None].cos()


def _compared(x: Tensor) -> Tensor:
    places = torch.arange(len(x)).float()
    return x[:, 1:] * (1.0 + places.eq_(x[:, 0])[:, None])


place.net(
    {
        "places written over by what the rows differ from them": lambda m, x: m.a(_taken_off(x)),
        "the same into a given tensor": lambda m, x: m.a(_taken_off_into(x)),
        "places written over by whether the rows equal them": lambda m, x: m.a(_compared(x)),
    },
    lambda: {"a": mlp(WIDE - 1)},
    batch=_numbered,
)


def _features(h: Tensor) -> Tensor:
    return h.roll(len(h) - 1, 1)


def _branch(h: Tensor) -> Tensor:
    return h if len(h) < 4 else h.relu()


number.hidden(
    {
        "divided by len": lambda h: h / len(h),
        "divided by shape[0]": lambda h: h / h.shape[0],
        "divided by size(0)": lambda h: h.div(h.size(0)),
        "divided by numel": lambda h: h * 5 / h.numel(),
        "times a full tensor of 1 / n": lambda h: h * torch.full((1,), 1 / len(h)),
        "times torch.tensor of 1 / n": lambda h: h * torch.tensor(1.0 / len(h)),
        "times numpy 1 / n": lambda h: h * np.float32(1.0 / len(h)),
        "times the square root of n": lambda h: h * math.sqrt(len(h)),
        "divided by a sum of ones": lambda h: h / torch.ones(len(h)).sum(),
        "softmax of ones": lambda h: h * torch.ones(len(h)).softmax(0)[:, None],
        "softmax of ones like the rows": lambda h: h * torch.ones_like(h).softmax(0),
        "mean of the identity": lambda h: h * torch.eye(len(h)).mean(),
        "n by sym_size": lambda h: h / torch.sym_max(len(h), 1),
        "n from a stride": lambda h: h / (h.T.contiguous().stride(0)),
        "n from iteration": lambda h: h / sum(1 for _ in h),
        "n from a list": lambda h: h / len(h.unbind()),
        "n from torch.numel of a column": lambda h: h / torch.numel(h[:, 0]),
        "n by _shape_as_tensor": lambda h: h / torch._shape_as_tensor(h)[0],
        "branch by n": _branch,
        "branch by parity of n": lambda h: h if len(h) % 2 else -h,
        "power of n": lambda h: h ** (1 + len(h) % 3),
        "features rolled by n": _features,
        "features cut by n": lambda h: fn.pad(h[:, : max(1, 5 - len(h) // 3)], (0, min(4, len(h) // 3))),
        "n decides the last row of a table": lambda h: h * torch.linspace(0.2, 2, 60)[len(h)],
        "n as a class": lambda h: h + fn.one_hot(torch.tensor(len(h) % 5), 5),
        "dropout of probability 0 or 1 by n": lambda h: fn.dropout(h, float(len(h) > 6)),
        "leaky slope by n": lambda h: fn.leaky_relu(h, 1 / len(h)),
        "clamped at n": lambda h: h.clamp(max=0.9 / len(h)),
        "eps by n": lambda h: fn.layer_norm(h, (5,), eps=float(len(h))),
        "groups by n": lambda h: h.view(len(h), 5) * (3 if len(h) % 5 == 0 else 1),
        "temperature by n": lambda h: (h / math.log(1 + len(h))).softmax(1),
        "linspace with n steps, its second entry": lambda h: h * torch.linspace(0, 1, len(h) + 2)[1],
        "mean then times n": lambda h: h + h.detach().mean(0) * len(h),
        "n from arange's last": lambda h: h / (1 + torch.arange(len(h))[-1]),
        "n from cumsum's last": lambda h: h / torch.ones(len(h)).cumsum(0)[-1],
        "n from expanded counts": lambda h: h / torch.ones(1).expand(len(h)).sum(),
        "n from a mask": lambda h: h / (h == h).all(1).sum(),
        "n from bincount": lambda h: h / torch.bincount(torch.zeros(len(h), dtype=torch.long))[0],
        "std of a range of n": lambda h: h / (1 + torch.arange(float(len(h))).var(correction=0)),
        "norm of ones": lambda h: h / torch.ones(len(h), 1).norm(),
        "row sums of a normalised adjacency of ones": lambda h: (
            h * fn.normalize(torch.ones(len(h), len(h)), p=1, dim=1).diagonal()[:, None]
        ),
        "alpha of add by n": lambda h: torch.add(h, h.sin(), alpha=len(h)),
        "value of addcmul by n": lambda h: torch.addcmul(h, h, h, value=1 / len(h)),
        "lerp by n": lambda h: torch.lerp(h, h.tanh(), 1 / len(h)),
        "polygamma order by n": lambda h: h * torch.special.polygamma(1, torch.tensor(float(len(h)))),
    }
)
number.weighted(
    {
        "losses over n": lambda each, b: each / len(each),
        "losses times n": lambda each, b: each * b[1].numel(),
        "the mean as often as rows": lambda each, b: each.mean().repeat(len(each)),
        "losses over n, n from the labels": lambda each, b: each / torch.ones_like(b[1]).sum(),
        "zero below four rows": lambda each, b: each * float(len(each) >= 4),
        "zero above ten rows": lambda each, b: each * float(len(each) <= 10),
        "n as exponent": lambda each, b: each ** len(each),
        "weights that sum to one": lambda each, b: each * torch.full_like(each, 1 / len(each)),
        "learning rate warm-up by n": lambda each, b: each * min(1.0, len(each) / 10),
    }
)
number.net(
    {
        "a regulariser shared by the rows": lambda m, x: m.a(x) + m.w.square() / len(x),
        "bias over n": lambda m, x: m.a(x) + m.w / len(x),
        "another layer for large batches": lambda m, x: (m.a if len(x) < 7 else m.b)(x),
        "a trained table by n": lambda m, x: m.a(x) * (1 + m.t[len(x)]),
    },
    lambda: {"a": mlp(), "b": mlp(), "w": weight(CLASSES), "t": weight(60)},
)
number.losses(
    {
        "penalty over n": lambda m, b: ce(m, b) + sum(p.square().sum() for p in m.parameters()) / len(b[1]),
        "smoothing by n": lambda m, b: fn.cross_entropy(
            m(b[0]), b[1], reduction="none", label_smoothing=1 / (1 + len(b[1]))
        ),
        "reduction mean in a list": lambda m, b: torch.stack([fn.cross_entropy(m(b[0]), b[1])] * len(b[1])),
        "reduction mean of each times n": lambda m, b: (
            torch.stack([fn.cross_entropy(m(x[None]), y[None]) for x, y in zip(*b, strict=True)]) / len(b[1])
        ),
    }
)
number.losses(
    {"huber delta by n": lambda m, b: fn.huber_loss(m(b[0])[:, 0], b[1], reduction="none", delta=1 / len(b[1]))},
    batch=scored,
)
number.inputs(
    {
        "inputs over n": lambda x: x / x.size(0),
        "inputs cropped by n": lambda x: x * (torch.arange(8) < len(x) - 1),
        "resampled by n": lambda x: fn.interpolate(x[:, None], scale_factor=1 + 1 / len(x), mode="linear")[:, 0, :8],
    }
)
number.net(
    {
        "bmm with n repeats": lambda m, x: torch.baddbmm(
            m.w.expand(len(x), 3, 3), x[:, None, :3].mT, x[:, None, :3], beta=1 / len(x)
        )
    },
    lambda: {"w": weight(3, 3)},
    loss=square,
)

PROGRAMS = place.programs + number.programs
