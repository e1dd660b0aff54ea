"""Detects reads in a single-example pass beyond its example: of training data, or of what the pass before
made."""

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from decrescendo.base.batches import Batch
from decrescendo.base.storages import DispatchMode, is_whole, key_of, tensors_of
from decrescendo.base.torch_private import tree_leaves
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import Memory

_CARRIED_TENSOR = (
    "a pass must read nothing that the pass before computed from its example, got a tensor that model or loss keep (a "
    "running maximum, features of the last example). Leave it out, or change it between steps"
)
# Operations that read nothing of what they write to.
_OVERWRITES = ("copy_", "fill_", "zero_")


class Watch(DispatchMode):
    """Refuses operations that read training data outside the example of the pass, or results of the pass
    before."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory, self._own = memory, Memory()
        # Storages that this pass and the one before computed from their examples, by address; weak references keep
        # the addresses from being reused.
        self._made: dict[int, StorageWeakRef] = {}
        self._before: dict[int, StorageWeakRef] = {}

    def of(self, example: Batch, gradients: list[Tensor]) -> "Watch":
        """This watch, set for a pass of another example, which may share a storage with the one before.
        ``gradients``: the parameters' ``.grad``, which `gradients_kept` checks after the passes."""
        self._own = Memory()
        self._own.withhold(tensors := _tensors_in(example))
        own = set(map(key_of, (*tensors, *gradients)))
        self._before = {key: ref for key, ref in self._made.items() if key not in own}
        self._made.clear()
        self._note(tensors)
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = func.overloadpacket.__name__
        if name in _OVERWRITES and is_whole(given[0]):
            self._before.pop(key_of(given[0]), None)  # a buffer that each pass fills anew
            self._made.pop(key_of(given.pop(0)), None)
        for leaf in given:
            if self._memory.withholds(leaf) and not self._own.withholds(leaf):
                refuse(
                    "a pass must read no training data but its own example, got a loss or model that reads the data "
                    "themselves (the whole graph, a mean over all rows). Give it what is public, or leave it out"
                )
            if key_of(leaf) in self._before:
                refuse(_CARRIED_TENSOR)
        output = func(*args, **(kwargs or {}))
        is_shape = name.startswith("new_") or name.endswith("_like")
        if not is_shape and any(key_of(leaf) in self._made for leaf in given):
            written = args[:1] if func._schema.is_mutable else ()
            self._note(tensors_of((output, *written)))
        return output

    def _note(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if (key := key_of(tensor)) >= 0:
                self._made.setdefault(key, StorageWeakRef(tensor.untyped_storage()))


def refuse(why: str) -> NoReturn:
    """Raise `UnsupportedModel`; ``why``: what must hold, what was got, what to do."""
    raise UnsupportedModel(why)


def _tensors_in(value: Any, depth: int = 6) -> list[Tensor]:
    """Tensors in containers and in the attributes of objects."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        inner = list(value)
    else:
        inner = list(value.values()) if isinstance(value, Mapping) else []
        inner += list(getattr(value, "__dict__", {}).values())
        inner += [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return [tensor for item in inner if depth for tensor in _tensors_in(item, depth - 1)]
