"""Hostile: the forward pass keeps examples apart, the backward pass does not."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from corpus.program import CLASSES, HIDDEN, WIDE, Shelf, ce, mlp, square, weight

hooks = Shelf("hooks on gradients")
functions = Shelf("custom autograd functions")

Change = Callable[[Tensor], Tensor]


def _sign(g: Tensor) -> Tensor:
    return 1.0 if float(g.sum()) > 0 else -1.0  # type: ignore[return-value]


CHANGES: dict[str, Change] = {
    "centred over rows": lambda g: g - g.mean(0),
    "divided by its norm": lambda g: g / (g.norm() + 1e-9),
    "divided by n": lambda g: g / len(g),
    "rolled over rows": lambda g: g.roll(1, 0),
    "sorted over rows": lambda g: g.sort(0).values,
    "sign of its sum": lambda g: g * _sign(g),
    "features permuted by its sums": lambda g: g[:, g.sum(0).argsort()],
    "by place": lambda g: g * torch.arange(1, len(g) + 1)[:, None],
    "running sum": lambda g: g.cumsum(0),
    "standardised": lambda g: g / (g.std(0, correction=0) + 1e-3),
    "clipped by the global norm": lambda g: g * min(1.0, 0.05 / (float(g.norm()) + 1e-9)),
    "first row for all": lambda g: g[:1].expand_as(g),
    "above the mean": lambda g: g * (g.abs() > g.abs().mean()),
    "quantised by its maximum": lambda g: (g / g.abs().max() * 7).round() * g.abs().max() / 7,
    "topk of the whole": lambda g: g * (g.abs() >= g.abs().flatten().topk(max(1, g.numel() // 4))[0][-1]),
}


def _tensor_hook(change: Change) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        if h.requires_grad:
            h.register_hook(change)
        return m.b(h.tanh())

    return run


def _two() -> dict[str, nn.Module]:
    return {"a": nn.Linear(WIDE, HIDDEN), "b": nn.Linear(HIDDEN, CLASSES)}


hooks.net({f"tensor hook: {name}": _tensor_hook(f) for name, f in CHANGES.items()}, _two)


def _with(attach: Callable[[nn.Sequential], Any]) -> Callable[[], tuple[nn.Module, Any]]:
    def make() -> tuple[nn.Module, Any]:
        model = mlp()
        attach(model)
        return model, ce

    return make


def _backward(change: Change) -> Callable[..., Any]:
    return lambda module, inside, outside: tuple(None if g is None else change(g) for g in inside)


def _before(change: Change) -> Callable[..., Any]:
    return lambda module, outside: tuple(change(g) for g in outside)


for _name in ("centred over rows", "divided by n", "rolled over rows", "sign of its sum"):
    _f = CHANGES[_name]
    hooks.put(f"module hook: {_name}", _with(lambda m, f=_f: m[2].register_full_backward_hook(_backward(f))))
    hooks.put(f"module pre-hook: {_name}", _with(lambda m, f=_f: m[0].register_full_backward_pre_hook(_before(f))))
hooks.put(
    "old module hook",
    _with(lambda m: m[1].register_backward_hook(lambda mod, inside, out: (inside[0] - inside[0].mean(0),))),
)
for _name, _hook in {
    "doubled": lambda g: 2 * g,
    "unit": lambda g: g / (g.norm() + 1e-9),
    "shifted": lambda g: g + 1,
    "masked": lambda g: g * (torch.arange(g.shape[-1]) < 2),
    "clamped": lambda g: g.clamp(-0.01, 0.01),
    "sign": lambda g: g.sign(),
}.items():
    hooks.put(f"parameter hook: {_name}", _with(lambda m, f=_hook: m[0].weight.register_hook(f)), conditional=True)


def _multi(m: Any, x: Tensor) -> Tensor:
    """What a hook over two tensors keeps scales a third."""
    h, kept = m.a(x), {"s": 1.0}
    if h.requires_grad:
        u = h * 1
        u.register_hook(lambda g: kept.update(s=float(g.abs().sum()) * 5))
        v = h + 0
        v.register_hook(lambda g: g * kept["s"])
        return m.b(v.tanh()) + m.b(u.tanh()).sin()
    return m.b(h.tanh()) + m.b(h.tanh()).sin()


def _retained(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    if h.requires_grad:
        h.retain_grad()
        (h * 1).sum()
        h.register_hook(lambda g: torch.addcmul(g, g, g.mean(0), value=20.0))
    return m.b(h.tanh())


def _inplace(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    if h.requires_grad:
        h.register_hook(lambda g: g.sub_(g.mean(0)) if not g._is_view() else g - g.mean(0))
    return m.b(h.tanh())


def _weight_hook_within(m: Any, x: Tensor) -> Tensor:
    w = m.a.weight * 1
    if w.requires_grad:
        w.register_hook(lambda g: g / (g.norm() + 1e-9))
    return m.b((x @ w.T).tanh())


def _inner_scale(m: Any, x: Tensor) -> Tensor:
    """A gradient computed inside scales the pass."""
    h = m.a(x)
    (g,) = torch.autograd.grad(m.b(h.tanh()).square().sum(), h, retain_graph=True)
    return m.b(h.tanh()) * (1 + g.norm())


def _inner_step(m: Any, x: Tensor) -> Tensor:
    z = torch.zeros(1, HIDDEN, requires_grad=True)
    (g,) = torch.autograd.grad((m.a(x) - z).square().sum(), z, create_graph=True)
    return m.b(m.a(x) + 0.1 * g)


def _penalty(model: Any, b: Any) -> Tensor:
    x = b[0].clone().requires_grad_()
    (g,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return ce(model, b) + (g.norm() - 1) ** 2


def _adversarial(model: Any, b: Any) -> Tensor:
    x = b[0].clone().requires_grad_()
    (g,) = torch.autograd.grad(ce(model, (x, b[1])).sum(), x)
    return ce(model, (b[0] + 0.5 * g / g.norm(), b[1]))


hooks.net(
    {
        "one hook feeds another": _multi,
        "a quadratic hook": _retained,
        "a hook that writes into its gradient": _inplace,
        "an input gradient's norm as scale": _inner_scale,
        "a shared inner step": _inner_step,
    },
    _two,
)
hooks.net(
    {"a hook on a derived weight": _weight_hook_within},
    _two,
    conditional=True,
)
hooks.losses({"a gradient penalty of the batch's norm": _penalty, "an attack of the batch's norm": _adversarial})


class Changed(torch.autograd.Function):
    """The identity; the gradient goes through a function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.change(g), None


