"""Writes of a parameter into a part of a tensor, replaced by operations that have rules.

``recording`` is a context in which operations are recorded.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from decrescendo.clipping.rules import masks
from decrescendo.clipping.rules.fallback import is_in_place

# Operations that overwrite all of their target.
_OVERWRITES = frozenset({Tensor.copy_, Tensor.fill_})


def is_part(func: Callable[..., Any], name: str, args: tuple[Any, ...]) -> bool:
    """Whether an operation writes to entries of its first argument, or to all of one that is a view: autograd then
    has the write in the graph of the view's base."""
    return func is Tensor.__setitem__ or (is_in_place(name) and bool(args) and args[0]._base is not None)


def set_masked(
    recording: AbstractContextManager[object],
    target: Tensor,
    mask: Tensor,
    value: Tensor,
    shape: Sequence[int],
) -> None:
    """Write ``value`` to each place of a mask, the same at all, by operations that have rules."""
    with recording:
        target.copy_(torch.where(mask, value.reshape(tuple(shape)), target.clone()))


def write_part(
    recording: AbstractContextManager[object],
    run: Callable[..., Any],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """Write a parameter into a part of a tensor: into a copy, in a recorded operation, which is then copied there."""
    target, *rest = args
    if func is Tensor.__setitem__:
        index, value = rest
        if masks.is_basic(index):
            part = target[index]
            func, target, rest = Tensor.copy_, part, [value]
        elif value.dim() <= masks.dims_after(target, index):
            mask = torch.zeros_like(target, dtype=torch.bool)
            mask[index] = True
            set_masked(recording, target, mask, value, value.shape)
            return target
    if func in _OVERWRITES:
        value = rest[0]
        set_masked(
            recording,
            target,
            torch.ones_like(target, dtype=torch.bool),
            value,
            value.shape[-target.dim() :] if value.dim() else (),
        )
        return target
    copy = target.clone()
    run(masks.set_entries_ if func is Tensor.__setitem__ else func, (copy, *rest), kwargs)
    return target.copy_(copy)
