"""Who has which records: a number of clients, and how to get the records of some of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Int

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import count_rows
from decrescendo.clipping import Batch
from decrescendo.errors import InvalidValue, check_instance, check_integer
from decrescendo.training.data.examples import Examples
from decrescendo.training.data.rows import OWN_ROWS, Rows, assumption_of, held_by, rows, table_of
from decrescendo.training.data.unmoved import Unmoved

CLIENTS_APART = assumed("own-clients")


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The records of some clients, one client after another.

    Args:
        rows: all of their records; ``None`` if they have none.
        counts: how many each has, in the order of the clients, >= 0.

    >>> import torch
    >>> Records(torch.zeros(3, 2), np.array([1, 0, 2])).counts.sum()
    np.int64(3)
    """

    rows: Batch | None
    counts: Int[np.ndarray, " clients"]

    def __post_init__(self) -> None:
        check_instance("counts", self.counts, np.ndarray)
        found = 0 if self.rows is None else count_rows(self.rows)
        if (len(self.counts) and int(self.counts.min()) < 0) or int(self.counts.sum()) != found:
            raise InvalidValue(f"records must be as many as counts says, got {found} rows for {int(self.counts.sum())}")


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    """A number of clients, and a function for the records of some of them: nothing is stored for each client.

    Args:
        count: clients, numbered from 0.
        take: from ascending client numbers (never none) to their `Records`. It may compute them, as
            a data set that makes its rows does, so that memory does not depend on the number of clients.
        held: what has the records in memory, which no loss may read beside its batch; ``None`` where nothing does.

    Attributes:
        assumption: what is assumed of code of a user's in it; `None` where there is none. `simulate` says it.

    >>> import torch
    >>> clients = Clients.equal(torch.arange(6.0).reshape(6, 1), records=2)
    >>> clients.count, clients.take(np.array([0, 2])).rows.flatten().tolist()
    (3, [0.0, 1.0, 4.0, 5.0])
    """

    count: int
    take: Callable[[Int[np.ndarray, " clients"]], Records]
    held: object = field(default=None, repr=False)
    assumption: Assumption | None = field(default=CLIENTS_APART, init=False)
    _drawn: Rows | Examples | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_integer("count", self.count, at_least=1)

    def unmoved(self) -> Callable[[], None]:
        """What refuses records in memory that are not as they are now; nothing where other code makes them."""
        if self._drawn is None:
            return lambda: None
        held = held_by(self._drawn)
        return partial(Unmoved(self._drawn).check, range(len(held) if isinstance(held, list) else 0))

    def records(self, members: Int[np.ndarray, " clients"]) -> Records:
        """The records of these clients, one part for each: each part is clipped by itself.

        Raises:
            InvalidValue: ``take`` gives more or fewer parts.
        """
        found = self.take(members)
        check_instance("what take gives", found, Records)
        if len(found.counts) != len(members):
            raise InvalidValue(
                f"take must say of each client how many records it has, got {len(found.counts)} counts for "
                f"{len(members)} clients. Put all records of one client together: each part is clipped by itself"
            )
        return found

    @classmethod
    def equal(cls, data: object, records: int) -> "Clients":
        """Client i has rows i m .. (i + 1) m - 1 of ``data`` (what `training.rows` takes), m = ``records``.

        Raises:
            InvalidValue: m does not divide the number of rows.
        """
        table, each = _Table(data), check_integer("records", records, at_least=1)
        if table.count % each:
            raise InvalidValue(
                f"records must divide the {table.count} rows of the data, got records={each}. Use ranges"
            )

        def take(clients: Int[np.ndarray, " clients"]) -> Records:
            indices = (clients[:, None] * each + np.arange(each)).reshape(-1)
            return Records(table.take(indices), np.full(len(clients), each))

        return table.of(cls(table.count // each, take, table.held))

    @classmethod
    def ranges(cls, data: object, offsets: Int[np.ndarray, " bounds"]) -> "Clients":
        """Client i has rows ``offsets[i]`` .. ``offsets[i + 1] - 1``; some may have none.

        Args:
            data: what `training.rows` takes.
            offsets: ascending, from 0 to the number of rows; one more than there are clients.

        >>> import torch
        >>> Clients.ranges(torch.zeros(5, 2), np.array([0, 2, 2, 5])).take(np.array([1, 2])).counts
        array([0, 3])
        """
        table = _Table(data)
        check_instance("offsets", offsets, np.ndarray, "np.array([0, 2, 5]) is of two clients, of two and three rows")
        bounds = offsets.copy()  # whoever writes to it later moves no record to another client
        if (
            bounds.ndim != 1 or bounds.dtype.kind not in "iu" or len(bounds) < 2 or bounds[0] != 0
            or bounds[-1] != table.count or (bounds[1:] < bounds[:-1]).any()
        ):  # fmt: skip
            raise InvalidValue(
                f"offsets must be whole numbers that ascend from 0 to {table.count}, the rows of the data"
            )

        def take(clients: Int[np.ndarray, " clients"]) -> Records:
            starts, counts = bounds[clients], bounds[clients + 1] - bounds[clients]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            indices = np.repeat(starts, counts) + within
            return Records(table.take(indices) if len(indices) else None, counts)

        return table.of(cls(len(bounds) - 1, take, table.held))


class _Table:
    """Rows of data, and what is assumed of the code that makes them."""

    def __init__(self, data: object) -> None:
        table, drawn = rows(data), table_of(data)
        found = assumption_of(drawn)
        self.count, self.take = table.count, table.take
        self.held, self._drawn = (data, held_by(drawn)), drawn
        compared = found is not None and found.code in OWN_ROWS  # by a training; here no row is
        self._assumption = CLIENTS_APART if compared else found

    def of(self, clients: Clients) -> Clients:
        """Clients whose records are these rows."""
        object.__setattr__(clients, "assumption", self._assumption)
        object.__setattr__(clients, "_drawn", self._drawn)
        return clients
