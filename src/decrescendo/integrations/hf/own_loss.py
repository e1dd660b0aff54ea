"""A model's own loss, one value an example: its forward pass as it is, with another end to torch's loss functions."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from decrescendo.errors import UnsupportedModel

_ELEMENTWISE = frozenset(
    getattr(functional, name)
    for name in (
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss",
    )
)  # fmt: skip
_BY_CLASS = frozenset({functional.cross_entropy, functional.nll_loss})
_SELECTS = frozenset({Tensor.masked_select, torch.masked_select})


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
        # Loss functions that were met.
        self.met: list[str] = []
        # What was selected by a mask, with the places it was selected from.
        self._selected: Any = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ELEMENTWISE or func in _BY_CLASS or func is functional.ctc_loss:
            given = _bound(func, args, kwargs)
            if given["reduction"] != "none":
                self.met.append(func.__name__)
                return self._each(func, given)
        output = func(*args, **kwargs)
        if func in _SELECTS:
            self._selected[output] = args
        elif func is Tensor.__getitem__ and _is_mask(args[1]):
            self._selected[output] = ()
        return output

    def _each(self, func: Any, given: dict[str, Any]) -> Tensor:
        if func is functional.ctc_loss:
            return self._transcripts(given)
        first = next(iter(given.values()))
        if first in self._selected:
            raise UnsupportedModel(
                f"the places of a loss must be known by row, but {func.__name__} gets those that a mask selects from "
                "the whole batch. Write a loss of your own: one value an example from model(**inputs).logits"
            )
        return self._by_class(func, given) if func in _BY_CLASS else self._elementwise(func, given)

    def _by_row(self, values: Tensor, name: str) -> Tensor:
        """Of n times k places, n rows of k."""
        if values.dim() == 0 and self.rows == 1:
            return values.reshape(1, 1)
        if values.dim() == 0 or values.shape[0] % self.rows:
            raise UnsupportedModel(
                f"a loss must have as many places for each example, got {name} over shape {tuple(values.shape)} for "
                f"{self.rows} examples. Write a loss of your own: one value an example from model(**inputs).logits"
            )
        return values.reshape(self.rows, -1)

    def _elementwise(self, func: Any, given: dict[str, Any]) -> Tensor:
        reduction, length = given["reduction"], len(given["input"]) // self.rows if given["input"].dim() else 1
        each = self._by_row(func(**{**given, "reduction": "none"}), func.__name__)
        if reduction == "mean":
            return each.mean(1)
        return each.sum(1) / length if reduction == "batchmean" else each.sum(1)

    def _by_class(self, func: Any, given: dict[str, Any]) -> Tensor:
        target, weight, ignored = given["target"], given["weight"], given["ignore_index"]
        if given["input"].dim() == 1 and self.rows > 1:
            raise UnsupportedModel("one example")
        each = self._by_row(func(**{**given, "reduction": "none"}), func.__name__)
        if given["reduction"] == "sum":
            return each.sum(1)
        if target.is_floating_point():  # a probability of each class
            return each.mean(1)
        kept = (target != ignored).to(each.dtype)
        if weight is not None:
            kept = kept * weight[target.clamp(0, len(weight) - 1)].to(each.dtype)
        total = self._by_row(kept, func.__name__).sum(1)
        return each.sum(1) / torch.where(total == 0, torch.ones_like(total), total)

    def _transcripts(self, given: dict[str, Any]) -> Tensor:
        targets, lengths, mean = given["targets"], given["target_lengths"], given["reduction"] == "mean"
        if targets in self._selected and len(self._selected[targets]) == 2:
            labels, mask = self._selected[targets]
            order = (~mask).long().argsort(dim=1, stable=True)
            given["targets"] = labels.gather(1, order).clamp(min=0)
        each = functional.ctc_loss(**{**given, "reduction": "none"})
        return each / lengths.to(each.device).clamp(min=1) if mean else each


@cache
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func)


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = _signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    if given.get("size_average") is not None or given.get("reduce") is not None:
        given["reduction"] = cast("Any", torch.nn)._reduction.legacy_get_string(
            given["size_average"], given["reduce"]
        )
        given["size_average"] = given["reduce"] = None
    return given


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
