"""Hostile: nothing is wrong at first. Something is changed after the first batch, or starts by itself."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.program import CLASSES, HIDDEN, WIDE, Net, Program, Shelf, ce, labelled, mlp, weight

changed = Shelf("changed after the first batch")
started = Shelf("starts by itself later")


class Switch:
    """A loss with a second term of a strength that can be changed."""

    def __init__(self, term: Callable[[Any, Any, Tensor], Tensor]) -> None:
        self.strength, self.term = 0.0, term

    def __call__(self, model: Any, b: Any) -> Tensor:
        losses = ce(model, b)
        return losses if self.strength == 0 else losses + self.strength * self.term(model, b, losses)


class Ramp(Switch):
    """The same, with the second term always computed."""

    def __call__(self, model: Any, b: Any) -> Tensor:
        losses = ce(model, b)
        return losses + self.strength * self.term(model, b, losses)


def _contrast(model: Any, b: Any, losses: Tensor) -> Tensor:
    z = fn.normalize(model(b[0]), dim=1)
    return fn.cross_entropy(z @ z.T / 0.2, torch.arange(len(z)), reduction="none")


TERMS: dict[str, Callable[[Any, Any, Tensor], Tensor]] = {
    "contrast": _contrast,
    "centring of logits": lambda m, b, each: (m(b[0]) - m(b[0]).mean(0)).square().sum(1),
    "mean loss": lambda m, b, each: each.mean().expand(len(each)),
    "place": lambda m, b, each: each * torch.arange(len(each)),
    "count": lambda m, b, each: each * len(each),
    "next row": lambda m, b, each: each * each.roll(1).detach(),
}
for _name, _term in TERMS.items():
    for _kind in (Switch, Ramp):
        changed.put(
            f"{_name}, {'switched on' if _kind is Switch else 'ramped from nought'}",
            lambda t=_term, k=_kind: (mlp(), k(t)),
            late=lambda m, loss: setattr(loss, "strength", 2.0),
        )


def _centre(h: Tensor) -> Tensor:
    return h - h.mean(0)


def _forward(self: Any, x: Tensor) -> Tensor:
    return x - 0.5 * x.mean(0)


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "a forward hook": lambda m, loss: m[1].register_forward_hook(lambda _, i, o: _centre(o)),
    "a forward pre-hook": lambda m, loss: m[2].register_forward_pre_hook(lambda _, i: (_centre(i[0]),)),
    "a hook on the whole model": lambda m, loss: m.register_forward_hook(lambda _, i, o: o * len(o)),
    "a full backward hook": lambda m, loss: m[2].register_full_backward_hook(lambda _, i, o: (_centre(i[0]),)),
    "a full backward pre-hook": lambda m, loss: m[0].register_full_backward_pre_hook(lambda _, o: (_centre(o[0]),)),
    "a module replaced": lambda m, loss: m.__setitem__(1, nn.BatchNorm1d(HIDDEN)),
    "a module inserted": lambda m, loss: m.insert(1, Net(lambda _, h: h + h.roll(1, 0))),
    "a forward method replaced": lambda m, loss: setattr(m[1], "forward", types.MethodType(_forward, m[1])),
    "softmax turned to rows": lambda m, loss: m.__setitem__(1, nn.Softmax(0)),
    "a softmin over rows": lambda m, loss: m.__setitem__(1, nn.Softmin(0)),
    "a hook that divides by n": lambda m, loss: m[0].register_forward_hook(lambda _, i, o: o / len(o)),
    "a hook that keeps the mean": lambda m, loss: m[0].register_forward_hook(
        lambda mod, i, o: o + o.detach().mean().item()
    ),
}
for _name, _late in CHANGES.items():
    changed.put(f"{_name}, later", lambda: (mlp(), lambda m, b: ce(m, b)), late=_late)
changed.put(
    "a parameter hook, later",
    lambda: (mlp(), ce),
    late=lambda m, loss: m[0].weight.register_hook(lambda g: g / (g.norm() + 1e-9)),
)


def _norm() -> tuple[nn.Module, Any]:
    return nn.Sequential(
        nn.Linear(WIDE, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
    ).eval(), ce


def _modal(f: Callable[[Tensor], Tensor]) -> Callable[[], tuple[nn.Module, Any]]:
    def make() -> tuple[nn.Module, Any]:
        return Net(lambda m, x: m.a(f(x) if m.training else x), a=mlp()).eval(), ce

    return make


changed.put("batch norm set to training", _norm, late=lambda m, loss: m.train())
changed.put("only the norm set to training", _norm, late=lambda m, loss: m[1].train())
changed.put(
    "batch norm's statistics thrown away",
    _norm,
    late=lambda m, loss: (setattr(m[1], "running_mean", None), setattr(m[1], "running_var", None)),
)
changed.put("mixing only in training", _modal(lambda x: x + x.flip(0)), late=lambda m, loss: m.train())
changed.put("centring only in training", _modal(_centre), late=lambda m, loss: m.train())
changed.put("division by n only in training", _modal(lambda x: x / len(x)), late=lambda m, loss: m.train())


def _flag(m: Any, x: Tensor) -> Tensor:
    return m.a(x + x.mean(0) if m.on else x)


def _strength(m: Any, x: Tensor) -> Tensor:
    return m.a(x + m.strength * x.mean(0))


def _plugin(m: Any, x: Tensor) -> Tensor:
    return m.a(m.plug(x))


changed.net(
    {"a flag of the model": _flag},
    lambda: {"a": mlp(), "on": False},
    late=lambda m, loss: setattr(m, "on", True),
)
changed.net(
    {"a strength of the model": _strength},
    lambda: {"a": mlp(), "strength": 0.0},
    late=lambda m, loss: setattr(m, "strength", 0.7),
)
changed.net(
    {"a strength in a buffer": _strength},
    lambda: {"a": mlp(), "strength": nn.Buffer(torch.zeros(()))},
    late=lambda m, loss: m.strength.fill_(0.7),
)
changed.net(
    {"a strength in a parameter": _strength},
    lambda: {"a": mlp(), "strength": nn.Parameter(torch.zeros(()), requires_grad=False)},
    late=lambda m, loss: m.strength.data.fill_(0.7),
)
changed.net(
    {"a mixing matrix of nought": lambda m, x: m.a(x + m.mix[: len(x), : len(x)] @ x)},
    lambda: {"a": mlp(), "mix": nn.Buffer(torch.zeros(20, 20))},
    late=lambda m, loss: m.mix.fill_(0.3),
)
changed.net(
    {"an index of places that was the identity": lambda m, x: m.a(x + m.shift * x.roll(1, 0))},
    lambda: {"a": mlp(), "shift": nn.Buffer(torch.zeros(1))},
    late=lambda m, loss: m.shift.add_(1),
)
changed.net(
    {"a callable attribute swapped": _plugin},
    lambda: {"a": mlp(), "plug": torch.tanh},
    late=lambda m, loss: setattr(m, "plug", _centre),
)
changed.net(
    {"the run function swapped": lambda m, x: m.a(x)},
    lambda: {"a": mlp()},
    late=lambda m, loss: setattr(m, "run", lambda m, x: m.a(x.cumsum(0))),
)
changed.net(
    {"attention turned to rows": lambda m, x: m.h(m.t(x, x, x)[0]).mean(1)},
    lambda: {"t": nn.MultiheadAttention(4, 2, batch_first=True), "h": nn.Linear(4, CLASSES)},
    batch=labelled(3, 4),
    late=lambda m, loss: setattr(m.t, "batch_first", False),
)
changed.net(
    {"recurrence turned to rows": lambda m, x: m.h(m.t(x)[0]).mean(1)},
    lambda: {"t": nn.GRU(4, 4, batch_first=True), "h": nn.Linear(4, CLASSES)},
    batch=labelled(3, 4),
    late=lambda m, loss: setattr(m.t, "batch_first", False),
)
changed.net(
    {"a normalised dimension changed": lambda m, x: m.a(fn.normalize(x, dim=m.dim))},
    lambda: {"a": mlp(), "dim": 1},
    late=lambda m, loss: setattr(m, "dim", 0),
)
changed.net(
    {"group norm's groups become rows": lambda m, x: m.a(m.g(x[None])[0] if m.on else m.g(x))},
    lambda: {"a": mlp(), "g": nn.GroupNorm(1, 8, affine=False), "on": False},
    late=lambda m, loss: (
        setattr(m, "on", True),
        setattr(m, "g", nn.LayerNorm([8], elementwise_affine=False)),
        setattr(m, "run", lambda m, x: m.a(fn.layer_norm(x, x.shape))),
    ),
)


def _counting(above: int, then: Callable[[Tensor, Any], Tensor]) -> Callable[[], Any]:
    def make() -> Any:
        box = {"calls": 0}

        def loss(m: Any, b: Any) -> Tensor:
            box["calls"] += 1
            losses = ce(m, b)
            return then(losses, b) if box["calls"] > above else losses

        return loss

    return make


def _by_data(trigger: Callable[[Any], Any]) -> Callable[[], Any]:
    """Mixes only in batches in which something is seen."""
    return lambda: lambda m, b: ce(m, b) * (ce(m, b).mean().detach() if trigger(b) else 1)


started.keeping(
    {
        f"{name} from call {above + 1} on": _counting(above, then)
        for above in (1, 2)
        for name, then in {
            "mean": lambda each, b: each.mean().expand(len(each)),
            "cumsum": lambda each, b: each.cumsum(0),
            "roll": lambda each, b: each + each.roll(1),
            "over n": lambda each, b: each / len(each),
        }.items()
    }
)
started.keeping(
    {
        "mixing when some input is large": _by_data(lambda b: b[0].max() > 2.5),
        "mixing in batches of 13": _by_data(lambda b: len(b[0]) == 13),
        "mixing in batches of 8": _by_data(lambda b: len(b[0]) == 8),
        "mixing above ten": _by_data(lambda b: len(b[0]) > 10),
        "mixing if a class is missing": _by_data(lambda b: len(set(b[1].tolist())) < 4),
        "mixing if n divides the features": _by_data(lambda b: 8 % len(b[0]) == 0 and len(b[0]) > 1),
        "mixing if the first label is 1": _by_data(lambda b: b[1][0] == 1),
    }
)


def _epochs(m: Any, x: Tensor) -> Tensor:
    m.step += 1
    return m.a(x + min(1.0, max(0, m.step - 1) / 2) * x.flip(0))


def _thawing(m: Any, x: Tensor) -> Tensor:
    """Batch norm with frozen statistics that thaws."""
    m.step += 1
    return m.b(fn.batch_norm(m.a(x), m.mean.clone(), m.var.clone(), training=m.step > 1 and len(x) > 1).tanh())


def _self_hooking(m: Any, x: Tensor) -> Tensor:
    m.step += 1
    if m.step == 1:
        m.a[1].register_forward_hook(lambda _, i, o: o + o.mean(0) if len(o) > 1 else o)
    return m.a(x)


def _self_replacing(m: Any, x: Tensor) -> Tensor:
    out = m.a(x)
    m.a[1] = nn.Softmax(0)
    return out


def _warm_cache(m: Any, x: Tensor) -> Tensor:
    if m.box is None:
        m.box = torch.zeros(WIDE)
        return m.a(x)
    return m.a(x - x.mean(0))


for _f in (_epochs, _self_hooking, _self_replacing):
    started.net({f"{_f.__name__.strip('_').replace('_', ' ')} model": _f}, lambda: {"a": mlp(), "step": 0})
started.net({"a cache that is warm later": _warm_cache}, lambda: {"a": mlp(), "box": None})
started.net(
    {"batch norm that thaws": _thawing},
    lambda: {
        "a": nn.Linear(WIDE, HIDDEN),
        "b": nn.Linear(HIDDEN, CLASSES),
        "mean": nn.Buffer(torch.zeros(5)),
        "var": nn.Buffer(torch.ones(5)),
        "step": 0,
    },
)
started.net(
    {
        "mixing of nearly nothing": lambda m, x: m.a(x + 1e-2 * m.w * x.mean(0)),
        "mixing behind a ReLU that is rarely on": lambda m, x: m.a(x + fn.relu(x.mean() - 0.02)),
        "a clamp that rarely binds": lambda m, x: m.a(x.clamp(max=x.sum().abs() + 0.5)),
    },
    lambda: {"a": mlp(), "w": weight(WIDE, scale=3.0)},
)

PROGRAMS: list[Program] = changed.programs + started.programs
