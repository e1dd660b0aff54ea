"""Benign: indexing, folding, linear algebra and mechanisms that keep rows apart."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

from corpus.program import (
    BENIGN_SIZES,
    CLASSES,
    HIDDEN,
    WIDE,
    Shelf,
    ce,
    labelled,
    mlp,
    square,
    weight,
)

_SIZES: dict[str, Any] = {"sizes": BENIGN_SIZES}
rows = Shelf("operations within a row", defaults=_SIZES)
folded = Shelf("examples in another dimension", defaults=_SIZES)
algebra = Shelf("linear algebra", defaults=_SIZES)
derived = Shelf("weights made of parameters", defaults=_SIZES)
mechanisms = Shelf("mechanisms", defaults=_SIZES)
batches = Shelf("forms of batches", defaults=_SIZES)


def _set_columns(h: Tensor) -> Tensor:
    out = torch.zeros(len(h), HIDDEN)
    for k in range(HIDDEN):
        out[:, k] = h[:, k] * (k + 1)
    return out


def _filled(h: Tensor) -> Tensor:
    out = h.clone()
    out[out > 1] = 0.5
    return out


def _shift(h: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[:, 1:] = h[:, :-1]
    return out


def _new_zeros(h: Tensor) -> Tensor:
    out = h.new_zeros(h.shape[0], 7)
    out[:, 1:6] = h
    return out[:, 1:6] + out[:, 2:7]


def _quantised(h: Tensor) -> Tensor:
    return h + (h.sign() - h).detach()


rows.hidden(
    {
        "columns set one by one": _set_columns,
        "a boolean fill": _filled,
        "shifted along features": _shift,
        "written into new zeros": _new_zeros,
        "straight-through sign": _quantised,
        "straight-through rounding": lambda h: h + (h.round() - h).detach(),
        "sorted features": lambda h: h.sort(1).values,
        "top two features": lambda h: h * (h >= h.topk(2, 1).values[:, -1:]),
        "k-th value": lambda h: h - h.kthvalue(2, 1, keepdim=True).values,
        "running sum of features": lambda h: h.cumsum(1),
        "running product of features": lambda h: (1 + h / 4).cumprod(1),
        "running maximum of features": lambda h: h.cummax(1).values,
        "centred in the row": lambda h: h - h.mean(1, keepdim=True),
        "standardised in the row": lambda h: (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1e-3),
        "unit rows": lambda h: fn.normalize(h, dim=1),
        "over the row's maximum": lambda h: h / h.abs().amax(1, keepdim=True),
        "over the row's quantile": lambda h: h / (1 + h.quantile(0.7, dim=1, keepdim=True).abs()),
        "median of the row": lambda h: h - h.median(1, keepdim=True).values,
        "temperature of the row": lambda h: (h / (0.1 + h.detach().std(1, keepdim=True))).softmax(1),
        "gather": lambda h: h.gather(1, h.argsort(1)),
        "take_along_dim": lambda h: torch.take_along_dim(h, h.argmax(1, keepdim=True), 1) * h,
        "scatter": lambda h: torch.zeros_like(h).scatter(1, h.argmax(1, keepdim=True), 1.0) * h,
        "scatter_add": lambda h: h.scatter_add(1, torch.zeros(len(h), 2, dtype=torch.long), h[:, 1:3]),
        "index_add of columns": lambda h: h.index_add(1, torch.tensor([0, 0]), h[:, 3:]),
        "one-hot of the argmax": lambda h: h * fn.one_hot(h.argmax(1), HIDDEN),
        "where": lambda h: torch.where(h > 0, h, h.exp() - 1),
        "masked_fill": lambda h: h.masked_fill(h < -1, -1.0),
        "pad and cut": lambda h: fn.pad(h, (2, 0))[:, :5] + h,
        "roll of features": lambda h: h + h.roll(1, 1),
        "flip of features": lambda h: h + h.flip(1),
        "unfold of features": lambda h: fn.pad(h, (1, 1)).unfold(1, 3, 1).sum(2),
        "stack and cat": lambda h: torch.cat([torch.stack([h, h.sin()], 2).sum(2), h], 1)[:, ::2],
        "split and swap": lambda h: torch.cat(h.split([2, 3], 1)[::-1], 1),
        "outer product of a row": lambda h: torch.einsum("ni,nj->nij", h, h).flatten(1)[:, ::5],
        "pairwise distances in a row": lambda h: h + torch.cdist(h[:, :, None], h[:, :, None] + 0.01).sum(2),
        "Fourier of features": lambda h: torch.fft.rfft(h, dim=1).abs().repeat(1, 2)[:, :5],
        "complex features": lambda h: (
            (torch.complex(h, h.cos()) * torch.tensor(1j)).real + torch.view_as_real(torch.polar(h.abs(), h)).sum(2)
        ),
        "cosine to a constant": lambda h: h * fn.cosine_similarity(h, torch.ones(1, 5))[:, None],
        "trapezoid": lambda h: h + torch.trapezoid(h, dim=1)[:, None],
        "logcumsumexp": lambda h: h.logcumsumexp(1),
        "interpolation": lambda h: (
            fn.interpolate(h[:, None], size=5, mode="nearest")[:, 0]
            + fn.interpolate(h[:, None], 10, mode="linear")[:, 0, ::2]
        ),
        "searchsorted in constants": lambda h: h * torch.bucketize(h.detach(), torch.linspace(-1, 1, 5)),
        "histogram of one row by one-hot": lambda h: (
            h * fn.one_hot((h.detach() * 2).long().clamp(0, 3), 4).sum(1)[:, :1]
        ),
        "a loop over features": lambda h: torch.stack([h[:, k] * (k + 1) for k in range(5)], 1),
        "constants of the batch's length": lambda h: h + torch.zeros(len(h), 1) + torch.ones_like(h),
        "nothing by n": lambda h: h * torch.full((len(h), 1), 2.0),
        "expanded constants": lambda h: h * torch.arange(5.0).expand(len(h), -1),
        "in-place chain": lambda h: h.clone().mul_(2).add_(1).tanh_(),
        "detached half": lambda h: torch.cat([h[:, :2].detach(), h[:, 2:]], 1),
    }
)
# A pass of as many operations as there are rows may be refused.
rows.hidden(
    {
        "a loop over rows": lambda h: torch.stack([row / (1 + row.norm()) for row in h]),
        "unbind of rows": lambda h: torch.stack([r.sin() for r in h.unbind(0)]),
    },
    conditional=True,
)
rows.net(
    {
        "grid_sample": lambda m, x: m.h(
            fn.grid_sample(m.c(x), x[:, 0, :, :2].tanh()[:, None], align_corners=True).flatten(1)
        ),
        "affine_grid of its own": lambda m, x: m.h(
            fn.grid_sample(
                m.c(x),
                fn.affine_grid(x[:, 0, :2, :3], [len(x), 1, 2, 2], align_corners=False),
                align_corners=False,
            ).flatten(1)
        ),
        "im2col": lambda m, x: m.h((fn.unfold(x, 3).mT @ m.w).flatten(1)[:, :4]),
        "fractional of the centre": lambda m, x: m.h(fn.adaptive_avg_pool2d(m.c(x), 2).flatten(1)),
        "interpolated image": lambda m, x: m.h(fn.interpolate(m.c(x), size=(2, 2), mode="bicubic").flatten(1)),
    },
    lambda: {"c": nn.Conv2d(1, 1, 1), "w": weight(9, 1), "h": nn.Linear(4, CLASSES)},
    batch=labelled(1, 4, 4),
)


def _edges(x: Tensor, end: int) -> Tensor:
    """Five edges of each graph, between nodes that its own features name."""
    return ((x[..., end].abs() * 4).long() % 5)[..., None].expand(-1, -1, 5)


rows.net(
    {
        "deep sets": lambda m, x: m.h(m.a(x).relu().sum(1)),
        "PointNet": lambda m, x: m.h(m.a(x).relu().amax(1)),
        "two sets apart": lambda m, x: m.h(m.a(x[:, :2]).sum(1) * m.a(x[:, 2:]).sum(1)),
        "a graph of its own": lambda m, x: m.h(((x @ x.mT > 0).float() @ m.a(x)).mean(1)),
        "messages gathered and scattered along nodes": lambda m, x: m.h(
            torch.zeros_like(m.a(x)).scatter_add(1, _edges(x, 1), m.a(x).gather(1, _edges(x, 0))).sum(1)
        ),
        "message passing on fixed edges": lambda m, x: m.h(
            m.a(x).index_add(1, torch.tensor([0, 1, 2]), m.a(x)[:, [1, 2, 3]]).tanh().sum(1)
        ),
        "kNN in the set": lambda m, x: m.h(
            m.a(x).gather(1, torch.cdist(x, x).argsort(-1)[..., 1:2].expand(-1, -1, 5)).tanh().sum(1)
        ),
    },
    lambda: {"a": nn.Linear(3, 5), "h": nn.Linear(5, CLASSES)},
    batch=labelled(5, 3),
)


def _grouped(m: Any, x: Tensor) -> Tensor:
    """The examples as groups of one convolution with kernels of their own."""
    n = len(x)
    kernels = m.k(x.mean(2)).view(n * 2, 2, 1)
    return fn.conv1d(x.reshape(1, n * 2, 5), kernels, groups=n).view(n, 2, 5)


folded.net(
    {
        "columns": lambda m, x: (m.w @ x.flatten(1).T).T,
        "columns through addmm": lambda m, x: torch.addmm(m.b[:, None], m.w, x.flatten(1).T).T,
        "views folded into rows": lambda m, x: m.l(x.reshape(-1, 5)).view(len(x), 2, 3),
        "views folded, time first": lambda m, x: (
            m.l(x.transpose(0, 1).reshape(-1, 5)).view(2, len(x), 3).transpose(0, 1)
        ),
        "bmm, examples in dimension 1": lambda m, x: torch.bmm(x.transpose(0, 1), m.v).transpose(0, 1),
        "matmul by slices": lambda m, x: torch.matmul(x[:, :, None], m.v).squeeze(2),
        "einsum, examples last": lambda m, x: torch.einsum("kd,dn->nk", m.w, x.flatten(1).T),
        "einsum by slices": lambda m, x: torch.einsum("nsd,sde->nse", x, m.v),
        "tensordot": lambda m, x: torch.tensordot(x, m.v, dims=([1, 2], [0, 1])),
        "grouped convolution over folded examples": _grouped,
        "examples as the length of a convolution by 1": lambda m, x: (
            fn.conv1d(x.flatten(1).T[None], m.w[:, :, None])[0].T
        ),
        "examples as an image's height": lambda m, x: fn.conv2d(x.movedim(0, 1)[None], m.c)[0].movedim(0, 1),
        "transposed twice": lambda m, x: m.l(x.transpose(0, 1)).transpose(0, 1),
        "layer norm in columns": lambda m, x: fn.layer_norm(m.l(x).permute(1, 0, 2), (3,)).permute(1, 0, 2),
        "softmax in columns": lambda m, x: (m.w @ x.flatten(1).T).softmax(0).T,
        "group norm over folded views": lambda m, x: fn.group_norm(m.l(x).reshape(-1, 3), 1).view(len(x), 2, 3),
        "instance norm with examples as channels": lambda m, x: fn.instance_norm(m.l(x).flatten(1)[None])[0],
        "repeat_interleave": lambda m, x: m.l(x[:, 0].repeat_interleave(2, 0)).view(len(x), 2, 3),
        "expand and reshape": lambda m, x: m.l(x[:, None].expand(-1, 3, -1, -1).reshape(-1, 5)).view(len(x), -1),
        "two views by cat": lambda m, x: torch.stack(m.l(torch.cat([x[:, 0], x[:, 1]])).chunk(2), 1),
        "hypernetwork": lambda m, x: torch.bmm(x, m.y(x[:, 0]).view(len(x), 5, 3)),
        "diagonal of all pairs' blocks": lambda m, x: torch.einsum("nsd,nsd->n", m.l(x), m.l(x))[:, None],
        "grouped mixture by bmm": lambda m, x: torch.bmm(m.l(x).mT, x),
    },
    lambda: {
        "w": weight(3, 10),
        "b": weight(3),
        "l": nn.Linear(5, 3),
        "v": weight(2, 5, 3),
        "k": nn.Linear(2, 4),
        "c": weight(2, 2, 1, 3),
        "y": nn.Linear(5, 15),
    },
    loss=square,
    batch=labelled(2, 5),
)

# Transforms of torch.func may be refused.
folded.net(
    {
        "vmap over rows": lambda m, x: torch.func.vmap(lambda r: m.l(r).tanh())(x),
    },
    lambda: {"l": nn.Linear(5, 3)},
    loss=square,
    batch=labelled(2, 5),
    conditional=True,
)


def _spd(x: Tensor) -> Tensor:
    return x @ x.mT + 0.5 * torch.eye(x.shape[-1])


algebra.net(
    {
        "solve for each": lambda m, x: torch.linalg.solve(_spd(m.l(x)), x),
        "inverse of each": lambda m, x: torch.linalg.inv(_spd(m.l(x))),
        "determinant of each": lambda m, x: torch.linalg.det(_spd(m.l(x)))[:, None],
        "slogdet of each": lambda m, x: torch.linalg.slogdet(_spd(m.l(x)))[1][:, None],
        "Cholesky of each": lambda m, x: torch.linalg.cholesky(_spd(m.l(x))),
        "eigenvalues of each": lambda m, x: torch.linalg.eigvalsh(_spd(m.l(x))),
        "matrix exponential of each": lambda m, x: torch.linalg.matrix_exp(m.l(x) / 3),
        "matrix power of each": lambda m, x: torch.linalg.matrix_power(m.l(x), 3),
        "singular values of each": lambda m, x: torch.linalg.svdvals(m.l(x)),
        "norm of each": lambda m, x: torch.linalg.matrix_norm(m.l(x))[:, None],
        "triangular solve of each": lambda m, x: torch.linalg.solve_triangular(_spd(m.l(x)).tril(), x, upper=False),
        **(
            {
                "polar factors of each": lambda m, x: torch.cat(torch.linalg.polar(m.l(x) + 2 * torch.eye(3)), 1),
                "square root of each": lambda m, x: torch.linalg.matrix_sqrth(_spd(m.l(x))),
            }
            if hasattr(torch.linalg, "polar")  # torch 2.14
            else {}
        ),
        "QR of each": lambda m, x: torch.linalg.qr(m.l(x) + 2 * torch.eye(3))[1],
        "least squares of each": lambda m, x: torch.linalg.lstsq(_spd(x), m.l(x)).solution,
        "a trained matrix solved": lambda m, x: torch.linalg.solve(_spd(m.w), x),
        "a trained matrix's inverse": lambda m, x: x @ torch.linalg.inv(_spd(m.w)),
        "columns solved": lambda m, x: torch.linalg.solve(_spd(m.w), x[:, 0].T).T,
        "columns solved, triangular": lambda m, x: (
            torch.linalg.solve_triangular(_spd(m.w).tril(), x[:, 0].T, upper=False).T
        ),
        "rows solved from the right": lambda m, x: torch.linalg.solve_triangular(
            _spd(m.w).triu(), x[:, 0], upper=True, left=False
        ),
        "Cholesky solve in columns": lambda m, x: torch.cholesky_solve(x[:, 0].T, torch.linalg.cholesky(_spd(m.w))).T,
        "distances to trained centres": lambda m, x: torch.cdist(x[:, 0], m.w),
        "trained centres to rows": lambda m, x: torch.cdist(m.w, x[:, 0]).T,
        "squared distances": lambda m, x: (x[:, :1] - m.w).square().sum(2),
        "cross product": lambda m, x: torch.linalg.cross(m.l(x), x, dim=-1),
        "Mahalanobis": lambda m, x: torch.einsum("ni,ij,nj->n", x[:, 0], _spd(m.w), x[:, 0])[:, None],
        "multivariate normal": lambda m, x: torch.distributions.MultivariateNormal(m.w[0], _spd(m.w)).log_prob(x[:, 0])[
            :, None
        ],
        "chain of products": lambda m, x: torch.linalg.multi_dot([x[:, 0], m.w, m.w.T]),
        "Kronecker of trained factors": lambda m, x: x.flatten(1) @ torch.kron(m.w, m.w),
        "a Householder reflection": lambda m, x: (
            x[:, 0] - 2 * (x[:, 0] @ m.w[0])[:, None] * m.w[0] / m.w[0].square().sum()
        ),
    },
    lambda: {"l": nn.Linear(3, 3), "w": weight(3, 3)},
    loss=square,
    batch=labelled(3, 3),
    tolerance=1e-3,
)


def _batch_norm_of_weight(m: Any, x: Tensor) -> Tensor:
    w = fn.batch_norm(m.w.T, None, None, training=True).T
    return x @ w.T


def _sparse(m: Any, x: Tensor) -> Tensor:
    index = torch.tensor([[0, 1, 2, 0], [1, 3, 5, 7]])
    return x @ torch.sparse_coo_tensor(index, m.v[:4], (CLASSES, WIDE)).to_dense().T


def _placed(m: Any, x: Tensor) -> Tensor:
    w = torch.zeros(CLASSES, WIDE)
    w[:, 1:4] = m.w[:, 1:4]
    return x @ w.T


class _Tagged(Tensor):
    """A subclass that does nothing but be one."""


def _once(m: Any, x: Tensor) -> Tensor:
    with nn.utils.parametrize.cached():
        return m.wn(x) + m.wn(x.tanh())


derived.net(
    {
        "batch norm of a weight": _batch_norm_of_weight,
        "a sparse weight": _sparse,
        "a weight placed into zeros": _placed,
        "standardised weight": lambda m, x: x @ ((m.w - m.w.mean(1, keepdim=True)) / m.w.std(1, keepdim=True)).T,
        "unit weight": lambda m, x: x @ fn.normalize(m.w, dim=1).T,
        "softmax of a weight": lambda m, x: x @ m.w.softmax(1).T,
        "binary weight, straight through": lambda m, x: x @ (m.w + (m.w.sign() - m.w).detach()).T,
        "pruned weight": lambda m, x: x @ (m.w * (m.w.abs() > 0.2)).T,
        "low rank": lambda m, x: x @ (m.u @ m.w).T,
        "a weight made by a net": lambda m, x: x @ m.n(m.u).view(3, 8).T,
        "a symmetric matrix": lambda m, x: x[:, :3] @ (m.u + m.u.T),
        "a skew exponential": lambda m, x: x[:, :3] @ torch.linalg.matrix_exp(m.u - m.u.T),
        "an embedding table, part of it": lambda m, x: x @ m.w.T + m.t[:3, 0],
        "a stack of parameters": lambda m, x: x @ torch.stack([m.w[0], m.v[:8], m.w[2]]).T,
        "a circulant matrix": lambda m, x: x @ m.v[(torch.arange(3)[:, None] - torch.arange(8)) % 8].T,
        "a parameter's Fourier transform": lambda m, x: torch.fft.irfft(
            torch.fft.rfft(x) * torch.fft.rfft(m.v[:8]), n=8
        ),
        "a convolution by a parameter": lambda m, x: fn.conv1d(x[:, None], m.u[:, None])[:, :, 0],
        "functional_call with scaled weights": lambda m, x: torch.func.functional_call(
            m.h, {k: 2 * v for k, v in m.h.named_parameters()}, (x,)
        ),
        "a weight as a tensor of another class": lambda m, x: x @ m.w.as_subclass(_Tagged).T + x @ m.w.T,
        "a weight on its side as a tensor of another class": lambda m, x: x @ m.w.T.as_subclass(_Tagged),
        "weights computed once a pass": _once,
        "a mixture of two weights": lambda m, x: x @ torch.lerp(m.w, m.u @ m.w, 0.3).T,
    },
    lambda: {
        "w": weight(3, 8),
        "u": weight(3, 3),
        "v": weight(24),
        "n": nn.Linear(3, 8),
        "wn": nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
        "t": weight(20, 2),
        "h": nn.Linear(8, 3),
    },
    loss=square,
)


def _penalised(model: Any, b: Any) -> Tensor:
    x = b[0].clone().requires_grad_()
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return ce(model, b) + (g.norm(dim=1) - 1) ** 2


def _attacked(model: Any, b: Any) -> Tensor:
    x = b[0].clone().requires_grad_()
    (g,) = torch.autograd.grad(ce(model, (x, b[1])).sum(), x)
    return ce(model, (b[0] + 0.1 * g.sign(), b[1]))


def _latent(m: Any, x: Tensor) -> Tensor:
    """One inner step on a latent of each row."""
    z = torch.zeros(len(x), HIDDEN, requires_grad=True)
    (g,) = torch.autograd.grad((m.d(z) - x).square().sum(), z, create_graph=True)
    return m.b(z - 0.1 * g)


def _expert(m: Any, x: Tensor) -> Tensor:
    gate = m.g(x).softmax(1)
    return (torch.stack([m.e(x), m.f(x)], 1) * gate[:, :, None]).sum(1)


def _top_expert(m: Any, x: Tensor) -> Tensor:
    gate = m.g(x).softmax(1)
    best = fn.one_hot(gate.argmax(1), 2)
    return (torch.stack([m.e(x), m.f(x)], 1) * (gate * best)[:, :, None]).sum(1)


def _vector_quantised(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    code = m.book[torch.cdist(h, m.book).argmin(1)]
    return m.b(h + (code - h).detach()) + (code - h.detach()).square().sum(1, keepdim=True)[
        :, [0, 0, 0]
    ] * torch.arange(3.0)


def _hooked(scale: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        if h.requires_grad:
            h.register_hook(scale)
        return m.b(h.tanh())

    return run


def _module_hooked(attach: Callable[[Any], Any]) -> Callable[[], tuple[nn.Module, Any]]:
    def make() -> tuple[nn.Module, Any]:
        model = mlp()
        attach(model)
        return model, ce

    return make


def _autocast(model: Any, b: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return fn.cross_entropy(model(b[0]).float(), b[1], reduction="none")


mechanisms.losses({"attack of each": _attacked})


def _chosen_and_back(m: Any, x: Tensor) -> Tensor:
    mask = x > 0.1
    out = x.new_zeros(*x.shape, HIDDEN)
    out[mask] = m.a(x[mask][:, None])
    return m.b(out.sum(1))


def _started_with_a_bias(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros(len(x), HIDDEN)
    out.add_(m.a.bias)
    return m.b((out + x[:, :HIDDEN]).tanh())


mechanisms.net(
    {
        "entries chosen by the data, and put back": _chosen_and_back,
        "zeros to which a bias is added in place": _started_with_a_bias,
    },
    lambda: {"a": nn.Linear(1, HIDDEN), "b": nn.Linear(HIDDEN, CLASSES)},
)
# Autograd's second pass shows no uses: these may be refused.
mechanisms.losses({"gradient penalty of each": _penalised}, conditional=True)
mechanisms.net(
    {"an inner step on each latent": _latent},
    lambda: {"a": nn.Linear(WIDE, HIDDEN), "b": nn.Linear(HIDDEN, CLASSES), "d": nn.Linear(HIDDEN, WIDE)},
    conditional=True,
)
mechanisms.losses({"autocast": _autocast}, tolerance=3e-2)
mechanisms.net(
    {
        "a soft mixture of experts": _expert,
        "the best expert, all computed": _top_expert,
        "vector quantisation": _vector_quantised,
        "a hook that scales": _hooked(lambda g: 3 * g),
        "a hook that makes rows unit": _hooked(lambda g: g / (g.norm(dim=1, keepdim=True) + 1e-9)),
        "a hook that clamps": _hooked(lambda g: g.clamp(-0.05, 0.05)),
        "a hook that reverses the sign": _hooked(torch.neg),
        "checkpoint": lambda m, x: m.b(checkpoint(lambda v: m.a(v).tanh(), x, use_reentrant=False)),
        "two iterations of one layer": lambda m, x: m.b(m.s(m.s(m.a(x)).tanh()).tanh()),
        "a branch on its own mode": lambda m, x: m.b(m.a(x).tanh()) if m.training else x,
        "depth by a constant": lambda m, x: m.b(sum((m.a(x * k).tanh() for k in range(3)), torch.zeros(1))),
    },
    lambda: {
        "a": nn.Linear(WIDE, HIDDEN),
        "b": nn.Linear(HIDDEN, CLASSES),
        "d": nn.Linear(HIDDEN, WIDE),
        "s": nn.Linear(HIDDEN, HIDDEN),
        "g": nn.Linear(WIDE, 2),
        "e": nn.Linear(WIDE, CLASSES),
        "f": nn.Linear(WIDE, CLASSES),
        "book": weight(4, HIDDEN),
    },
)
mechanisms.put("a forward hook", _module_hooked(lambda m: m[0].register_forward_hook(lambda _, i, o: 2 * o.tanh())))
mechanisms.put("a forward pre-hook", _module_hooked(lambda m: m[2].register_forward_pre_hook(lambda _, i: (i[0] * 2,))))
mechanisms.put(
    "full backward hooks that scale",
    _module_hooked(
        lambda m: [
            each.register_full_backward_hook(lambda _, i, o: tuple(None if g is None else 3 * g for g in i))
            for each in m
        ]
    ),
)
mechanisms.put(
    "a compiled part",
    lambda: (
        nn.Sequential(torch.compile(nn.Linear(WIDE, HIDDEN), backend="eager"), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)),
        ce,
    ),
    sizes=(5, 3),
)
mechanisms.put("double precision", lambda: (mlp().double(), lambda m, b: ce(m, (b[0].double(), b[1]))), tolerance=1e-6)
mechanisms.put(
    "half precision",
    lambda: (
        mlp().bfloat16(),
        lambda m, b: fn.cross_entropy(m(b[0].bfloat16()).float(), b[1], reduction="none"),
    ),
    tolerance=3e-2,
)


def _named(n: int, g: torch.Generator) -> dict[str, Tensor]:
    return {"x": torch.randn(n, WIDE, generator=g), "y": torch.randint(CLASSES, (n,), generator=g)}


def _nested(n: int, g: torch.Generator) -> Any:
    return (
        {"a": torch.randn(n, WIDE, generator=g), "b": torch.rand(n, 1, generator=g)},
        torch.randint(CLASSES, (n,), generator=g),
    )


def _integers(n: int, g: torch.Generator) -> Any:
    return torch.randint(256, (n, WIDE), generator=g, dtype=torch.uint8), torch.randint(CLASSES, (n,), generator=g)


batches.put("a dictionary", lambda: (mlp(), lambda m, b: ce(m, (b["x"], b["y"]))), batch=_named)
batches.put(
    "a dictionary in a tuple",
    lambda: (mlp(), lambda m, b: ce(m, (b[0]["a"] * b[0]["b"], b[1]))),
    batch=_nested,
)
batches.put("a list", lambda: (mlp(), ce), batch=lambda n, g: list(labelled()(n, g)))
batches.put(
    "one tensor",
    lambda: (mlp(), lambda m, x: m(x).square().sum(1)),
    batch=lambda n, g: torch.randn(n, WIDE, generator=g),
)
batches.put("bytes", lambda: (mlp(), lambda m, b: ce(m, (b[0].float() / 255 - 0.5, b[1]))), batch=_integers)
batches.put("weights of examples", lambda: (mlp(), lambda m, b: ce(m, b) * b[0][:, 0].sigmoid()), batch=labelled())
batches.put(
    "data that asks for gradients",
    lambda: (mlp(), lambda m, b: ce(m, (b[0].requires_grad_(), b[1]))),
    batch=labelled(),
)
batches.put(
    "a row expanded",
    lambda: (mlp(), ce),
    batch=lambda n, g: (
        torch.randn(1, WIDE, generator=g).expand(n, -1),
        torch.randint(CLASSES, (n,), generator=g),
    ),
)
batches.put("losses by view", lambda: (mlp(), lambda m, b: ce(m, b).view(-1, 1).squeeze(1)), batch=labelled())

PROGRAMS = (
    rows.programs + folded.programs + algebra.programs + derived.programs + mechanisms.programs + batches.programs
)
