"""Hostile: something of earlier batches is kept and reaches later ones, or reaches parameters and buffers."""

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.program import CLASSES, HIDDEN, WIDE, Net, Shelf, ce, scored, weight

models = Shelf("models that remember")
losses = Shelf("losses that remember")
writes = Shelf("data written into parameters and buffers")

_GLOBAL: dict[str, Any] = {}


def _parts(**more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "a": nn.Linear(WIDE, HIDDEN),
        "b": nn.Linear(HIDDEN, CLASSES),
        **{k: v() for k, v in more.items()},
    }


def _ema(m: Any, x: Tensor) -> Tensor:
    m.seen = 0.9 * m.seen + 0.1 * x.mean(0)
    return m.b(m.a(x - m.seen).tanh())


def _ema_number(m: Any, x: Tensor) -> Tensor:
    m.box["s"] = 0.5 * m.box.get("s", 1.0) + float(x.abs().mean())
    return m.b(m.a(x).tanh() / m.box["s"])


def _ema_in_place(m: Any, x: Tensor) -> Tensor:
    m.seen.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return m.b(m.a(x - m.seen).tanh())


def _memory(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    old = m.box.get("h")
    m.box["h"] = h.detach()
    if old is not None:
        h = h + 0.5 * fn.pad(old, (0, 0, 0, max(0, len(h) - len(old))))[: len(h)]
    return m.b(h.tanh())


def _queue(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    bank = torch.stack(list(m.box)) if m.box else torch.zeros(1, HIDDEN)
    m.box.extend(h.detach())
    return m.b(h + (h @ bank.T).softmax(1) @ bank)


def _array(m: Any, x: Tensor) -> Tensor:
    m.box += x.detach().numpy().sum(0)
    return m.b(m.a(x + torch.from_numpy(m.box).float()).tanh())


def _array_slot(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    out = m.b((h + torch.from_numpy(m.box.astype(np.float32))).tanh())
    m.box[:] = h.detach().numpy()[-1]
    return out


def _list(m: Any, x: Tensor) -> Tensor:
    m.box.append(x.sum().item())
    return m.b(m.a(x).tanh()) * (1 + abs(sum(m.box)))


def _global(m: Any, x: Tensor) -> Tensor:
    scale = _GLOBAL.get("scale", 1.0)
    _GLOBAL["scale"] = 1.0 + float(x.detach().square().mean())
    return m.b(m.a(x).tanh()) * scale


def _on_function(m: Any, x: Tensor) -> Tensor:
    kept = getattr(_on_function, "kept", torch.zeros(WIDE))
    _on_function.kept = x.detach().mean(0)  # type: ignore[attr-defined]
    return m.b(m.a(x + kept).tanh())


def _default(m: Any, x: Tensor, kept: Any = {}) -> Tensor:  # noqa: B006
    mean = kept.get("mean", torch.zeros(WIDE))
    kept["mean"] = x.detach().mean(0)
    return m.b(m.a(x + mean).tanh())


def _cache(m: Any, x: Tensor) -> Tensor:
    """A cache whose key forgets the data."""
    if "keys" not in m.box:
        m.box["keys"] = m.a(x).detach().mean(0)
    return m.b((m.a(x) * m.box["keys"]).tanh())


def _cache_by_shape(m: Any, x: Tensor) -> Tensor:
    kept = m.box.setdefault(x.shape[1:], x[0].detach().clone())
    return m.b(m.a(x - kept).tanh())


def _recurrent(m: Any, x: Tensor) -> Tensor:
    out, m.state = m.cell(x[:, None], None if m.state is None else m.state[:, :1].expand(-1, len(x), -1).contiguous())
    m.state = m.state.detach()
    return m.b(out[:, 0])


def _lstm(m: Any, x: Tensor) -> Tensor:
    h = m.box.get("h")
    out, (h, c) = m.cell(x[:, None], None if h is None else tuple(t.expand(-1, len(x), -1).contiguous() for t in h))
    m.box["h"] = (h[:, -1:].detach(), c[:, -1:].detach())
    return m.b(out[:, 0])


def _attached(m: Any, x: Tensor) -> Tensor:
    """What is kept hangs on the old graph's values."""
    kept = m.box.get("y", torch.zeros(CLASSES))
    y = m.b(m.a(x + kept.mean()).tanh())
    m.box["y"] = y.detach()[0]
    return y


def _tensor_attribute(m: Any, x: Tensor) -> Tensor:
    m.a.weight.note = getattr(m.a.weight, "note", 0.0) + float(x.mean())
    return m.b(m.a(x).tanh() * (1 + m.a.weight.note))


def _counter(m: Any, x: Tensor) -> Tensor:
    """A counter of rows seen, not of calls."""
    m.box["n"] = m.box.get("n", 0) + len(x)
    return m.b(m.a(x).tanh()) / m.box["n"]


def _counter_above(m: Any, x: Tensor) -> Tensor:
    m.box["n"] = m.box.get("n", 0) + int((x > 0).sum())
    return m.b(m.a(x).tanh()) * (2.0 if m.box["n"] % 2 else 1.0)


def _hook_keeps(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    if h.requires_grad:
        h.register_hook(lambda g: m.box.__setitem__("g", g.abs().sum().item()))
    return m.b(h.tanh()) * (1 + m.box.get("g", 0.0))


def _momentum_encoder(m: Any, x: Tensor) -> Tensor:
    z = m.a(x)
    if "w" not in m.box:
        m.box["w"] = m.a.weight.detach().clone()
    m.box["w"] = 0.5 * m.box["w"] + 0.01 * torch.outer(z.detach().sum(0), x.sum(0))
    return m.b(z + x @ m.box["w"].T)


def _deepcopied(m: Any, x: Tensor) -> Tensor:
    old = m.box.get("x")
    m.box["x"] = copy.deepcopy(x.detach())
    return m.b(m.a(x if old is None else x + old.mean(0)).tanh())


def _generator(m: Any, x: Tensor) -> Tensor:
    """A generator that goes on by as many numbers as there are rows, and is at another place in the next batch."""
    return m.b(m.a(x + torch.randn(x.shape, generator=m.box)).tanh())


def _fill(m: Any, x: Tensor) -> Tensor:
    """A fixed bank filled in turn."""
    place = m.box.setdefault("at", 0)
    bank = m.box.setdefault("bank", torch.zeros(16, HIDDEN))
    h = m.a(x)
    bank[(place + torch.arange(len(x))) % 16] = h.detach()
    m.box["at"] = place + len(x)
    return m.b(h - bank.mean(0))


models.net(
    {
        "moving average of inputs in an attribute": _ema,
        "moving average in place": _ema_in_place,
    },
    lambda: {**_parts()(), "seen": torch.zeros(WIDE)},
)
for _f, _box in (
    (_ema_number, dict),
    (_memory, dict),
    (_queue, lambda: deque(maxlen=20)),
    (_array, lambda: np.zeros(WIDE)),
    (_array_slot, lambda: np.zeros(HIDDEN)),
    (_list, list),
    (_cache, dict),
    (_cache_by_shape, dict),
    (_attached, dict),
    (_counter, dict),
    (_counter_above, dict),
    (_hook_keeps, dict),
    (_momentum_encoder, dict),
    (_deepcopied, dict),
    (_generator, lambda: torch.Generator().manual_seed(0)),
    (_fill, dict),
):
    models.net({f"{_f.__name__.strip('_').replace('_', ' ')} kept in a model": _f}, _parts(box=_box))
models.net(
    {"the hidden state of a GRU kept": _recurrent},
    _parts(cell=lambda: nn.GRU(WIDE, HIDDEN, batch_first=True), state=lambda: None),
)
models.net(
    {"the state of an LSTM kept": _lstm},
    _parts(cell=lambda: nn.LSTM(WIDE, HIDDEN, batch_first=True), box=dict),
)
models.net({"an attribute of a parameter": _tensor_attribute}, _parts())


def _cleared(run: Callable[..., Tensor], clear: Callable[[], Any]) -> Callable[[], tuple[nn.Module, Any]]:
    def make() -> tuple[nn.Module, Any]:
        clear()
        return Net(run, **_parts()()), ce

    return make


models.put("a global dictionary", _cleared(_global, _GLOBAL.clear))
models.put("a mutable default", _cleared(_default, _default.__defaults__[0].clear))
models.put("an attribute of a function", _cleared(_on_function, _on_function.__dict__.clear))


def _closure() -> tuple[nn.Module, Any]:
    last = torch.zeros(WIDE)

    def run(m: Any, x: Tensor) -> Tensor:
        nonlocal last
        before, last = last, x.detach().mean(0)
        return m.b(m.a(x + before).tanh())

    return Net(run, **_parts()()), ce


models.put("a closure", _closure)


def _iterator() -> tuple[nn.Module, Any]:
    def keep():
        mean: Any = 0.0
        while True:
            x = yield mean
            mean = x.mean(0)

    kept = keep()
    next(kept)
    return Net(lambda m, x: m.b(m.a(x + kept.send(x.detach())).tanh()), **_parts()()), ce


models.put("a Python generator that was sent the batch", _iterator)


def _baseline() -> Any:
    kept = {"b": 0.0}

    def loss(m: Any, b: Any) -> Tensor:
        each = ce(m, b)
        kept["b"] = 0.9 * kept["b"] + 0.1 * float(each.mean())
        return each * (each.detach() - kept["b"])

    return loss


def _of(step: Callable[[dict[str, Any], Any, Any, Tensor], Tensor]) -> Callable[[], Any]:
    def make() -> Any:
        kept: dict[str, Any] = {}
        return lambda m, b: step(kept, m, b, ce(m, b))

    return make


def _replay(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    old = k.get("batch")
    k["batch"] = tuple(t.clone() for t in b)
    return each if old is None else each + ce(m, old).mean()


def _moco(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    z = fn.normalize(m(b[0]), dim=1)
    bank = k.get("z", torch.eye(3))
    k["z"] = torch.cat([bank, z.detach()])[-16:]
    return each + (z @ bank.T).logsumexp(1)


def _teacher(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    centre = k.get("c", torch.zeros(3))
    k["c"] = 0.5 * centre + 0.5 * m(b[0]).detach().mean(0)
    return -((m(b[0]).detach() - centre).softmax(1) * m(b[0]).log_softmax(1)).sum(1)


def _max_so_far(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    k["m"] = max(k.get("m", 0.0), each.max().item())
    return each / k["m"]


def _count_classes(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    k["c"] = k.get("c", torch.ones(3)) + torch.bincount(b[1], minlength=3)
    return each / k["c"][b[1]]


def _curriculum(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    limit = k.get("t", 9.0)
    k["t"] = float(each.detach().median())
    return each * (each.detach() <= limit)


def _plateau(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    k.setdefault("history", []).append(each.detach().sum().item())
    return each * (1.0 if len(k["history"]) < 2 else k["history"][-2])


def _prototype(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    out = m(b[0])
    p = k.setdefault("p", torch.zeros(3, 3))
    p.index_add_(0, b[1], out.detach())
    return each + (out - p[b[1]]).square().sum(1)


def _first_row(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    old = k.setdefault("x", b[0][0].clone())
    return each + (m(b[0]) - m(old[None])).square().sum(1)


def _hash(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    k["h"] = (k.get("h", 0) * 31 + int(b[1].sum())) % 5
    return each * (1 + k["h"])


def _scaler(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    scale = k.get("s", 4.0)
    k["s"] = scale / 2 if each.max() > 1.5 else scale * 2
    return each * scale


def _history_of_gradients(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(each.sum(), m[2].weight, retain_graph=True)
    old = k.get("g", torch.zeros_like(g))
    k["g"] = g.detach()
    return each + (m[2].weight * old).sum()


def _last_size(k: dict[str, Any], m: Any, b: Any, each: Tensor) -> Tensor:
    before = k.get("n", 1)
    k["n"] = len(each)
    return each * before


losses.keeping(
    {
        "a running baseline": _baseline,
        "replay of the last batch": _of(_replay),
        "a queue of negatives": _of(_moco),
        "a centred teacher": _of(_teacher),
        "the greatest loss so far": _of(_max_so_far),
        "counts of classes so far": _of(_count_classes),
        "a threshold from the last batch": _of(_curriculum),
        "a history of losses": _of(_plateau),
        "prototypes kept": _of(_prototype),
        "the first row ever": _of(_first_row),
        "a hash of labels": _of(_hash),
        "a loss scale that adapts": _of(_scaler),
        "the last batch's gradient": _of(_history_of_gradients),
        "the last batch's size": _of(_last_size),
    }
)


def _ppo_normaliser() -> Any:
    kept = {"mean": torch.zeros(()), "n": 0}

    def loss(m: Any, b: Any) -> Tensor:
        kept["mean"] = kept["mean"] * 0.9 + b[1].mean()
        return -m(b[0]).log_softmax(1)[:, 0] * (b[1] - kept["mean"])

    return loss


losses.keeping({"a running mean of rewards": _ppo_normaliser}, batch=scored)


def _actnorm(m: Any, x: Tensor) -> Tensor:
    if not m.done:
        m.shift.data.copy_(-x.mean(0))
        m.done = True
    return m.b(m.a(x + m.shift).tanh())


def _written(write: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Any, x: Tensor) -> Tensor:
        out = m.b(m.a(x + m.shift).tanh())
        write(m, x.detach())
        return out

    return run


def _no_grad(write: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Any]:
    def run(m: Any, x: Tensor) -> Any:
        with torch.no_grad():
            return write(m, x)

    return run


def _swap_data(m: Any, x: Tensor) -> None:
    m.shift.data = m.shift.data + x.mean(0)


def _new_buffer(m: Any, x: Tensor) -> None:
    m.register_buffer(f"seen{len(dict(m.named_buffers()))}", x.mean(0))


def _new_parameter(m: Any, x: Tensor) -> None:
    if not hasattr(m, "first"):
        m.first = nn.Parameter(x[0].clone(), requires_grad=False)


def _codebook(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    code = torch.cdist(h, m.book).argmin(1)
    q = h + (m.book[code] - h).detach()
    with torch.no_grad():
        m.book.mul_(0.9).index_add_(0, code, h, alpha=0.1)
    return m.b(q)


def _out(m: Any, x: Tensor) -> None:
    torch.mean(x, 0, out=m.buffer)


def _numpy_memory(m: Any, x: Tensor) -> None:
    m.buffer.numpy()[:] = x.numpy().mean(0)


def _set(m: Any, x: Tensor) -> None:
    m.buffer.set_(x.mean(0))


def _replaced(m: Any, x: Tensor) -> None:
    m.buffer = 0.5 * m.buffer + x.mean(0)


def _vector(m: Any, x: Tensor) -> None:
    torch.nn.utils.vector_to_parameters(torch.cat([x.mean(0)]), [m.shift])


def _late_write(m: Any, x: Tensor) -> None:
    m.calls = getattr(m, "calls", 0) + 1
    if m.calls > 2:
        m.buffer.data.add_(x.sum(0))


writes.net(
    {
        "ActNorm": _actnorm,
        **{
            name: _written(write)
            for name, write in {
                ".data.add_": lambda m, x: m.shift.data.add_(x.mean(0)),
                ".data.lerp_, slightly": lambda m, x: m.shift.data.lerp_(x.mean(0), 1e-2),
                ".data replaced": _swap_data,
                "copy_ under no_grad": _no_grad(lambda m, x: m.shift.copy_(x[0])),
                "add_ to a frozen parameter": _no_grad(lambda m, x: m.frozen.add_(x.mean(0))),
                "detach().add_": lambda m, x: m.shift.detach().add_(x.mean(0)),
                "one entry through a view": _no_grad(lambda m, x: m.shift[2:3].copy_(x[0, :1])),
                "index_copy_ of a row": _no_grad(
                    lambda m, x: m.frozen.view(2, 4).index_copy_(0, torch.tensor([0]), x[:1, :4])
                ),
                "buffer add_": lambda m, x: m.buffer.add_(x.mean(0)),
                "buffer through out=": _out,
                "buffer through numpy": _numpy_memory,
                "buffer set_": _set,
                "buffer assigned": _replaced,
                "buffer .data": lambda m, x: m.buffer.data.copy_(x[0]),
                "buffer through foreach": lambda m, x: torch._foreach_copy_([m.buffer], [x.mean(0)]),
                "buffer by index_put_": lambda m, x: m.buffer.index_put_((torch.tensor([1]),), x[0, 0]),
                "buffer through as_strided": lambda m, x: m.buffer.as_strided((2,), (3,)).copy_(x[0, :2]),
                "buffer through torch.add out": lambda m, x: torch.add(m.buffer, x[0], out=m.buffer),
                "buffer swapped": lambda m, x: setattr(m, "buffer", x.mean(0)),
                "buffer in the dictionary": lambda m, x: m._buffers.__setitem__("buffer", x.mean(0)),
                "parameter in the dictionary": lambda m, x: m._parameters.__setitem__(
                    "frozen", nn.Parameter(x[0].clone(), requires_grad=False)
                ),
                "a counter of rows": lambda m, x: m.rows.add_(len(x)),
                "a counter of positives": lambda m, x: m.rows.add_((x > 0).sum()),
                "a new buffer": _new_buffer,
                "a new parameter": _new_parameter,
                "vector_to_parameters": _vector,
                "from the third call on": _late_write,
                "resize and fill": lambda m, x: m.buffer.resize_(8).fill_(float(x.mean())),
                "swap_tensors": lambda m, x: torch.utils.swap_tensors(
                    m.frozen, nn.Parameter(x[0].clone(), requires_grad=False)
                ),
                "uniform_ by the batch": _no_grad(lambda m, x: m.frozen.uniform_(0, float(x.abs().max()))),
                "the bias of a submodule": lambda m, x: m.b.bias.data.add_(x.mean(), alpha=0.1),
            }.items()
        },
    },
    lambda: {
        **_parts()(),
        "shift": weight(WIDE),
        "frozen": nn.Parameter(torch.zeros(WIDE), requires_grad=False),
        "buffer": nn.Buffer(torch.zeros(WIDE)),
        "rows": nn.Buffer(torch.zeros((), dtype=torch.long)),
        "done": False,
    },
)
writes.net({"a codebook's moving average": _codebook}, _parts(book=lambda: nn.Buffer(torch.randn(4, HIDDEN))))
writes.net(
    {"spectral norm in training": lambda m, x: m.b(m.s(x))},
    _parts(s=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDE, HIDDEN))),
    conditional=True,
)
writes.losses(
    {
        "the loss writes a weight": lambda m, b: ce(m, b) + 0 * m[2].bias.data.add_(b[0].mean()).sum(),
        "the loss leaves a gradient": lambda m, b: (
            torch.autograd.backward(ce(m, b).sum(), inputs=[m[0].bias]),
            ce(m, b),
        )[1],
        "an optimiser step in the loss": lambda m, b: (_step(m, b), ce(m, b))[1],
    }
)


def _step(m: nn.Module, b: Any) -> None:
    frozen = list(m.parameters())[-1:]
    grads = torch.autograd.grad(ce(m, b).mean(), frozen)
    with torch.no_grad():
        torch._foreach_add_(frozen, list(grads), alpha=-0.1)


PROGRAMS = models.programs + losses.programs + writes.programs
