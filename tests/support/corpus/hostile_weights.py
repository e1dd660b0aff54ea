"""Hostile: weights that are changed, hooked or made by the batch; constants that are as long as the batch.

Many of these are exact in plain PyTorch (``conditional``): an engine must see how the weight came about, or refuse.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.program import CLASSES, WIDE, Shelf, ce, square, weight

written = Shelf("derived weights written in place", defaults={"conditional": True, "sizes": (5, 8)})
hooked = Shelf("hooks on derived weights", defaults={"conditional": True, "sizes": (5, 8)})
data = Shelf("weights made by the batch")
inner = Shelf("inner steps over the batch")
constants = Shelf("constants as long as the batch", defaults={"conditional": True, "sizes": (5, 4, 6)})


def _parts() -> dict[str, Any]:
    return {"w": weight(CLASSES, WIDE), "v": weight(CLASSES * WIDE), "g": weight(WIDE)}


def _write(f: Callable[[Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        w = m.w.clone()
        f(w)
        return x @ w.T

    return run


def _old_view(m: Any, x: Tensor) -> Tensor:
    w = m.w.clone()
    flat = w.view(-1)
    w.mul_(50.0)
    return x @ flat.view(CLASSES, WIDE).T


def _new_base(m: Any, x: Tensor) -> Tensor:
    w = m.w.clone()
    w.T[2:5].mul_(20.0)
    return x @ w.T


def _swap(m: Any, x: Tensor) -> Tensor:
    w, u = m.w.clone(), m.w.clone()
    w[:, 0], u[:, 1] = u[:, 1] * 9, w[:, 0] * 9
    return x @ w.T + x @ u.T


def _twice(m: Any, x: Tensor) -> Tensor:
    """One tensor, before and after it was changed."""
    w = m.w.clone()
    first = x @ w.T
    w = w.mul_(7.0) if not w.requires_grad else w * 7.0
    return first + x @ w.T


def _into_zeros(m: Any, x: Tensor) -> Tensor:
    w = torch.zeros(CLASSES, WIDE)
    w[:, ::2] = m.w[:, ::2] * 30
    w[1] = m.v[:WIDE]
    return x @ w.T


def _chained(m: Any, x: Tensor) -> Tensor:
    w = m.w.clone()
    w.view(-1)[:WIDE].view(2, -1)[1].mul_(40.0)
    return x @ w.T


def _out(m: Any, x: Tensor) -> Tensor:
    w = torch.empty(CLASSES, WIDE)
    with torch.no_grad():
        torch.mul(m.w, 30.0, out=w)
    return x @ (m.w * w).T


def _detached_alias(m: Any, x: Tensor) -> Tensor:
    w = m.w.clone()
    w.detach().mul_(30.0)
    return x @ w.T


written.net(
    {
        f"w.clone(), {name}": _write(f)
        for name, f in {
            "mul_": lambda w: w.mul_(50.0),
            "a column mul_": lambda w: w[:, 0].mul_(50.0),
            "a column by augmented assignment": lambda w: w[:, 0].__imul__(50.0),
            "a column set": lambda w: w.__setitem__((slice(None), 0), 50.0 * w[:, 0]),
            "the first row div_": lambda w: w[0].div_(0.02),
            "a flat view": lambda w: w.view(-1)[:4].mul_(50.0),
            "a flat reshape": lambda w: w.reshape(-1)[3:9].mul_(50.0),
            "the diagonal": lambda w: w.diagonal().mul_(50.0),
            "the transpose": lambda w: w.T[0].mul_(50.0),
            "a narrow": lambda w: w.narrow(1, 1, 2).mul_(50.0),
            "a select": lambda w: w.select(1, 2).mul_(50.0),
            "as_strided": lambda w: w.as_strided((3,), (9,)).mul_(50.0),
            "an unfold": lambda w: w.unfold(1, 2, 4).mul_(50.0),
            "rows of a loop": lambda w: [r.mul_(20.0) for r in [w[i] for i in range(3)]],
            "foreach": lambda w: torch._foreach_mul_([w], 50.0),
            "foreach of rows": lambda w: torch._foreach_mul_([w[0], w[2]], 50.0),
            "masked_fill_": lambda w: w.masked_fill_(torch.eye(3, 8) > 0, 5.0),
            "masked_scatter_": lambda w: w.masked_scatter_(torch.eye(3, 8) > 0, torch.ones(3)),
            "index_put_": lambda w: w.index_put_((torch.tensor([0, 1]), torch.tensor([2, 3])), torch.tensor(9.0)),
            "index_add_": lambda w: w.index_add_(0, torch.tensor([0, 0]), 20 * w[1:].detach()),
            "index_fill_": lambda w: w.index_fill_(1, torch.tensor([1]), 4.0),
            "index_copy_": lambda w: w.index_copy_(1, torch.tensor([1]), 30 * w[:, 2:3].clone()),
            "scatter_": lambda w: w.scatter_(1, torch.zeros(3, 1, dtype=torch.long), 7.0),
            "scatter_add_": lambda w: w.scatter_add_(1, torch.zeros(3, 2, dtype=torch.long), 30 * w[:, 1:3].clone()),
            "fill_diagonal_": lambda w: w.fill_diagonal_(3.0),
            "copy_ of a multiple": lambda w: w.copy_(40 * w),
            "copy_ into a column": lambda w: w[:, 1].copy_(40 * w[:, 2]),
            "addcmul_": lambda w: w.addcmul_(w.detach(), w.detach(), value=20),
            "clamp_": lambda w: w.clamp_(-0.1, 0.1),
            "tril_": lambda w: w.tril_(),
            "zero_ of a row": lambda w: w[1].zero_(),
            "lerp_": lambda w: w.lerp_(torch.ones(3, 8), 0.9),
            "exp_ of a column": lambda w: w[:, 3].exp_(),
            "pow_": lambda w: w.pow_(3),
            "squeeze_ and mul_": lambda w: w[:, :1].squeeze(1).mul_(50.0),
            "a view of a view": lambda w: w.view(3, 2, 4)[:, 1].mul_(50.0),
            "real part of a complex view": lambda w: torch.view_as_complex(w.view(3, 4, 2)).mul_(20.0),
            "a half": lambda w: w.view(2, 12)[1].mul_(50.0),
            "add_ of another use": lambda w: w.add_((w * w).detach(), alpha=20),
            "negative strides by flip": lambda w: w.copy_(w.flip(1) * 20),
        }.items()
    },
    _parts,
    loss=square,
)
written.net(
    {
        "a view made before the write": _old_view,
        "the write through a transpose's slice": _new_base,
        "columns swapped between two clones": _swap,
        "used before and after": _twice,
        "written into zeros": _into_zeros,
        "a chain of views": _chained,
        "written with out=": _out,
        "written through detach()": _detached_alias,
        "pad and crop": lambda m, x: x @ fn.pad(m.w, (1, 1))[:, 1:9].mul(30).T,
        "stacked rows unlike": lambda m, x: x @ torch.stack([m.w[0], 30 * m.w[1], m.w[0]]).T,
        "a weight used as index source twice": lambda m, x: x @ m.w[[0, 0, 0]].T,
        "a weight tiled": lambda m, x: x @ m.v[:8].repeat(3, 1).T,
        "a weight expanded": lambda m, x: x @ m.g.expand(3, 8).T,
        "a weight by overlapping as_strided": lambda m, x: x @ m.v.as_strided((3, 8), (4, 1)).T,
        "a weight unfolded": lambda m, x: x @ m.v.unfold(0, 8, 5)[:3].T,
        "a weight as Toeplitz": lambda m, x: x @ m.v[(torch.arange(3)[:, None] - torch.arange(8)).abs()].T,
        "a weight times its norm": lambda m, x: x @ (m.w * m.w.norm() * 9).T,
        "a weight normalised": lambda m, x: x @ fn.normalize(m.w, dim=1).T,
        "a weight standardised": lambda m, x: x @ ((m.w - m.w.mean(1, keepdim=True)) / m.w.std(1, keepdim=True)).T,
        "a weight in half precision": lambda m, x: x @ m.w.to(torch.float64).mul(3).float().T,
        "a weight through dequantised integers": lambda m, x: x @ (m.w + (m.w * 7).round() / 7 - m.w).T,
        "a weight squared": lambda m, x: x @ (m.w @ m.w.T @ m.w * 9).T,
        "a weight from a matrix exponential": lambda m, x: x[:, :3] @ torch.linalg.matrix_exp(m.w[:, :3] * 3),
        "a weight from an inverse": lambda m, x: x[:, :3] @ torch.linalg.inv(m.w[:, :3] + torch.eye(3)),
    },
    _parts,
    loss=square,
)


def _hook(derive: Callable[[Any], Tensor], change: Callable[[Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        w = derive(m)
        if w.requires_grad:
            w.register_hook(change)
        return x @ w.view(CLASSES, WIDE).T

    return run


_DERIVED: dict[str, Callable[[Any], Tensor]] = {
    "a view": lambda m: m.v.view(CLASSES, WIDE),
    "a clone": lambda m: m.w.clone(),
    "a sum": lambda m: m.w + m.g,
    "a transpose twice": lambda m: m.w.t().t(),
}
_HOOKS: dict[str, Callable[[Tensor], Any]] = {
    "50 times": lambda g: 50 * g,
    "to unit norm": lambda g: g / (g.norm() + 1e-9),
    "masked": lambda g: g * (torch.arange(WIDE) < 3),
    "shifted": lambda g: g + 1,
}
hooked.net(
    {
        f"hook {how} on {what}": _hook(derive, change)
        for what, derive in _DERIVED.items()
        for how, change in _HOOKS.items()
    },
    _parts,
    loss=square,
)


def _spectral_like(m: Any, x: Tensor) -> Tensor:
    return x @ (m.w / (x @ m.w.T).detach().norm()).T


data.net(
    {
        "scaled by the batch's norm": lambda m, x: x @ (m.w / x.norm()).T,
        "scaled by the outputs' norm": _spectral_like,
        "equalised by column scales": lambda m, x: x @ (m.w * x.square().mean(0).rsqrt()).T,
        "pruned by activations": lambda m, x: x @ (m.w * (x.abs().mean(0) > x.abs().mean())).T,
        "quantised to the batch's range": lambda m, x: (
            x @ ((m.w * x.abs().max()).round() / x.abs().max()).T + x @ m.w.T
        ),
        "written by the batch": lambda m, x: x @ torch.index_fill(m.w, 1, x.sum(0).argmax()[None], 0.0).T,
        "a column chosen by the batch": lambda m, x: x @ m.w[:, x.sum(0).argsort()].T,
        "rank one of the batch added": lambda m, x: x @ (m.w + torch.outer(m.w @ x.sum(0), x.sum(0)) / 50).T,
        "Hebbian fast weights": lambda m, x: x @ (m.w + 0.1 * (x @ m.w.T).detach().T @ x).T,
        "a data-dependent initial scale": lambda m, x: (
            x @ (m.w / (1e-3 + (x @ m.w.T).detach().std(0, correction=0)[:, None])).T
        ),
        "a sign by the batch": lambda m, x: x @ (m.w * x.sum().sign()).T,
        "dropped when the batch is large": lambda m, x: x @ (m.w * float(len(x) < 7)).T,
        "a mask of size n": lambda m, x: (torch.ones(len(x), len(x)) / 3) @ x @ m.w.T,
        "concatenated rows of the batch": lambda m, x: x @ torch.cat([m.w, x[:1] * m.w[:1]]).T,
        "keys of the batch beside trained keys": lambda m, x: (x @ torch.cat([m.w, x]).T).softmax(1)[:, :3] + x @ m.w.T,
        "decayed by the mean loss": lambda m, x: x @ (m.w * (1 - (x @ m.w.T).square().mean().tanh() / 2)).T,
        "a router from column means": lambda m, x: x @ (m.w if x.mean() > 0 else -2 * m.w).T,
        "convolved by the batch": lambda m, x: (
            x @ fn.conv1d(m.w[:, None], x.mean(0)[None, None, :3], padding=1)[:, 0].T
        ),
    },
    _parts,
    loss=square,
)


def _functional(model: Any, b: Any, step: Callable[[list[Tensor]], list[Tensor]], second: bool = True) -> Tensor:
    names, values = zip(*model.named_parameters(), strict=True)
    inner_loss = ce(model, b).mean()
    grads = torch.autograd.grad(inner_loss, values, create_graph=second, retain_graph=True)
    moved = dict(zip(names, (v - g for v, g in zip(values, step(list(grads)), strict=True)), strict=True))
    out = torch.func.functional_call(model, moved, (b[0],))
    return fn.cross_entropy(out, b[1], reduction="none")


def _unit(grads: list[Tensor]) -> list[Tensor]:
    norm = torch.stack([g.norm() for g in grads]).norm()
    return [-0.3 * g / norm for g in grads]


def _support(model: Any, b: Any) -> Tensor:
    half = max(1, len(b[0]) // 2)
    names, values = zip(*model.named_parameters(), strict=True)
    grads = torch.autograd.grad(ce(model, (b[0][:half], b[1][:half])).sum(), values, create_graph=True)
    moved = {k: v - 0.2 * g for k, v, g in zip(names, values, grads, strict=True)}
    return fn.cross_entropy(torch.func.functional_call(model, moved, (b[0],)), b[1], reduction="none")


def _ridge(model: Any, b: Any) -> Tensor:
    """A closed-form head fitted to the batch."""
    h = model(b[0])
    y = fn.one_hot(b[1], CLASSES).float()
    head = torch.linalg.solve(h.T @ h + torch.eye(CLASSES), h.T @ y)
    return (h @ head - y).square().sum(1)


def _reptile(model: Any, b: Any) -> Tensor:
    w = model[0].weight
    fast = w.detach().clone().requires_grad_()
    for _ in range(2):
        out = model[2]((fn.linear(b[0], fast, model[0].bias)).tanh())
        (g,) = torch.autograd.grad(fn.cross_entropy(out, b[1]), fast)
        fast = (fast - g).detach().requires_grad_()
    return ce(model, b) + ((w - fast.detach()) ** 2).sum()


def _influence(model: Any, b: Any) -> Tensor:
    losses = ce(model, b)
    values = tuple(model.parameters())
    total = torch.autograd.grad(losses.sum(), values, retain_graph=True)
    return losses * (1 + torch.stack([g.norm() for g in total]).norm())


def _newton(model: Any, b: Any) -> Tensor:
    f = lambda w: fn.cross_entropy(fn.linear(b[0], w[:, None].expand(3, 8)), b[1])  # noqa: E731
    h = torch.autograd.functional.hessian(f, torch.zeros(3))
    return ce(model, b) * (1 + h.diagonal().sum())


inner.losses(
    {
        "MAML": lambda m, b: _functional(m, b, lambda gs: [0.5 * g for g in gs]),
        "first-order MAML": lambda m, b: _functional(m, b, lambda gs: [0.5 * g for g in gs], second=False),
        "SAM": lambda m, b: _functional(m, b, _unit, second=False),
        "SAM with second derivatives": lambda m, b: _functional(m, b, _unit),
        "sign steps": lambda m, b: _functional(m, b, lambda gs: [0.1 * g.sign() for g in gs], second=False),
        "support and query halves": _support,
        "a closed-form head": _ridge,
        "a proximal term to fitted weights": _reptile,
        "losses times the batch's gradient norm": _influence,
        "a Hessian of the batch": _newton,
        "a penalty on the batch's gradient": lambda m, b: (
            ce(m, b)
            + sum(
                g.square().sum() for g in torch.autograd.grad(ce(m, b).sum(), tuple(m.parameters()), create_graph=True)
            )
        ),
        "a Jacobian of the summed outputs": lambda m, b: (
            ce(m, b) * (1 + torch.autograd.functional.jacobian(lambda x: m(x).sum(0), b[0]).sum(1).square().sum())
        ),
        "a product with the batch's Hessian": lambda m, b: (
            ce(m, b) * (1 + torch.autograd.functional.hvp(lambda x: m(x).sum().square(), b[0], b[0])[1].square().sum())
        ),
        "backward inside the loss": lambda m, b: (
            ce(m, b) * (1 + torch.autograd.grad(ce(m, b).mean(), m[0].weight)[0].square().sum() * 50)
        ),
        "one implicit layer for all": lambda m, b: (
            ce(m, b) * torch.linalg.solve(b[0].T @ b[0] + torch.eye(8), torch.ones(8)).norm()
        ),
    }
)

_MASK = torch.full((5, 5), float("-inf")).triu(1)


def _columns(n: int, g: torch.Generator) -> Tensor:
    return torch.randint(6, (n, 5), generator=g)


def _long(n: int, g: torch.Generator) -> Tensor:
    return torch.randn(n, 5, 4, generator=g)


constants.net(
    {
        "w[ids, arange(5)]": lambda m, ids: m.w[ids, torch.arange(5)],
        "w[ids, arange(ids.shape[1])]": lambda m, ids: m.w[ids, torch.arange(ids.shape[1])],
        "w.T[arange(5), ids]": lambda m, ids: m.w.T[torch.arange(5), ids],
        "flat table with offsets": lambda m, ids: m.w.flatten()[ids + 6 * torch.arange(5)],
        "embedding with offsets": lambda m, ids: fn.embedding(ids + torch.arange(5), torch.cat([m.w, m.w])),
        "rows of a table times constants": lambda m, ids: (m.w[ids] * torch.arange(5.0)).sum(2),
        "constants along the features": lambda m, ids: m.w[ids].mean(2) * torch.linspace(1, 2, 5),
        "a constant (5, 5) times features": lambda m, ids: m.w[ids].mean(2) @ _MASK.exp(),
        "constants stacked before": lambda m, ids: (
            m.w[ids].mean(2) + torch.stack([torch.ones(5) * k for k in range(5)])[2]
        ),
    },
    lambda: {"w": weight(6, 5)},
    loss=square,
    batch=_columns,
)
constants.net(
    {
        "causal mask as long as the batch": lambda m, x: fn.scaled_dot_product_attention(x, m.k, m.v, attn_mask=_MASK),
        "sliced buffer as mask": lambda m, x: fn.scaled_dot_product_attention(
            m.q(x), m.k, m.v, attn_mask=m.big[: x.shape[1], : x.shape[1]]
        ),
        "mask added to the scores": lambda m, x: ((x @ m.k.mT) + _MASK).softmax(-1) @ m.v,
        "trained keys without a batch": lambda m, x: (x @ m.k[0].T).softmax(-1) @ m.v[0],
        "trained values as long as the batch": lambda m, x: x + m.v[0],
        "trained positions": lambda m, x: m.q(x + m.v),
        "a trained matrix over time": lambda m, x: m.t @ x,
        "a trained scale over time": lambda m, x: x * m.t[:, :1],
        "einsum over time": lambda m, x: torch.einsum("nld,lm->nmd", x, m.t),
        "time folded into rows": lambda m, x: m.q(x.reshape(-1, 4)).view(len(x), 5, 4) * m.t[:, :1],
        "bmm with trained slices": lambda m, x: torch.bmm(x.transpose(0, 1), m.s).transpose(0, 1),
        "a trained slice per time": lambda m, x: torch.stack([x[:, i] @ m.s[i] for i in range(5)], 1),
        "time first": lambda m, x: (m.q(x.transpose(0, 1)) + m.v[0][:, None]).transpose(0, 1),
        "a rotation of time": lambda m, x: m.q(x) * torch.arange(5.0).cos()[:, None],
        "a relative bias": lambda m, x: (
            ((x @ x.mT) + m.t[(torch.arange(5)[:, None] - torch.arange(5)).abs(), 0]).softmax(-1) @ x
        ),
    },
    lambda: {
        "q": nn.Linear(4, 4),
        "k": weight(1, 5, 4),
        "v": weight(1, 5, 4),
        "t": weight(5, 5),
        "s": weight(5, 4, 4),
        "big": nn.Buffer(torch.full((64, 64), float("-inf")).triu(1)),
    },
    loss=square,
    batch=_long,
)

PROGRAMS = written.programs + hooked.programs + data.programs + inner.programs + constants.programs
