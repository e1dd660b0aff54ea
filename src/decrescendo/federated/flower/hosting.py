"""Which node hosts which clients: what the nodes have announced, nothing assumed."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import final

from decrescendo.errors import check_integer


@final
class Hosting:
    """Clients 0 .. ``clients - 1`` on nodes; a node hosts many, a client is hosted by at most one.

    The first node that announces a client keeps it until it is dropped: a second one that claims it is refused as a
    whole, so that nobody can take over another's clients while that one is there.

    Args:
        clients: of the plan, >= 1.

    >>> hosting = Hosting(10)
    >>> hosting.announce(77, [(0, 4), (8, 10)]), hosting.announce(88, [(3, 8)])
    (None, 'clients 3 to 7 must not be hosted yet, got node 77 there')
    >>> hosting.group([1, 5, 9])
    ({77: (1, 9)}, (5,))
    """

    def __init__(self, clients: int) -> None:
        self._clients = check_integer("clients", clients, at_least=1)
        self._spans: list[tuple[int, int, int]] = []

    @property
    def hosted(self) -> int:
        """How many clients have a node."""
        return sum(stop - first for first, stop, _ in self._spans)

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that host somebody."""
        return frozenset(node for _, _, node in self._spans)

    def announce(self, node: int, spans: Sequence[tuple[int, int]]) -> str | None:
        """Let ``node`` host the clients of ``spans``, each (first, stop); or say why not, and change nothing.

        What the node announced before is forgotten first.
        """
        kept = [span for span in self._spans if span[2] != node]
        for first, stop in spans:
            if not 0 <= first < stop <= self._clients:
                return f"spans must lie within 0 to {self._clients}, got {first} to {stop}"
            place = bisect_right(kept, (first, self._clients + 1, 0))
            for other in kept[max(place - 1, 0) : place + 1]:
                if other[0] < stop and first < other[1]:
                    whose = "the same node" if other[2] == node else f"node {other[2]}"
                    return f"clients {first} to {stop - 1} must not be hosted yet, got {whose} there"
            kept.insert(place, (first, stop, node))
        self._spans = kept
        return None

    def drop(self, node: int) -> None:
        """Forget a node: its clients are hosted by nobody."""
        self._spans = [span for span in self._spans if span[2] != node]

    def host_of(self, client: int) -> int | None:
        """The node of ``client``, or ``None``."""
        place = bisect_right(self._spans, (client, self._clients + 1, 0)) - 1
        if place < 0 or self._spans[place][1] <= client:
            return None
        return self._spans[place][2]

    def group(self, cohort: Sequence[int]) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]]:
        """The members by node, and those that no node hosts."""
        members: dict[int, list[int]] = {}
        nowhere: list[int] = []
        for client in cohort:
            node = self.host_of(client)
            (nowhere if node is None else members.setdefault(node, [])).append(client)
        return {node: tuple(clients) for node, clients in members.items()}, tuple(nowhere)
