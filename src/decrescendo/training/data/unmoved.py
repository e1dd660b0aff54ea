"""`Unmoved`: whether rows in memory stay where they are while they are drawn from."""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from decrescendo.errors import InvalidValue
from decrescendo.training.data.examples import Examples
from decrescendo.training.data.rows import Rows, held_by


class Unmoved:
    """What costs next to nothing to see of rows that change: a list with another object at an index, a column that was
    written, if it is a tensor of its own and not a view of another.

    Not seen: writes to arrays, data frames and what the objects of a list hold, and rows that other code makes.

    Args:
        table: the rows, as they are when the drawing begins.

    >>> Unmoved(Examples([1.0, 2.0], None)).check([1])
    """

    def __init__(self, table: Rows | Examples) -> None:
        held = held_by(table)
        self._items: list[object] = held if isinstance(table, Examples) and isinstance(held, list) else []
        self._ids = np.fromiter(map(id, self._items), np.int64, len(self._items))
        columns = held if isinstance(table, Rows) and isinstance(held, list) else []
        # (Views count the writes of each other: rows of a split are not written where the other rows are.)
        self._versions = [
            (one, one._version) for one in columns if type(one) is Tensor and not (one.is_inference() or one._is_view())
        ]

    def check(self, indices: Iterable[int] = ()) -> None:
        """Of a list the items at ``indices``, of columns all rows.

        Raises:
            InvalidValue: one of them is another object than before, or a column was written.
        """
        # Another length is refused in other words where the rows are read.
        seen = indices if len(self._items) == len(self._ids) > 0 else ()
        if any(id(self._items[i]) != self._ids[i] for i in seen):
            got = "a list with another object at an index"
        elif any(one._version != version for one, version in self._versions):
            got = "a tensor that was written"
        else:
            return
        raise InvalidValue(
            f"data must stay as they are while they are drawn from, got {got} since the drawing began. A batch is "
            "drawn by indices: do not shuffle, sort or overwrite the rows between steps, or give a copy"
        )
