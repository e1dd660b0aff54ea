"""Sealed JSON: an object with a format, a version and a checksum over all entries. Its files are written all or
nothing.

The checksum is the SHA-256 of the object without it, written with sorted keys and without white space, so that it does
not depend on how a file is laid out.
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from decrescendo.base import strict_json
from decrescendo.base.whole_file import read_whole, write_whole
from decrescendo.errors import FileRefused

SEAL = "sha256"


def digest(content: Mapping[str, Any], *, finite: bool = True, spaced: bool = False) -> str:
    """The checksum of ``content``, an object without a checksum.

    Args:
        content: plain values.
        finite: refuse NaN and infinities.
        spaced: compute it over the text with a space after commas and colons, as privacy statements do.

    >>> digest({"b": 1, "a": [1.5]})[:12]
    'be0f99d229ad'
    """
    separators = None if spaced else (",", ":")
    text = json.dumps(content, sort_keys=True, separators=separators, allow_nan=not finite)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(content: Mapping[str, Any], *, indent: int | None = None, finite: bool = True, spaced: bool = False) -> str:
    """``content`` as JSON with its checksum at the end.

    >>> opened(seal({"format": "toy", "version": 1, "a": 2}), "toy.json", "toy", 1)
    {'format': 'toy', 'version': 1, 'a': 2}
    """
    whole = {**content, SEAL: digest(content, finite=finite, spaced=spaced)}
    return json.dumps(whole, indent=indent, allow_nan=not finite)


def opened(
    raw: str | bytes,
    source: object,
    format_name: str,
    *versions: int,
    keys: Set[str] | Mapping[int, Set[str]] | None = None,
    free: Set[str] = frozenset(),
    spaced: bool = False,
) -> dict[str, Any]:
    """The content of a text made by `seal`, checked, without the checksum.

    Args:
        raw: the text.
        source: names it in errors.
        format_name: the format that the text must name.
        versions: the versions that are accepted.
        keys: all required entries besides the checksum (by version, if these differ); ``None``: any.
        free: optional entries.
        spaced: as in `digest`.

    Raises:
        FileRefused: not JSON, foreign, newer, with an entry more or less, or with another content than was sealed.
    """
    try:
        facts: Any = strict_json.loads(raw)
    except ValueError as error:
        raise FileRefused(f"{source} must be JSON, got {error}. It is damaged or foreign") from None
    if not isinstance(facts, dict) or facts.get("format") != format_name:
        raise FileRefused(f'{source} must say format "{format_name}", got a foreign file')
    content: dict[str, Any] = facts
    version = content.get("version")
    if isinstance(version, bool) or version not in versions:
        raise FileRefused(
            f"{source} must be of version {' or '.join(map(str, versions))}, got version={version!r:.40}. A newer "
            "decrescendo may have written it"
        )
    wanted = keys[version] if isinstance(keys, Mapping) else keys
    if wanted is not None and content.keys() - free - {SEAL} != wanted:
        odd = ", ".join(sorted((content.keys() - free - {SEAL}) ^ wanted))
        raise FileRefused(f"{source} must have exactly the entries of version {version}, got a difference in {odd}")
    if content.pop(SEAL, None) != digest(content, finite=False, spaced=spaced):
        raise FileRefused(f"{source} must match its own checksum, got other content. It was damaged or edited")
    return content


def check_writable(folder: Path) -> None:
    """Make ``folder`` and a temporary file in it, so that a failure shows before hours of work.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def write(path: Path, format_name: str, version: int, facts: Mapping[str, Any]) -> Path:
    """Write ``facts`` as sealed JSON, all or nothing, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, seal({"format": format_name, "version": version, **facts}, indent=1) + "\n")
    return path


def read(path: Path, format_name: str, version: int) -> dict[str, Any]:
    """The facts in a file that `write` wrote, without format and version.

    Raises:
        FileRefused: not there, damaged (the checksum differs), edited, foreign or newer.
    """
    content = opened(read_whole(path), path, format_name, version)
    del content["format"], content["version"]
    return content
