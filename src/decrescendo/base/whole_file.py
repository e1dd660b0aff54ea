"""Writes files all or nothing, whatever happens meanwhile; reads them; locks folders."""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from decrescendo.errors import FileRefused

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Put ``content`` into the file ``path``, on the disk: a crash leaves the old file or none, never half of one.

    Written beside and renamed; two writers at once leave the file of one of them.

    Args:
        path: in a folder that exists.
        content: text is written as UTF-8.
        mode: the file's permissions, before the umask.

    Raises:
        FileRefused: ``path`` exists and is not a regular file (a device, a folder): it would be replaced.
        OSError: the disk is full, read-only or failing, or the folder is not there. Nothing is left beside the file.
        ValueError: a name that no file can have.
    """
    if path.exists() and not path.is_file():
        raise FileRefused(f"{path} must be a file or not there, got something else, as devices and folders are")
    raw = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        error.filename = str(path)  # the one that was asked for
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_whole(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        FileRefused: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError: no file can have this name
        raise FileRefused(f"{path} must be a readable file, got {getattr(error, 'strerror', None) or error}") from None


def sync_folder(folder: Path) -> None:
    """Flush the names in ``folder`` to the disk. (Not every system lets a folder be opened.)"""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone_in(folder: Path) -> Generator[None]:
    """Hold an exclusive lock on ``folder`` among processes and threads that call this. It leaves no file. (Not every
    system locks folders.)"""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def identity(path: Path) -> tuple[int, int] | None:
    """The identity of the file at ``path``, whatever its name (device, inode); ``None`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
