"""`Step`: an operation on a tape, with slots for its tensors."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decrescendo.base.storages import kind_of, storage_key
from decrescendo.errors import UnsupportedModel

# Of these the numbers of the data decide a shape, or something in Python.
READS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


# Those that turn a tensor around where it lies, which is a view for each that knows it as it was.
TURNED = frozenset(
    {"t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "detach_"}
)


_MASKS = (torch.bool, torch.uint8)


class Step(NamedTuple):
    """A call. What it is given: ``values``, in which tensors have no place yet; ``slots``: the place of each and its
    number; ``lists``: the same of tensors in lists, with all that is in these; ``names``: of the last values.

    ``made``: the numbers of what it makes; ``single``: it returns one tensor; ``pure``: it does nothing else.
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
        """The numbers of the tensors in it."""
        inside = [value for *_, items in self.lists for is_tensor, value in items if is_tensor]
        return [number for _, number in self.slots] + inside


def place_of(tensor: Tensor) -> object:
    if tensor.layout is not torch.strided:
        raise UnsupportedModel(f"tensors must be dense, got one of {tensor.layout}")
    laid = tensor.shape, tensor.stride(), tensor.storage_offset(), kind_of(tensor)
    return storage_key(tensor), *laid


def has_mask(indices: Iterable[object]) -> bool:
    return any(isinstance(index, Tensor) and index.dtype in _MASKS for index in indices)
