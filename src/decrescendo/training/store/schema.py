"""The file of a store: its tables, how it is opened, and how an older one becomes a newer one."""

import os
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from decrescendo.errors import FileRefused, InvalidValue

# Says whose file it is, in SQLite's own header: "dcre".
APPLICATION = 0x64637265
# Waits for other writers this long, in seconds; a run whose plan must be judged under the lock takes some.
PATIENCE = 300.0

# One text a version: a file of version v has had the first v of them.
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
    """A new file, whole or not at all; never over another one."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(_connect(staging)) as connection:
            _migrate(connection, 0)
            connection.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
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
    """A checked connection; what is not a whole store of a known version is refused untouched."""
    logged = _check_header(path)
    _check_one_name(path)
    path = Path(os.path.realpath(path))  # the logs lie beside the file itself
    connection = None
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
    alone = not any(file.exists() for file in beside)
    try:
        connection = _connect(path, logged=logged)
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
        if _tables(connection) != _expected(version):
            raise FileRefused(
                f"{path} must have the tables of version {version} and nothing else, got others. Somebody changed it"
            )
        _check_one_file(connection, path)
        if version < len(MIGRATIONS):
            _migrate(connection, version)
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as error:  # the latter: SQLite quotes what it cannot read
        if connection is not None:
            connection.close()
        # SQLite leaves its empty files beside one that it cannot read; nobody else can have written to such a one.
        if alone and beside[0].exists() and beside[0].stat().st_size == 0:
            for file in beside:
                file.unlink(missing_ok=True)
        raise FileRefused(f"{path} must be a store, got a file that SQLite cannot read ({error})") from None
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def _connect(path: Path, *, logged: bool = False) -> sqlite3.Connection:
    """To write; or, where nobody may write and no log lies beside it, to read what is there. A file of an earlier
    version (``logged``) cannot be locked there: it is read as one that nobody changes."""
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    logs = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    if not os.access(path.parent, os.W_OK) and not any(log.exists() for log in logs):
        connection.close()
        name = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if logged else "")
        connection = sqlite3.connect(name, timeout=PATIENCE, isolation_level=None, uri=True)
    try:
        # Each release is in the file, on the disk, before anything of it can be seen: also through a power cut.
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker.
        done = connection.execute("PRAGMA user_version").fetchone()[0]
        for text in MIGRATIONS[max(version, done) :]:
            for statement in filter(str.strip, text.split(";")):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _tables(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """Tables, and whatever else somebody may have put there: a trigger could take back what is written down."""
    return sorted(connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"))


def _expected(version: int) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        for text in MIGRATIONS[:version]:
            fresh.executescript(text)
        return _tables(fresh)


def _check_one_file(connection: sqlite3.Connection, path: Path) -> None:
    """All that is written down is in the store's own file: earlier versions had the newest in a log beside it, which
    who copies or tidies up may leave out, and which each name of a file has for itself."""
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


def _check_one_name(path: Path) -> None:
    """What a crash leaves half written is mended by what lies beside one name of the file: under another it is not."""
    names = path.stat().st_nlink
    for _ in range(9):  # (one that is being made has two for a moment)
        if names <= 1:
            return
        time.sleep(0.05)
        names = path.stat().st_nlink
    raise FileRefused(
        f"{path} must have no other name, got one with {names} (hard links, as of `cp -l`). Put a copy of its own in "
        "its place: `cp ledger.db copy.db && mv copy.db ledger.db`, while no run has it open"
    )


def _check_header(path: Path) -> bool:
    """Without SQLite, which would write beside a file that is none of ours; whether it has a log beside it, as files of
    an earlier version."""
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
    if not header.startswith(b"SQLite format 3\0") or int.from_bytes(header[68:72], "big") != APPLICATION:
        raise FileRefused(f"{path} must be a store that decrescendo made, got another kind of file")
    return header[18:20] != b"\x01\x01"
