"""Hostile: data is read in Python, or decides shapes, and then steers the pass."""

import copy
import io
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.program import CLASSES, HIDDEN, WIDE, Shelf, ce, labelled, scored

scales = Shelf("a number read from the batch scales the pass")
branches = Shelf("a branch read from the batch")
shapes = Shelf("shapes that the batch decides")


def _pickled(h: Tensor) -> float:
    return float(pickle.loads(pickle.dumps(h.detach())).mean())


def _saved(h: Tensor) -> float:
    file = io.BytesIO()
    torch.save(h.detach().clone(), file)
    file.seek(0)
    return float(torch.load(file).abs().max())


def _dlpack(h: Tensor) -> float:
    return float(np.from_dlpack(h.detach()).mean())


def _printed(h: Tensor) -> float:
    return float(repr(h.detach().flatten()[0]).split("(")[1].split(",")[0].rstrip(")"))


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda h: h.mean().item(),
    "float": lambda h: float(h.max()),
    "int": lambda h: int(h.sum() * 4) / 4,
    "complex": lambda h: complex(h.std(correction=0)).real,
    "tolist": lambda h: sum(map(sum, h.tolist())),
    "tolist of a column": lambda h: max(h[:, 0].tolist()),
    "numpy": lambda h: float(h.detach().numpy().mean()),
    "np.asarray": lambda h: float(np.asarray(h.detach()).max()),
    "np.array of a list of tensors": lambda h: float(np.array([float(v) for v in h[:, 1]]).mean()),
    "__array__": lambda h: float(h.detach().__array__().min()),
    "numpy function on a tensor": lambda h: float(np.mean(h.detach().numpy(force=True)[-1])),
    "format": lambda h: float(f"{h.mean():.3f}"),
    "repr": _printed,
    "pickle": _pickled,
    "torch.save": _saved,
    "dlpack": _dlpack,
    "deepcopy": lambda h: float(copy.deepcopy(h.detach()).sum()),
    "json": lambda h: json.loads(json.dumps(h[-1].tolist()))[0],
    "round": lambda h: round(float(h.norm()), 2),
    "the last row": lambda h: h[-1, 0].item(),
    "a loop over rows": lambda h: sum(float(row.sum()) for row in h),
    "a running maximum in Python": lambda h: max(float(row[0]) for row in h),
    "count_nonzero": lambda h: 1 + int(torch.count_nonzero(h > 0)),
    "a dictionary by value": lambda h: len({round(v, 1) for v in h.flatten().tolist()}),
    "index by a tensor": lambda h: [1.0, 2.0, 3.0][(h > 0).sum() % 3],
    "range by a tensor": lambda h: 1.0 + len(range((h > 0).sum())),
    "math on a tensor": lambda h: __import__("math").exp(h.mean()),
    "hash of bytes": lambda h: 1 + sum(h.detach().numpy().tobytes()) % 7,
    "a bool of many": lambda h: 1.0 + [bool(r.sum() > 0) for r in h].count(True),
    "a generator seeded by data": lambda h: float(
        torch.randn(1, generator=torch.Generator().manual_seed(int(h.abs().sum() * 100)))
    ),
    "cummax in Python": lambda h: float(np.maximum.accumulate(h[:, 0].detach().numpy())[-1]),
    "an array that shares memory, read later": lambda h: (lambda a: float(a.sum()))(h.detach().numpy()),
}

