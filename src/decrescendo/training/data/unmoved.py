"""`Unmoved`: whether rows in memory stay where they are while they are drawn from."""

import numpy as np
from jaxtyping import Int
from torch import Tensor

from decrescendo.base.batches import leaves_of
from decrescendo.errors import InvalidValue
from decrescendo.training.data.examples import Examples
from decrescendo.training.data.rows import Rows, held_by


class Unmoved:
    """What costs nothing to see of rows that change: a list with another object at an index, a tensor that was written.

    Written arrays and data frames, and what other code makes the rows of, are not seen.

    Args:
        table: the rows, as they are when the drawing begins.

    >>> Unmoved(Examples([1.0, 2.0], None)).check(np.array([1]))
    """

    def __init__(self, table: Rows | Examples) -> None:
        held = held_by(table)
        self._items = held if isinstance(table, Examples) and type(held) is list else []
        self._ids = np.fromiter(map(id, self._items), np.int64, len(self._items))
        tensors = leaves_of(held) if isinstance(table, Rows) and held is not None else ()
        self._versions = [
            (one, one._version) for one in tensors if type(one) is Tensor and not one.is_inference()
        ]

    def check(self, indices: Int[np.ndarray, " batch"]) -> None:
        """Before the rows at ``indices`` are read.

        Raises:
            InvalidValue: one of them is another object than before, or a tensor was written.
        """
        moved = self._ids.size and any(id(self._items[i]) != self._ids[i] for i in indices)
        if moved or any(one._version != version for one, version in self._versions):
            raise InvalidValue(
                "data must stay as they are while they are drawn from, got a list whose items were moved, or a tensor "
                "that was written. Which records a batch has is drawn here, by their places: do not shuffle, sort or "
                "overwrite the rows between steps"
            )
