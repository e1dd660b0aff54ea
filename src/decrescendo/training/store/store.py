"""`Store`: one file with the budget of one data set and all runs on it."""

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from decrescendo.accounting.budget import Budget, check_budget, check_unit, rounded
from decrescendo.base.whole_file import identity
from decrescendo.errors import (
    FileRefused,
    ImpossibleBudget,
    InvalidType,
    InvalidValue,
    check_integer,
    check_path,
)
from decrescendo.plans.agreement import Agreement
from decrescendo.training.store.account import Account
from decrescendo.training.store.composition import Cost, Reserved
from decrescendo.training.store.composition import composition as rule_named
from decrescendo.training.store.entry import EXAMPLES, Entry, checked_text, new_id, planned, user_name
from decrescendo.training.store.reading import read_entries, read_plan
from decrescendo.training.store.schema import connect, create

EXPORT_FORMAT, EXPORT_VERSION = "decrescendo-store", 1


@final
class Store:
    """A budget for one data set and all runs that spend from it, in one SQLite file; safe for concurrent
    processes.

    A run is registered before it starts, and its *whole* plan is reserved: two runs cannot both reserve what is left.
    What a run reserved stays reserved when it ends early, because when to end may have depended on what it released
    (docs/adr/0007); a run that has released nothing gives it back (`Account.give_back`). Each release is on the disk
    before anything of it can be seen.

    Args:
        path: of a file that `create` made.

    Raises:
        FileRefused: no store, damaged, or of a newer version; it is left untouched.

    >>> import tempfile
    >>> from decrescendo.plans import PoissonSampling, calibrate
    >>> plan = calibrate(Budget(1.0, 1e-6), PoissonSampling(1000, 10), steps=5, privacy=[1.0] * 5, clip=[1.0] * 5)
    >>> store = Store.create(tempfile.mkdtemp() + "/ledger.db", Budget(2.5, 3e-6), dataset="patients", rows=1000)
    >>> first, second = store.start(plan, label="a"), store.start(plan, label="b")
    >>> store.start(plan, label="c")
    Traceback (most recent call last):
    decrescendo.errors.ImpossibleBudget: all runs together must stay within (2.5, 3e-06), ...
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_path("path", path)
        self._path, self._place = Path(path), Path(path).absolute()
        self._connection, self._closed = connect(self._path), False
        self._file, self._owner, self._thread = identity(self._place), os.getpid(), threading.get_ident()
        try:
            facts = dict(self._connection.execute("SELECT name, value FROM facts"))
            self.budget = Budget(
                float(facts["epsilon"]), float(facts["delta"]), check_unit(facts["unit"]),
                int(facts.get(EXAMPLES, "1")),
            )  # fmt: skip
            self.dataset, self.rows = facts["dataset"], int(facts["rows"])
            self.composition = rule_named(facts["composition"], self.budget)
        except (KeyError, TypeError, ValueError, sqlite3.Error) as error:
            self._connection.close()
            raise FileRefused(f"{self._path} must say what its budget is, got a store without it ({error})") from None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        budget: Budget,
        *,
        dataset: str,
        rows: int,
        composition: str = "sum",
    ) -> "Store":
        """Create a new store.

        Args:
            path: of a file that does not exist.
            budget: for everything that all runs on this data set may spend together.
            dataset: its name, for people.
            rows: number of its records; public. Plans for another number are refused.
            composition: how runs add up: ``sum``, ``renyi:ORDER`` or ``declared``; see `training.store.composition`.

        Raises:
            InvalidValue: the file exists, cannot be written, or the rule is unknown.
        """
        check_path("path", path)
        check_budget(budget)
        facts = {
            "epsilon": repr(budget.epsilon),
            "delta": repr(budget.delta),
            "unit": budget.unit.value,
            "dataset": checked_text("dataset", dataset),
            "rows": str(check_integer("rows", rows, at_least=1)),
            "composition": rule_named(composition, budget).name,
        }
        if budget.examples_per_person > 1:
            facts[EXAMPLES] = str(budget.examples_per_person)
        create(Path(path), facts)
        return cls(path)

    def start(self, agreed: Agreement, *, label: str = "", id: str | None = None) -> "Account":
        """Reserve a whole run, or refuse it.

        Args:
            agreed: the plan, fixed or adaptive.
            label: its name in the list, for people.
            id: from `new_id`, for a call that may be repeated after a crash: the same id is one run, reserved once.

        Raises:
            ImpossibleBudget: it would exceed what is left; nothing is written.
            InvalidValue: a plan for another number of rows, another unit, or one that the store's rule cannot add up.
        """
        if not isinstance(agreed, Agreement):
            raise InvalidType(f"agreed must be a Plan or an AdaptivePlan, got {type(agreed).__name__}")
        if agreed.sampling.dataset_size != self.rows:
            raise InvalidValue(
                f"a run must be on the store's {self.rows} rows, got a plan for {agreed.sampling.dataset_size}. "
                "Another data set has a store of its own"
            )
        if agreed.budget.protected != self.budget.protected:
            raise InvalidValue(
                f"a run must protect the store's unit, {self.budget.protected}, got {agreed.budget.protected}"
            )
        # Certified before the lock is taken: that may take a second.
        cost, text = self.composition.cost(agreed), agreed.to_json()
        with self._writing() as connection:
            entries = read_entries(connection, self._path, self.composition)
            if (old := next((entry for entry, _ in entries if entry.id == id), None)) is not None:
                if old.agreed != agreed:
                    raise InvalidValue(
                        f"id must be of a new run, or of this plan's, got that of a run by another plan, {id}. "
                        "new_id() makes one"
                    )
                return self._account(connection, str(id))
            if self.composition.name == "declared" and any(entry.released.steps for entry, _ in entries):
                raise ImpossibleBudget(
                    "runs must all be declared before the first of them releases anything, got a later one. "
                    'A store made with composition="sum" takes runs at any time'
                )
            reserved = _reserved(entries)
            if not self.composition.fits([*reserved, Reserved(cost, planned(agreed))]):
                before = self.composition.describe(reserved)
                # (For a plan with an estimate only, its certified epsilon.)
                asked = max(agreed.budget.epsilon, float(cost[0]) if len(cost) == 2 else 0.0)
                raise ImpossibleBudget(
                    f"all runs together must stay within ({self.budget.epsilon:g}, {self.budget.delta:g}), got one "
                    f"more of ({rounded(asked, 'up', 6)}, {agreed.budget.delta:g}) with {before}. "
                    "Plan it for what is left"
                )
            row = (
                new_id() if id is None else id, checked_text("label", label), user_name(),
                datetime.now(UTC).isoformat(timespec="seconds"), agreed.kind, text,
                hashlib.sha256(text.encode()).hexdigest(), ",".join(str(part) for part in cost), "open",
            )  # fmt: skip
            connection.execute(
                "INSERT INTO runs (id, label, who, started, kind, agreed, sha256, cost, state) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
        return self.account(row[0])

    def account(self, id: str) -> "Account":
        """A registered run, to resume it.

        Raises:
            InvalidValue: no run of this id.
        """
        return self._account(self._reading(), id)

    def _account(self, connection: sqlite3.Connection, id: str) -> "Account":
        query = "SELECT number, kind, agreed, sha256 FROM runs WHERE id = ?"
        try:
            found = connection.execute(query, (id,)).fetchone()
        except (sqlite3.Error, UnicodeError) as error:
            raise FileRefused(f"{self._path} must be a store, got: {error}") from None
        if found is None:
            raise InvalidValue(f"id must be of a run in {self._path}, got {id!r}. `decrescendo ledger` lists them")
        return Account(self, found[0], id, read_plan(self._path, *found[1:]))

    def entries(self) -> list[Entry]:
        """All runs, the oldest first."""
        return [entry for entry, _ in read_entries(self._reading(), self._path, self.composition)]

    def describe(self) -> str:
        """The reserved budget and what is left, as text."""
        entries = read_entries(self._reading(), self._path, self.composition)
        return self.composition.describe(_reserved(entries))

    def to_json(self) -> str:
        """The whole store as JSON; see `Entry`."""
        runs = [
            {
                **{name: getattr(entry, name) for name in ("id", "label", "who", "started", "state")},
                "agreed": json.loads(entry.agreed.to_json()),
                "released": {
                    "sample_rate": entry.released.sample_rate.tolist(),
                    "noise_multiplier": entry.released.noise_multiplier.tolist(),
                },
            }
            for entry in self.entries()
        ]
        content: dict[str, Any] = {
            "format": EXPORT_FORMAT,
            "version": EXPORT_VERSION,
            "budget": {
                "epsilon": self.budget.epsilon,
                "delta": self.budget.delta,
                "unit": self.budget.unit.value,
                **({EXAMPLES: several} if (several := self.budget.examples_per_person) > 1 else {}),
            },
            "dataset": self.dataset,
            "rows": self.rows,
            "composition": self.composition.name,
            "summary": self.describe(),
            "runs": runs,
        }
        return json.dumps(content, indent=1) + "\n"

    @property
    def name(self) -> str:
        """The name of its file."""
        return str(self._path)

    def close(self) -> None:
        """Close the file."""
        self._check_owner()
        self._closed = True
        self._connection.close()

    def _check_open(self) -> None:
        self._check_owner()
        if self._closed:
            raise InvalidValue(
                f"a store must be open, got one after close(). Open it again: Store({str(self._path)!r})"
            )

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise InvalidValue(
                "a store must be used in the process that opened it, got a forked one. Open it in each process"
            )
        if threading.get_ident() != self._thread:  # SQLite's own rule
            raise InvalidValue(
                "a store must be used in the thread that opened it, got another one. Open it in each thread: "
                f"Store({str(self._path)!r})"
            )

    def _reading(self) -> sqlite3.Connection:
        self._check_open()
        if identity(self._place) != self._file:  # SQLite would go on with the file that was replaced
            raise FileRefused(
                f"{self._path} must stay the file that was opened, got another one, or none, in its place. Nothing was "
                "released: put back the newest, and go on from checkpoints"
            )
        return self._connection

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """One write transaction; no other process can write during it."""
        connection = self._reading()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise FileRefused(
                f"{self._path} must be a store that can be written, got: {error}. Nothing was released since"
            ) from None


def _reserved(entries: Sequence[tuple[Entry, Cost]]) -> list[Reserved]:
    """The reservations of all runs, except those that ended before they released anything."""
    return [Reserved(cost, planned(entry.agreed)) for entry, cost in entries if not entry.given_back]
