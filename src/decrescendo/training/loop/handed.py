"""`Handed`: whether a batch that a step is given is the one that was drawn."""

from torch import Tensor

from decrescendo.base.batches import OneByOne, leaves_of
from decrescendo.clipping.clipped import Batch
from decrescendo.training.processes.bits import fingerprint


class Handed:
    """The tensors of a batch by their bits, and for examples that are passed one by one their order.

    Not seen: what examples that are objects hold besides tensors.

    Args:
        batch: as it was drawn; ``None`` where there is none.

    >>> import torch
    >>> rows = torch.ones(2)
    >>> handed = Handed(rows)
    >>> handed.is_changed(rows), handed.is_changed(rows.clone()), handed.is_changed(rows.mul_(2))
    (False, True, True)
    """

    def __init__(self, batch: Batch | None) -> None:
        self._batch = batch  # kept, so that no other object has its place in memory
        self._codes = {id(part): fingerprint(part) for part in _parts_of(batch)}
        self._order = _order_of(batch)

    def is_changed(self, batch: Batch) -> bool:
        """Whether a batch has other tensors or examples, or others of them, or other numbers in them."""
        if self._order != _order_of(batch):
            return True
        return any(self._codes.get(id(part)) != fingerprint(part) for part in _parts_of(batch))


def _order_of(batch: Batch | None) -> list[int]:
    return list(map(id, batch.examples)) if isinstance(batch, OneByOne) else []


def _parts_of(batch: Batch | None) -> list[Tensor]:
    """The tensors of a batch; of objects that are passed one by one those among their attributes."""
    if batch is None:
        return []
    objects = batch.examples if isinstance(batch, OneByOne) else ()
    inside = [value for one in objects if hasattr(one, "__dict__") for value in vars(one).values()]
    return [*leaves_of(batch), *(value for value in inside if isinstance(value, Tensor))]