class Reversal(torch.autograd.Function):
    """Gradient reversal of a strength that the forward pass's batch decides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.strength = x.mean().tanh() * 9
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return -ctx.strength * g


class Product(torch.autograd.Function):
    """x @ w with a backward that averages over the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return g @ w.T, x.T @ g / len(x)


class Centred(torch.autograd.Function):
    """A straight-through estimator: mixes forwards, the identity backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g


class NewStyle(torch.autograd.Function):
    """setup_context, vmap and jvp there; the backward mixes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return g * x.cos() - (g * x.cos()).mean(0)


class Reversible(torch.autograd.Function):
    """Runs a backward pass of its own; the gradient over the batch is normalised there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module) -> Tensor:
        ctx.f = f
        ctx.save_for_backward(x)
        with torch.no_grad():
            return x + f(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = x + ctx.f(x)
            torch.autograd.backward(y, g / (1 + g.norm() * 30))
        return x.grad, None  # type: ignore[return-value]


class Spread(torch.autograd.Function):
    """A parameter for every row; its gradient is the greatest over rows."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, n: int) -> Tensor:
        return w.expand(n, -1).clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return g.abs().amax(0, keepdim=True), None


class Rotated(torch.autograd.Function):
    """Features permuted in the backward pass by a statistic of the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.order = x.mean(0).argsort()
        return x + 0

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g[:, ctx.order]


def _rounded(h: Tensor) -> Tensor:
    soft = Changed.apply(h, lambda g: g * (g.norm() < 0.6))
    return soft + (h.round() - h).detach()


functions.net(
    {
        f"identity, {name} backwards": lambda m, x, f=f: m.b(Changed.apply(m.a(x), f).tanh())
        for name, f in CHANGES.items()
    },
    _two,
)
functions.net(
    {
        "reversal by the batch": lambda m, x: m.b(Reversal.apply(m.a(x)).tanh()),
        "centred forwards only": lambda m, x: m.b(Centred.apply(m.a(x)).tanh()),
        "new style, mixing backwards": lambda m, x: m.b(NewStyle.apply(m.a(x))),
        "permuted backwards by the batch": lambda m, x: m.b(Rotated.apply(m.a(x)).tanh()),
        "straight-through rounding with a mixing gradient": lambda m, x: m.b(_rounded(m.a(x))),
    },
    _two,
)
functions.net(
    {
        "its own mean over the batch": lambda m, x: Product.apply(x, m.w),
        "a bias of its own": lambda m, x: m.a(x) + Spread.apply(m.c, len(x)),
        "a backward pass within a backward pass": lambda m, x: m.a(Reversible.apply(m.d(x), m.f)),
    },
    lambda: {
        "w": weight(WIDE, CLASSES),
        "a": nn.Linear(WIDE, CLASSES),
        "c": weight(1, CLASSES),
        "d": nn.Linear(WIDE, WIDE),
        "f": nn.Linear(WIDE, WIDE),
    },
    loss=square,
)

PROGRAMS = hooks.programs + functions.programs
