"""What observers saw, as lines of JSON in one file: written by the process that trains, read by the one that judges."""

import functools
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_OBSERVED = ("torch", "opacus", "decrescendo", "runpy")  # wherever they are installed
_OWN = str(Path(__file__).parent)


def user_frame() -> FrameType | None:
    """The innermost frame of the user's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name, package = frame.f_code.co_filename, str(frame.f_globals.get("__name__")).split(".")[0]
        if package in _OBSERVED:
            frame = frame.f_back
            continue
        if not name.startswith((*_LIBRARIES, _OWN, "<")) and "site-packages" not in name:
            return frame
        frame = frame.f_back
    return None


def user_globals() -> Iterator[dict[str, Any]]:
    """The global names of the modules that the frames are in, each once."""
    frame, seen = user_frame(), set[int]()
    while frame is not None:
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            yield frame.f_globals
        frame = frame.f_back


def user_place() -> tuple[str, int]:
    """File and line of that frame; nothing where there is none."""
    frame = user_frame()
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Put ``around(what was there, *args, **kwargs)`` in the place of a function or method."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def watched(*args: Any, **kwargs: Any) -> Any:
        return around(inner, *args, **kwargs)

    setattr(owner, name, watched)


class Events:
    """A file that events are appended to.

    Args:
        folder: of the file, and of what neighbours leave.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._silent = False

    def silence(self) -> None:
        """In a forked process, whose events are not the training's."""
        self._silent = True

    def write(self, kind: str, facts: Mapping[str, Any]) -> None:
        """One event, with the user's line that it comes from."""
        if self._silent:
            return
        file, line = user_place()
        text = json.dumps({"kind": kind, "file": file, "line": line, **facts}, default=str)
        with (self.folder / "events").open("a", encoding="utf-8") as opened:
            opened.write(text + "\n")


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events in a folder, in their order."""
    path = folder / "events"
    if not os.path.exists(path):
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
