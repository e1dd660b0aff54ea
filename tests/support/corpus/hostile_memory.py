"""Hostile: shared memory, sparse and complex forms, seeds in the pass, and sequences that run over the rows."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.utils import rnn

from corpus.program import CLASSES, HIDDEN, Shelf, ce, labelled, weight

memory = Shelf("views and writes in place over rows")
forms = Shelf("sparse, complex, nested and other forms")
seeds = Shelf("a public seed in the pass")
sequences = Shelf("sequences that run over the rows")


def _shifted(h: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[1:] = h[:-1]
    return h + out


def _written_first(h: Tensor) -> Tensor:
    out = h.clone()
    out[:1] += h[-1:]
    return out


def _accumulated(h: Tensor) -> Tensor:
    out = h.clone()
    for i in range(1, len(h)):
        out[i] = out[i] + 0.5 * out[i - 1].clone()
    return out


def _alias(h: Tensor) -> Tensor:
    """One buffer is written row by row and every row reads the last."""
    box, out = torch.zeros(HIDDEN), []
    for row in h:
        out.append(row + box.clone())
        box.copy_(row.detach())
    return torch.stack(out)


def _buffer(h: Tensor) -> Tensor:
    box = torch.zeros(1, HIDDEN)
    box = box.index_put((torch.zeros(len(h), dtype=torch.long),), h, accumulate=True)
    return h + box / 4


def _last_wins(h: Tensor) -> Tensor:
    table = torch.zeros(3, HIDDEN)
    table[h.argmax(1) % 3] = h.detach()
    return h + table[h.argmax(1) % 3]


def _empty(h: Tensor) -> Tensor:
    out = torch.empty(len(h) + 1, HIDDEN)
    out[:-1] = h
    out[-1] = h.mean(0)
    return out[1:] + h


def _overlap(h: Tensor) -> Tensor:
    flat = h.contiguous().flatten()
    return flat.as_strided((len(h), HIDDEN), (HIDDEN, 1), 0) + fn.pad(flat, (0, 3)).as_strided(
        (len(h), HIDDEN), (HIDDEN, 1), 3
    )


def _swapped(h: Tensor) -> Tensor:
    out = h.clone()
    out[0], out[-1] = h[-1], h[0]
    return out


def _own_input(x: Tensor) -> Tensor:
    x = x.clone()
    x[1:].add_(x[:-1].clone())
    return x


memory.hidden(
    {
        "shifted in place": _shifted,
        "the first row gets the last": _written_first,
        "accumulated in place": _accumulated,
        "one box for all rows": _alias,
        "index_put that accumulates": _buffer,
        "a table written, then read": _last_wins,
        "rows from an empty tensor, one off": _empty,
        "overlapping strides over rows": _overlap,
        "two rows exchanged": _swapped,
        "a transposed view reshaped": lambda h: h.T.reshape(h.shape),
        "a flat view rolled": lambda h: h.reshape(-1).roll(1).view_as(h) + h,
        "a flat view one off": lambda h: fn.pad(h.flatten(), (2, 0))[: h.numel()].view_as(h) + h,
        "rows swapped by index_copy": lambda h: h.index_copy(0, torch.tensor([0]), h[-1:]),
        "slice_scatter of other rows": lambda h: h.slice_scatter(h[: len(h) // 2].flip(0), 0, 0, len(h) // 2),
        "select_scatter": lambda h: h.select_scatter(h[0], 0, len(h) - 1),
        "masked_scatter of rows": lambda h: h.masked_scatter(h > 0, h),
        "scatter along rows": lambda h: torch.zeros_like(h).scatter(0, h.argsort(0), h),
        "index_add with row numbers": lambda h: h.index_add(0, (torch.arange(len(h)) + 1) % len(h), h.tanh()),
        "put at flat places": lambda h: h.put(torch.arange(2), h.flatten()[-2:]),
        "take at flat places": lambda h: h.take((torch.arange(h.numel()) + 3) % h.numel()).view_as(h) + h,
        "block diagonal, rolled": lambda h: torch.block_diag(*h.unbind()).sum(0).view_as(h).roll(1, 0) + h,
        "windows wider than a row": lambda h: fn.pad(h.flatten(), (0, 2)).unfold(0, 7, 5).mean(1, keepdim=True) + h,
        "cartesian product": lambda h: h * (1 + torch.cartesian_prod(h[:, 0], h[:, 1]).mean()),
        "combinations": lambda h: h * (1 + torch.combinations(fn.pad(h[:, 0], (0, 2)), 2).prod(1).sum()),
        "rows as channels of a convolution": lambda h: h + fn.conv1d(h[None], torch.ones(1, len(h), 1))[0] / 5,
        "pixel shuffle over rows": lambda h: (
            h + fn.pixel_unshuffle(fn.pad(h, (0, 1, 0, len(h) % 2))[None, None], 2)[0].mean((0, 1)).mean()
        ),
        "roll over both dimensions": lambda h: h + h.roll((1, 1), (0, 1)),
        "rot90": lambda h: h + torch.rot90(fn.pad(h, (0, 0, 0, 13))[:5], 1, (0, 1))[:1],
        "cat with itself, shifted": lambda h: torch.cat([h[-1:], h])[:-1] + h,
        "movedim and a view": lambda h: (
            h.unsqueeze(1).movedim(0, 2).contiguous().view(len(h), HIDDEN) if len(h) != 5 else h.T
        ),
        "repeat and cut": lambda h: h.repeat(2, 1)[1 : len(h) + 1] + h,
        "vstack of parts": lambda h: torch.vstack([h[1:], h[:1]]) * 2,
        "chunks added": lambda h: h + sum(c.sum(0) for c in h.chunk(4)),
    }
)
memory.inputs({"the batch's own rows added in place": _own_input})


def _in_place_batch(model: Any, b: Any) -> Tensor:
    b[0].sub_(b[0].mean(0))
    return ce(model, b)


def _relabelled(model: Any, b: Any) -> Tensor:
    b[1][:] = b[1].roll(1)
    return ce(model, b)


memory.losses(
    {
        "the batch centred in place": _in_place_batch,
        "labels rolled in place": _relabelled,
        "the batch sorted in place": lambda m, b: ce(m, (b[0].copy_(b[0].sort(0)[0]), b[1])),
        "the batch's memory through numpy": lambda m, b: (
            np.add(b[0].numpy(), b[0].numpy().mean(0), out=b[0].numpy()),
            ce(m, b),
        )[1],
        "the batch normalised with out=": lambda m, b: ce(m, (torch.div(b[0], b[0].norm(), out=b[0]), b[1])),
    }
)


def _sparse_graph(h: Tensor) -> Tensor:
    n = len(h)
    index = torch.stack([torch.arange(n), torch.arange(n).roll(1)])
    return h + torch.sparse_coo_tensor(index, torch.ones(n), (n, n)) @ h


def _csr(h: Tensor) -> Tensor:
    n = len(h)
    return h + torch.sparse.mm(torch.ones(n, n).tril().to_sparse(), h) / 3


def _nested(h: Tensor) -> Tensor:
    both = torch.nested.nested_tensor([h[: len(h) // 2 + 1], h[len(h) // 2 :]])
    return h + both.to_padded_tensor(0.0).sum(0)[:1]


def _complex_rows(h: Tensor) -> Tensor:
    even = fn.pad(h, (0, 0, 0, len(h) % 2))
    z = torch.view_as_complex(torch.stack([even[::2], even[1::2]], -1).contiguous())
    return torch.view_as_real(z * 1j).movedim(-1, 1).reshape(-1, HIDDEN)[: len(h)]


forms.hidden(
    {
        "a sparse graph over rows": _sparse_graph,
        "a sparse triangle": _csr,
        "nested halves": _nested,
        "neighbours as real and imaginary": _complex_rows,
        "Fourier over rows": lambda h: torch.fft.fft(h, dim=0).abs(),
        "real Fourier and back, cut": lambda h: torch.fft.irfft(torch.fft.rfft(h, dim=0)[:2], n=len(h), dim=0),
        "Fourier shift": lambda h: h + torch.fft.fftshift(h),
        "a filter in Fourier space": lambda h: (
            torch.fft.ifft(torch.fft.fft(h, dim=0) * torch.arange(len(h))[:, None], dim=0).real + h
        ),
        "a sparse sum": lambda h: h + torch.sparse.sum(h.to_sparse(), 0).to_dense(),
        "a sparse softmax over rows": lambda h: h + torch.sparse.softmax(h.to_sparse(), 0).to_dense(),
        "complex eigenvalues of the batch": lambda h: (
            h * (1 + torch.linalg.eigvals(h.detach().T @ h.detach()).abs().max())
        ),
        "integers of the batch's scale": lambda h: h + (h / h.abs().max() * 127).to(torch.int8).float() / 127,
        "fake quantisation by the range": lambda h: (
            torch.fake_quantize_per_tensor_affine(h, float(h.detach().abs().max()) / 127, 0, -128, 127) + h
        ),
        "quantised by a learnt-like observer": lambda h: (
            h + torch.quantize_per_tensor(h.detach(), float(h.detach().abs().max()) / 20, 0, torch.qint8).dequantize()
        ),
        "a masked tensor's mean": lambda h: h - (h * (h > 0)).sum(0) / (h > 0).sum(0).clamp(min=1),
        "bit operations on counts": lambda h: h * (1 + ((h > 0).sum() & 3)),
        "a boolean product over rows": lambda h: (
            h + ((h > 0).float() @ (h > 0).float().T > 1).float().sum(1, keepdim=True)
        ),
        "half precision sums": lambda h: h - h.to(torch.bfloat16).sum(0).float() / 9,
        "stft over the flattened batch": lambda h: (
            h * (1 + torch.stft(h.flatten(), 4, window=torch.ones(4), return_complex=True).abs().mean())
        ),
        "a Kronecker of rows": lambda h: torch.kron(h.T @ h, torch.ones(1, 1)).sum(0) / 9 + h,
    }
)


def _seeded(draw: Any) -> Any:
    def f(h: Tensor) -> Tensor:
        torch.manual_seed(11)
        return draw(h)

    return f


def _forked(h: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return h + torch.randn_like(h)


def _numpy_seeded(h: Tensor) -> Tensor:
    return h + torch.from_numpy(np.random.default_rng(3).normal(size=tuple(h.shape))).float()


def _python_seeded(h: Tensor) -> Tensor:
    import random

    numbers = random.Random(8)
    return h * torch.tensor([[numbers.random()] for _ in range(len(h))])


seeds.hidden(
    {
        "dropout": _seeded(lambda h: fn.dropout(h, 0.5)),
        "alpha dropout": _seeded(lambda h: fn.alpha_dropout(h, 0.5, True)),
        "feature dropout": _seeded(lambda h: fn.dropout1d(h[:, :, None], 0.5).squeeze(2)),
        "noise": _seeded(lambda h: h + torch.randn_like(h)),
        "noise by shape": _seeded(lambda h: h + torch.randn(len(h), HIDDEN)),
        "noise in place": _seeded(lambda h: h + torch.empty_like(h).uniform_()),
        "normal around the features": _seeded(lambda h: torch.normal(h.detach(), 1.0) + h),
        "Bernoulli gates": _seeded(lambda h: h * torch.bernoulli(torch.full_like(h, 0.5))),
        "a permutation": _seeded(lambda h: h + h[torch.randperm(len(h))]),
        "multinomial choices": _seeded(lambda h: h + h.detach().softmax(1).multinomial(1)),
        "Gumbel softmax": _seeded(lambda h: fn.gumbel_softmax(h)),
        "random integers": _seeded(lambda h: h * torch.randint(1, 5, (len(h), 1))),
        "rrelu": _seeded(lambda h: fn.rrelu(h, training=True)),
        "one mask of rows": _seeded(lambda h: h * (torch.rand(len(h), 1) < 0.7)),
        "stochastic depth by row": _seeded(lambda h: h + h.tanh() * torch.rand(len(h), 1).round()),
        "attention dropout": _seeded(
            lambda h: fn.scaled_dot_product_attention(h[:, :, None], h[:, :, None], h[:, :, None], dropout_p=0.5)[
                :, :, 0
            ]
        ),
        "a distribution's sample": _seeded(lambda h: h + torch.distributions.Normal(0.0, 1.0).sample(h.shape)),
        "reparametrised": _seeded(lambda h: torch.distributions.Normal(h, h.exp()).rsample()),
        "Poisson counts": _seeded(lambda h: h * torch.poisson(torch.ones_like(h))),
        "a forked generator": _forked,
        "numpy's generator": _numpy_seeded,
        "Python's generator": _python_seeded,
        "a generator with a seed": lambda h: h * torch.rand(h.shape, generator=torch.Generator().manual_seed(1)),
        "a generator, row by row": lambda h: (lambda g: torch.stack([r * torch.rand(1, generator=g) for r in h]))(
            torch.Generator().manual_seed(6)
        ),
        "a generator's permutation": lambda h: (
            h[torch.randperm(len(h), generator=torch.Generator().manual_seed(2))] + h
        ),
        "a Sobol sequence": lambda h: h * torch.quasirandom.SobolEngine(1).draw(len(h) + 1)[1:],
        "a generator seeded by n": lambda h: h * torch.rand(1, generator=torch.Generator().manual_seed(len(h))),
    }
)


def _packed_rows(m: Any, x: Tensor) -> Tensor:
    packed = rnn.pack_sequence([x[:, 0]])
    return m.h(rnn.unpack_sequence(m.g(packed)[0])[0])


def _packed_mixed(m: Any, x: Tensor) -> Tensor:
    packed = rnn.pack_padded_sequence(x, torch.full((len(x),), 3), batch_first=True)
    data = packed.data.roll(1, 0)
    out = m.g(rnn.PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices))[0]
    return m.h(rnn.pad_packed_sequence(out, batch_first=True)[0][:, -1])


def _packed_centred(m: Any, x: Tensor) -> Tensor:
    packed = rnn.pack_padded_sequence(x, torch.full((len(x),), 3), batch_first=True)
    out = m.g(packed._replace(data=packed.data - packed.data.mean(0)))[0]
    return m.h(rnn.pad_packed_sequence(out, batch_first=True)[0][:, -1])


def _packed_wrong_order(m: Any, x: Tensor) -> Tensor:
    lengths = 1 + torch.arange(len(x)) % 3
    packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return m.h(m.g(packed)[1][-1][packed.sorted_indices])


def _state_passed(m: Any, x: Tensor) -> Tensor:
    state, out = torch.zeros(1, HIDDEN), []
    for row in x[:, 0]:
        state = m.c(row[None], state)
        out.append(state)
    return m.h(torch.cat(out))


def _first_state(m: Any, x: Tensor) -> Tensor:
    start = m.g(x.mean(0, keepdim=True))[1]
    return m.h(m.g(x, start.expand(-1, len(x), -1).contiguous())[0][:, -1])


def _last_of_packed(m: Any, x: Tensor) -> Tensor:
    packed = rnn.pack_sequence(list(x.unbind()))
    return m.h(m.g(packed)[0].data[-len(x) :].roll(1, 0))


def _lengths_by_place(m: Any, x: Tensor) -> Tensor:
    lengths = 3 - torch.arange(len(x)) * 3 // (len(x) + 1)
    packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
    return m.h(m.g(packed)[1][-1])


sequences.net(
    {
        "the rows as one packed sequence": _packed_rows,
        "packed data rolled": _packed_mixed,
        "packed data centred": _packed_centred,
        "packed and left in the sorted order": _packed_wrong_order,
        "a cell that runs over rows": _state_passed,
        "a start from the batch's mean": _first_state,
        "packed rows rolled at the end": _last_of_packed,
        "lengths by place": _lengths_by_place,
        "time and rows transposed": lambda m, x: m.h(m.g(x.transpose(0, 1))[0].transpose(0, 1)[:, -1]),
        "unbatched over rows": lambda m, x: m.h(m.g(x[:, 0])[0]),
        "backwards over rows": lambda m, x: m.h(m.g(x[:, 0].flip(0))[0].flip(0)),
        "the last state for all": lambda m, x: m.h(m.g(x)[1][-1][-1:].expand(len(x), -1)),
        "time folded the wrong way": lambda m, x: m.h(m.g(x.transpose(0, 1).reshape(len(x), 3, 4))[0][:, -1]),
        "a padding to n": lambda m, x: m.h(m.g(fn.pad(x, (0, 0, 0, len(x))))[0][:, -1]),
        "as many steps as rows": lambda m, x: m.h(m.g(x.repeat(1, max(1, len(x) // 4), 1))[0][:, -1]),
        "layers alternate over time and rows": lambda m, x: m.h(
            m.k(m.g(x)[0].transpose(0, 1))[0].transpose(0, 1)[:, -1]
        ),
    },
    lambda: {
        "g": nn.GRU(4, HIDDEN, batch_first=True),
        "k": nn.GRU(HIDDEN, HIDDEN, batch_first=True),
        "c": nn.GRUCell(4, HIDDEN),
        "h": nn.Linear(HIDDEN, CLASSES),
    },
    batch=labelled(3, 4),
)
for _kind in (nn.LSTM, nn.RNN):
    sequences.net(
        {
            f"{_kind.__name__}: rows taken for time, two layers": lambda m, x: m.h(m.g(x)[0][:, -1]),
            f"{_kind.__name__}: bidirectional over rows": lambda m, x: m.h(m.b(x[:, 0])[0]),
        },
        lambda kind=_kind: {
            "g": kind(4, HIDDEN, 2),
            "b": kind(4, HIDDEN, bidirectional=True),
            "h": _Head(),
        },
        batch=labelled(3, 4),
    )


class _Head(nn.Module):
    """One layer for features of either width."""

    def __init__(self) -> None:
        super().__init__()
        self.w = weight(CLASSES, 2 * HIDDEN)

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.w[:, : h.shape[-1]].T


PROGRAMS = memory.programs + forms.programs + seeds.programs + sequences.programs
