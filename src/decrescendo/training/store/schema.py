"""The SQLite file behind `Store`, the privacy ledger on disk: its tables, and how it is created and
opened."""

import os
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from decrescendo.errors import FileRefused, InvalidValue

# SQLite's header field application_id: tells our files ("dcre") from other SQLite databases.
APPLICATION_ID = 0x64637265
# Seconds to wait for another writer's lock, which a process may hold while it certifies a plan.
LOCK_TIMEOUT = 300.0

# The version of the tables, which the file says as SQLite's user_version.
VERSION = 1
TABLES = """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        label TEXT NOT NULL,
        who TEXT NOT NULL,
        started TEXT NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('plan', 'adaptive_plan')),
        agreed TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        cost TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('open', 'finished'))
    ) STRICT;
    CREATE TABLE releases (
        run INTEGER NOT NULL REFERENCES runs (number),
        position INTEGER NOT NULL CHECK (position >= 0),
        sample_rate REAL NOT NULL,
        noise_multiplier REAL NOT NULL,
        digest BLOB NOT NULL,
        PRIMARY KEY (run, position)
    ) STRICT, WITHOUT ROWID;
"""


def create(path: Path, facts: dict[str, str]) -> None:
    """Create a store with the tables and ``facts``, completely or not at all, and never over an existing
    file."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(_connect(staging)) as connection:
            connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION};")
            connection.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        with staging.open("rb") as file:
            os.fsync(file.fileno())
        os.link(staging, path)
    except FileExistsError:
        raise InvalidValue(f"a store must be new, got {str(path)!r}, which exists. Open it instead") from None
    except sqlite3.Error as error:
        raise InvalidValue(f"a store must be in a place that can be written, got {str(path)!r} ({error})") from None
    finally:
        for suffix in ("", "-journal"):
            staging.with_name(staging.name + suffix).unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    """Connect to an existing store.

    Raises:
        FileRefused: a file that is no intact store of this version; it is left as it was.
    """
    _check_header(path)
    _check_no_hard_links(path)
    try:
        # SQLite puts its journal beside the file, not beside a link to it.
        connection = _connect(Path(os.path.realpath(path)))
        try:
            _check_content(connection, path)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # (SQLite may quote undecodable bytes)
        raise FileRefused(f"{path} must be a store, got a file that SQLite cannot read ({error})") from None
    return connection


def _check_content(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise FileRefused(
            f"{path} must be a store of version {VERSION}, got {version}. Open it with the decrescendo that made it"
        )
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise FileRefused(f"{path} must be whole, got: {found}. Restore it from a copy")
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise FileRefused(f"{path} must be whole, got releases of no run. Restore it from a copy")
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(TABLES)
        if _schema_of(connection) != _schema_of(fresh):
            raise FileRefused(
                f"{path} must have the tables of version {VERSION} and nothing else, got others. Somebody changed it"
            )


def _connect(path: Path) -> sqlite3.Connection:
    """Open for writing; read-only if the folder cannot be written and no journal lies beside the file."""
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT, isolation_level=None)
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-journal").exists():
        connection.close()
        name = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(name, timeout=LOCK_TIMEOUT, isolation_level=None, uri=True)
    try:
        # A commit returns once the release is on the disk, power cuts included: only then may its result be seen.
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _schema_of(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """The whole database schema, not only tables: an added trigger could delete recorded releases."""
    return sorted(connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"))


def _check_no_hard_links(path: Path) -> None:
    """Refuse a file with hard links: after a crash SQLite repairs it from a journal beside the name that was
    opened, and a program that opens another name does not find that journal."""
    names = path.stat().st_nlink
    for _ in range(9):  # (while `create` runs, a new store has two names for a moment)
        if names <= 1:
            return
        time.sleep(0.05)
        names = path.stat().st_nlink
    raise FileRefused(
        f"{path} must have no other name, got one with {names} (hard links, as of `cp -l`). Put a copy of its own in "
        "its place: `cp ledger.db copy.db && mv copy.db ledger.db`, while no run has it open"
    )


def _check_header(path: Path) -> None:
    """Refuse a file that is not a store, and one in SQLite's WAL mode, whose newest releases may be in a
    separate log that is lost if only the file is copied.

    The bytes are read without SQLite, which would write files beside one that is not ours.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise FileRefused(
            f"{path} must be a store, got no file of that name. Make one first: `decrescendo ledger {path} --create "
            "--epsilon .. --delta .. --rows ..`, or Store.create(path, budget, dataset=.., rows=..)"
        ) from None
    except OSError as error:
        raise FileRefused(f"{path} must be a readable store, got: {error.strerror}") from None
    if not header.startswith(b"SQLite format 3\0") or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise FileRefused(f"{path} must be a store that decrescendo made, got another kind of file")
    if header[18:20] != b"\x01\x01":
        raise FileRefused(
            f"{path} must be in SQLite's mode of one file, as it was made, got another mode. Put it back: "
            f'`sqlite3 {path} "PRAGMA journal_mode = DELETE"`, while no run has it open'
        )
