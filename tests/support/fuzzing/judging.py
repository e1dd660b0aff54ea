"""One input, judged: read, or refused by an error of this package, in time, and the files as they were."""

import contextlib
import signal
import tempfile
import traceback
from collections.abc import Generator
from enum import StrEnum
from pathlib import Path
from typing import Any

from decrescendo.errors import DecrescendoError
from fuzzing.target import Files, Target

SECONDS = 20.0


class Outcome(StrEnum):
    """What became of an input."""

    ACCEPTED = "accepted"
    REFUSED = "refused"


class Failure(Exception):
    """What must not happen."""


class Hang(BaseException):
    """Too slow; no ``except Exception`` may swallow it."""


@contextlib.contextmanager
def limited(seconds: float) -> Generator[None]:
    """`Hang` after so many seconds. (Only in a main thread; elsewhere without a limit.)"""

    def late(*_: object) -> None:
        raise Hang(f"over {seconds:g} seconds")

    try:
        before = signal.signal(signal.SIGALRM, late)
    except ValueError:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def written(folder: Path, files: Files) -> None:
    """Put the files there."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def found(folder: Path) -> Files:
    """What is there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def judge(target: Target, data: bytes) -> Outcome:
    """What becomes of the input that these bytes stand for: accepted or refused; anything else is a `Failure`."""
    return judge_files(target, target.files(data))


def judge_files(target: Target, files: Files) -> Outcome:
    """What becomes of these files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "in"
        folder.mkdir()
        written(folder, files)
        try:
            with limited(SECONDS):
                value = target.read(folder)
        except DecrescendoError as error:
            if not str(error).strip() or not _printable(str(error)):
                raise Failure(f"{target.name}: {type(error).__name__} without a message to print") from error
            outcome, value = Outcome.REFUSED, None
        except Hang as error:
            raise Failure(f"{target.name}: {error}") from error
        except Exception as error:
            raise Failure(f"{target.name}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error
        else:
            outcome = Outcome.ACCEPTED
        after = found(folder)
        if target.writes and outcome is Outcome.ACCEPTED:  # what was there is there, and nothing half done
            after = {name: content for name, content in after.items() if name in files or "/." in f"/{name}"}
        if after != files:
            names = (after.keys() | files.keys()) - target.locks
            odd = sorted(name for name in names if after.get(name) != files.get(name))
        else:
            odd = []
        if odd:
            raise Failure(f"{target.name}: files changed by reading them ({outcome}): {odd}")
        if outcome is Outcome.ACCEPTED and target.again is not None:
            _round_trip(target, value, Path(name) / "out")
    return outcome


def _printable(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _round_trip(target: Target, value: Any, folder: Path) -> None:
    assert target.again is not None
    folder.mkdir()
    try:
        with limited(SECONDS):
            again = target.again(value, folder)
    except (Exception, Hang) as error:
        raise Failure(
            f"{target.name}: accepted, and then {type(error).__name__}: {error}\n{traceback.format_exc()}"
        ) from error
    if again != value:
        raise Failure(f"{target.name}: read as {value!r:.300}, written and read again as {again!r:.300}")
