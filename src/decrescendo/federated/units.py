"""What a guarantee about one client says of somebody who is behind several clients.

InfiniteMNIST is the case in point: hundreds of thousands of clients, each with images derived from 60,000 source
digits. A plan for clients hides one derived image (or one client with ten of them); the
person who wrote a digit is behind all images that are made from it.
"""

import math

import numpy as np

from decrescendo.accounting import Bound, Ledger, Pld
from decrescendo.errors import InvalidValue, check_integer
from decrescendo.training.data.people import ids_of, numbered

_DIGITS = 1e-3  # the relative width of the bracket in which an epsilon for two halves is searched
_MOST = 500.0  # the epsilon of a half beyond which it is not: exp(710) is the largest that can be computed


def most_clients(person: object, client: object) -> int:
    """The most clients that one person is behind.

    Args:
        person: whose record each row is: whole numbers or texts, as `train` takes ``people``.
        client: who holds it, likewise.

    Raises:
        InvalidValue: a row without one of them, more of one than of the other, or numbers above 2^53 as floats, where
            several are one (pandas makes them of a column with gaps).
        InvalidType: ids of another form.

    >>> rows = np.arange(12)
    >>> most_clients(rows % 3, rows), most_clients(rows % 3, rows // 4)
    (4, 3)
    """
    persons, clients = (numbered(ids_of(ids, name), name) for ids, name in ((person, "person"), (client, "client")))
    if len(persons) != len(clients):
        raise InvalidValue(f"each row must have a person and a client, got {len(persons)} and {len(clients)}")
    pairs = np.unique(np.stack([persons, clients]), axis=1)  # of numbers that count what is there, from 0
    return int(np.unique(pairs[0], return_counts=True)[1].max()) if pairs.size else 0


def group_epsilon(ledger: Ledger, delta: float, clients: int, *, replaced: bool = False) -> Bound:
    """An upper bound of epsilon for somebody who is behind at most ``clients`` clients, at ``delta``.

    What `accounting.Pld` says of a group of so many records: each client is drawn on its own, so that how many of
    them a round has is binomial.

    Args:
        ledger: of a CENTRAL or DISTRIBUTED run.
        delta: in (0, 1).
        clients: m >= 1, see `most_clients`.
        replaced: the person leaves, and the m clients stay with other updates (they hold other people's records
            too). That is going away with m old updates and coming with m new ones: if (e, d) covers each half, the
            whole is (2 e, (1 + exp(e)) d).

    Edge cases:
        it grows faster than m times the client's epsilon where delta is small against m p T, and is vacuous for large
        groups: hundreds of clients of one person are not protected by a plan for one client. Calibrate then with the
        person as the unit: put their records into one client.

    Raises:
        AccountingError: one round loses more than `Pld` accounts.

    >>> group_epsilon(Ledger.of([2.0] * 10, sample_rate=0.1), 1e-5, clients=2)
    Bound(value=1.73..., kind='upper')
    """
    judge = Pld(group=check_integer("clients", clients, at_least=1))
    whole = judge.epsilon(ledger, delta)
    if not replaced or whole.value == math.inf:
        return whole

    def covers(half: float) -> bool:
        return half <= _MOST and judge.delta(ledger, half).value * (1 + math.exp(half)) <= delta

    # Two halves at epsilon 0 have twice the delta of one.
    low, high = (0.0, 0.0) if covers(0.0) else (whole.value, max(whole.value, _DIGITS))
    while not covers(high):
        if high > _MOST:
            return Bound(math.inf, "upper")
        low, high = high, 2 * high
    while high - low > _DIGITS * high:
        middle = (low + high) / 2
        low, high = (low, middle) if covers(middle) else (middle, high)
    return Bound(2 * high, "upper")
