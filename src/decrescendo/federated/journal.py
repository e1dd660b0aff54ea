"""The server's state on disk: written before anything of a round can be seen, read when the server starts again."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from decrescendo.base import sealed
from decrescendo.base.whole_file import write_whole
from decrescendo.errors import FileRefused, InvalidValue, PlanViolation

FORMAT, VERSION = "decrescendo-federated-journal", 1
HEAD, LOCK = "journal-private.json", "journal.lock"
_TENSORS = re.compile(r"state-[0-9a-f]{16}\.safetensors")
_KEYS = {"format", "version", "facts", "tensors", "tensors_sha256"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One state: facts that fit JSON, and tensors by name."""

    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class Journal:
    """A folder with the last state, replaced as a whole: a kill at any moment leaves the old state or the new one.

    What is in it is as secret as the seed: the states of the noise streams tell past and future noise. Files are
    readable by their owner only.

    Args:
        folder: made if it is not there. Whoever opens it holds it until their process ends: two servers that went on
            from one state would release two different sums under the same noise. A copy of the folder is not held:
            never go on from a backup.

    Raises:
        InvalidValue: it cannot be written, or another server holds it.

    >>> import tempfile
    >>> journal = Journal(Path(tempfile.mkdtemp()) / "run")
    >>> journal.read() is None
    True
    >>> journal.write(Entry({"round": 1}, {}))
    >>> journal.read().facts
    {'round': 1}
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidValue(
                f"journal must be a folder that can be written, got {str(folder)!r} ({error.strerror})"
            ) from None
        self._lock = FileLock(self._folder / LOCK, mode=0o600, blocking=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise InvalidValue(
                f"a journal must have one server, got {str(folder)!r} held by another. End that one first: two would "
                "release different sums with the same noise"
            ) from None

    def close(self) -> None:
        """Let another server have the folder, as the end of this process would."""
        self._lock.release()

    def write(self, entry: Entry) -> None:
        """Replace the state; when this returns, it is on disk.

        Raises:
            PlanViolation: after `close`.
        """
        if not self._lock.is_locked:
            raise PlanViolation(
                "a journal must be held to be written, got one that was let go. Start the server again from its folder"
            )
        content = save_tensors({name: tensor.contiguous() for name, tensor in entry.tensors.items()})
        digest = hashlib.sha256(content).hexdigest()
        # A name of its own: the head that is still there must find its own tensors until it is replaced.
        name = f"state-{digest[:16]}.safetensors"
        self._put(name, content)
        head = {
            "format": FORMAT,
            "version": VERSION,
            "facts": dict(entry.facts),
            "tensors": name,
            "tensors_sha256": digest,
        }
        self._put(HEAD, sealed.seal(head).encode())
        for old in self._folder.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)

    def read(self) -> Entry | None:
        """The last state; ``None`` if there is none yet.

        Raises:
            FileRefused: damaged, foreign or newer: a run whose ledger cannot be read must not go on.
        """
        head = self._folder / HEAD
        if not head.exists():
            return None
        try:
            content = sealed.opened(head.read_bytes(), head, FORMAT, VERSION, keys=_KEYS)
            name = content["tensors"]
            if not isinstance(name, str) or not _TENSORS.fullmatch(name):
                raise FileRefused(f"{head} must name a file beside it, got {name!r:.60}")
            stored = (self._folder / name).read_bytes()
            if hashlib.sha256(stored).hexdigest() != content["tensors_sha256"]:
                raise FileRefused(
                    f"{content['tensors']} must be the file that {HEAD} speaks of, got other bytes"
                )
            if not isinstance(content["facts"], dict):
                raise FileRefused(f"{head} must hold facts by name, got {type(content['facts']).__name__}")
            return Entry(content["facts"], load_tensors(stored))
        except FileRefused:
            raise
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise FileRefused(
                f"{head} and its tensors must be readable, got {error}. It is damaged"
            ) from error

    def _put(self, name: str, content: bytes) -> None:
        write_whole(self._folder / name, content, mode=0o600)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
