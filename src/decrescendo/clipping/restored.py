"""The model as it was before a pass: other tensors, other memory and other places in it are refused and put back."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.dataflow import storages
from decrescendo.row_independence.refusals import written_by_the_pass


@contextmanager
def unchanged(model: nn.Module, held: Inventory) -> Generator[None]:
    """Refuse a forward pass that writes to a buffer or a parameter: what it keeps of the data leaves without noise.

    ``held`` is what the model holds on entry. What is written to their memory the proof sees; this sees the rest:
    other tensors in their place, and other memory.
    """
    before = [
        (name, tensor, tensor._version, _memory_of(tensor), _laid(tensor)) for name, tensor in held.tensors()
    ]
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
    model: nn.Module,
    before: list[tuple[str, Tensor, int, torch.UntypedStorage | Tensor, tuple[object, ...]]],
    trained: list[tuple[str, Tensor, bool]],
) -> list[str]:
    """Put everything back where it was, but for numbers that were written in place; what was another one."""
    after = dict(Inventory.of(model).tensors())
    changed: list[str] = []
    for name, tensor, version, memory, laid in before:
        now = _memory_of(tensor)
        strided = isinstance(now, torch.UntypedStorage) and isinstance(memory, torch.UntypedStorage)
        moved = strided and now.data_ptr() != memory.data_ptr()
        again = _laid(tensor) != laid
        if moved or again:
            _give_back(tensor, memory, laid)
        if after.get(name) is not tensor:
            _put_back(model, name, tensor)
        if moved or again or tensor._version != version or after.get(name) is not tensor:
            changed.append(name)
    for name in sorted(after.keys() - {name for name, *_ in before}):
        _take_away(model, name)
        changed.append(name)
    for name, tensor, wanted in trained:
        if tensor.requires_grad is not wanted:
            tensor.requires_grad_(wanted)
            changed.append(f"whether {name} is trained")
    return changed


def _memory_of(tensor: Tensor) -> torch.UntypedStorage | Tensor:
    """The storage of a tensor that has one; of another, what it is made of."""
    if tensor.layout is torch.strided and not tensor.is_nested:
        return tensor.untyped_storage()
    return tensor.detach()


def _laid(tensor: Tensor) -> tuple[object, ...]:
    """How a tensor lies in its memory, and what hangs on it; of a sparse one, what it is made of."""
    hooks = tensor._backward_hooks is None, getattr(tensor, "_post_accumulate_grad_hooks", None) is None
    if tensor.is_nested:
        return tensor.dtype, hooks
    if tensor.layout is not torch.strided:
        return tensor.layout, tensor.shape, tensor.dtype, hooks, storages(tensor)
    laid = tensor.shape, tensor.dtype, tensor.stride(), tensor.storage_offset()
    return *laid, tensor.is_conj(), tensor.is_neg(), hooks


def _give_back(tensor: Tensor, memory: torch.UntypedStorage | Tensor, laid: tuple[Any, ...]) -> None:
    """Its own memory to a tensor that was given other memory, or another place in it."""
    if isinstance(memory, Tensor):
        tensor.data = memory
        return
    shape, dtype, strides, offset, conjugate, negative, _ = laid
    empty = cast("Any", torch.empty(0, dtype=dtype, device=memory.device))
    tensor.data = empty.set_(memory, offset, shape, strides)
    cast("Any", torch)._C._set_conj(tensor, conjugate)
    cast("Any", torch)._C._set_neg(tensor, negative)


def _put_back(model: nn.Module, name: str, tensor: Tensor) -> None:
    """A tensor where another one was put in its place, or none."""
    if name.endswith("]"):
        return  # a part of a wrapper, whose code says what it is made of
    held, last = _holder(model, name, is_parameter=isinstance(tensor, nn.Parameter))
    held[last] = tensor


def _take_away(model: nn.Module, name: str) -> None:
    """A parameter or buffer that was not there."""
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
    """``.grad`` afterwards as it was; refuse what was put there meanwhile."""
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
            "backward pass (as reversible blocks do), where the engine sees no example apart. Use the plain form of "
            "these blocks, with torch.utils.checkpoint(use_reentrant=False) to save memory"
        )
