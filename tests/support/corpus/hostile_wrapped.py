"""Hostile: something above inside a wrapper: compile, script, checkpoint, autocast, torch.func, subclasses."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

from corpus.program import CLASSES, HIDDEN, WIDE, Net, Shelf, ce

wrapped = Shelf("hostile within a wrapper")
transforms = Shelf("hostile within torch.func")
graphs = Shelf("double backward tricks")


def _parts() -> dict[str, Any]:
    return {"a": nn.Linear(WIDE, HIDDEN), "b": nn.Linear(HIDDEN, CLASSES)}


CORES: dict[str, Callable[[Tensor], Tensor]] = {
    "centring": lambda h: h - h.mean(0),
    "roll": lambda h: h + h.roll(1, 0),
    "division by n": lambda h: h / len(h),
    "place": lambda h: h * torch.arange(1.0, len(h) + 1)[:, None],
}


class _Tagged(Tensor):
    """A subclass that does nothing but be one."""


class _Pair(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


def _autocast(f: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return f(h.to(torch.bfloat16)).float()


def _inference(f: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    with torch.inference_mode():
        kept = f(h.clone())
    return h * (1 + kept.clone().abs())


def _no_grad(f: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    with torch.no_grad():
        kept = f(h)
    return h + kept


WRAPPERS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "checkpoint": lambda f, h: checkpoint(f, h, use_reentrant=False),
    "reentrant checkpoint": lambda f, h: checkpoint(f, h, use_reentrant=True),
    "autocast": _autocast,
    "no_grad": _no_grad,
    "inference mode": _inference,
    "a tensor subclass": lambda f, h: f(h.as_subclass(_Tagged)).as_subclass(Tensor),
    "double precision": lambda f, h: f(h.double()).float(),
    "detach and a difference": lambda f, h: h + (f(h) - h).detach(),
    "a parameter list's comprehension": lambda f, h: sum((f(h * k) for k in (0.5, 0.2)), h),
}


def _once(m: Any, x: Tensor) -> Tensor:
    with nn.utils.parametrize.cached():
        return m.c(x - x.mean(0)) + m.c(x)


def _scaled_once(m: Any, x: Tensor) -> Tensor:
    with nn.utils.parametrize.cached():
        return m.c(x) * m.c.weight.norm() / x.norm()


def _masked(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    h = m.a(x)
    h[mask] = m.v
    return m.b(h.tanh())


wrapped.net(
    {
        "a weight of another class, scaled by the batch": lambda m, x: m.b(
            (x @ (m.a.weight.as_subclass(_Tagged) * x.mean()).T).as_subclass(Tensor).tanh()
        ),
        "a weight of another class, chosen by the batch": lambda m, x: m.b(
            (x @ m.a.weight.as_subclass(_Tagged)[x.sum().long() % HIDDEN :].T).as_subclass(Tensor).sum(1, keepdim=True)
            + m.a(x)
        ),
        "a weight of another class, times centred rows": lambda m, x: m.b(
            ((x - x.mean(0)) @ m.a.weight.as_subclass(_Tagged).T).as_subclass(Tensor).tanh()
        ),
        "a weight set where rows are above the mean": lambda m, x: _masked(m, x, x[:, 0] > x[:, 0].mean()),
        "a weight set in every third row": lambda m, x: _masked(m, x, torch.arange(len(x)) % 3 == 0),
        "centred with weights computed once": _once,
        "scaled with weights computed once": _scaled_once,
    },
    lambda: {
        **_parts(),
        "c": nn.utils.parametrizations.weight_norm(nn.Linear(WIDE, CLASSES)),
        "v": nn.Parameter(torch.randn(HIDDEN)),
    },
)
if hasattr(fn, "linear_cross_entropy"):  # torch 2.13

    def _entropy(m: Any, x: Tensor, y: Tensor, reduction: str) -> Tensor:
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=2, chunking_method=None)
        hidden = m.a(x).tanh()
        return fn.linear_cross_entropy(hidden, m.b.weight, y, reduction=reduction, options=options)

    wrapped.losses(
        {
            "a mean over chunks of rows": lambda m, b: _entropy(m, *b, "mean").expand(len(b[0])),
            "chunks of rows, weighed by their mean": lambda m, b: (
                _entropy(m, *b, "none") * _entropy(m, *b, "none").mean()
            ),
            "chunks of centred rows": lambda m, b: _entropy(m, b[0] - b[0].mean(0), b[1], "none"),
            "chunks with the next row's class": lambda m, b: _entropy(m, b[0], b[1].roll(1), "none"),
        },
        model=lambda: Net(lambda m, x: m.b(m.a(x).tanh()), **_parts()),
    )
for _w, _wrap in WRAPPERS.items():
    for _c, _core in CORES.items():
        wrapped.net({f"{_c} within {_w}": lambda m, x, w=_wrap, c=_core: m.b(w(c, m.a(x)).tanh())}, _parts)


def _mean_taken(h: Tensor) -> Tensor:
    return h - h.mean(0)


def _rows_added(h: Tensor) -> Tensor:
    total = torch.zeros_like(h[0])
    for i in range(h.size(0)):
        total = total + h[i]
    return h - total


@functools.cache
def _scripted(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return torch.jit.script(f)


@functools.cache
def _compiled() -> Callable[[Tensor], Tensor]:
    return torch.compile(CORES["centring"], backend="eager", dynamic=True)


wrapped.hidden(
    {
        "scripted centring": lambda h: _scripted(_mean_taken)(h),
        "a scripted loop over rows": lambda h: _scripted(_rows_added)(h),
    }
)
wrapped.net({"compiled centring": lambda m, x: m.b(m.c(m.a(x)).tanh())}, lambda: {**_parts(), "c": _compiled()})
wrapped.put("a scripted model", lambda: (torch.jit.script(nn.Sequential(nn.Linear(WIDE, CLASSES), _Pair())), ce))
wrapped.put(
    "a traced model",
    lambda: (
        torch.jit.trace(nn.Sequential(nn.Linear(WIDE, CLASSES), _Pair()), torch.ones(4, WIDE), check_trace=False),
        ce,
    ),
)
wrapped.put(
    "a model of fx",
    lambda: (torch.fx.symbolic_trace(nn.Sequential(nn.Linear(WIDE, CLASSES), _Pair())), ce),
)
wrapped.net(
    {
        "a parametrization that looks at the batch": lambda m, x: (
            setattr(m.p.parametrizations.weight[0], "x", x),
            m.p(x),
        )[1],
    },
    lambda: {"p": _looking()},
)


class _Looking(nn.Module):
    x: Any = None

    def forward(self, w: Tensor) -> Tensor:
        return w if self.x is None else w / (1 + self.x.square().mean())


def _looking() -> nn.Module:
    layer = nn.Linear(WIDE, CLASSES)
    nn.utils.parametrize.register_parametrization(layer, "weight", _Looking())
    return layer


def _vmapped_stats(m: Any, x: Tensor) -> Tensor:
    return torch.func.vmap(lambda column: column - column.mean(), in_dims=1, out_dims=1)(m.a(x))


def _functional_call(m: Any, x: Tensor) -> Tensor:
    moved = {k: v * (1 + x.mean()) for k, v in m.b.named_parameters()}
    return torch.func.functional_call(m.b, moved, (m.a(x).tanh(),))


def _jvp(m: Any, x: Tensor) -> Tensor:
    return torch.func.jvp(lambda v: m.b(m.a(v).tanh()), (x,), (x.mean(0).expand_as(x),))[1]


def _vjp(m: Any, x: Tensor) -> Tensor:
    out, pull = torch.func.vjp(lambda v: m.a(v).tanh().square().sum(0), x)
    return m.b(m.a(x)) + pull(out)[0][:, :CLASSES]


def _grad(m: Any, x: Tensor) -> Tensor:
    step = torch.func.grad(lambda s: m.b(m.a(x + s).tanh()).square().sum())(torch.zeros(WIDE))
    return m.b(m.a(x - 0.1 * step).tanh())


def _ensemble(m: Any, x: Tensor) -> Tensor:
    stacked = torch.stack([x.mean(0), x.sum(0)])
    return m.b(m.a(x)) + torch.func.vmap(lambda v: m.b(m.a(v)))(stacked).sum(0)


def _pairs(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    scores = torch.func.vmap(torch.func.vmap(torch.dot, (0, None)), (None, 0))(h, h)
    return m.b(scores.softmax(1) @ h)


def _per_sample(model: Any, b: Any) -> Tensor:
    """Per-example gradients by vmap, then normalised by the greatest."""
    w = dict(model.named_parameters())

    def one(w: Any, x: Tensor, y: Tensor) -> Tensor:
        return fn.cross_entropy(torch.func.functional_call(model, w, (x[None],)), y[None])

    grads = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(w, *b)
    norms = sum(g.flatten(1).square().sum(1) for g in grads.values())
    return ce(model, b) * norms / norms.max()


def _hessian(m: Any, x: Tensor) -> Tensor:
    curve = torch.func.hessian(lambda s: m.b(m.a(x * s).tanh()).sum())(torch.ones(WIDE))
    return m.b(m.a(x)) * (1 + curve.diagonal().tanh()[:CLASSES])


def _chunked(m: Any, x: Tensor) -> Tensor:
    return torch.func.vmap(lambda r: m.b(m.a(r).tanh()), chunk_size=2)(x) * len(x)


def _random(m: Any, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return torch.func.vmap(lambda r: m.b(m.a(r + torch.randn(WIDE)).tanh()), randomness="different")(x)


transforms.net(
    {
        "vmap over columns": _vmapped_stats,
        "functional_call with weights of the batch": _functional_call,
        "jvp towards the mean": _jvp,
        "vjp of a sum over rows": _vjp,
        "grad of a shared shift": _grad,
        "vmap of an ensemble of statistics": _ensemble,
        "vmap over pairs of rows": _pairs,
        "Hessian of a shared scale": _hessian,
        "vmap in chunks, times n": _chunked,
        "vmap with seeded noise": _random,
        "jacrev of the batch's mean": lambda m, x: (
            m.b(m.a(x)) + torch.func.jacrev(lambda v: m.b(m.a(v).tanh()).mean(0))(x).square().sum((1, 2))
        ),
        "vmap of a running sum": lambda m, x: m.b(torch.func.vmap(lambda c: c.cumsum(0), 1, 1)(m.a(x)).tanh()),
        "vmap whose lane is the place": lambda m, x: torch.func.vmap(lambda r, i: m.b(m.a(r) * i))(
            x, torch.arange(1.0, len(x) + 1)
        ),
        "functionalize": lambda m, x: torch.func.functionalize(lambda v: m.b(m.a(v - v.mean(0))))(x),
    },
    _parts,
)
transforms.losses({"gradients by vmap, over the greatest": _per_sample})


def _twice(m: Any, x: Tensor) -> Tensor:
    """The gradient of a gradient sums the rows."""
    h = m.a(x)
    v = torch.ones(HIDDEN, requires_grad=True)
    (g,) = torch.autograd.grad((h * v).tanh().sum(), v, create_graph=True)
    return m.b(h * g.tanh())


def _dual(m: Any, x: Tensor) -> Tensor:
    """Forward derivatives by two backward passes, along the batch's mean."""
    h = m.a(x).tanh()
    u = torch.zeros_like(h, requires_grad=True)
    (g,) = torch.autograd.grad((h * u).sum(0).sum(), m.a.weight, create_graph=True)
    (d,) = torch.autograd.grad((g * m.a.weight).sum(), u, create_graph=True)
    return m.b(h + d * (1 + g.detach().norm()) + h.mean(0))


