"""Files of sealed lines: each a JSON object with a checksum of its own, sorted by the hash of the spec it is about."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from decrescendo.base import strict_json, write_whole
from decrescendo.errors import FileRefused


def keep(path: Path, key: str, line: str, by: Sequence[str] = ()) -> Path:
    """Write ``line`` among the others of a file, all or nothing. Lines that cannot be read are left out of what is
    written.

    Args:
        path: of the file.
        key: of the line, as `read` gives it.
        line: without its end.
        by: as `read`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.name}.lock"):  # several processes write lines of one file
        known = {name: old for name, old in read(path, by) if name}
        known[key] = line
        write_whole(path, "".join(f"{known[name]}\n" for name in sorted(known)))
    return path


def find(path: Path, key: str, by: Sequence[str] = ()) -> str | None:
    """The line of ``key``; ``None``: there is none, or no file.

    Raises:
        FileRefused: no text.
    """
    try:
        about = path.stat()
    except OSError:
        return None
    return _by_key(path, tuple(by), about.st_mtime_ns, about.st_size, about.st_ino).get(key)


@lru_cache(maxsize=32)
def _by_key(path: Path, by: tuple[str, ...], *_: int) -> dict[str, str]:
    """Lines of a file as it is now: what follows ``by`` changes with it."""
    return {key: line for key, line in read(path, by) if key}


def read(path: Path, by: Sequence[str] = (), *, must_exist: bool = False) -> Iterator[tuple[str, str]]:
    """Key and line: the hash of the entry "spec" and what stands in the entries ``by``; an empty key if there is none.

    Raises:
        FileRefused: no text, or not there although it must be.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if must_exist:
            raise FileRefused(f"{path} must be a file of results, got {error}") from None
        return
    except (OSError, ValueError) as error:
        raise FileRefused(f"{path} must be a file of results, got {error}") from None
    for line in filter(None, text.split("\n")):
        try:
            key = key_of(strict_json.loads(line), by)
        except (ValueError, TypeError, KeyError):
            key = ""
        yield key, line


def key_of(facts: Mapping[str, Any], by: Sequence[str] = ()) -> str:
    """Of a line with these entries.

    >>> key_of({"spec": {"steps": 5}, "points": 2}, ("points",))
    '36338911973d-2'
    """
    canonical = json.dumps(facts["spec"], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12] + "".join(f"-{facts[name]}" for name in by)
