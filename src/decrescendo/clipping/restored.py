"""Restores the model after a pass that replaced its tensors, their memory or their layout, and refuses that pass."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from decrescendo.base.storages import parts_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import written_by_the_pass


@contextmanager
def unchanged(model: nn.Module, held: Inventory) -> Generator[None]:
    """Refuse a forward pass that changes a buffer or a parameter: private data in it would be released
    without noise.

    ``held``: the model's inventory on entry. The tracer sees writes into the memory of its tensors; this function
    finds other tensors in their place, and other memory.
    """
    before = [(name, tensor, tensor._version, tensor.detach()) for name, tensor in held.tensors()]
    trained = [(name, tensor, tensor.requires_grad) for name, tensor in held.tensors()]
    try:
        yield
    except BaseException:
        _restored(model, before, trained)
        raise
    changed = _restored(model, before, trained)
    if changed:
        raise UnsupportedModel(written_by_the_pass(changed, held.parameters))


def _restored(
    model: nn.Module, before: list[tuple[str, Tensor, int, Tensor]], trained: list[tuple[str, Tensor, bool]]
) -> list[str]:
    """Put back tensors, memory and ``requires_grad``, but not values written in place; returns what had changed."""
    after = dict(Inventory.of(model).tensors())
    changed: list[str] = []
    for name, tensor, version, own in before:
        moved = _place(tensor) != _place(own)
        if moved:
            tensor.data = own
        if after.get(name) is not tensor:
            _put_back(model, name, tensor)
        if moved or tensor._version != version or after.get(name) is not tensor:
            changed.append(name)
    for name in sorted(after.keys() - {name for name, *_ in before}):
        _take_away(model, name)
        changed.append(name)
    for name, tensor, wanted in trained:
        if tensor.requires_grad is not wanted:
            tensor.requires_grad_(wanted)
            changed.append(f"whether {name} is trained")
    return changed


def _place(tensor: Tensor) -> tuple[object, ...]:
    """The memory and layout of a tensor."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.dtype, *(part.data_ptr() for part in parts_of(tensor) if isinstance(part, Tensor))
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _put_back(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a tensor back under its name, where the pass put another one or none."""
    if name.endswith("]"):
        return  # a part of a wrapper tensor, which only the wrapper can set
    held, last = _holder(model, name, is_parameter=isinstance(tensor, nn.Parameter))
    held[last] = tensor


def _take_away(model: nn.Module, name: str) -> None:
    """Remove a parameter or buffer that the pass added."""
    if name.endswith("]"):
        name = name.partition("[")[0]
    for is_parameter in (True, False):
        held, last = _holder(model, name, is_parameter=is_parameter)
        held.pop(last, None)


def _holder(model: nn.Module, name: str, *, is_parameter: bool) -> tuple[dict[str, Tensor | None], str]:
    path, _, last = name.rpartition(".")
    module = cast("Any", model.get_submodule(path))
    return (module._parameters if is_parameter else module._buffers), last


@contextmanager
def gradients_kept(parameters: Iterable[nn.Parameter]) -> Generator[None]:
    """Restore the parameters' ``.grad`` afterwards, and refuse a pass that has replaced one."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    try:
        yield
    finally:
        changed = [(parameter, grad) for parameter, grad in before if parameter.grad is not grad]
        for parameter, grad in changed:
            parameter.grad = grad
    if changed:
        raise UnsupportedModel(
            "the backward pass must leave .grad as it is, but a function of the model calls backward() in its own "
            "backward pass (as reversible blocks do), where no example is seen by itself. Use the plain form of "
            "these blocks, with torch.utils.checkpoint(use_reentrant=False) to save memory"
        )
