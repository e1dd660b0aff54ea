"""The target of ``target[index] = value``, as a mask or a view where possible."""

from typing import Any, TypeGuard, cast

import torch
from torch import Tensor

_ALL = slice(None)


def _parts(index: object) -> list[object]:
    return list(cast("tuple[object, ...]", index)) if isinstance(index, tuple) else [index]


def _is_mask(part: object) -> TypeGuard[Tensor]:
    return isinstance(part, Tensor) and part.dtype == torch.bool


def _is_all(part: object) -> bool:
    return part is ... or (isinstance(part, slice) and part == _ALL)


def is_basic(index: object) -> bool:
    """Whether an index gives a view.

    >>> is_basic((slice(None), 0)), is_basic((..., None)), is_basic([0, 1]), is_basic(True)
    (True, True, False, False)
    """
    return all(part is None or part is ... or type(part) in (int, slice) for part in _parts(index))


def masked(target: Tensor, index: object, value: object) -> tuple[Tensor, Tensor, tuple[int, ...]] | None:
    """Of ``target[mask] = value`` and ``target[:, mask] = value`` the mask and the value, and the shape in which it
    broadcasts with the target; ``None`` of another index, or where the value is not the same at each place of the mask.

    >>> mask = torch.tensor([True, False, True])
    >>> found = masked(torch.zeros(2, 3, 4), (slice(None), mask), torch.ones(4))
    >>> found[0].shape, found[2]
    (torch.Size([3, 1]), (4,))
    >>> masked(torch.zeros(2, 3, 4), (slice(None), mask), torch.ones(2, 1, 4))[2]
    (2, 1, 4)
    >>> masked(torch.zeros(3, 4), mask, torch.ones(2, 4)) is None
    True
    """
    parts = _parts(index)
    places = [at for at, part in enumerate(parts) if _is_mask(part)]
    if len(places) != 1 or not isinstance(value, Tensor):
        return None
    at = places[0]
    mask, rest = parts[at], [*parts[:at], *parts[at + 1 :]]
    if not _is_mask(mask) or not all(map(_is_all, rest)):
        return None
    before = target.dim() - mask.dim() - (len(parts) - at - 1) if ... in parts[:at] else at
    after, shape = target.dim() - before - mask.dim(), tuple(value.shape)
    if value.dim() > after:
        selected = value.dim() - after - 1
        if shape[selected] != 1:
            return None
        shape = (*shape[:selected], *[1] * mask.dim(), *shape[selected + 1 :])
    shape = shape[max(0, len(shape) - target.dim()) :]
    return mask.reshape(*mask.shape, *[1] * after), value, shape


def dims_after(target: Tensor, index: object) -> int:
    """How many of the last dimensions an index leaves whole.

    >>> one = torch.zeros(2, dtype=torch.long)
    >>> dims_after(torch.zeros(2, 3, 4), (one, one)), dims_after(torch.zeros(2, 3, 4), (one, ..., one))
    (1, 0)
    """
    parts = _parts(index)
    kept = 0
    while parts and _is_all(parts[-1]):
        kept += 1
        if parts.pop() is ...:
            break
    if ... in parts:
        return kept
    taken = sum(part.dim() if _is_mask(part) else part is not None for part in parts)
    return target.dim() - taken


def set_entries_(target: Tensor, index: Any, value: Tensor) -> Tensor:
    """``target[index] = value``, as an operation that returns what it has written to."""
    target[index] = value
    return target
