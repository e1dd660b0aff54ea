"""Models and losses that must be refused: one for each reason in the table of docs/reference/coverage.md."""

from collections.abc import Callable
from typing import Any

import torch
from clipping_cases import Made, loss, normal
from torch import Tensor, nn
from torch.nn import functional

Probe = Callable[[int], tuple[nn.Module, Any, Any]]


class Doubled(torch.autograd.Function):
    """A use of a parameter that no torch function shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight * 2

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return d * weight * 2, (d * x * 2).sum(0)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.detach().sum(0))
        return self.layer(x)


def _rows(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


def around(run: Callable[[Any, Tensor], Tensor], **parts: Any) -> Probe:
    return lambda rows: (Made(run, layer=nn.Linear(4, 3), **parts), loss, _rows(rows))


def losing(wrong: Callable[[nn.Module, Any], Any]) -> Probe:
    return lambda rows: (nn.Linear(4, 3), wrong, _rows(rows))


def _overwritten(m: Any, x: Tensor) -> Tensor:
    hidden = x * 2
    out = m.layer(hidden)
    hidden.mul_(3)
    return out


def _contrastive(model: nn.Module, batch: Any) -> Tensor:
    z = functional.normalize(model(batch[0]), dim=1)
    return functional.cross_entropy(z @ z.t(), torch.arange(len(z)), reduction="none")


def _hooked(rows: int) -> tuple[nn.Module, Any, Any]:
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda gradient: gradient * 2)
    return model, loss, _rows(rows)


def _spectral(rows: int) -> tuple[nn.Module, Any, Any]:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), loss, _rows(rows)


def _traced(rows: int) -> tuple[nn.Module, Any, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    return torch.jit.trace(model, _rows(rows)[0]), loss, _rows(rows)


REFUSALS: dict[str, Probe] = {
    "statistics of the batch": around(lambda m, x: m.layer((x - x.mean(0)) / x.std(0))),
    "division by the batch size": around(lambda m, x: m.layer(x) / x.shape[0]),
    "attention over the batch": around(lambda m, x: torch.softmax(m.a(x) @ x.t(), 1) @ m.layer(x), a=nn.Linear(4, 4)),
    "rows moved to other examples": around(lambda m, x: m.layer(x).roll(1, 0)),
    "a contrastive loss": losing(_contrastive),
    "a loss averaged over the batch": losing(lambda m, b: functional.cross_entropy(m(b[0]), b[1])),
    "a loss that is detached": losing(lambda m, b: loss(m, b).detach()),
    "a custom autograd function": around(lambda m, x: m.layer(Doubled.apply(x, m.scale)), scale=normal(4)),
    "an input overwritten after its use": around(_overwritten),
    "a hook on a parameter": _hooked,
    "a buffer written in the forward pass": lambda rows: (Counting(), loss, _rows(rows)),
    "spectral norm in training mode": _spectral,
    "a traced or scripted model": _traced,
    "torch.func.vmap in the model": around(lambda m, x: torch.func.vmap(lambda row: m.layer(row))(x)),
}  # fmt: skip
