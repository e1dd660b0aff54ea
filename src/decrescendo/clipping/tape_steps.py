"""`Step`: an operation on a tape, with slots for its tensors."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decrescendo.base.storages import byte_form, storage_key
from decrescendo.errors import UnsupportedModel

# Tags of operations whose output shape, or result in Python, depends on values.
READS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


# Operations that change a tensor's layout in place: replayed as the view that their out-of-place form makes.
TURNED = frozenset(
    {"t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "detach_"}
)


_MASKS = (torch.bool, torch.uint8)


class Step(NamedTuple):
    """One recorded call. ``values``: its arguments, ``None`` for tensors; ``slots``: position and number of each
    tensor; ``lists``: position, type and items of each list with tensors; ``names``: of the last values, given by
    keyword.

    ``made``: the numbers of its results; ``single``: it returns one tensor; ``pure``: it neither writes nor draws.
    """

    function: Callable[..., Any]
    values: list[Any]
    slots: list[tuple[int, int]]
    lists: list[tuple[int, type, list[tuple[bool, Any]]]]
    names: tuple[str, ...]
    made: tuple[int | None, ...]
    single: bool
    pure: bool

    @property
    def given(self) -> list[int]:
        """The numbers of its tensor arguments."""
        inside = [value for *_, items in self.lists for is_tensor, value in items if is_tensor]
        return [number for _, number in self.slots] + inside


def place_of(tensor: Tensor) -> object:
    if tensor.layout is not torch.strided:
        raise UnsupportedModel(f"tensors must be dense, got one of {tensor.layout}")
    laid = tensor.shape, tensor.stride(), tensor.storage_offset(), byte_form(tensor)
    return storage_key(tensor), *laid


def has_mask(indices: Iterable[object]) -> bool:
    return any(isinstance(index, Tensor) and index.dtype in _MASKS for index in indices)
