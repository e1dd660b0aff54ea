"""The server's state on disk: written before anything of a round can be seen, read when the server starts again."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from decrescendo.base.whole_file import identity
from decrescendo.errors import FileRefused, InvalidValue, PlanViolation
from decrescendo.plans.plan import Plan
from decrescendo.training.persistence.checkpoint.checkpoints import read_state, states_in, write_state
from decrescendo.training.store import Account, Store

# Beside the states: what is held, and that there was a state.
LOCK, BEGUN = "journal.lock", "journal.begun"


class Journal:
    """A folder with the last state, replaced as a whole: a kill at any moment leaves the old state or the new one.

    What is in it is as secret as the seed: the states of the noise streams tell past and future noise. Files are
    readable by their owner only.

    Args:
        folder: made if it is not there. Whoever opens it holds it until their process ends: two servers that went on
            from one state would release two different sums under the same noise. That is by `journal.lock`, which is
            never stale: a process that ended holds nothing. A copy of the folder is not held: never go on from a
            backup.

    Raises:
        InvalidValue: it cannot be written, or another server holds it.
        FileRefused: it had a state, and has none now.

    >>> import tempfile
    >>> journal = Journal(Path(tempfile.mkdtemp()) / "run")
    >>> journal.read() is None
    True
    >>> journal.write({"round": 1})
    >>> journal.read()
    {'round': 1}
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidValue(
                f"journal must be a folder that can be written, got {str(folder)!r} ({error.strerror})"
            ) from None
        self._lock = FileLock(self._folder / LOCK, mode=0o600, blocking=False, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise InvalidValue(
                f"a journal must have one server, got {str(folder)!r} held by another. End that one first: two would "
                "release different sums with the same noise"
            ) from None
        # What is checked before each write: the lock is the one that others find, the state the one gone on from.
        self._held, self._last = identity(self._folder / LOCK), self._newest()
        if not self._last and (self._folder / BEGUN).exists():
            self.close()
            raise FileRefused(
                f"a journal must have the last state of its run, got {str(folder)!r}, whose state was removed. A run "
                "that began anew would count what was released as nothing, and draw its noise again where the seed is "
                "the same: put the state back, or give a new run a folder of its own"
            )

    def close(self) -> None:
        """Let another server have the folder, as the end of this process would."""
        self._lock.release()

    def check_held(self) -> None:
        """Check that this server has the folder.

        Raises:
            PlanViolation: after `close`, or where another server has it.
        """
        if not self._lock.is_locked:
            raise PlanViolation(
                "a journal must be held to be written, got one that was let go. Start the server again from its folder"
            )
        if identity(self._folder / LOCK) != self._held or self._newest() != self._last:
            raise PlanViolation(
                f"a journal must have one server, got {str(self._folder)!r} taken by another: somebody removed {LOCK}, "
                "or put the folder back. Nothing was released: end both, and start one"
            )

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the state (plain values and tensors, nested); when this returns, it is on disk.

        Raises:
            PlanViolation: as of `check_held`. FileRefused: it cannot be written.
        """
        self.check_held()
        # A number of its own: the state that is still there stays whole until the new one is.
        number = self._last + 1
        write_state(self._folder, number, state, kept=1)
        self._last = number
        with suppress(OSError):  # of a full disk; the next write makes it
            (self._folder / BEGUN).touch(mode=0o600)

    def _newest(self) -> int:
        """Number of the state that the folder has; 0 if there is none."""
        found = states_in(self._folder)
        return int(found[-1].name.rpartition("-")[2]) if found else 0

    def read(self) -> Mapping[str, Any] | None:
        """The last state; ``None`` if there is none yet.

        Raises:
            FileRefused: damaged, foreign or of another version: a run whose ledger cannot be read must not go on.
        """
        found = states_in(self._folder)
        return read_state(found[-1]).state if found else None


def registered(store: Store, plan: Plan, id: str, spent: int, name: str) -> tuple[Account, int]:
    """The run in a store, and how many of the ``spent`` rounds that its journal has are listed there: each is written
    down in the journal first, then in the store.

    Raises:
        ImpossibleBudget: the store has not enough left for a new run.
        PlanViolation: the store, or the journal, is another, or an older copy put back.
    """
    before = {entry.id: entry.released.steps for entry in store.entries()}
    listed = before.get(id, 0)
    if not spent - 1 <= listed <= spent or (spent and id not in before):
        raise PlanViolation(
            f"a store and a journal must tell of the same rounds, got {listed} and {spent}. One of them is another, or "
            "an older copy put back: put back the newest"
        )
    return store.start(plan, label=name or "federated", id=id), listed
