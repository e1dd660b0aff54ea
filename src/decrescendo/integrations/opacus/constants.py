"""What a loop may know of its batches, and the tensors of its own that it uses, as they were then."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from decrescendo.training.processes.bits import fingerprint


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor of the loop's own among the arguments of a call: a copy, which nobody writes into.

    Args:
        value: the copy.
        code: its bits, shape and type.
        needs_grad: whether the tensor has gradients.
        of_batch: whether memory of what was made of a batch is its memory.
        table: the bits of the vector that it is an entry of; empty where it is none.
        place: which entry.
        when: steps taken and epochs begun, at the time.
    """

    value: Tensor
    code: tuple[object, ...]
    needs_grad: bool = False
    of_batch: bool = False
    table: tuple[object, ...] = ()
    place: int = 0
    when: tuple[int, int] = (0, 0)

    def same(self, other: "Constant") -> bool:
        """Whether both are the same for all that a batch can change: equal bits, or entries of equal vectors whose
        places differ by the steps, or epochs, between."""
        if self.code == other.code:
            return True
        moved = self.place - other.place
        passed = (mine - its for mine, its in zip(self.when, other.when, strict=True))
        return bool(self.table) and self.table == other.table and moved in passed


@dataclass(slots=True, eq=False)
class Knowledge:
    """What a loop may know of its batches.

    Attributes:
        read: whether it has read numbers made of a batch, or has written past torch.
        counted: whether it has asked for a size, which tells how many rows a batch has.
        clean: calls of this step's recording that came before anything was read.
        recorded: the calls of this step.
        when: steps taken and epochs begun.
        forwards: calls of the model.
    """

    read: bool = False
    counted: bool = False
    clean: int = 0
    recorded: list[Any] = field(default_factory=list[Any])
    when: tuple[int, int] = (0, 0)
    forwards: int = 0
    _made: dict[int, StorageWeakRef] = field(default_factory=dict[int, StorageWeakRef])
    _copies: Any = field(default_factory=WeakIdKeyDictionary)

    def begin(self, recorded: list[Any]) -> None:
        """A recording begins: ``recorded`` will have its calls."""
        self.recorded, self.clean = recorded, 0

    def note_read(self) -> None:
        """The loop reads something that was made of a batch."""
        if not self.read:
            self.read, self.clean = True, len(self.recorded)

    def note_made(self, tensor: Tensor) -> None:
        """What was made of a batch lies in this tensor's memory, for as long as there is any of it."""
        if tensor.layout is torch.strided and tensor.numel():
            storage = tensor.untyped_storage()
            self._made[storage.data_ptr()] = StorageWeakRef(storage)

    def forget(self) -> None:
        """Memory that is gone may be used again for anything."""
        self._made = {place: kept for place, kept in self._made.items() if not kept.expired()}

    def constant(self, tensor: Tensor) -> Constant:
        """A tensor of the loop's own, as it is now. It is copied where it is not as it was when it was used before."""
        code, value = self._copied(tensor)
        table, place, base = tuple[object, ...](), 0, tensor._base
        if base is not None and base.dim() == 1 and not tensor.dim() and base.is_contiguous():
            table, place = self._copied(base)[0], int(tensor.storage_offset() - base.storage_offset())
        return Constant(value, code, tensor.requires_grad, self.is_made(tensor), table, place, self.when)

    def _copied(self, tensor: Tensor) -> tuple[tuple[object, ...], Tensor]:
        code = tuple(tensor.shape), tensor.dtype, tensor.device, fingerprint(tensor)
        kept = self._copies.get(tensor)
        if kept is None or kept[0] != code:
            kept = self._copies[tensor] = code, tensor.detach().clone()
        return kept

    def is_made(self, tensor: Tensor) -> bool:
        """Whether something made of a batch lies in this tensor's memory."""
        if tensor.layout is not torch.strided:
            return False
        kept = self._made.get(tensor.untyped_storage().data_ptr())
        return kept is not None and not kept.expired()
