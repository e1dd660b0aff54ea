"""What a federated run has spent: in memory, in its journal and in the store of the clients' data."""

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any, final

from decrescendo.accounting import Release
from decrescendo.federated.journal import Journal, registered
from decrescendo.federated.placement import Placement
from decrescendo.optim.noise import NoisyMean
from decrescendo.plans.plan import Plan
from decrescendo.training.processes.bits import digest
from decrescendo.training.store import Account, Store, new_id


@final
class Books:
    """The releases so far, who was seen in each round, and where both are written down.

    Args:
        run, name: of the server.
        plan: what is spent.
        placement: who adds the noise.
        journal: a folder, or none.
        store: the ledger of the clients' data, or none.
    """

    def __init__(
        self,
        run: str,
        name: str,
        plan: Plan,
        placement: Placement,
        journal: str | os.PathLike[str] | None,
        store: Store | None,
    ) -> None:
        self._run, self._name, self._plan, self._placement = run, name, plan, placement
        self.releases: list[Release] = []
        # Members of each round, and how many replies were seen; where replies are seen by the server.
        self.attendance: list[tuple[int, int]] = []
        self._journal = None if journal is None else Journal(journal)
        # Of the run in the store; a journal has it before the store: a crash between the two reserves once.
        self.store, self.id = store, "" if store is None else new_id()
        self.account: Account | None = None

    @property
    def spent(self) -> int:
        """Rounds in the ledger."""
        return len(self.releases)

    @property
    def listed_as(self) -> str:
        """The data set and the run's name in the store; empty without one."""
        return "" if self.account is None else f"{self.account.store.dataset}, run {self.account.id}"

    def seen(self, *, secure_sum: bool) -> list[tuple[int, int]]:
        """Members of each round, and of how many the server saw the sum: a reply that is seen by itself has one share
        of noise, as a sum of which one member is left."""
        return [(members, replies if secure_sum else min(replies, 1)) for members, replies in self.attendance]

    def release_of(self, index: int) -> Release:
        """What round ``index`` (from 0) releases."""
        noise = float(self._plan.noise_multiplier[index])
        local = self._placement is Placement.LOCAL
        return Release(1.0, noise) if local else self._plan.sampling.at(index).release(noise)

    def read(self) -> Mapping[str, Any] | None:
        """What the journal has; ``None`` if there is none."""
        return None if self._journal is None else self._journal.read()

    def write(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Replace what the journal has, if there is one."""
        if self._journal is not None:
            self._journal.write(state())

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()

    def check_here(self) -> None:
        """Before anything is asked or released: what cannot be written down must be found out first."""
        if self._journal is not None:
            self._journal.check_held()
        if self.account is not None:
            self.account.check_here()

    def begin(self) -> None:
        """Reserve the whole plan in the store."""
        if self.store is not None:
            self.account, _ = registered(self.store, self._plan, self.id, 0, self._name)

    def go_on(self, last: NoisyMean | None) -> None:
        """Be where the journal was, with its last round in the store."""
        if self.store is not None:
            self.account, listed = registered(self.store, self._plan, self.id, self.spent, self._name)
            # Of a round that is listed too, that it is this one: another server may have gone on from a copy.
            seen = None if self._placement.shows_replies else last
            if listed < self.spent or seen is not None:
                self.list(seen)
            self.end()

    def list(self, noisy: NoisyMean | None) -> bool:
        """Write the last round down in the store; whether it was not there."""
        if self.account is None:
            return True
        last = self.spent - 1
        told = hashlib.sha256(f"{self._run} {last}".encode()).digest() if noisy is None else digest(noisy)
        return self.account.record(last, self.releases[last], told)

    def end(self) -> None:
        """Say in the store that the plan is spent, once it is and no round is open."""
        if self.account is not None and self.spent >= self._plan.steps:
            self.account.finish()
