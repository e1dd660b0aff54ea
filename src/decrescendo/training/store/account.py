"""`Account`: the entry of one run in a store."""

import sqlite3
from typing import TYPE_CHECKING, final

from decrescendo.accounting.filters import Filter
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.errors import (
    PlanViolation,
    check_integer,
)
from decrescendo.plans.agreement import Agreement
from decrescendo.training.store.entry import Entry

if TYPE_CHECKING:
    from decrescendo.training.store.store import Store


@final
class Account:
    """The entry of one run in a store: it records each release before the result can be seen."""

    def __init__(self, store: "Store", number: int, id: str, agreed: Agreement) -> None:
        self.store, self.id, self.agreed = store, id, agreed
        self._number = number
        # For an adaptive plan: its privacy filter, and after how many releases it has this state.
        self._filter_state: tuple[Filter | None, int] = (None, -1)

    def check_here(self) -> None:
        """Check that this process and thread may write to the store.

        Raises:
            InvalidValue: another process or thread opened the store.
            FileRefused: the file is not the one that was opened any more.
        """
        self.store._reading()

    def record(self, position: int, release: Release, digest: bytes) -> bool:
        """Record a release before its result can be seen.

        Args:
            position: of the step in the run, from 0; the next one, or one that was recorded before.
            release: what is about to be released, once.
            digest: of what is about to be released.

        Returns:
            Whether it is new. One recorded before is the same release, made again after a crash: it counts once, also
            where the run had finished and its weights were lost before they were saved.

        Raises:
            PlanViolation: not the plan's next release, or one that its filter refuses, or one recorded before with
                another digest: the same noise on another sum would betray the difference.
        """
        check_integer("position", position)
        if not self.agreed.allows(position, release):
            raise PlanViolation(
                f"a run must release what was reserved for it, got {release} at step {position + 1}. "
                "Register a run with the plan that is meant"
            )
        with self.store._writing() as connection:
            where = (self._number, position)
            state = self._state(connection)
            old = connection.execute("SELECT digest FROM releases WHERE run = ? AND position = ?", where).fetchone()
            if old is not None:
                if old[0] != digest:
                    raise PlanViolation(
                        f"a repeated step must have its first result, got another one at step {position + 1}: the "
                        "machine, the data or the settings differ. The same noise on another sum would betray the "
                        "difference: start a new run from the checkpoint, with fresh noise, which counts again"
                    )
                return False
            if state != "open":
                raise PlanViolation(
                    "a run must be open to release more, got a finished one. Begin a new "
                    "one, with checkpoints in another folder"
                )
            before = connection.execute("SELECT count(*) FROM releases WHERE run = ?", where[:1]).fetchone()[0]
            if before != position:
                raise PlanViolation(f"releases must be written down in order, got step {position + 1} after {before}")
            self._ask(connection, position, release)
            connection.execute(
                "INSERT INTO releases VALUES (?, ?, ?, ?, ?)",
                (*where, release.sample_rate, release.noise_multiplier, digest),
            )
        return True

    def _ask(self, connection: sqlite3.Connection, position: int, release: Release) -> None:
        """Ask an adaptive plan's privacy filter whether it grants ``release``: the caller may not have asked it."""
        if self.agreed.planned is not None:
            return
        privacy_filter, asked = self._filter_state
        if asked != position:
            query = "SELECT sample_rate, noise_multiplier FROM releases WHERE run = ? ORDER BY position"
            rows = connection.execute(query, (self._number,)).fetchall()
            privacy_filter = self.agreed.replay(Ledger(Release(rate, noise) for rate, noise in rows))
        self._filter_state = (None, -1)  # if the request fails, the filter is made again from the records
        if privacy_filter is not None and not (answer := privacy_filter.request(release)):
            raise PlanViolation(
                f"a run must release what its filter grants, got {answer}. Ask the filter before each release"
            )
        self._filter_state = (privacy_filter, position + 1)

    def entry(self) -> Entry:
        """The entry as the store has it now."""
        return next(entry for entry in self.store.entries() if entry.id == self.id)

    def finish(self) -> None:
        """Allow no more releases. The reservation stays, unless nothing was released."""
        with self.store._writing() as connection:
            self._state(connection)
            connection.execute("UPDATE runs SET state = 'finished' WHERE number = ?", (self._number,))

    def give_back(self) -> bool:
        """`finish` a run that has released nothing, so that its reservation is freed. Returns whether it had
        released nothing; otherwise the run is left unchanged."""
        with self.store._writing() as connection:
            self._state(connection)
            query = "SELECT count(*) FROM releases WHERE run = ?"
            if connection.execute(query, (self._number,)).fetchone()[0]:
                return False
            connection.execute("UPDATE runs SET state = 'finished' WHERE number = ?", (self._number,))
        return True

    def _state(self, connection: sqlite3.Connection) -> str:
        """The state of the run in the store: ``open`` or ``finished``."""
        query = "SELECT state FROM runs WHERE number = ? AND id = ?"
        found = connection.execute(query, (self._number, self.id)).fetchone()
        if found is None:
            raise PlanViolation(
                f"a store must list the run that releases, got {self.store.name} without run {self.id}. It is an older "
                "copy put back: put back the newest"
            )
        return str(found[0])
