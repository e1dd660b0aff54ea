"""Small models, one for each thing that the clipping engine must get right."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint


class Made(nn.Module):
    """A model from a function and its submodules and parameters: keeps the cases below to one line each."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(self, x)


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross entropy after the mean over everything between the batch and the last dimension."""
    x, label = batch
    out = model(x)
    if out.dim() > 2:
        out = out.flatten(1, -2).mean(1)
    return functional.cross_entropy(out, label, reduction="none")


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    vocabulary: int = 0
    outputs: int = 3

    def make(self, dtype: torch.dtype, batch: int, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.build().to(dtype)
            for parameter in model.parameters():  # unit gains and zero biases would hide mistakes
                parameter.data += 0.1 * torch.randn_like(parameter)
            if self.vocabulary:
                x = torch.randint(self.vocabulary, (batch, *self.shape))
            else:
                x = torch.randn(batch, *self.shape, dtype=dtype)
            return model, (x, torch.randint(self.outputs, (batch,)))


def normal(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(*shape))


def frozen(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def channels_last(model: nn.Module) -> nn.Module:
    """The mean over places, with channels as the last dimension."""
    return nn.Sequential(model, Made(lambda m, x: x.flatten(2).transpose(1, 2)))


def tied() -> nn.Module:
    table = nn.Embedding(7, 4)
    out = nn.Linear(4, 7)
    out.weight = table.weight
    return nn.Sequential(table, nn.Tanh(), out)


def conv_case(dimensions: int, **settings: Any) -> Case:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    size = (9, 7, 5)[dimensions - 1]
    return Case(lambda: channels_last(kind(4, 6, **settings)), (4, *[size] * dimensions), outputs=6)


CASES: dict[str, Case] = {
    "linear": Case(lambda: nn.Linear(5, 3), (5,)),
    "linear without bias": Case(lambda: nn.Linear(5, 3, bias=False), (5,)),
    "linear, frozen weight": Case(
        lambda: Made(
            lambda m, x: functional.linear(x, m.layer.weight, m.bias),
            layer=frozen(nn.Linear(5, 3, bias=False)),
            bias=normal(3),
        ),
        (5,),
    ),
    "deep": Case(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), (5,)),
    "frozen first": Case(lambda: nn.Sequential(frozen(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3)), (5,)),
    "frozen last": Case(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), frozen(nn.Linear(8, 3))), (5,)),
    "sequence, Gram": Case(lambda: nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3)), (2, 20)),
    "sequence, product": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (30, 4)),
    "sequence, two dimensions": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (3, 4, 4)),
    "folded": Case(
        lambda: Made(lambda m, x: m.layer(x.reshape(-1, 4)).reshape(-1, 6, 3), layer=nn.Linear(4, 3)), (6, 4)
    ),
    "columns": Case(lambda: Made(lambda m, x: m.layer(x.transpose(0, 1)).mean(0), layer=nn.Linear(4, 3)), (6, 4)),
    "interleaved": Case(
        lambda: Made(
            lambda m, x: m.layer(x.transpose(0, 1).reshape(-1, 4)).reshape(6, -1, 3).mean(0),
            layer=nn.Linear(4, 3),
        ),
        (6, 4),
    ),
    "conv1d": conv_case(1, kernel_size=3, stride=2, padding=1),
    "conv1d same, even, dilated": conv_case(1, kernel_size=4, padding="same", dilation=2),
    "conv1d same, uneven": conv_case(1, kernel_size=4, padding="same"),
    "conv2d same, uneven": conv_case(2, kernel_size=(2, 3), padding="same", dilation=(3, 1)),
    "conv2d": conv_case(2, kernel_size=3),
    "conv2d valid, no bias": conv_case(2, kernel_size=(3, 2), padding="valid", bias=False),
    "conv2d stride pad dilation groups": conv_case(
        2, kernel_size=(2, 3), stride=(2, 1), padding=(1, 2), dilation=2, groups=2
    ),
    "conv2d reflected": conv_case(2, kernel_size=3, padding=1, padding_mode="reflect"),
    "conv2d depthwise": Case(lambda: channels_last(nn.Conv2d(4, 8, 3, groups=4)), (4, 6, 6), outputs=8),
    "conv3d": conv_case(3, kernel_size=2, stride=2, padding=1),
    "conv folded": Case(
        lambda: Made(
            lambda m, x: m.conv(x.flatten(0, 1)).mean((2, 3)).reshape(x.shape[0], -1, 3),
            conv=nn.Conv2d(2, 3, 2),
        ),
        (3, 2, 4, 4),
    ),
    "embedding": Case(lambda: nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(40, 3)), (10,), 6),
    "embedding with padding": Case(
        lambda: nn.Sequential(nn.Embedding(6, 4, padding_idx=-4), nn.Flatten(), nn.Linear(40, 3)), (10,), 6
    ),
    "embedding, two dimensions of ids": Case(
        lambda: nn.Sequential(nn.Embedding(6, 4), nn.Tanh(), nn.Linear(4, 3)), (3, 5), 6
    ),
    "tied embedding": Case(tied, (5,), 7, outputs=7),
    "layer norm": Case(lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)), (5,)),
    "layer norm of a sequence": Case(lambda: nn.Sequential(nn.LayerNorm((4, 6)), nn.Linear(6, 3)), (2, 4, 6)),
    "rms norm": Case(lambda: nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 3)), (4, 6)),
    "group norm": Case(
        lambda: channels_last(nn.Sequential(nn.Conv2d(2, 6, 2), nn.GroupNorm(3, 6))), (2, 4, 4), outputs=6
    ),
    "instance norm": Case(
        lambda: channels_last(nn.Sequential(nn.InstanceNorm2d(2, affine=True), nn.Tanh(), nn.Conv2d(2, 3, 2))),
        (2, 4, 4),
    ),
    "batch norm in evaluation": Case(
        lambda: channels_last(nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4).eval(), nn.ReLU(inplace=True))),
        (2, 4, 4),
        outputs=4,
    ),
    "scale and shift": Case(lambda: Made(lambda m, x: x * m.scale + m.shift, scale=normal(3), shift=normal(3)), (3,)),
    "in-place scale": Case(
        lambda: Made(
            lambda m, x: m.layer(x).mul_(m.scale).add_(m.shift),
            layer=nn.Linear(4, 3),
            scale=normal(3),
            shift=normal(3),
        ),
        (4,),
    ),
    "positions": Case(
        lambda: Made(lambda m, x: m.layer(x + m.places), layer=nn.Linear(4, 3), places=normal(5, 4)), (5, 4)
    ),
    "position table": Case(
        lambda: Made(
            lambda m, x: m.layer(x + m.table(torch.arange(x.shape[1]))),
            layer=nn.Linear(4, 3),
            table=nn.Embedding(6, 4),
        ),
        (5, 4),
    ),
    "class token": Case(
        lambda: Made(
            lambda m, x: m.layer(torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1)).tanh(),
            layer=nn.Linear(4, 3),
            token=normal(1, 1, 4),
        ),
        (5, 4),
    ),
    "matmul": Case(lambda: Made(lambda m, x: torch.tanh(x @ m.a) @ m.b, a=normal(4, 5), b=normal(5, 3)), (4,)),
    "matmul of a transposed": Case(
        lambda: Made(lambda m, x: x @ m.a.t() + m.b[0], a=normal(3, 4), b=normal(2, 3)), (6, 4)
    ),
    "einsum": Case(lambda: Made(lambda m, x: torch.einsum("bti,oi->bto", x, m.a).relu(), a=normal(3, 4)), (5, 4)),
    "bilinear": Case(lambda: Made(lambda m, x: m.layer(x, x.tanh()), layer=nn.Bilinear(4, 4, 3)), (4,)),
    "recurrent cell": Case(
        lambda: Made(lambda m, x: m.out(m.cell(x[:, 1], m.cell(x[:, 0]))), cell=nn.GRUCell(4, 4), out=nn.Linear(4, 3)),
        (2, 4),
    ),
    "lstm": Case(
        lambda: Made(lambda m, x: m.out(m.layer(x)[0]), layer=nn.LSTM(4, 3, batch_first=True), out=nn.Linear(3, 3)),
        (5, 4),
    ),
    "gru, two layers, both directions, steps first": Case(
        lambda: Made(
            lambda m, x: m.out(m.layer(x.transpose(0, 1))[0].mean(0)),
            layer=nn.GRU(4, 3, 2, bidirectional=True),
            out=nn.Linear(6, 3),
        ),
        (5, 4),
    ),
    "lstm cell": Case(
        lambda: Made(
            lambda m, x: m.out(m.cell(x[:, 1], m.cell(x[:, 0]))[0]),
            cell=nn.LSTMCell(4, 4),
            out=nn.Linear(4, 3),
        ),
        (2, 4),
    ),
    "recurrent layer from a trained state": Case(
        lambda: Made(
            lambda m, x: m.out(m.layer(x, m.first.expand(-1, x.shape[0], -1))[1][0]),
            layer=nn.RNN(4, 3, batch_first=True),
            first=normal(1, 1, 3),
            out=nn.Linear(3, 3),
        ),
        (5, 4),
    ),
    "packed lstm": Case(
        lambda: Made(lambda m, x: m.out(m.layer(_packed(x))[1][0][0]), layer=nn.LSTM(4, 3), out=nn.Linear(3, 3)),
        (5, 4),
    ),
    "bag of embeddings": Case(lambda: nn.Sequential(nn.EmbeddingBag(6, 4), nn.Linear(4, 3)), (5,), 6),
    "bag of embeddings, maxima": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(6, 4, mode="max", padding_idx=2), nn.Linear(4, 3)), (5,), 6
    ),
    "low rank adaptation": Case(
        lambda: Made(
            lambda m, x: m.base(x) + x @ m.a @ m.b,
            base=frozen(nn.Linear(4, 3)),
            a=normal(4, 2),
            b=normal(2, 3),
        ),
        (4,),
    ),
    "checkpointed": Case(
        lambda: Made(
            lambda m, x: m.out(checkpoint(m.inner, x, use_reentrant=False)),
            inner=nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)),
            out=nn.Linear(4, 3),
        ),
        (4,),
    ),
    "attention in separate projections": Case(
        lambda: Made(
            lambda m, x: functional.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x)),
            q=nn.Linear(4, 4),
            k=nn.Linear(4, 4),
            v=nn.Linear(4, 3),
        ),
        (5, 4),
    ),
    "filter in frequencies": Case(
        lambda: Made(
            lambda m, x: torch.fft.irfft(torch.fft.rfft(m.layer(x)) * m.w, n=4),
            layer=nn.Linear(4, 4),
            w=normal(3),
        ),
        (4,),
    ),
    "rows of a parameter": Case(lambda: Made(lambda m, x: m.w[x[:, 0]] + m.w[x[:, 1]], w=normal(6, 3)), (2,), 6),
    "masked by a constant": Case(
        lambda: Made(
            lambda m, x: m.out(torch.where(torch.ones(5, 4).tril() > 0, x, m.w)),
            w=normal(4),
            out=nn.Linear(4, 3),
        ),
        (5, 4),
    ),
    "weighted by a buffer": Case(lambda: _weighted_places(), (5, 4)),
    "prelu": Case(lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), (4,)),
    "transposed convolution": Case(lambda: channels_last(nn.ConvTranspose2d(2, 3, 2, stride=2)), (2, 3, 3)),
    "weight norm": Case(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    "slices of a weight": Case(
        lambda: Made(
            lambda m, x: functional.linear(
                functional.linear(x, *[p.chunk(2)[0] for p in (m.w, m.b)]).tanh(), m.w.chunk(2)[1]
            ),
            w=normal(8, 4),
            b=normal(8),
        ),
        (4,),
        outputs=4,
    ),
    "used twice": Case(
        lambda: Made(lambda m, x: m.out(m.layer(m.layer(x).tanh())), layer=nn.Linear(4, 4), out=nn.Linear(4, 3)),
        (4,),
    ),
    "unrolled recurrence": Case(
        lambda: Made(lambda m, x: m.out(_unroll(m.cell, x)), cell=nn.Linear(6, 4), out=nn.Linear(4, 3)),
        (5, 2),
    ),
    "unused parameter": Case(lambda: Made(lambda m, x: m.a(x), a=nn.Linear(4, 3), b=nn.Linear(4, 3)), (4,)),
    "self attention": Case(
        lambda: Made(lambda m, x: m.a(x, x, x, need_weights=False)[0], a=nn.MultiheadAttention(4, 2, batch_first=True)),
        (5, 4),
        outputs=4,
    ),
    "attention with a trained key and value, steps first": Case(
        lambda: Made(
            lambda m, x: m.a(*[x.transpose(0, 1)] * 3, need_weights=False)[0].transpose(0, 1),
            a=nn.MultiheadAttention(4, 2, add_bias_kv=True),
        ),
        (5, 4),
        outputs=4,
    ),
    "transformer layer": Case(
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Linear(4, 3)),
        (5, 4),
    ),
}


def _unroll(cell: nn.Module, x: Tensor) -> Tensor:
    state = x.new_zeros(x.shape[0], 4)
    for t in range(x.shape[1]):
        state = torch.tanh(cell(torch.cat([x[:, t], state], 1)))
    return state


def _packed(x: Tensor) -> PackedSequence:
    """Of lengths that differ with the data, in any order."""
    return pack_padded_sequence(x, (x[..., 0] > 0).sum(1).clamp(min=1), True, enforce_sorted=False)


def _weighted_places() -> nn.Module:
    """A buffer as long as some batches: it has no row of any of them."""
    model = Made(lambda m, x: torch.einsum("bti,oi,t->bto", x, m.w, m.places), w=normal(3, 4))
    model.register_buffer("places", torch.arange(1.0, 6.0))
    return model
