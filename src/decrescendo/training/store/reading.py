"""Reads the runs in a store's file, and compares each run's releases with its plan."""

import hashlib
import sqlite3
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue
from decrescendo.plans.agreement import Agreement, read_agreement
from decrescendo.plans.sampling import drawn_by
from decrescendo.training.store.composition import Composition, Cost
from decrescendo.training.store.entry import COST, Entry


def read_entries(connection: sqlite3.Connection, path: Path, composition: Composition) -> list[tuple[Entry, Cost]]:
    """Every run with its cost under ``composition``, the oldest first.

    Raises:
        FileRefused: the file was changed by something else than a store.
    """
    query = "SELECT run, position, sample_rate, noise_multiplier FROM releases ORDER BY run, position"
    try:
        released: dict[int, list[Release]] = {}
        for run, position, rate, noise in connection.execute(query):
            done = released.setdefault(run, [])
            if position != len(done):
                raise InvalidValue(f"step {position + 1} follows step {len(done)}")
            done.append(Release(rate, noise))
        rows = connection.execute("SELECT * FROM runs ORDER BY number").fetchall()
        return [_entry(row, Ledger(released.get(row[0], ())), path, composition) for row in rows]
    except FileRefused:
        raise
    except (sqlite3.Error, DecrescendoError, ValueError) as error:
        raise FileRefused(f"{path} must be as it was written, got: {error}. Restore it from a copy") from None


def _entry(row: Sequence[Any], released: Ledger, path: Path, composition: Composition) -> tuple[Entry, Cost]:
    _, id, label, who, started, kind, text, digest, cost, state = row
    agreed = read_plan(path, kind, text, digest)
    # Epochs and batch caps are not stored with releases: they follow from the plan's sampling.
    released = drawn_by(agreed.sampling, released)
    # SQLite has no checksums: what was released must be what was planned.
    if not agreed.begins(released):
        raise InvalidValue(f"run {id} has released something else than its plan")
    if not COST.fullmatch(cost):
        raise InvalidValue(f"run {id} has a cost that is no exact number")
    parts = tuple(Fraction(part) for part in cost.split(",") if part)
    if not composition.can_be_cost_of(agreed, parts):
        raise InvalidValue(f"run {id} has a cost that is not its plan's")
    return Entry(id, label, who, started, agreed, released, state), parts


def read_plan(path: Path, kind: str, text: str, digest: str) -> Agreement:
    """The registered plan of a run.

    Raises:
        FileRefused: its text has another digest.
    """
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise FileRefused(f"{path} must hold plans as they were registered, got another text")
    return read_agreement(kind, text, source=str(path))
