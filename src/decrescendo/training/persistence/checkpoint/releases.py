"""`Releases`: a file beside the checkpoints that records each release before its result can be seen."""

import json
import os
import secrets
import string
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, final

from filelock import FileLock, Timeout

from decrescendo.base import strict_json
from decrescendo.base.whole_file import sync_folder, write_whole
from decrescendo.errors import FileRefused, PlanViolation, check_integer

FORMAT, VERSION = "decrescendo-releases", 1
RELEASES, LOCK = "releases.jsonl", "releases.lock"
# Seconds to wait for the lock, which a process holds while it writes one line.
_PATIENCE = 60
_WAY_OUT = "begin a new run, with another seed or dc.Secure(), in a new folder: what both release counts"


@final
class Releases:
    """Digests of the releases of one training, in an append-only file: one line per step, on the disk when
    `record` returns.

    A checkpoint has the random streams, so a step repeated after a crash has the same noise. If its sum is
    another (a record was changed, another machine adds in another order), the difference of the two releases has no
    noise in it. So each repeated step is compared with what was released.

    Guarantee:
        `record` accepts one digest only for each step, from all processes that resume in this folder, one after
        another or at the same time.

    Edge cases:
        an incomplete last line is ignored and written again: nothing of its release could be seen yet.
        two processes in one folder: each compares what the other has written; they do the same work or one is refused.
        a *copy* of the folder cannot be told from the original: two that go on from copies release the same noise, on
            other sums where the data differ. Never go on from a copy.

    Args:
        folder: of the checkpoints.

    >>> import tempfile
    >>> releases = Releases(tempfile.mkdtemp())
    >>> releases.begin()
    >>> releases.record(0, bytes(32)), releases.record(0, bytes(32))
    (True, False)
    >>> releases.record(0, bytes(31) + b"1")
    Traceback (most recent call last):
    decrescendo.errors.PlanViolation: a repeated step must have its first result, got another one at step 1: ...
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._path = self._folder / RELEASES
        self.name = secrets.token_hex(16)
        self._digests: list[str] = []
        self._end = 0

    @property
    def steps(self) -> int:
        """The number of releases recorded."""
        return len(self._digests)

    def begin(self) -> None:
        """Start the record of a new training; the folder must have no checkpoints.

        Raises:
            FileRefused: it cannot be written; or something was released here, and the checkpoints are gone.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._held():
                if self._path.exists():
                    self.name, self._digests, self._end = _name_in(self._path), list[str](), 0
                    self._catch_up()
                    if self._digests:
                        raise FileRefused(
                            f"{self._folder} must have a checkpoint to go on from, got none, and {len(self._digests)} "
                            f"releases. Its checkpoints were removed: {_WAY_OUT}"
                        )
                self.name = secrets.token_hex(16)
                write_whole(self._path, _head(self.name), mode=0o600)
                sync_folder(self._folder)
                self._digests, self._end = list[str](), len(_head(self.name))
        except OSError as error:
            raise self._unwritten(error) from None

    def go_on(self, name: str, steps: int) -> None:
        """Continue the record of a training from its checkpoint after ``steps`` steps.

        Raises:
            FileRefused: no such file, one that is damaged or of another training, or that ends before the checkpoint.
        """
        self.name, self._digests, self._end = name, list[str](), 0
        try:
            with self._held():
                self._catch_up()
                with _opened(self._path) as handle:  # a killed process may not have synced its last line
                    os.fsync(handle)
        except OSError as error:
            raise self._unwritten(error) from None
        if len(self._digests) < check_integer("steps", steps):
            raise FileRefused(
                f"{self._path} must list what was released before its checkpoint, {steps} steps, got "
                f"{len(self._digests)}. It was cut or restored from a copy: {_WAY_OUT}"
            )

    def record(self, position: int, digest: bytes) -> bool:
        """Record a release before its result can be seen; or compare it with the record if the step was
        recorded before.

        Args:
            position: of the step in the run, from 0.
            digest: of what is about to be released, 32 bytes.

        Returns:
            Whether the step is new. A recorded step is the same release, repeated after a crash: it counts once.

        Raises:
            PlanViolation: a recorded step with another digest, or a step that is not the next.
            FileRefused: the file cannot be written, or is not as it was written. Nothing was released.
        """
        check_integer("position", position)
        line = _line(position + 1, digest.hex())
        try:
            with self._held():
                self._catch_up()
                if position < len(self._digests):
                    if self._digests[position] != digest.hex():
                        raise PlanViolation(
                            "a repeated step must have its first result, got another one at step "
                            f"{position + 1}: the data, the settings or the machine are not what they were. The same "
                            "noise on another sum would betray the difference: put them back, or "
                            f"{_WAY_OUT}"
                        )
                    return False
                if position > len(self._digests):
                    raise PlanViolation(
                        f"releases must be written down in order, got step {position + 1} after {len(self._digests)}"
                    )
                self._append(line)
        except OSError as error:
            raise self._unwritten(error) from None
        self._digests.append(digest.hex())
        self._end += len(line)
        return True

    def _append(self, line: bytes) -> None:
        with _opened(self._path) as handle:
            try:
                os.ftruncate(handle, self._end)
                os.lseek(handle, self._end, os.SEEK_SET)
                if os.write(handle, line) != len(line):
                    raise OSError("the disk is full")
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, self._end)
                raise

    def _catch_up(self) -> None:
        """Read what was appended since the last read, by this or another process."""
        with _opened(self._path) as handle, os.fdopen(os.dup(handle), "rb") as file:
            head = _head(self.name)
            if file.read(len(head)) != head:
                _name_in(self._path)  # raises if it is another kind of file
                raise FileRefused(
                    f"{self._path} must be of the training whose checkpoint this is, got another's. Each training has "
                    "a folder of its own"
                )
            self._end = max(self._end, len(head))
            file.seek(0, os.SEEK_END)
            if file.tell() < self._end:
                raise FileRefused(
                    f"{self._path} must only grow, got a shorter one. It was cut or exchanged: {_WAY_OUT}"
                )
            file.seek(self._end)
            content = file.read()
        *lines, rest = content.split(b"\n")
        for text in lines:
            step = len(self._digests) + 1
            digest = _digest(text)
            if digest is None or text + b"\n" != _line(step, digest):
                raise self._damaged(step)
            self._digests.append(digest)
            self._end += len(text) + 1
        if not _begins(rest, _line(len(self._digests) + 1, "0" * 64)):
            raise self._damaged(len(self._digests) + 1)

    @contextmanager
    def _held(self) -> Generator[None]:
        try:
            with FileLock(self._folder / LOCK, timeout=_PATIENCE, mode=0o600):
                yield
        except Timeout:
            raise FileRefused(
                f"{self._folder} must be free to be written within {_PATIENCE} s, got one that another process holds. "
                "End that one. Nothing was released"
            ) from None

    def _damaged(self, step: int) -> FileRefused:
        return FileRefused(
            f"{self._path} must be as it was written, got other bytes at step {step}. What was released can no longer "
            f"be told: {_WAY_OUT}"
        )

    def _unwritten(self, error: OSError) -> FileRefused:
        if isinstance(error, FileNotFoundError) and self._folder.is_dir():
            return FileRefused(
                f"{self._folder} must hold {RELEASES}, which lists what was released, got none. What was released can "
                f"no longer be told: {_WAY_OUT}"
            )
        return FileRefused(
            f"{self._folder} must be a folder of a training that can be read and written, got {error}. Nothing was "
            "released"
        )


