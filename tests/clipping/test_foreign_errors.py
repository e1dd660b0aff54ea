"""Programs at which an error of torch's own came out of the engine once: each is exact, or refused in our words."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import DecrescendoError, InvalidValue


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.lstm = nn.Linear(4, 3), nn.LSTM(4, 3, batch_first=True)
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.real, self.imaginary = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3))


def square(out: Tensor) -> Tensor:
    return (torch.view_as_real(out) if out.is_complex() else out).flatten(1).square().sum(1)


def ids(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long()


def several(x: Tensor) -> Tensor:
    return torch.stack([ids(x), 1 + 0 * ids(x), -1 + 0 * ids(x)], 1)


EXACT: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "multi_margin_loss": lambda m, x: fn.multi_margin_loss(m.layer(x), ids(x), reduction="none"),
    "multilabel_margin_loss": lambda m, x: fn.multilabel_margin_loss(
        m.layer(x), several(x), reduction="none"
    ),
    "a sparse buffer, made dense": lambda m, x: square(m.layer(x) @ m.sparse.to_dense()),
    "complex": lambda m, x: square(torch.fft.fft(x) @ torch.complex(m.real, m.imaginary)),
    "a sum of parts": lambda m, x: square(torch.fft.fft(x) @ (m.real + 1j * m.imaginary)),
    "polar": lambda m, x: square(torch.fft.fft(x) @ torch.polar(m.real, m.imaginary)),
    "view_as_complex": lambda m, x: square(
        torch.fft.fft(x) @ torch.view_as_complex(torch.stack([m.real, m.imaginary], -1))
    ),
    "vjp": lambda m, x: square(m.layer(x) * torch.func.vjp(_cubes, x)[1](torch.ones_like(x[:, 0]))[0][:, :1]),
    "a Jacobian of each": lambda m, x: square(
        m.layer(x) * torch.func.vmap(torch.func.jacrev(torch.sin))(x).sum((1, 2))[:, None]
    ),
    "a complex factor": lambda m, x: square(torch.fft.fft(x) * torch.complex(m.real, m.imaginary)[:, 0]),
}


def _cubes(x: Tensor) -> Tensor:
    return (x**3).sum(1)


REFUSED: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "multi_margin_loss": lambda m, x: fn.multi_margin_loss(m.layer(x), ids(x)).expand(len(x)),
    "its sum": lambda m, x: fn.multi_margin_loss(m.layer(x), ids(x), reduction="sum").expand(len(x)),
    "multilabel_margin_loss": lambda m, x: fn.multilabel_margin_loss(m.layer(x), several(x)).expand(len(x)),
    "vjp of a sum": lambda m, x: square(
        m.layer(x) * torch.func.vjp(lambda z: z.sum() ** 2, x)[1](torch.ones(()))[0][:, :1]
    ),
    "linearize": lambda m, x: square(m.layer(x) * torch.func.linearize(_cubes, x)[1](x)[:, None]),
    "packed for a quantized product": lambda m, x: square(
        m.layer(x)
        * torch.ops.quantized.linear_dynamic(
            torch.eye(4),
            torch.ops.quantized.linear_prepack(
                torch.quantize_per_tensor(x[:1].expand(8, 4).contiguous(), 0.5, 0, torch.qint8), None
            ),
        ).sum()
    ),
    "one loss for all": lambda m, x: fn.multi_margin_loss(m.layer(x), ids(x)),
    "_foreach_max": lambda m, x: square(m.layer(x)) * torch._foreach_max([x])[0],
    "a product with a sparse buffer": lambda m, x: square(torch.sparse.mm(m.sparse, m.layer(x).T).T),
    "a checkpoint round a recurrent layer": lambda m, x: square(
        checkpoint(lambda t: m.lstm(t)[0], x.unsqueeze(1).expand(-1, 5, -1), use_reentrant=False)
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_it_is_exact(name: str) -> None:
    model = Small()
    engine, reference = Engine(model, EXACT[name]), Reference(model, EXACT[name])
    for rows in (6, 3, 1):
        batch = torch.randn(rows, 4)
        found, slow = (each.clipped_sum(batch, 0.5).gradients for each in (engine, reference))
        for key, gradient in slow.items():
            torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_our_own_words(name: str) -> None:
    with pytest.raises(DecrescendoError):
        Engine(Small(), REFUSED[name]).clipped_sum(torch.randn(6, 4), 0.5)


def test_a_sparse_batch_is_refused() -> None:
    with pytest.raises(InvalidValue, match="must be dense"):
        Engine(Small(), lambda m, x: square(m.layer(x.to_dense()))).clipped_sum(
            torch.randn(6, 4).to_sparse(), 1.0
        )
