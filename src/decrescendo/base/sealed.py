"""Small JSON files that are whole or not there, with a checksum over their content."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decrescendo.base import strict_json
from decrescendo.base.whole_file import write_whole
from decrescendo.errors import FileRefused


def check_writable(folder: Path) -> None:
    """Make ``folder`` and a file in it that is gone at once: to find out before hours of work, not after them.

    Raises:
        OSError: it cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def write(path: Path, format_name: str, version: int, facts: Mapping[str, Any]) -> Path:
    """Write ``facts``, all or nothing, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": format_name, "version": version, **facts}
    text = json.dumps({**content, "sha256": _checksum(content)}, indent=1, allow_nan=False) + "\n"
    write_whole(path, text)
    return path


def read(path: Path, format_name: str, version: int) -> dict[str, Any]:
    """What was written.

    Raises:
        FileRefused: not there, damaged (the checksum differs), edited, foreign or newer.
    """
    try:
        facts: Any = strict_json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileRefused(f"{path} must be a readable JSON file, got {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != format_name or facts.get("version") != version:
        raise FileRefused(f"{path} must be a {format_name} of version {version}, got another file")
    content: dict[str, Any] = facts
    if content.pop("sha256", None) != _checksum(content):
        raise FileRefused(f"{path} must match its own checksum, got other content. It was damaged or edited")
    del content["format"], content["version"]
    return content


def _checksum(facts: Mapping[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