@contextmanager
def _opened(path: Path) -> Generator[int]:
    handle = os.open(path, os.O_RDWR)
    try:
        yield handle
    finally:
        os.close(handle)


def _head(name: str) -> bytes:
    return json.dumps({"format": FORMAT, "version": VERSION, "name": name}).encode() + b"\n"


def _line(step: int, digest: str) -> bytes:
    return json.dumps({"step": step, "sha256": digest}).encode() + b"\n"


def _name_in(path: Path) -> str:
    head = path.read_bytes().partition(b"\n")[0]
    try:
        facts: Any = strict_json.loads(head)
    except ValueError as error:
        raise FileRefused(f"{path} must begin as it was written, got {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("version") != VERSION:
        raise FileRefused(f'{path} must say format "{FORMAT}" and version {VERSION}, got another file')
    return str(cast("dict[str, Any]", facts).get("name"))


def _digest(text: bytes) -> str | None:
    try:
        facts: Any = strict_json.loads(text)
    except ValueError:
        return None
    found = cast("dict[str, Any]", facts).get("sha256") if isinstance(facts, dict) else None
    return found if isinstance(found, str) and len(found) == 64 and set(found) <= set(_HEX) else None


def _begins(rest: bytes, line: bytes) -> bool:
    """Whether ``rest`` is an incomplete beginning of ``line``, whatever its digest."""
    start = line.index(b"0" * 64)
    return len(rest) < len(line) and all(
        byte in _HEX.encode() if start <= place < start + 64 else byte == line[place] for place, byte in enumerate(rest)
    )


_HEX = string.digits + "abcdef"
