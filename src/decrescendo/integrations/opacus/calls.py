"""What a recording consists of: calls of functions, with numbers in place of the tensors that were recorded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True, slots=True)
class Ref:
    """The tensor with this number on a tape, among the arguments of a call."""

    number: int


@dataclass(frozen=True, slots=True)
class Stale:
    """A tensor made from an earlier batch, among the arguments of a call."""


# Numbers of a tensor that are looked through.
_FEW = 64


class RowCount(int):
    """The number of rows of a batch, as a loop reads it from a shape: of another batch it is another number."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One function of torch's that a loop called, or its model, where ``func`` is ``None``.

    Args:
        func: the function.
        args: its arguments by place, with a `Ref` for each recorded tensor.
        kwargs: its arguments by name.
        outputs: the tensors in what it returned.
        grad: whether gradients were recorded.
        random: the state of the CPU's random numbers before the model was called.
        training: the mode that the model was in.
    """

    func: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Ref, ...]
    grad: bool
    random: Tensor | None = None
    training: bool | None = None

    @property
    def writes(self) -> bool:
        """Whether it changes one of its arguments in place."""
        name = getattr(self.func, "__name__", "")
        return (
            name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or "out" in self.kwargs
        )


@dataclass(slots=True)
class Reads:
    """What a loop read in Python from its batches, and from what it made of them.

    Attributes:
        any: whether it read something.
        numbers: those that it read one by one.
        written: whether the loop wrote what it made of a batch into tensors of its own.
        made: memory that holds what was made of a batch, by its place.
        public: memory, and its version, of tensors that a loss used before any of this.
    """

    any: bool = False
    numbers: set[float] = field(default_factory=set)
    written: bool = False
    made: dict[int, StorageWeakRef] = field(default_factory=dict[int, StorageWeakRef])
    public: dict[tuple[int, int], StorageWeakRef] = field(
        default_factory=dict[tuple[int, int], StorageWeakRef]
    )

    def is_public(self, tensor: Tensor) -> bool:
        """Whether a tensor of the loop's own was there before anything was read or written that was made of a batch:
        what came later may have been made of that."""
        storage = tensor.untyped_storage()
        place = storage.data_ptr(), tensor._version
        if not (self.any or self.written):
            self.public[place] = StorageWeakRef(storage)
        kept = self.public.get(place)
        return kept is not None and not kept.expired()

    def note(self, tensor: Tensor) -> None:
        """What was made of a batch lies in this tensor's memory, for as long as there is any of it."""
        storage = tensor.untyped_storage()
        if storage.nbytes():
            self.made[storage.data_ptr()] = StorageWeakRef(storage)

    def forget(self) -> None:
        """Memory that is gone may be used again for anything."""
        self.made = {place: kept for place, kept in self.made.items() if not kept.expired()}
        self.public = {place: kept for place, kept in self.public.items() if not kept.expired()}

    def holds(self, tensor: Tensor) -> bool:
        """Whether something made of a batch lies in this tensor's memory."""
        kept = self.made.get(tensor.untyped_storage().data_ptr())
        return kept is not None and not kept.expired()

    def __contains__(self, value: object) -> bool:
        """Whether this is one of the numbers, or a tensor of them, and none that a loss may have by itself."""
        if isinstance(value, Tensor) and value.is_floating_point() and 0 < value.numel() <= _FEW:
            return any(one in self for one in value.detach().double().flatten().tolist())
        return isinstance(value, float) and bool(value * 4096 % 1) and value in self.numbers