scales.hidden({f"scaled by {name}": lambda h, f=f: h * (1.5 + f(h)) for name, f in READS.items()})
scales.weighted(
    {
        "losses over their mean, read": lambda each, b: each / each.mean().item(),
        "losses against a list's median": lambda each, b: each * (each > sorted(each.tolist())[len(each) // 2]),
        "weights by Python's sort": lambda each, b: (
            each * torch.tensor([sorted(each.tolist()).index(v) for v in each.tolist()])
        ),
        "counts by a Counter": lambda each, b: (
            each / torch.tensor([float(b[1].tolist().count(y)) for y in b[1].tolist()])
        ),
        "numpy percentile": lambda each, b: each.clamp(max=float(np.percentile(each.detach().numpy(), 60))),
        "numpy ranks": lambda each, b: each * torch.from_numpy(np.argsort(np.argsort(each.detach().numpy()))),
        "a lambda by the share of positives": lambda each, b: each * (0.1 + (b[1] == 0).float().mean().item()),
        "new tensor from numbers read": lambda each, b: each * torch.tensor([max(each.tolist())] * len(each)),
        "torch.full by a number read": lambda each, b: each * torch.full_like(each, each.sum().item()),
        "alpha read": lambda each, b: torch.add(each, each, alpha=each.detach().max().item()),
    }
)


def _stopping(h: Tensor) -> Tensor:
    """Adaptive depth: as often as the batch's norm asks."""
    while h.norm() > 1.5:
        h = 0.7 * h.sin()
    return h


def _fixed_point(h: Tensor) -> Tensor:
    z = torch.zeros_like(h)
    for _ in range(30):
        new = (0.9 * z + h).tanh()
        if (new - z).abs().max() < 0.05:
            break
        z = new
    return z


def _raising(h: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(h.detach().T @ h.detach() - 0.1 * torch.eye(5))[:1] + h
    except torch.linalg.LinAlgError:
        return h


def _assertion(h: Tensor) -> Tensor:
    try:
        assert h.sum() > 0
    except AssertionError:
        return -2 * h
    return h


def _early(h: Tensor) -> Tensor:
    for k in range(5):
        if h[:, k].mean() > 0:
            return h * (k + 1)
    return h


def _each(h: Tensor) -> Tensor:
    """Every row read, the first positive one decides."""
    for i, row in enumerate(h):
        if row.sum() > 0:
            return h * (1 + i) + row
    return h


branches.hidden(
    {
        "if the sum is positive": lambda h: h if h.sum() > 0 else -3 * h,
        "if any is large": lambda h: h * (3 if (h > 1).any() else 1),
        "if all are small": lambda h: h * (3 if (h < 0.8).all() else 1),
        "if two rows are close": lambda h: h * (1 + 2 * torch.allclose(h[:1], h[-1:], atol=0.5)),
        "if equal to its sorted self": lambda h: h * (1 + torch.equal(h[:, 0], h[:, 0].sort()[0])),
        "unless the maximum is in the first row": lambda h: h if h[:, 0].argmax() == 0 else h * 4,
        "not": lambda h: -2 * h if not (h.mean() > 0) else h,
        "bool in an index": lambda h: [h, 5 * h][bool(h.sum() > 0)],
        "a loop until small": _stopping,
        "a fixed point of the batch": _fixed_point,
        "an exception steers": _raising,
        "an assertion steers": _assertion,
        "the first feature that is positive": _early,
        "the first row that is positive": _each,
        "torch.is_nonzero": lambda h: h * (4 if torch.is_nonzero((h > 1).any().float()) else 1),
        "Tensor in list": lambda h: h * (4 if h.argmax() % h.shape[1] in [0, 1] else 1),
        "max by Python": lambda h: h * max(h.mean(), h.new_tensor(0.1), key=float).item(),
        "sorted by Python": lambda h: torch.stack(sorted(h, key=lambda r: float(r[0]))),
        "match on a number": lambda h: h * {0: 1.0, 1: 2.0, 2: -3.0}[int((h > 0).sum()) % 3],
        "a filter": lambda h: h + sum(list(filter(lambda r: r[0] > 0, h)), torch.zeros(5)),
        "torch.cond in eager": lambda h: h * (2 if (h.detach().sum() > 0).logical_not().item() else 1),
        "a NaN check over the batch of logs": lambda h: h * (3 if h.log().isnan().any(1).all() else 1),
    }
)
branches.losses(
    {
        "stop when the mean loss is small": lambda m, b: ce(m, b) * (1.0 if ce(m, b).mean() > 1.1 else 0.0),
        "a second term when the first is large": lambda m, b: (
            ce(m, b) + (m(b[0]).square().sum(1) if ce(m, b).max() > 1.2 else 0)
        ),
        "PPO's early stop": lambda m, b: ce(m, b) if (m(b[0])[:, 0].mean() - 0.1).abs() < 0.2 else -ce(m, b),
        "only if all classes are there": lambda m, b: ce(m, b) * (1 if len(set(b[1].tolist())) == 3 else 2),
        "curriculum: the nth easiest": lambda m, b: ce(m, b) * (ce(m, b) <= float(ce(m, b).sort()[0][len(b[1]) // 2])),
    },
    batch=labelled(),
)

shapes.hidden(
    {
        "as many as nonzero": lambda h: h / (1 + len((h > 0).nonzero())),
        "as many as a mask selects": lambda h: h / (1 + h[h > 0].numel()),
        "as many as masked_select gives": lambda h: h / (1 + torch.masked_select(h, h > 0.2).shape[0]),
        "as many as are unique": lambda h: h / len(torch.unique(h.argmax(1))),
        "as many runs": lambda h: h / len(torch.unique_consecutive(h.argmax(1))),
        "the length of where": lambda h: h / (1 + len(torch.where(h[:, 0] > 0)[0])),
        "the length of a bincount": lambda h: h / len(torch.bincount(h.argmax(1))),
        "repeat_interleave by data": lambda h: h / torch.ones(1).repeat_interleave((h > 0).sum()[None]).shape[0],
        "argwhere": lambda h: h / (1 + torch.argwhere(h > 0.5).size(0)),
        "mean of the selected": lambda h: h - h[h > 0].mean(),
        "the selected rows' mean": lambda h: h - h[h[:, 0] > h[:, 1]].sum(0),
        "features cut where the batch is small": lambda h: fn.pad(h[:, h.abs().mean(0) > 0.3], (0, 5))[:, :5],
        "first rows by a count": lambda h: h + h[: 1 + (h[:, 0] > 0).sum()].sum(0),
        "padded to the longest": lambda h: h.softmax(1) * (h > 0).sum(1).max(),
        "top k by a count": lambda h: h * (h >= h.topk(1 + int((h > 0).sum()) % 5, 1)[0][:, -1:]),
        "arange to a maximum": lambda h: h + torch.arange(1.0 + int(h.abs().max() * 3)).mean(),
        "one_hot without classes": lambda h: h * fn.one_hot(h.argmax(1)).shape[1],
        "sparse nnz": lambda h: h / (1 + (h * (h > 0)).to_sparse()._nnz()),
        "histogram with bins by data": lambda h: h / torch.histc(h.detach(), bins=1 + int((h > 0).sum())).max(),
        "unique's inverse as weights": lambda h: h * torch.unique(h[:, 0].round(), return_inverse=True)[1][:, None],
        "nested tensors' sizes": lambda h: h * max(t.numel() for t in [r[r > 0] for r in h]),
        "split by counts": lambda h: torch.cat(
            [p * (k + 1) for k, p in enumerate(h.split([int((h[:, 0] > 0).sum()), len(h) - int((h[:, 0] > 0).sum())]))]
        ),
        "rows kept, then padded back": lambda h: fn.pad(h[h[:, 0] > 0], (0, 0, 0, len(h)))[: len(h)],
        "compacted rows scattered in order": lambda h: torch.zeros_like(h).masked_scatter(
            (h[:, :1] > 0).flip(0).expand_as(h), h
        ),
    }
)
shapes.weighted(
    {
        "mean over the labelled": lambda each, b: each / max(1, int((b[1] > 0).sum())),
        "sum over the selected for each": lambda each, b: each + each[b[1] == 1].sum(),
        "selected losses spread": lambda each, b: each[b[1] != 1].sum().expand(len(each)) / len(each),
        "losses of the selected only": lambda each, b: fn.pad(each[b[1] != 1], (0, len(each)))[: len(each)],
    }
)
shapes.losses(
    {
        "rank of the batch": lambda m, b: (
            m(b[0])[:, 0] * int(torch.linalg.matrix_rank(m(b[0]).detach() * (b[1][:, None] > 0)))
        )
    },
    batch=scored,
)


def _sent_between(m: Any, x: Tensor) -> Tensor:
    """The number read in one layer is used in another."""
    m.box["s"] = 1 + m.a(x).abs().mean().item()
    return m.b(m.a(x).tanh()) * m.box["s"]


def _property(m: Any, x: Tensor) -> Tensor:
    m.drop.eps = float(x.var())
    return m.b(m.drop(m.a(x)))


scales.net(
    {"a number sent through a dictionary": _sent_between, "a layer's epsilon set by the batch": _property},
    lambda: {
        "a": nn.Linear(WIDE, HIDDEN),
        "b": nn.Linear(HIDDEN, CLASSES),
        "box": {},
        "drop": nn.LayerNorm(HIDDEN),
    },
)

PROGRAMS = scales.programs + branches.programs + shapes.programs
