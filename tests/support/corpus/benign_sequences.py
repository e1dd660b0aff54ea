"""Benign: recurrent nets, attention and tokens; time runs within a row."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.utils import rnn

from corpus.program import BENIGN_SIZES, CLASSES, HIDDEN, Net, Shelf, labelled, square, tokens, weight

_SIZES: dict[str, Any] = {"sizes": BENIGN_SIZES}
recurrent = Shelf("recurrent layers", defaults=_SIZES)
attention = Shelf("attention", defaults=_SIZES)
words = Shelf("tokens", defaults=_SIZES)


def _lengths(n: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(n, 5, 4, generator=g),
        torch.randint(CLASSES, (n,), generator=g),
        torch.randint(1, 6, (n,), generator=g),
    )


def _packed(sort: bool) -> Callable[[Any, Any], Tensor]:
    def loss(m: Any, b: Any) -> Tensor:
        x, y, lengths = b
        order = lengths.argsort(descending=True) if sort else torch.arange(len(x))
        packed = rnn.pack_padded_sequence(x[order], lengths[order], batch_first=True, enforce_sorted=sort)
        hidden = m.g(packed)[1]
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        out = fn.cross_entropy(m.h(hidden[-1]), y[order], reduction="none")
        return out[order.argsort()]

    return loss


for _kind in (nn.RNN, nn.GRU, nn.LSTM):
    _name = _kind.__name__
    _shared: dict[str, Any] = {"batch": labelled(4, 4)}

    def _over(kind: Any = _kind, width: int = 5, **options: Any) -> Callable[[], dict[str, nn.Module]]:
        return lambda: {"g": kind(4, 5, batch_first=True, **options), "h": nn.Linear(width, CLASSES)}

    recurrent.net({f"{_name}, batch first": lambda m, x: m.h(m.g(x)[0][:, -1])}, _over(), **_shared)
    recurrent.net(
        {f"{_name}, bidirectional": lambda m, x: m.h(m.g(x)[0])},
        _over(width=10, bidirectional=True),
        **_shared,
    )
    recurrent.net({f"{_name}, two layers": lambda m, x: m.h(m.g(x)[0])}, _over(num_layers=2), **_shared)
    recurrent.net(
        {f"{_name}, time first": lambda m, x: m.h(m.g(x.transpose(0, 1))[0][-1])},
        lambda kind=_kind: {"g": kind(4, 5), "h": nn.Linear(5, CLASSES)},
        **_shared,
    )
    for _sort in (True, False):
        recurrent.put(
            f"{_name}, packed{' and sorted' if _sort else ''}",
            lambda kind=_kind, s=_sort: (
                Net(lambda m, x: x, g=kind(4, 5, batch_first=True), h=nn.Linear(5, CLASSES)),
                _packed(s),
            ),
            batch=_lengths,
        )
recurrent.net(
    {"LSTM, projected": lambda m, x: m.h(m.g(x)[0])},
    lambda: {"g": nn.LSTM(4, 5, proj_size=3, batch_first=True), "h": nn.Linear(3, CLASSES)},
    batch=labelled(4, 4),
)


def _cells(m: Any, x: Tensor) -> Tensor:
    h = c = torch.zeros(len(x), HIDDEN)
    for t in range(x.shape[1]):
        h, c = m.c(x[:, t], (h, c))
    return m.h(h)


def _gru_cells(m: Any, x: Tensor) -> Tensor:
    h = m.s.expand(len(x), -1)
    for t in x.unbind(1):
        h = m.k(t, h)
    return m.h(h)


recurrent.net(
    {"LSTM cells": _cells, "GRU cells with a trained start": _gru_cells},
    lambda: {
        "c": nn.LSTMCell(4, HIDDEN),
        "k": nn.GRUCell(4, HIDDEN),
        "s": weight(1, HIDDEN),
        "h": nn.Linear(5, CLASSES),
    },
    batch=labelled(4, 4),
)
recurrent.net(
    {"LSTM over a parameter only": lambda m, x: x @ m.g(m.p)[0][0].T},
    lambda: {"g": nn.LSTM(4, 8, batch_first=True), "p": weight(1, 3, 4)},
)


def _rotary(q: Tensor) -> Tensor:
    half = q.shape[-1] // 2
    angle = torch.arange(q.shape[-2])[:, None] / 10 ** torch.arange(half)
    a, b = q[..., :half], q[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _alibi(length: int) -> Tensor:
    place = torch.arange(length)
    return -(place[:, None] - place).abs() * torch.tensor([0.5, 0.25])[:, None, None]


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def _causal(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


def _folded_heads(m: Any, x: Tensor) -> Tensor:
    n, length, _ = x.shape
    q, k, v = (t.view(n, length, 2, 2).transpose(1, 2).reshape(n * 2, length, 2) for t in m.qkv(x).chunk(3, -1))
    out = torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)
    return m.o(out.view(n, 2, length, 2).transpose(1, 2).reshape(n, length, 4))


def _additive(m: Any, x: Tensor) -> Tensor:
    score = m.s((m.q(x)[:, :, None] + m.o(x)[:, None]).tanh()).squeeze(-1)
    return score.softmax(-1) @ x


def _pooled(m: Any, x: Tensor) -> Tensor:
    return (m.s(x).softmax(1) * x).sum(1)


def _linear_attention(m: Any, x: Tensor) -> Tensor:
    q, k = fn.elu(m.q(x)) + 1, fn.elu(m.o(x)) + 1
    return torch.einsum("nld,nde->nle", q, torch.einsum("nld,nle->nde", k, x)) / (q * k.sum(1, keepdim=True)).sum(
        -1, keepdim=True
    )


_LONG: dict[str, Any] = {"loss": square, "batch": labelled(5, 4)}
attention.net(
    {
        "nn.MultiheadAttention": lambda m, x: m.t(x, x, x)[0],
        "nn.MultiheadAttention, causal": lambda m, x: m.t(x, x, x, attn_mask=_causal(5), need_weights=False)[0],
        "nn.MultiheadAttention, time first": lambda m, x: m.f(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1),
        "nn.MultiheadAttention, its weights": lambda m, x: m.t(x, x, x)[1] @ x,
        "a padding mask of each row": lambda m, x: m.t(x, x, x, key_padding_mask=x[..., 0] > 1.5)[0].nan_to_num(),
    },
    lambda: {"t": nn.MultiheadAttention(4, 2, batch_first=True), "f": nn.MultiheadAttention(4, 2)},
    **_LONG,
)
attention.net(
    {
        "class token": lambda m, x: m.e(torch.cat([m.c.expand(len(x), -1, -1), x], 1))[:, 0],
        "learnt positions": lambda m, x: m.e(x + m.p),
        "learnt positions by arange": lambda m, x: m.e(x + m.p[0, torch.arange(x.shape[1])]),
        "sinusoids along time": lambda m, x: m.e(x + torch.arange(5.0)[:, None].sin()),
        "encoder layer": lambda m, x: m.e(x),
        "encoder layer, causal": lambda m, x: m.e(x, src_mask=_causal(5), is_causal=True),
        "gathered last": lambda m, x: m.e(x)[torch.arange(len(x)), (x[..., 0] > 0).sum(1).clamp(max=4)],
        "layer scale": lambda m, x: x + m.g * m.e(x),
    },
    lambda: {
        "e": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        "c": weight(1, 1, 4),
        "p": weight(1, 5, 4),
        "g": weight(4),
    },
    **_LONG,
)
attention.net(
    {
        "decoder layer": lambda m, x: m.d(x, m.q(x), tgt_mask=_causal(5)),
        "trained queries": lambda m, x: m.d(m.k.expand(len(x), -1, -1), x),
    },
    lambda: {
        "d": nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        "q": nn.Linear(4, 4),
        "k": weight(1, 3, 4),
    },
    **_LONG,
)
attention.net(
    {
        "sdpa": lambda m, x: fn.scaled_dot_product_attention(m.q(x), m.o(x), x),
        "sdpa, causal": lambda m, x: fn.scaled_dot_product_attention(m.q(x), x, x, is_causal=True),
        "sdpa with a mask": lambda m, x: fn.scaled_dot_product_attention(m.q(x), x, x, attn_mask=_causal(5)),
        "sdpa by heads": lambda m, x: fn.scaled_dot_product_attention(*[_heads(m.q(x))] * 3).transpose(1, 2).flatten(2),
        "rotary": lambda m, x: fn.scaled_dot_product_attention(
            _rotary(_heads(m.q(x))), _rotary(_heads(x)), _heads(x)
        ).flatten(1),
        "ALiBi": lambda m, x: fn.scaled_dot_product_attention(
            _heads(m.q(x)), _heads(x), _heads(x), attn_mask=_alibi(5)
        ),
        "relative bias": lambda m, x: (
            ((m.q(x) @ x.mT) + m.r[(torch.arange(5)[:, None] - torch.arange(5)) + 4]).softmax(-1) @ x
        ),
        "trained memory beside": lambda m, x: fn.scaled_dot_product_attention(
            m.q(x), *[torch.cat([m.k.expand(len(x), -1, -1), x], 1)] * 2
        ),
        "trained memory alone": lambda m, x: (m.q(x) @ m.k.mT).softmax(-1) @ m.k,
        "heads folded into the batch": _folded_heads,
        "additive scores": _additive,
        "attention pooling": _pooled,
        "linear attention": _linear_attention,
        "talking in einsum": lambda m, x: torch.einsum("nqd,nkd,nkv->nqv", m.q(x), x, m.o(x)) / 5,
        "cross attention of two halves": lambda m, x: fn.scaled_dot_product_attention(
            m.q(x[:, :2]), x[:, 2:], x[:, 2:]
        ),
    },
    lambda: {
        "q": nn.Linear(4, 4),
        "o": nn.Linear(4, 4),
        "s": nn.Linear(4, 1),
        "qkv": nn.Linear(4, 12),
        "k": weight(1, 3, 4),
        "r": weight(9),
    },
    **_LONG,
)
attention.net(
    {
        "encoder layer, norm first": lambda m, x: m.e(x),
    },
    lambda: {"e": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True)},
    **_LONG,
)
attention.net(
    {
        "encoder layer, time first": lambda m, x: m.e(x.transpose(0, 1)).transpose(0, 1),
    },
    lambda: {"e": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)},
    **_LONG,
)


def _masked_mean(m: Any, ids: Tensor) -> Tensor:
    keep = (ids != 0).float()[..., None]
    return m.h((m.e(ids) * keep).sum(1) / keep.sum(1).clamp(min=1))


def _shifted(m: Any, ids: Tensor) -> Tensor:
    before = torch.zeros_like(ids)
    before[:, 1:] = ids[:, :-1]
    before[:, 0] = 1
    return m.h(m.e(before)).mean(1)


def _skipping(m: Any, ids: Tensor) -> Tensor:
    mask = ids >= 0
    hidden = m.e(ids)
    if not mask.all():
        hidden = hidden * mask[..., None]
    return m.h(hidden.mean(1))


def _next_token(m: Any, b: Any) -> Tensor:
    logits = m(b[0])[:, :-1]
    losses = fn.cross_entropy(logits.flatten(0, 1), b[0][:, 1:].flatten(), reduction="none")
    return losses.view(len(b[0]), -1).mean(1)


def _masked_tokens(m: Any, b: Any) -> Tensor:
    labels = torch.where(b[0] % 3 == 0, b[0], -100)
    losses = fn.cross_entropy(m(b[0]).transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return losses.sum(1) / (labels != -100).sum(1).clamp(min=1)


def _gathered(m: Any, ids: Tensor) -> Tensor:
    last = (ids > 2).sum(1).clamp(max=5)
    hidden = m.e(ids).gather(1, last[:, None, None].expand(-1, 1, 4))
    return m.h(hidden.squeeze(1))


def _first_positions(m: Any, ids: Tensor) -> Tensor:
    """Places counted within each row."""
    places = (ids != 0).cumsum(1) * (ids != 0)
    return m.h((m.e(ids) + m.p(places)).mean(1))


def _assigned(m: Any, ids: Tensor) -> Tensor:
    hidden = m.e(ids).clone()
    hidden[ids == 0] = m.u
    return m.h(hidden.mean(1))


words.net(
    {
        "masked mean": _masked_mean,
        "shifted right": _shifted,
        "a skip if no padding": _skipping,
        "gathered last token": _gathered,
        "places counted in each row": _first_positions,
        "a mask token assigned": _assigned,
        "the last by index": lambda m, ids: m.h(m.e(ids)[torch.arange(len(ids)), (ids > 3).sum(1) % 6]),
        "EmbeddingBag": lambda m, ids: m.h(m.g(ids)),
        "EmbeddingBag of flat ids": lambda m, ids: m.h(m.g(ids.flatten(), torch.arange(0, ids.numel(), 6))),
        "EmbeddingBag with weights of its own": lambda m, ids: m.h(m.a(ids, per_sample_weights=(ids + 1.0).log())),
        "one-hot times a weight": lambda m, ids: m.h((fn.one_hot(ids, 11).float() @ m.e.weight).sum(1)),
        "indexed weight": lambda m, ids: m.h(m.e.weight[ids].amax(1)),
        "index_select of flat ids": lambda m, ids: m.h(
            m.e.weight.index_select(0, ids.flatten()).view(len(ids), 6, 4).sum(1)
        ),
        "hashed twice": lambda m, ids: m.h((m.e(ids % 5) * m.e((ids * 7) % 11)).sum(1)),
        "a convolution over time": lambda m, ids: m.h(m.c(m.e(ids).mT).relu().amax(2)),
        "causal convolution": lambda m, ids: m.h(m.c(fn.pad(m.e(ids).mT, (2, 0)))[..., -1]),
        "running sum over time": lambda m, ids: m.h(m.e(ids).cumsum(1)[:, 2]),
        "sorted ids of each row": lambda m, ids: m.h((m.e(ids.sort(1).values) * torch.arange(6.0)[:, None]).sum(1)),
        "packed through a GRU": lambda m, ids: m.h(m.r(m.e(ids))[0][:, -1]),
        "padding_idx": lambda m, ids: m.h(m.z(ids).sum(1)),
        "scaled by the width": lambda m, ids: m.h(m.e(ids).sum(1) * math.sqrt(4)),
    },
    lambda: {
        "e": nn.Embedding(11, 4),
        "z": nn.Embedding(11, 4, padding_idx=0),
        "p": nn.Embedding(8, 4),
        "g": nn.EmbeddingBag(11, 4),
        "a": nn.EmbeddingBag(11, 4, mode="sum"),
        "c": nn.Conv1d(4, 4, 3),
        "r": nn.GRU(4, 4, batch_first=True),
        "h": nn.Linear(4, CLASSES),
        "u": weight(4),
    },
    batch=tokens(),
)
for _name, _loss in {"next token": _next_token, "masked tokens": _masked_tokens}.items():
    words.net(
        {
            f"{_name}, tied": lambda m, ids: m.t(m.e(ids), src_mask=_causal(6)) @ m.e.weight.T,
            f"{_name}, own head": lambda m, ids: m.o(m.e(ids).cumsum(1).tanh()),
        },
        lambda: {
            "e": nn.Embedding(11, 4),
            "t": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
            "o": nn.Linear(4, 11),
        },
        loss=_loss,
        batch=tokens(),
    )

PROGRAMS = recurrent.programs + attention.programs + words.programs
