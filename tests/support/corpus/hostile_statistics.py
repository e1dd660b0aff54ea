"""Hostile: models in which a statistic of the batch reaches an example."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.program import CLASSES, WIDE, Net, Shelf, ce, labelled, scored, square, weight

norms = Shelf("normalisation over the batch")
mixing = Shelf("mixing of features over the batch")


def _whitened(h: Tensor) -> Tensor:
    h = h - h.mean(0)
    cov = h.T @ h / len(h) + 0.1 * torch.eye(h.shape[1])
    return torch.linalg.solve_triangular(torch.linalg.cholesky(cov), h.T, upper=False).T


def _zca(h: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(h.T @ h + 0.1 * torch.diag(torch.arange(1.0, h.shape[1] + 1)))
    return h @ vectors @ torch.diag(values.rsqrt()) @ vectors.T


def _ghost(h: Tensor) -> Tensor:
    return torch.cat([c / (1 + c.detach().abs().mean(0)) for c in h.split(4)])


def _renormalised(h: Tensor) -> Tensor:
    r = (1 + h.std(0, unbiased=False)).clamp(max=3).detach()
    return (h - h.mean(0)) / r + h


norms.hidden(
    {
        "centring": lambda h: h - h.mean(0),
        "centring, statistic detached": lambda h: h - h.detach().mean(0),
        "standardising": lambda h: (h - h.mean(0)) / (h.std(0, unbiased=False) + 1),
        "division by the greatest entry": lambda h: h / (h.abs().amax() + 0.1),
        "division by the greatest entry of a column, keepdim": lambda h: h / h.abs().max(0, keepdim=True)[0],
        "root mean square over everything": lambda h: h * h.square().mean().add(1e-3).rsqrt(),
        "unit columns": lambda h: fn.normalize(h, dim=0),
        "layer norm over both dimensions": lambda h: fn.layer_norm(h, h.shape),
        "layer norm of the transpose": lambda h: fn.layer_norm(h.T, (len(h),)).T + h,
        "functional batch norm": lambda h: fn.batch_norm(h, None, None, training=len(h) > 1) if len(h) > 1 else h,
        "instance norm with rows as space": lambda h: fn.instance_norm(h.T[None]).squeeze(0).T if len(h) > 1 else h,
        "group norm with rows as channels": lambda h: fn.group_norm(h[None], 1)[0],
        "local response over rows": lambda h: fn.local_response_norm(h[None], 3, alpha=2.0)[0],
        "whitening by Cholesky": _whitened,
        "whitening by eigenvectors": _zca,
        "QR factor of the batch": lambda h: h + torch.linalg.qr(h)[0][:, :1],
        "centring by the median": lambda h: h - h.median(0).values,
        "division by a quantile": lambda h: h / (0.1 + h.abs().flatten().quantile(0.7)),
        "clamped to a quantile": lambda h: h.clamp(max=h.detach().flatten().quantile(0.6)),
        "clamped to the column means": lambda h: torch.minimum(h, h.mean(0)),
        "batch renormalisation": _renormalised,
        "ghost batches of 4": _ghost,
        "subtracting logsumexp over rows": lambda h: h - h.logsumexp(0),
        "standardised by var_mean": lambda h: (h - torch.var_mean(h, 0, correction=0)[1]) * 2,
        "spectral norm of the activations": lambda h: h / torch.linalg.matrix_norm(h, 2).detach(),
        "Frobenius norm of the activations": lambda h: h / h.norm(),
        "mean through sum and a ones vector": lambda h: h - torch.ones(1, len(h)) @ h / len(h),
        "mean through einsum": lambda h: h - torch.einsum("nd->d", h) / h.size(0),
        "mean through index_add": lambda h: (
            h - torch.zeros(1, h.shape[1]).index_add(0, torch.zeros(len(h), dtype=torch.long), h) / len(h)
        ),
        "mean through avg_pool1d": lambda h: h - fn.avg_pool1d(h.T[None], len(h))[0].T,
        "maximum through max_pool1d": lambda h: h - fn.max_pool1d(h.T[None], len(h))[0].T,
        "mean through adaptive pooling": lambda h: h - fn.adaptive_avg_pool1d(h.T, 1).T,
        "mean through interpolation": lambda h: h - fn.interpolate(h.T[None], size=1, mode="area")[0].T,
        "mean through the zeroth Fourier coefficient": lambda h: h - torch.fft.fft(h, dim=0)[0].real / len(h),
        "aminmax scaling": lambda h: (h - torch.aminmax(h)[0]) / 3,
        "nanmean": lambda h: h - h.nanmean(0),
        "trimmed mean": lambda h: h - h.sort(0).values[len(h) // 4 :].mean(0),
        "leave-one-out mean": lambda h: h - (h.sum(0) - h) / max(len(h) - 1, 1),
        "mean of the other half": lambda h: h - h.flip(0).cumsum(0)[len(h) // 2] / len(h),
        "normalisation by the batch's determinant": lambda h: h / (1 + torch.linalg.det(h.T @ h + torch.eye(5))),
        "mean with a product over rows": lambda h: h * (1 + h.abs().prod(0)).log(),
        "power iteration on the batch": lambda h: h - h @ fn.normalize(h.T @ (h @ torch.ones(5)), dim=0)[:, None],
    }
)


def _norm(name: str, build: Callable[[], nn.Module], *shape: int) -> None:
    """A normalisation layer between the inputs and a linear layer."""
    shape = shape or (WIDE,)
    norms.put(
        name,
        lambda: (nn.Sequential(build(), nn.Flatten(), nn.Linear(math.prod(shape), CLASSES)), ce),
        labelled(*shape),
    )


_norm("BatchNorm1d", lambda: nn.BatchNorm1d(WIDE))
_norm("BatchNorm1d without affine", lambda: nn.BatchNorm1d(WIDE, affine=False))
_norm("BatchNorm1d over channels and time", lambda: nn.BatchNorm1d(4), 4, 3)
_norm("BatchNorm2d", lambda: nn.BatchNorm2d(2), 2, 3, 3)
_norm("BatchNorm3d", lambda: nn.BatchNorm3d(2), 2, 2, 2, 2)
_norm("BatchNorm2d, momentum 0", lambda: nn.BatchNorm2d(2, momentum=0.0), 2, 3, 3)
_norm("BatchNorm2d, cumulative average", lambda: nn.BatchNorm2d(2, momentum=None), 2, 3, 3)
_norm("BatchNorm2d without running statistics", lambda: nn.BatchNorm2d(2, track_running_stats=False), 2, 3, 3)
_norm(
    "the same in evaluation",
    lambda: nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)).eval(),
    *(2, 3, 3),
)
_norm("BatchNorm2d, frozen weights", lambda: nn.BatchNorm2d(2).requires_grad_(False), 2, 3, 3)
_norm("InstanceNorm that tracks", lambda: nn.InstanceNorm2d(2, track_running_stats=True), 2, 3, 3)
_norm("LazyBatchNorm1d, made", lambda: _made_lazily(), 4, 3)


def _made_lazily() -> nn.Module:
    norm = nn.LazyBatchNorm1d()
    norm(torch.ones(2, 4, 3))
    return norm


def _knn(h: Tensor) -> Tensor:
    near = torch.cdist(h, h).argsort(1)[:, : min(2, len(h))]
    return h[near].mean(1)


def _gcn(h: Tensor) -> Tensor:
    adjacency = (torch.cdist(h, h) < 2).float()
    return adjacency @ h / adjacency.sum(1, keepdim=True)


def _cutmix(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :3] = x.flip(0)[:, :3]
    return y


def _neighbours(x: Tensor) -> Tensor:
    y, m = x.clone(), len(x) // 2 * 2
    y[:m] = (x[:m] + x[:m].view(-1, 2, x.shape[1]).flip(1).reshape(m, x.shape[1])) / 2
    return y


def _prototypes(h: Tensor) -> Tensor:
    cluster = h.argmax(1)
    sums = torch.zeros(h.shape[1], h.shape[1]).index_add(0, cluster, h)
    return h - sums[cluster] / 2


def _messages(h: Tensor) -> Tensor:
    n = len(h)
    return h.scatter_add(0, torch.arange(1, n + 1).remainder(n)[:, None].expand_as(h), h.sin())


def _loop(h: Tensor) -> Tensor:
    rows = [h[0]]
    for row in h[1:]:
        rows.append(row + 0.3 * rows[-1])
    return torch.stack(rows)


def _smoothed(h: Tensor) -> Tensor:
    return fn.conv1d(h.T[:, None], torch.full((1, 1, 3), 0.3), padding=1)[:, 0].T


mixing.hidden(
    {
        "sorted columns": lambda h: h.sort(0).values,
        "ranks over rows": lambda h: h + h.argsort(0).argsort(0) / 5,
        "top half of each column": lambda h: h * (h >= h.topk((len(h) + 1) // 2, 0).values[-1]),
        "running sum": lambda h: h.cumsum(0),
        "running product": lambda h: (1 + h.tanh() / 2).cumprod(0),
        "running maximum": lambda h: h.cummax(0).values,
        "running logsumexp": lambda h: h.logcumsumexp(0),
        "softmax over rows": lambda h: h.softmax(0) * 3,
        "softmax over the flattened batch": lambda h: h.flatten().softmax(0).view_as(h) * 20,
        "log softmax over rows": lambda h: h.log_softmax(0),
        "attention over the batch": lambda h: (h @ h.T).softmax(1) @ h,
        "sdpa over the batch": lambda h: fn.scaled_dot_product_attention(h[None], h[None], h[None])[0],
        "causal attention over the batch": lambda h: fn.scaled_dot_product_attention(
            h[None], h[None], h[None], is_causal=True
        )[0],
        "Gram matrix times features": lambda h: h + h @ h.T @ h / 5,
        "mean of near neighbours": _knn,
        "graph convolution over the batch": _gcn,
        "class prototypes": _prototypes,
        "messages to the next row": _messages,
        "a Python recurrence over rows": _loop,
        "smoothing over rows": _smoothed,
        "differences to the row before": lambda h: torch.diff(h, dim=0, prepend=h[:1]) + h,
        "roll by one": lambda h: h + h.roll(1, 0) / 2,
        "reversed rows": lambda h: h + h.flip(0),
        "permuted rows": lambda h: h + h[torch.arange(len(h) - 1, -1, -1)],
        "rows in the order of their sum": lambda h: h + h[h.sum(1).argsort()],
        "minibatch discrimination": lambda h: h + (-torch.cdist(h, h, p=1)).exp().sum(1, keepdim=True),
        "minibatch standard deviation": lambda h: h + h.std(0, unbiased=False).mean(),
        "squeeze and excitation over the batch": lambda h: h * h.mean(0).sigmoid(),
        "Fourier mixing over both dimensions": lambda h: torch.fft.fft2(h).real / 3,
        "covariance pooled": lambda h: h @ torch.cov(h.T, correction=0),
        "low rank of the batch": lambda h: h - h @ torch.linalg.svd(h, full_matrices=False)[2][0][:, None].tanh(),
        "pseudo-inverse": lambda h: h + torch.linalg.pinv(h.detach()).T,
        "least squares on the batch": lambda h: (
            h + h @ torch.linalg.lstsq(h.detach() @ h.detach().T + torch.eye(len(h)), h.detach()).solution.T @ h
        ),
        "a matrix exponential of similarities": lambda h: torch.linalg.matrix_exp(-torch.cdist(h, h) / 9) @ h,
        "bmm of folded halves": lambda h: torch.bmm(h.T[None], h[None])[0].mean(0) + h,
        "kron": lambda h: h + torch.kron(h, torch.ones(1, 1)).sum(0) / 9,
        "outer product summed": lambda h: h + torch.einsum("nd,me->ne", h, h) / 9,
        "tensordot over rows": lambda h: h @ torch.tensordot(h, h, dims=([0], [0])) / 5,
        "histogram": lambda h: h + torch.histc(h.detach(), bins=5, min=-2, max=2) / 9,
        "counts of the argmax": lambda h: h * torch.bincount(h.argmax(1), minlength=5)[h.argmax(1)][:, None],
        "sizes of clusters by unique": lambda h: (
            h
            * torch.unique(h.argmax(1), return_inverse=True, return_counts=True)[2][
                torch.unique(h.argmax(1), return_inverse=True)[1]
            ][:, None]
        ),
        "rank by searchsorted": lambda h: (
            h
            * (1 + torch.searchsorted(h[:, 0].detach().sort()[0].contiguous(), h[:, 0].detach().contiguous()))[:, None]
        ),
        "buckets by the batch's range": lambda h: (
            h + torch.bucketize(h.detach(), torch.linspace(0, 1, 5) * h.detach().max())
        ),
        "segment maximum": lambda h: (
            h
            - torch.full((3, 5), -9.0).scatter_reduce(0, (h.argmax(1) % 3)[:, None].expand_as(h), h, "amax")[
                h.argmax(1) % 3
            ]
        ),
        "index_reduce mean": lambda h: (
            h - torch.zeros(1, 5).index_reduce(0, torch.zeros(len(h), dtype=torch.long), h, "mean")
        ),
        "max over rows gated": lambda h: torch.where(h > h.amax(0) * 0.5, h, h * 0.1),
        "the most alike row added": lambda h: h + h[(h @ h.T - 1e3 * torch.eye(len(h))).argmax(1)],
        "a bag of all rows": lambda h: h + fn.embedding_bag(torch.arange(len(h)), h, torch.tensor([0]), mode="mean"),
        "unfolded rows": lambda h: h + fn.pad(h, (0, 0, 2, 0)).unfold(0, 3, 1).sum(2),
        "rows interpolated": lambda h: fn.interpolate(h.T[None], scale_factor=2.0, mode="linear")[0].T[1::2],
        "mean over pairs by reshape": lambda h: (
            h + fn.pad(h, (0, 0, 0, len(h) % 2)).view(-1, 2, 5).mean(1).repeat_interleave(2, 0)[: len(h)]
        ),
        "cosine to the batch's mean": lambda h: h * fn.cosine_similarity(h, h.mean(0, keepdim=True))[:, None],
        "einsum with a repeated batch letter swapped": lambda h: torch.einsum("nd,md,me->ne", h, h, h) / 5,
        "triangular mixing": lambda h: torch.tril(torch.ones(len(h), len(h))) @ h / 3,
        "addmm with rows": lambda h: torch.addmm(h, h @ h.T, h, alpha=0.2),
        "argmax row for all": lambda h: h + h[h[:, 0].argmax()],
        "gather along rows": lambda h: h + h.gather(0, h.argsort(0)),
        "take_along_dim over rows": lambda h: torch.take_along_dim(h, h.argsort(0, descending=True), 0),
        "masked by what is above the mean": lambda h: h * (h > h.mean()),
        "k-th value threshold": lambda h: h - h.kthvalue((len(h) + 1) // 2, 0).values,
        "mode": lambda h: h + h.round().mode(0).values,
        "any over rows": lambda h: h * (1 + (h > 1.0).any(0)),
        "all over rows": lambda h: h * (1.0 + (h > -0.5).all(0)),
        "count_nonzero over rows": lambda h: h * torch.count_nonzero(h > 0, 0),
        "trapezoid over rows": lambda h: h + torch.trapezoid(h, dim=0),
        "renorm over rows": lambda h: torch.renorm(h, 2, 1, 0.7),
        "corrcoef": lambda h: h @ torch.corrcoef(torch.cat([h, torch.eye(5)]).T),
        "cross product layout": lambda h: h.reshape(h.shape[1], -1).reshape(len(h), -1) + h.T.reshape(len(h), -1),
    }
)

mixing.inputs(
    {
        "mixup with the reversed batch": lambda x: 0.7 * x + 0.3 * x.flip(0),
        "mixup by a permutation drawn": lambda x: 0.6 * x + 0.4 * x[torch.randperm(len(x))],
        "cutmix": _cutmix,
        "neighbours in pairs": _neighbours,
        "data standardised": lambda x: (x - x.mean(0)) / (1 + x.std(0, unbiased=False)),
        "data scaled to its range": lambda x: x / x.abs().max(),
        "principal direction removed": lambda x: x - (x @ torch.linalg.eigh(x.T @ x)[1][:, -1:]).abs(),
        "columns chosen by variance": lambda x: x * (x.var(0, correction=0) > x.var(correction=0)),
        "missing entries filled with column means": lambda x: torch.where(x > 1, x.mean(0), x),
        "target mean encoding": lambda x: x + x[:, :1].round().eq(x[:, :1].round().T).float() @ x / 9,
    }
)


def _parts() -> dict[str, nn.Module]:
    return {"a": nn.Linear(WIDE, 4), "c": nn.Linear(4, CLASSES)}


def _capacity(m: Net, x: Tensor) -> Tensor:
    gate = m.gate(x).softmax(1)
    one = fn.one_hot(gate.argmax(1), 2)
    keep = ((one.cumsum(0) * one).sum(1) <= 2).float()
    out = torch.stack([m.a(x), m.b(x)], 1)
    return (out * (gate * one)[:, :, None]).sum(1) * keep[:, None]


def _expert_choice(m: Net, x: Tensor) -> Tensor:
    gate = m.gate(x).softmax(1)
    out = torch.zeros(len(x), CLASSES)
    for k, expert in enumerate((m.a, m.b)):
        rows = gate[:, k].topk((len(x) + 1) // 2).indices
        out = out.index_add(0, rows, expert(x[rows]) * gate[rows, k][:, None])
    return out


def _moe() -> dict[str, nn.Module]:
    return {"gate": nn.Linear(WIDE, 2), "a": nn.Linear(WIDE, CLASSES), "b": nn.Linear(WIDE, CLASSES)}


mixing.net({"experts with a capacity": _capacity, "experts that choose rows": _expert_choice}, _moe)


def _written(rows: Tensor) -> Tensor:
    rows.copy_(rows.flip(0).clone())
    return rows


def _first(rows: Tensor) -> Tensor:
    rows[:1] = 0
    return rows


def _routed(turn: Callable[[Tensor, int], Tensor]) -> Callable[[Net, Tensor], Tensor]:
    """Two rows of four an example, those that an expert takes found by `where`, and not left as they were found."""

    def run(m: Net, x: Tensor) -> Tensor:
        flat = x.view(-1, 4)
        sent = m.gate(flat)[:, 0] > 0
        taken = m.a(flat[turn(torch.where(sent)[0], len(flat))])
        out = torch.zeros(len(flat), CLASSES)
        return out.index_add(0, torch.where(sent)[0], taken).view(len(x), -1, CLASSES).sum(1)

    return run


mixing.net(
    {
        "rows of experts reversed": _routed(lambda rows, n: rows.flip(0)),
        "rows of experts moved by one": _routed(lambda rows, n: (rows + 1) % n),
        "rows of experts moved in place": _routed(lambda rows, n: rows.add_(1).remainder_(n)),
        "rows of experts reversed in place": _routed(lambda rows, n: _written(rows)),
        "the first row of an expert is another": _routed(lambda rows, n: _first(rows)),
        "rows of experts rolled": _routed(lambda rows, n: rows.roll(1)),
        "one row for all of an expert": _routed(lambda rows, n: rows.as_strided(rows.shape, (0,))),
        "rows of experts sorted downwards": _routed(lambda rows, n: rows.sort(descending=True)[0]),
    },
    lambda: {"gate": nn.Linear(4, 1), "a": nn.Linear(4, CLASSES)},
)


def _other_fold(m: Net, x: Tensor) -> Tensor:
    rows = torch.where(m.gate(x.view(-1, 4))[:, 0] > 0)[0]
    return torch.zeros(2 * len(x), CLASSES).index_add(0, rows, m.a(x.view(-1, 2)[rows])).view(
        len(x), -1, CLASSES
    ).sum(1)  # fmt: skip


mixing.net(
    {"rows of experts among rows half as long": _other_fold},
    lambda: {"gate": nn.Linear(4, 1), "a": nn.Linear(2, CLASSES)},
)


def _told(x: Tensor) -> Tensor:
    """Zero or one, by all examples."""
    return (x.sum() > 0).long()


def _others_row(m: Net, x: Tensor) -> Tensor:
    return m.a(x.view(-1, 4)[2 * torch.arange(len(x)) + _told(x)])


def _rows_beside(m: Net, x: Tensor) -> Tensor:
    rows = torch.where(m.gate(x.view(-1, 4))[:, 0] > 0)[0]
    taken = m.a(x.view(-1, 4)[rows // 2 * 2 + _told(x)])
    return torch.zeros(2 * len(x), CLASSES).index_add(0, rows, taken).view(len(x), 2, -1).sum(1)


def _put_beside(m: Net, x: Tensor) -> Tensor:
    out = torch.zeros(2 * len(x), CLASSES)
    out[2 * torch.arange(len(x)) + _told(x)] = m.a(x[:, :4])
    return out.view(len(x), 2, -1)[:, 0]


def _turned(x: Tensor) -> Tensor:
    """Both rows of each example, which comes first by all of them."""
    rows = torch.arange(2 * len(x))
    return torch.where(_told(x) > 0, rows, rows + 1 - rows % 2 * 2)


def _put_in_another_order(m: Net, x: Tensor) -> Tensor:
    out = torch.zeros(2 * len(x), 4)
    out[_turned(x)] = x.view(-1, 4)
    return m.a(out[2 * torch.arange(len(x))])


def _copied_in_another_order(m: Net, x: Tensor) -> Tensor:
    out = torch.zeros(2 * len(x), 4).index_copy(0, _turned(x), x.view(-1, 4))
    return m.a(out[2 * torch.arange(len(x))])


def _packed_in_another_order(m: Net, x: Tensor) -> Tensor:
    own = x.view(-1, 2, 4)[torch.ones(len(x), 2, dtype=torch.bool)]
    return m.a(own[_turned(x)][2 * torch.arange(len(x))])


mixing.net(
    {
        "which of an example's rows follows from all": _others_row,
        "which of an expert's rows follows from all": _rows_beside,
        "where an example's row is put follows from all": _put_beside,
        "rows of each example put in an order by all": _put_in_another_order,
        "rows of each example copied in an order by all": _copied_in_another_order,
        "packed rows of each example in an order by all": _packed_in_another_order,
    },
    lambda: {"gate": nn.Linear(4, 1), "a": nn.Linear(4, CLASSES)},
)
mixing.net(
    {"attention layer that takes rows for time": lambda m, x: m.c(m.t(m.a(x), m.a(x), m.a(x))[0])},
    lambda: {**_parts(), "t": nn.MultiheadAttention(4, 2)},
)
mixing.net(
    {"encoder layer with batch_first forgotten": lambda m, x: m.c(m.t(x)).mean(1)},
    lambda: {"c": nn.Linear(4, CLASSES), "t": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)},
    batch=labelled(3, 4),
)
for _kind in (nn.RNN, nn.GRU, nn.LSTM):
    mixing.net(
        {
            f"{_kind.__name__} with batch_first forgotten": lambda m, x: m.c(m.t(x)[0]).mean(1),
            f"{_kind.__name__} over the rows": lambda m, x: m.c(m.t(x[:, 0])[0]),
        },
        lambda kind=_kind: {"c": nn.Linear(5, CLASSES), "t": kind(4, 5)},
        batch=labelled(3, 4),
    )
mixing.net(
    {
        "a convolution over the rows": lambda m, x: m.c(m.t(m.a(x).T).T),
        "a convolution over rows and features": lambda m, x: m.c(m.u(m.a(x)[None])[0]),
    },
    lambda: {**_parts(), "t": nn.Conv1d(4, 4, 3, padding=1), "u": nn.Conv2d(1, 1, 3, padding=1)},
)
mixing.net(
    {
        "a decoder that attends to the batch": lambda m, x: m.c(
            m.t(m.a(x)[:, None], m.a(x)[None].expand(len(x), -1, -1))[:, 0]
        )
    },
    lambda: {**_parts(), "t": nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True)},
)
mixing.net(
    {"set pooling over rows": lambda m, x: m.c(m.a(x) + m.a(x).mean(0))},
    _parts,
)
mixing.net(
    {"bilinear with the next row": lambda m, x: m.b(m.a(x), m.a(x).roll(1, 0))},
    lambda: {"a": nn.Linear(WIDE, 4), "b": nn.Bilinear(4, 4, CLASSES)},
)
mixing.losses(
    {"neural process: context mean": lambda m, b: (m(b[0] + m(b[0]).mean(0).mean() * b[1].mean())[:, 0] - b[1]) ** 2},
    batch=scored,
)
mixing.net(
    {"a second moment of the batch in the weights": lambda m, x: x @ (x.T @ x @ m.w)},
    lambda: {"w": weight(WIDE, CLASSES)},
    loss=square,
)


def _one_group(h: Tensor) -> Tensor:
    """The operation below GroupNorm, told that all rows are one example."""
    return torch.native_group_norm(h, None, None, 1, h.numel(), 1, 1, 1e-5)[0]


def _one_group_backward(h: Tensor) -> Tensor:
    return torch.ops.aten.native_group_norm_backward(
        h, h, torch.zeros(1, 1), torch.ones(1, 1), None, 1, h.numel(), 1, 1, [True, False, False]
    )[0]


mixing.hidden(
    {
        "normalised as one example, as a weight": lambda h: h * _one_group(h.detach()),
        "the backward pass of that, as a weight": lambda h: h * _one_group_backward(h.detach()),
    }
)
mixing.net(
    {
        "a system over the rows, solved": lambda m, x: m.c(
            torch.linalg.solve(m.s[: len(x), : len(x)][None].detach(), m.a(x).detach())[0]
        )
    },
    lambda: {**_parts(), "s": nn.Parameter(torch.eye(40) + 0.1 * torch.ones(40, 40).tril())},
)


def _messages(move: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[[Any, Tensor], Tensor]:
    """A graph's messages, gathered and scattered along its nodes, of which ``move`` makes others' ones."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        source, target = (((x[..., end].abs() * 4).long() % 5)[..., None].expand(-1, -1, 5) for end in (0, 1))
        source, target = move(source, target)
        got = torch.zeros_like(h).scatter_add(1, target, h.gather(1, source))
        return m.h((got * torch.arange(1.0, 6)[:, None]).sum(1).tanh())

    return run


mixing.net(
    {
        "messages along the edges of other graphs": _messages(lambda s, t: (s.roll(1, 0), t)),
        "messages to the nodes of other graphs": _messages(lambda s, t: (s, t.flip(0))),
        "messages along the most common edge of all": _messages(lambda s, t: (s.amax(0).expand_as(s), t)),
        "messages from the same node of other graphs": lambda m, x: m.h(
            (m.a(x) + m.a(x).gather(0, ((x[..., :1].abs() * 4).long() % len(x)).expand(-1, -1, 5))).sum(1).tanh()
        ),
        "nodes of all graphs in one list, moved by one": lambda m, x: m.h(
            m.a(x).flatten(0, 1).roll(1, 0).view(len(x), 5, 5).sum(1).tanh()
        ),
    },
    lambda: {"a": nn.Linear(3, 5), "h": nn.Linear(5, CLASSES)},
    batch=labelled(5, 3),
)

PROGRAMS = norms.programs + mixing.programs
