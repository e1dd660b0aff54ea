"""One small model for each torch operation that can take a parameter directly, in several forms and layouts."""

from collections.abc import Callable
from typing import Any

import torch
from clipping_cases import Case, Made, channels_last, normal
from torch import Tensor, nn
from torch.nn import functional

Run = Callable[[Any, Tensor], Tensor]


def with_layer(run: Run, shape: tuple[int, ...] = (5, 4), **parts: Any) -> Case:
    """``run`` after a linear layer, so that gradients reach what is before it, and with a head of three."""

    def build() -> nn.Module:
        made = {name: part() for name, part in parts.items()}
        return Made(lambda m, x: m.head(run(m, m.first(x))), first=nn.Linear(4, 4), head=nn.Linear(4, 3), **made)

    return Case(build, shape)


def vector(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: normal(*shape)


def positive(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(1.5 + torch.rand(*shape))


class Written(nn.Module):
    """An operation that writes into its first argument."""

    def __init__(self, run: Callable[[Tensor, Tensor], Any], make: Callable[[], nn.Parameter]) -> None:
        super().__init__()
        self.first, self.head, self.p = nn.Linear(4, 4), nn.Linear(4, 3), make()
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self._run(hidden, self.p)
        return self.head(hidden)


def in_place(run: Callable[[Tensor, Tensor], Any], make: Callable[[], nn.Parameter]) -> Case:
    return Case(lambda: Written(run, make), (5, 4))


def columns(run: Run) -> Run:
    """``run`` with the examples in the second dimension."""
    return lambda m, x: run(m, x.transpose(0, 1)).transpose(0, 1)


def folded(run: Run) -> Run:
    return lambda m, x: run(m, x.flatten(0, 1)).unflatten(0, (-1, x.shape[1]))


def interleaved(run: Run) -> Run:
    return lambda m, x: run(m, x.transpose(0, 1).flatten(0, 1)).unflatten(0, (x.shape[1], -1)).transpose(0, 1)


def transposed_case(dimensions: int, **settings: Any) -> Case:
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1]
    size = (7, 4, 3)[dimensions - 1]
    return Case(lambda: channels_last(kind(4, 6, **settings)), (4, *[size] * dimensions), outputs=6)


def added(m: Any, x: Tensor) -> Tensor:
    return x + m.p


def scaled(m: Any, x: Tensor) -> Tensor:
    return x * m.p


def _read_only(x: Tensor) -> Tensor:
    return (x.detach()[..., 0] * 3).long()


OPERATIONS: dict[str, Case] = {
    "add": with_layer(lambda m, x: torch.add(x, m.p, alpha=2), p=vector(5, 4)),
    "add, parameter first": with_layer(lambda m, x: torch.add(m.p, x, alpha=0.5), p=vector(4)),
    "add, columns": with_layer(columns(added), p=vector(5, 1, 4)),
    "add, folded": with_layer(folded(added), p=vector(4)),
    "add, interleaved": with_layer(interleaved(added), p=vector(1, 4)),
    "add, one number": with_layer(added, p=lambda: nn.Parameter(torch.tensor(0.3))),
    "add, in place": in_place(lambda x, p: x.add_(p), vector(5, 1)),
    "sub": with_layer(lambda m, x: x - m.p, p=vector(1, 5, 1)),
    "sub, parameter first": with_layer(lambda m, x: m.p - x, p=vector(4)),
    "rsub": with_layer(lambda m, x: torch.rsub(x, m.p, alpha=2), p=vector(4)),
    "rsub of the parameter": with_layer(lambda m, x: torch.rsub(m.p, x, alpha=2), p=vector(4)),
    "mul": with_layer(scaled, p=vector(4)),
    "mul, parameter first": with_layer(lambda m, x: m.p * x, p=vector(5, 1)),
    "mul, columns": with_layer(columns(scaled), p=vector(5, 1, 1)),
    "mul, folded": with_layer(folded(scaled), p=vector(1, 4)),
    "mul, interleaved": with_layer(interleaved(scaled), p=vector(4)),
    "mul, one number": with_layer(scaled, p=lambda: nn.Parameter(torch.tensor(0.7))),
    "mul, in place": in_place(lambda x, p: x.mul_(p), vector(4)),
    "mul, input of fewer dimensions": with_layer(
        lambda m, x: (x[:, 0, None] * m.p[None]), p=vector(5, 4)
    ),
    "div by a parameter": with_layer(lambda m, x: x / m.p, p=positive(4)),
    "div, in place": in_place(lambda x, p: x.div_(p), positive(4)),
    "div of a parameter": with_layer(lambda m, x: m.p / (x.square() + 1), p=vector(5, 4)),
    "pow of a parameter": with_layer(lambda m, x: m.p ** x.tanh(), p=positive(4)),
    "pow by a parameter": with_layer(lambda m, x: (x.square() + 1).pow(m.p), p=vector(4)),
    "maximum": with_layer(lambda m, x: torch.maximum(x, m.p), p=vector(4)),
    "minimum": with_layer(lambda m, x: torch.minimum(m.p, x), p=vector(5, 4)),
    "lerp": with_layer(lambda m, x: torch.lerp(x, m.p, m.q), p=vector(4), q=positive(5, 1)),
    "where, parameter second": with_layer(
        lambda m, x: torch.where(x > 0, m.p, x), p=vector(4)
    ),
    "where, parameter third": with_layer(
        lambda m, x: torch.where(x[..., :1] > 0, x, m.p), p=vector(1, 1, 4)
    ),
    "where, method": with_layer(lambda m, x: x.where(x > 0, m.p), p=vector(4)),
    "where, number": with_layer(lambda m, x: x + torch.where(x > 0, m.p, 0.0), p=vector(4)),
    "masked_fill": with_layer(
        lambda m, x: x.masked_fill(x > 0.5, m.p), p=lambda: nn.Parameter(torch.tensor(0.2))
    ),
    "addcmul": with_layer(lambda m, x: torch.addcmul(x, x.tanh(), m.p), p=vector(4)),
    "clamp": with_layer(lambda m, x: torch.clamp(x, min=m.p), p=vector(4)),
    "prelu, one slope": with_layer(lambda m, x: functional.prelu(x, m.p), p=vector(1)),
    "prelu, channels": with_layer(lambda m, x: functional.prelu(x, m.p), p=vector(5)),
    "prelu, folded": with_layer(folded(lambda m, x: functional.prelu(x, m.p)), p=vector(4)),
    "expand": with_layer(lambda m, x: torch.cat([m.p.expand(len(x), -1, -1), x], 1), p=vector(1, 2, 4)),
    "expand, columns": with_layer(
        columns(lambda m, x: torch.cat([m.p.expand(-1, x.shape[1], -1), x])), p=vector(2, 1, 4)
    ),
    "repeat": with_layer(lambda m, x: torch.cat([m.p.repeat(len(x), 1, 1), x], 1), p=vector(2, 4)),
    "stack of parameters": with_layer(
        lambda m, x: x @ torch.stack([m.p, m.q])[0] + torch.stack([m.p, m.q]).sum(0), p=vector(4, 4), q=vector(4, 4),
        shape=(4, 4),
    ),
    "cat of parameters": with_layer(lambda m, x: x + torch.cat([m.p, m.q]), p=vector(1, 4), q=vector(4, 4)),
    "matmul from the left": with_layer(lambda m, x: m.p @ x, p=vector(3, 5)),
    "matmul of matrices by head": with_layer(
        lambda m, x: (x.unflatten(-1, (2, 2)).transpose(1, 2) @ m.p).transpose(1, 2).flatten(2), p=vector(2, 2, 2)
    ),
    "matmul with a vector": with_layer(lambda m, x: x * torch.matmul(x, m.p)[..., None], p=vector(4)),
    "mv": with_layer(lambda m, x: x * torch.mv(x[:, 0], m.p)[:, None, None], p=vector(4)),
    "bmm, columns": with_layer(columns(lambda m, x: torch.bmm(x, m.p)), p=vector(5, 4, 4)),
    "baddbmm, columns": with_layer(
        columns(lambda m, x: torch.baddbmm(m.q, x, m.p, beta=0.5, alpha=2)), p=vector(5, 4, 4), q=vector(5, 1, 4)
    ),
    "addmm": with_layer(folded(lambda m, x: torch.addmm(m.q, x, m.p)), p=vector(4, 4), q=vector(4)),
    "addmm, scaled": with_layer(
        folded(lambda m, x: torch.addmm(m.q, x, m.p, beta=0.5, alpha=2)), p=vector(4, 4), q=vector(1, 4)
    ),
    "addmm, one vector an example": with_layer(
        lambda m, x: x + m.q.addmm(x[:, 0], m.p)[:, None], p=vector(4, 4), q=vector(4)
    ),
    "einsum": with_layer(lambda m, x: torch.einsum("bti,oi->bto", x, m.p), p=vector(4, 4)),
    "einsum, ellipsis": with_layer(lambda m, x: torch.einsum("...i,...oi->...o", x, m.p), p=vector(4, 4)),
    "einsum, implicit": with_layer(lambda m, x: torch.einsum("bti,io", x, m.p).transpose(1, 2), p=vector(4, 4)),
    "einsum, three operands": with_layer(
        lambda m, x: torch.einsum("bti,ri,ro->bto", x, m.p, m.q), p=vector(2, 4), q=vector(2, 4)
    ),
    "einsum, columns": with_layer(columns(lambda m, x: torch.einsum("tbi,tio->tbo", x, m.p)), p=vector(5, 4, 4)),
    "einsum, folded": with_layer(folded(lambda m, x: torch.einsum("ni,io->no", x, m.p)), p=vector(4, 4)),
    "einsum, interleaved": with_layer(interleaved(lambda m, x: torch.einsum("ni,io->no", x, m.p)), p=vector(4, 4)),
    "einsum of one example's two": with_layer(
        lambda m, x: torch.einsum("bti,bsi,ts->bti", x, x.tanh(), m.p), p=vector(5, 5)
    ),
    "einsum, diagonal": with_layer(lambda m, x: torch.einsum("bti,ii->bti", x, m.p), p=vector(4, 4)),
    "einsum, summed parameter": with_layer(lambda m, x: torch.einsum("bti,oi->bti", x, m.p), p=vector(3, 4)),
    "bilinear": with_layer(
        lambda m, x: functional.bilinear(x, x.tanh(), m.p, m.q), p=vector(4, 4, 4), q=vector(4)
    ),
    "linear of one output": with_layer(lambda m, x: x * functional.linear(x, m.p)[..., None], p=vector(4)),
    "rows by ids": with_layer(lambda m, x: x + m.p[_read_only(x) % 6], p=vector(6, 4)),
    "rows by ids from the end": with_layer(lambda m, x: x + m.p[_read_only(x) % 3 - 6], p=vector(6, 4)),
    "index_select": with_layer(
        folded(lambda m, x: x + m.p.index_select(0, _read_only(x) % 6)), p=vector(6, 4)
    ),
    "numbers by ids": with_layer(lambda m, x: x + m.p[_read_only(x) % 6][..., None], p=vector(6)),
    "first rows of a table": with_layer(lambda m, x: x + m.p[: x.shape[1]], p=vector(9, 4)),
    "position table of distinct ids": with_layer(
        lambda m, x: x + m.t(torch.arange(5)[None]), t=lambda: nn.Embedding(9, 4)
    ),
    "position table of ids that repeat": with_layer(
        lambda m, x: x + m.t(torch.tensor([0, 1, 1, 3, 0])), t=lambda: nn.Embedding(9, 4)
    ),
    "position table with padding": with_layer(
        lambda m, x: x + m.t(torch.arange(5)), t=lambda: nn.Embedding(9, 4, padding_idx=2)
    ),
    "position table, sparse": with_layer(
        lambda m, x: x + m.t(torch.arange(5)), t=lambda: nn.Embedding(9, 4, sparse=True)
    ),
    "relative positions by a buffer of ids": with_layer(
        lambda m, x: (x @ x.transpose(1, 2) + m.p[(torch.arange(5)[:, None] - torch.arange(5)).abs()]).softmax(-1) @ x,
        p=vector(5),
    ),
    "a vector as long as the inputs": with_layer(lambda m, x: x + m.p.expand_as(x), p=vector(4)),
    "a matrix in the shape of the inputs": with_layer(lambda m, x: x + m.p.view_as(x[0]), p=vector(20)),
    "attention with a learned bias": with_layer(
        lambda m, x: functional.scaled_dot_product_attention(x, x.tanh(), x, attn_mask=m.p), p=vector(5, 5)
    ),
    "attention with learned keys": with_layer(
        lambda m, x: functional.scaled_dot_product_attention(x, m.k, m.v), k=vector(1, 3, 4), v=vector(1, 3, 4)
    ),
    "conv_transpose1d": transposed_case(1, kernel_size=3, stride=2, padding=1, output_padding=1),
    "conv_transpose1d dilated": transposed_case(1, kernel_size=2, dilation=4, output_padding=3),
    "conv_transpose2d groups": transposed_case(2, kernel_size=(2, 3), stride=(3, 2), padding=(1, 0), groups=2),
    "conv_transpose2d without bias": transposed_case(2, kernel_size=2, stride=2, bias=False),
    "conv_transpose3d": transposed_case(3, kernel_size=2, stride=2),
    "conv_transpose2d folded": Case(
        lambda: Made(
            lambda m, x: m.conv(x.flatten(0, 1)).mean((2, 3)).reshape(x.shape[0], -1, 3),
            conv=nn.ConvTranspose2d(2, 3, 2),
        ),
        (3, 2, 4, 4),
    ),
    "conv2d circular": Case(
        lambda: channels_last(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")), (2, 5, 5)
    ),
    "conv2d replicated": Case(
        lambda: channels_last(nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate")), (2, 5, 5)
    ),
    "pixel shuffle": Case(
        lambda: channels_last(nn.Sequential(nn.Conv2d(2, 12, 3), nn.PixelShuffle(2), nn.Conv2d(3, 3, 2))), (2, 5, 5)
    ),
    "upsample": Case(
        lambda: channels_last(
            nn.Sequential(nn.Conv2d(2, 4, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(4, 3, 2))
        ),
        (2, 5, 5),
    ),
    "a parameter read as complex numbers": with_layer(
        lambda m, x: torch.fft.irfft(torch.fft.rfft(x, n=4) * torch.view_as_complex(m.p), n=4), p=vector(3, 2)
    ),
}  # fmt: skip