def _grad_outputs(m: Any, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    h = m.a(x).tanh()
    (g,) = torch.autograd.grad(h, x, h.detach().mean(0).expand_as(h), create_graph=True)
    return m.b(m.a(g))


def _bias_gradient(m: Any, x: Tensor) -> Tensor:
    out = m.b(m.a(x).tanh())
    (g,) = torch.autograd.grad(out.square().sum(), m.b.bias, create_graph=True)
    return out - 0.1 * g


def _weight_gradient(m: Any, x: Tensor) -> Tensor:
    out = m.b(m.a(x).tanh())
    (g,) = torch.autograd.grad(out.square().mean(), m.a.weight, create_graph=True)
    return out * (1 + g.square().sum() * 9)


def _detached_gradient(m: Any, x: Tensor) -> Tensor:
    out = m.b(m.a(x).tanh())
    (g,) = torch.autograd.grad(out[:, 0].sum().square(), m.b.weight, retain_graph=True)
    return out + m.a(x) @ g.T


def _batched_grad(m: Any, x: Tensor) -> Tensor:
    out = m.b(m.a(x).tanh())
    (g,) = torch.autograd.grad(out.sum(0), m.b.weight, torch.eye(3), retain_graph=True, is_grads_batched=True)
    return out * (1 + g.square().mean())


def _input_sum(m: Any, x: Tensor, over: Callable[[Tensor], Tensor]) -> Tensor:
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(m.b(m.a(x).tanh()).square().sum(), x, create_graph=True)
    return m.b(m.a(x + over(g)).tanh())


graphs.net(
    {
        "the gradient of a shared vector": _twice,
        "forward derivatives by two backward passes": _dual,
        "an input gradient with shared outputs": _grad_outputs,
        "the bias's gradient subtracted": _bias_gradient,
        "the weight's gradient as scale": _weight_gradient,
        "the head's gradient as weights": _detached_gradient,
        "batched gradients": _batched_grad,
        "an input gradient's sum over rows": lambda m, x: _input_sum(m, x, lambda g: g.sum(0)),
        "an input gradient's greatest row": lambda m, x: _input_sum(m, x, lambda g: g.amax(0)),
    },
    _parts,
)
graphs.losses(
    {
        "a gradient of the mean with respect to inputs, times n's worth": lambda m, b: _input_gradient(m, b),
        "the norm of the summed losses' gradient": lambda m, b: ce(m, b) / (1 + _summed(m, b)),
        "gradients compared between rows": lambda m, b: (
            ce(m, b) * (1 + torch.func.vmap(torch.dot)(_inputs(m, b), _inputs(m, b).roll(1, 0)).tanh())
        ),
        "gradients sorted": lambda m, b: ce(m, b) + _inputs(m, b).sort(0).values.square().sum(1),
        "gradients over their mean": lambda m, b: (
            ce(m, b) + (_inputs(m, b) / _inputs(m, b).abs().mean()).square().sum(1)
        ),
        "gradient penalty at points between rows": lambda m, b: (
            ce(m, b) + _inputs(m, ((b[0] + b[0].flip(0)) / 2, b[1])).square().sum(1)
        ),
    }
)


def _input_gradient(m: Any, b: Any) -> Tensor:
    x = b[0].clone().requires_grad_()
    (g,) = torch.autograd.grad(ce(m, (x, b[1])).mean(), x, create_graph=True)
    return ce(m, b) + 50 * g.square().sum(1)


def _inputs(m: Any, b: Any) -> Tensor:
    x = b[0].clone().requires_grad_()
    return torch.autograd.grad(ce(m, (x, b[1])).sum(), x, create_graph=True)[0]


def _summed(m: Any, b: Any) -> Tensor:
    return torch.autograd.grad(ce(m, b).sum(), m[0].weight, create_graph=True)[0].norm()


PROGRAMS = wrapped.programs + transforms.programs + graphs.programs
