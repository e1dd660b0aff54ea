"""Replaces torch loss functions that return one number per batch by ones that return one number per row."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from decrescendo.base.torch_private import reduction_of
from decrescendo.errors import UnsupportedModel

_ELEMENTWISE = frozenset(
    getattr(functional, name)
    for name in (
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "poisson_nll_loss", "gaussian_nll_loss",
        "hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss", "triplet_margin_loss",
        "triplet_margin_with_distance_loss", "multi_margin_loss", "multilabel_margin_loss",
        "multilabel_soft_margin_loss",
    )
)  # fmt: skip
_BY_CLASS = frozenset({functional.cross_entropy, functional.nll_loss})
_SELECTS = frozenset({Tensor.masked_select, torch.masked_select, Tensor.__getitem__})
_CASTS = frozenset({Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.long, Tensor.to, Tensor.type_as})


class PerExample(TorchFunctionMode):
    """While it is on, a loss function that would return one number for a batch returns one for each of its rows.

    It is the number that the function returns where the row is alone: the mean over the row's own places, or their
    sum. What the model does with it afterwards (half of a sum, a weight) is done to each.

    Args:
        rows: examples of the batch. Of n times k places the first k belong to the first row, and so on.

    Edge cases:
        a mean over no place at all (every label is ignored) is zero.

    Raises:
        UnsupportedModel: places that are not as many for each row.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        # The names of loss functions that were replaced.
        self.met: list[str] = []
        # By the result of a masked selection: the whole tensor, and the mask.
        self._selected: Any = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ELEMENTWISE or func in _BY_CLASS or func is functional.ctc_loss:
            given = _bound(func, args, kwargs)
            if given["reduction"] != "none":
                each = self._each(func, given)
                self.met.append(func.__name__)
                return each
        output = func(*args, **kwargs)
        if func in _SELECTS and len(args) == 2 and not kwargs and _is_mask(args[1]):
            self._selected[output] = args
        elif func in _CASTS and args[0] in self._selected:
            whole, mask = self._selected[args[0]]
            self._selected[output] = func(whole, *args[1:], **kwargs), mask
        return output

    def _each(self, func: Any, given: dict[str, Any]) -> Tensor:
        if func is functional.ctc_loss:
            return self._transcripts(given)
        mask: Tensor | None = None
        names = [name for name in ("input", "target") if given.get(name) in self._selected]
        for name in names:  # evaluate at all places; those in the mask count
            given[name], mask = self._selected[given[name]]
        if len(names) == 1:
            raise UnsupportedModel(
                f"the places of a loss must be known by row, but {func.__name__} gets those that a mask selects from "
                "the whole batch. Multiply by the mask, or write a loss of your own"
            )
        values = func(**{**given, "reduction": "none"})
        kept = torch.ones_like(values)
        if mask is not None:
            mask = mask.bool().reshape(*mask.shape, *[1] * (values.dim() - mask.dim())).expand_as(values)
            values, kept = torch.where(mask, values, torch.zeros_like(values)), mask.to(values.dtype)
        if func in _BY_CLASS and not given["target"].is_floating_point():
            kept = kept * _counted(given, values.dtype).reshape_as(values)
        total = self._by_row(values, func.__name__).sum(1)
        if given["reduction"] == "sum":
            return total
        if given["reduction"] == "batchmean":
            return total / max(1, len(values) // self.rows)
        among = self._by_row(kept, func.__name__).sum(1)
        return total / torch.where(among == 0, torch.ones_like(among), among)

    def _by_row(self, values: Tensor, name: str) -> Tensor:
        """The values of n times k places as n rows of k."""
        if values.dim() == 0 and self.rows == 1:
            return values.reshape(1, 1)
        if values.dim() == 0 or values.shape[0] % self.rows:
            raise UnsupportedModel(
                f"a loss must have as many places for each example, got {name} over shape {tuple(values.shape)} for "
                f"{self.rows} examples. Write a loss of your own: one value per example, and 0 for what does not count"
            )
        return values.reshape(self.rows, -1)

    def _transcripts(self, given: dict[str, Any]) -> Tensor:
        targets, lengths, mean = given["targets"], given["target_lengths"], given["reduction"] == "mean"
        if targets in self._selected:
            labels, mask = self._selected[targets]
            order = (~mask).long().argsort(dim=1, stable=True)
            given["targets"] = labels.gather(1, order).clamp(min=0)
        each = cast("Any", functional.ctc_loss)(**{**given, "reduction": "none"})
        return each / lengths.to(each.device).clamp(min=1) if mean else each


@cache
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func)


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = _signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    if given.get("size_average") is not None or given.get("reduce") is not None:
        given["reduction"] = reduction_of(given["size_average"], given["reduce"])
        given["size_average"] = given["reduce"] = None
    return given


def _counted(given: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """The weight of each target in a mean: 0 if its label is ignored, otherwise its class weight."""
    target, weight = given["target"], given["weight"]
    counted = (target != given["ignore_index"]).to(dtype)
    return counted if weight is None else counted * weight[target.clamp(0, len(weight) - 1)].to(dtype)


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
