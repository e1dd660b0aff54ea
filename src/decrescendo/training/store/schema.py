"""The SQLite file behind `Store`, the privacy ledger on disk: its tables; how it is created, opened and migrated."""

import os
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from decrescendo.errors import FileRefused, InvalidValue

# SQLite's header field application_id: tells our files ("dcre") from other SQLite databases.
APPLICATION_ID = 0x64637265
# Seconds to wait for another writer's lock; a run that must have its plan certified under the lock holds it for some.
LOCK_TIMEOUT = 300.0

# One SQL script a version: a file of version v (SQLite's user_version) has run the first v of them.
MIGRATIONS: tuple[str, ...] = (
    """
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
    """,
)


def create(path: Path, facts: dict[str, str]) -> None:
    """Make a new store with the tables and ``facts``: the whole file or none, and never over an existing one."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(_connect(staging)) as connection:
            _migrate(connection, 0)
            connection.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        with staging.open("rb") as file:
            os.fsync(file.fileno())
        os.link(staging, path)
    except FileExistsError:
        raise InvalidValue(f"a store must be new, got {str(path)!r}, which exists. Open it instead") from None
    except sqlite3.Error as error:
        raise InvalidValue(
            f"a store must be in a place that can be written, got {str(path)!r} ({error})"
        ) from None
    finally:
        for suffix in ("", "-journal"):
            staging.with_name(staging.name + suffix).unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing store, migrated to the newest version.

    Raises:
        FileRefused: a file that is no intact store of a known version; it is left as it was.
    """
    wal_mode = _check_header(path)
    _check_no_hard_links(path)
    path = Path(os.path.realpath(path))  # SQLite puts its logs beside the file, not beside a link to it
    connection = None
    log_files = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
    no_logs_before = not any(file.exists() for file in log_files)
    try:
        connection = _connect(path, wal_mode=wal_mode)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS) or version < 1:
            raise FileRefused(
                f"{path} must be a store of version 1 to {len(MIGRATIONS)}, got {version}. A newer decrescendo reads it"
            )
        found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise FileRefused(f"{path} must be whole, got: {found}. Restore it from a copy")
        if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise FileRefused(f"{path} must be whole, got releases of no run. Restore it from a copy")
        if _schema_of(connection) != _tables_of_version(version):
            raise FileRefused(
                f"{path} must have the tables of version {version} and nothing else, got others. Somebody changed it"
            )
        _end_wal_mode(connection, path)
        if version < len(MIGRATIONS):
            _migrate(connection, version)
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as error:  # the latter: SQLite quotes what it cannot read
        if connection is not None:
            connection.close()
        # SQLite leaves empty log files beside a file that it cannot read; no other process can have written to them.
        if no_logs_before and log_files[0].exists() and log_files[0].stat().st_size == 0:
            for file in log_files:
                file.unlink(missing_ok=True)
        raise FileRefused(f"{path} must be a store, got a file that SQLite cannot read ({error})") from None
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def _connect(path: Path, *, wal_mode: bool = False) -> sqlite3.Connection:
    """Open for writing; read-only where the folder cannot be written and no log lies beside the file.

    SQLite cannot lock a file in ``wal_mode`` (of an earlier decrescendo) in such a folder: it is opened as immutable.
    """
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT, isolation_level=None)
    logs = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    if not os.access(path.parent, os.W_OK) and not any(log.exists() for log in logs):
        connection.close()
        name = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if wal_mode else "")
        connection = sqlite3.connect(name, timeout=LOCK_TIMEOUT, isolation_level=None, uri=True)
    try:
        # A commit returns once the release is on the disk, power cuts included: only then may its result be seen.
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated the file since.
        done = connection.execute("PRAGMA user_version").fetchone()[0]
        for text in MIGRATIONS[max(version, done) :]:
            for statement in filter(str.strip, text.split(";")):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _schema_of(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """Everything in the database's schema, not tables alone: an added trigger could delete recorded releases."""
    return sorted(connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"))


def _tables_of_version(version: int) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        for text in MIGRATIONS[:version]:
            fresh.executescript(text)
        return _schema_of(fresh)


def _end_wal_mode(connection: sqlite3.Connection, path: Path) -> None:
    """Move the newest releases from SQLite's write-ahead log, which earlier versions used, into the store's own file.

    Somebody who copies the file or tidies up may leave the log out, and each hard link of a file has a log of its own.
    Where the file cannot be written, the connection only reads.
    """
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode == "delete":
        return
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        connection.execute("PRAGMA query_only = ON")
        return
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.OperationalError:  # somebody has it open
        mode = ""
    if mode != "delete":
        raise FileRefused(
            f"{path} must be let go by programs of an earlier version before it is opened, got one that one of them "
            "has open. Wait for its end"
        )


def _check_no_hard_links(path: Path) -> None:
    """Refuse a file with hard links: after a crash SQLite repairs it by a journal beside the name that was opened, and
    whoever opens it by another name does not find that journal."""
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


def _check_header(path: Path) -> bool:
    """Refuse a file that is no store, and say whether it is in WAL mode, as files of earlier versions are.

    The bytes are read without SQLite, which would write log files beside a file that is not ours.
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
    return header[18:20] != b"\x01\x01"
