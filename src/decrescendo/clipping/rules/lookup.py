"""Rows of a parameter selected by ids from the data (a rule), or entries by anything else (a tracked tensor)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.rules import embedding
from decrescendo.clipping.rules.rule import Call, Kernel, Rule

# Operations that give pieces of a tensor, each entry in at most one.
_PIECES = frozenset({
    "narrow", "select", "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "hsplit", "vsplit",
    "diagonal", "unsafe_split", "unsafe_chunk",
})  # fmt: skip


def selects(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    same: Callable[[Tensor, Tensor], bool] = torch.equal,
) -> bool:
    """Whether an operation on one tensor only selects entries of it, each at most once: then its adjoint
    keeps norms.

    ``same``: says whether two tensors have the same numbers.

    >>> selects("__getitem__", (torch.zeros(5, 2), slice(0, 3)), {})
    True
    >>> table = torch.zeros(5, 2)
    >>> selects("embedding", (torch.tensor([0, 1]), table), {}), selects("embedding", (torch.tensor([1, 1]), table), {})
    (True, False)
    """
    if name in _PIECES:
        return True
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(item is None or item is ... or isinstance(item, (int, slice)) for item in index)
    return name == "embedding" and _distinct(dict(zip(_EMBEDDING, args, strict=False)) | dict(kwargs), same)


def ids_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The row ids that ``functional.embedding`` selects; ``None`` for other operations."""
    if name != "embedding":
        return None
    bound = dict(zip(_EMBEDDING, args, strict=False)) | dict(kwargs)
    return cast("Tensor", bound["input"]).long()


_EMBEDDING = embedding.RULES[functional.embedding].names


def _distinct(bound: Mapping[str, Any], same: Callable[[Tensor, Tensor], bool]) -> bool:
    """Whether ``functional.embedding`` selects each row at most once, as for a position table."""
    ids = bound["input"]
    if bound.get("padding_idx") is not None or ids.is_floating_point():
        return False
    ordered = ids.flatten().sort()[0]
    return same(ordered[1:] != ordered[:-1], torch.ones_like(ordered[1:], dtype=torch.bool))


def dense(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with sparse gradients turned off: outputs are the same, and vmap supports dense gradients
    only.

    >>> dense(functional.embedding, (0, 1), {"sparse": True})
    ((0, 1), {})
    """
    if func is not functional.embedding:
        return args, dict(kwargs)
    return args[: _EMBEDDING.index("sparse")], {key: value for key, value in kwargs.items() if key != "sparse"}


def _rows(call: Call, ids: object, weight: object) -> Kernel | None:
    if not isinstance(ids, Tensor) or not isinstance(weight, Tensor) or not call.is_tracked(weight):
        return None
    if weight.dim() != 2 or ids.dtype not in (torch.int64, torch.int32) or ids.dim() == 0:
        return None
    if call.is_tracked(ids) or not call.holds(ids):
        return None
    # Negative ids count from the end.
    split = call.layout.split(torch.where(ids < 0, ids + weight.shape[0], ids))
    return embedding.EmbeddingKernel((weight,), (ids,), split.reshape(split.shape[0], -1).long(), None)


def _getitem(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    return _rows(call, bound["index"], bound["input"])


def _index_select(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    return _rows(call, bound["index"], bound["input"]) if bound["dim"] == 0 else None


RULES: dict[Callable[..., Any], Rule] = {
    cast("Callable[..., Any]", Tensor.__getitem__): Rule(("input", "index"), _getitem),
    torch.index_select: Rule(("input", "dim", "index"), _index_select),
    Tensor.index_select: Rule(("input", "dim", "index"), _index_select),
}
