"""Detects reads in a single-example pass beyond its example: of training data, or of what an earlier pass made."""

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from decrescendo.base.batches import Batch
from decrescendo.base.storages import (
    FUNCTIONS_OFF,
    HAS_FUNCTION_MODES,
    DispatchMode,
    is_whole,
    key_of,
    storage_key,
    tensors_of,
)
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import Memory, operation

_CARRIED_TENSOR = (
    "a pass must read nothing that an earlier pass computed from its example, got a tensor that model or loss keep (a "
    "running maximum, a bank of features, prototypes). Leave it out"
)
# Operations that read nothing of what they write to.
_OVERWRITES = ("copy_", "fill_", "zero_")
# What normalisation writes to without saying so in its schema.
_STATISTICS = ("running_mean", "running_var")


class Watch(DispatchMode):
    """Refuses operations that read training data outside the example of the pass, or results of earlier passes."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory, self._own = memory, Memory()
        # Storages that this pass and earlier ones computed from their examples, by address, as long as something keeps
        # them; weak references keep the addresses from being reused.
        self._made: dict[int, StorageWeakRef] = {}
        self._before: dict[int, StorageWeakRef] = {}
        # Storages of the example, which may be those of the data set; and those without training data.
        self._given, self._public = set[int](), dict[int, StorageWeakRef]()
        # Whether Python was given a real number that was computed from an example.
        self.gave_numbers = False

    def of(self, example: Batch, held: list[Tensor]) -> "Watch":
        """This watch, set for a pass of another example, which may share a storage with the one before.
        ``held``: what is checked after the passes: the parameters' ``.grad``, and buffers."""
        self._own = Memory()
        self._own.withhold(tensors := _tensors_in(example))
        self._given = set(map(key_of, tensors))
        own = self._given.union(map(key_of, held))
        computed = self._before | self._made
        self._before = {key: ref for key, ref in computed.items() if key not in own and not ref.expired()}
        self._made.clear()
        self._public.clear()
        self._note(tensors)
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not HAS_FUNCTION_MODES():
            return self._follow(func, args, kwargs or {})
        with FUNCTIONS_OFF():
            return self._follow(func, args, kwargs or {})

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        op = operation(func)
        given = tensors_of((*args, *kwargs.values()))
        if op.name in _OVERWRITES and is_whole(given[0]):  # a buffer that each pass fills anew
            key = storage_key(given.pop(0))
            self._before.pop(key, None)
            self._made.pop(key, None)
        reads = [self._reads(leaf) for leaf in given]
        output = func(*args, **kwargs)
        if isinstance(output, float) and any(reads):
            self.gave_numbers = True
        if any(reads) and not op.name.startswith("new_") and not op.name.endswith("_like"):
            bound = op.bind(args, kwargs) if op.written or op.writes_hidden else {}
            written = (*op.written, *(_STATISTICS if bound.get("training", op.writes_hidden) else ()))
            self._note(tensors_of((output, *(bound.get(name) for name in written))))
        return output

    def _reads(self, leaf: Tensor) -> bool:
        """Whether a tensor was computed from the example; refuses one of another example."""
        key = storage_key(leaf)
        made = key in self._made
        if key in self._public or (made and key not in self._given):
            return made
        if key in self._before:
            refuse(_CARRIED_TENSOR)
        if not self._memory.withholds(leaf):
            if is_whole(leaf) and key >= 0:
                self._public[key] = StorageWeakRef(leaf.untyped_storage())
        elif not self._own.withholds(leaf):
            refuse(
                "a pass must read no training data but its own example, got a loss or model that reads the data "
                "themselves (the whole graph, a mean over all rows). Give it what is public, or leave it out"
            )
        return made

    def _note(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if (key := key_of(tensor)) >= 0 and key not in self._made:
                self._made[key] = StorageWeakRef(tensor.untyped_storage())


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
