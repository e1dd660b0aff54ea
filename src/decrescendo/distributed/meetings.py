"""Meetings of ranks: every operation of a group begins with one.

The ranks exchange which operation each is at, whether it failed, and the beginning of its message. So an error of one
rank, or ranks at different operations, end all of them with the same error, before the operation sends anything.
"""

import os
import struct
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import NoReturn, final

import torch
import torch.distributed as dist

from decrescendo.base.torch_private import default_store
from decrescendo.distributed.messages import described, first_line, raised
from decrescendo.errors import InvalidValue, PlanViolation, RankLost


class At(IntEnum):
    """Which operation a meeting begins."""

    AGREE, DRAW, SUM, PUBLISH, FAIL, PARTS = range(6)


_WORDS = {
    At.AGREE: "comparing what they have",
    At.DRAW: "drawing a batch",
    At.SUM: "summing gradients",
    At.PUBLISH: "releasing",
    At.FAIL: "ending",
    At.PARTS: "gathering parts",
}
# Keys in the store: why a rank leaves, and how many ranks have read it; the seconds that it waits for them.
_LEFT, _HEARD, _LISTENING = "decrescendo/left", "decrescendo/heard", 3.0
# A rank's words at a meeting: training, operation, whether it failed, length of its message; and the message's first
# bytes.
HEAD = 224
_MET = struct.Struct(f"<4q{HEAD}s")


@final
class Meetings:
    """The meetings of a group's ranks: exchanges of state and messages, and errors that end all ranks.

    Args:
        control: a gloo group of all ranks.
        gradients: the group that sums travel in.

    After an error every later meeting raises that error.
    """

    def __init__(self, control: dist.ProcessGroup, gradients: dist.ProcessGroup) -> None:
        self.control, self.gradients = control, gradients
        self._store, self._owner, self._size = default_store(), os.getpid(), dist.get_world_size(control)
        self._rank = dist.get_rank(control)
        # The training of the current operation; whether some model is sharded.
        self._number, self.in_parts = 0, False
        self.error: Exception | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the processes are still connected, without an error."""
        return self.error is None and dist.is_initialized() and self._store is default_store()

    @contextmanager
    def of(self, number: int) -> Generator[None]:
        """Inside, meetings name the training with this number."""
        before, self._number = self._number, number
        try:
            yield
        finally:
            self._number = before

    def exchange(self, at: At, message: Callable[[], bytes]) -> list[bytes]:
        """Meet at ``at``, and return the messages of all ranks, on every rank."""
        return self._exchanged(*self.begin(at, message))

    def _exchanged(self, content: bytes, lengths: list[int], heads: list[bytes]) -> list[bytes]:
        longest = max(lengths)
        if longest <= HEAD:
            return [head[:length] for head, length in zip(heads, lengths, strict=True)]
        own = torch.frombuffer(bytearray(content.ljust(longest, b"\0")), dtype=torch.uint8)
        with self.talking():
            found = [torch.empty_like(own) for _ in lengths]
            dist.all_gather(found, own, group=self.control)
        return [part.numpy().tobytes()[:length] for part, length in zip(found, lengths, strict=True)]

    def begin(
        self, at: At, message: Callable[[], bytes], number: int | None = None
    ) -> tuple[bytes, list[int], list[bytes]]:
        """Make a message and meet: returns the message, every rank's length (or ``number``), and the first bytes of
        every message; raises on all ranks if one failed or is at another operation."""
        if self.error is not None:
            raise self.error
        if os.getpid() != self._owner:
            raise InvalidValue(
                "a group must be used in the process that joined it, got a forked one. Load data in threads, or "
                "join in each process"
            )
        error: Exception | None = None
        try:
            content = message()
        except Exception as caught:
            error, content = caught, described(caught)
        if self.error is not None:  # of a meeting in between
            raise self.error
        third = len(content) if number is None or error is not None else number
        row = _MET.pack(self._number, at, error is not None, third, content[:HEAD])
        with self.talking():
            own = torch.frombuffer(bytearray(row), dtype=torch.uint8)
            met = own.new_empty(self._size, len(own))
            dist.all_gather(list(met), own, group=self.control)
        met_at = zip(*_MET.iter_unpack(met.numpy().tobytes()), strict=True)
        trainings, places, failed, lengths, heads = map(list, met_at)
        self._check_met(content, error, failed, lengths, heads)
        self._check_places(places, trainings)
        return content, lengths, heads

    def _check_met(
        self,
        content: bytes,
        error: Exception | None,
        failed: list[int],
        lengths: list[int],
        heads: list[bytes],
    ) -> None:
        """End all ranks with the error of the first that failed."""
        if any(failed):
            # Only ranks that failed send a message (their error).
            said = [length if bad else 0 for length, bad in zip(lengths, failed, strict=True)]
            texts = self._exchanged(content if error is not None else b"", said, heads)
            first = failed.index(1)
            self.over(error if error is not None else raised(first, texts[first]))

    def _check_places(self, places: list[int], trainings: list[int]) -> None:
        """End all ranks if they are not at the same operation of the same training."""
        if len(set(places)) > 1:
            told = ", ".join(f"rank {rank} {_WORDS[At(place)]}" for rank, place in enumerate(places))
            self.over(
                PlanViolation(
                    f"all ranks must take the same steps, got {told}. Run the same loop on every rank, "
                    "with the same end"
                )
            )
        if len(set(trainings)) > 1:
            told = ", ".join(f"rank {rank} training {number}" for rank, number in enumerate(trainings))
            self.over(
                PlanViolation(
                    f"all ranks must be at the same training, got {told}: their sums would be of both. Step and finish "
                    "trainings in the same order on every rank, and keep them in a list, not in a set"
                )
            )

    def over(self, error: Exception) -> NoReturn:
        """Close the meetings and raise an error that all ranks raise."""
        self.error = error
        raise error

    @contextmanager
    def talking(self) -> Generator[None]:
        """Inside, turn a failure to communicate into the error of a lost rank."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                self.leave(error)
                raise
            self.error = self._left() or RankLost(
                f"every rank must go on, got one that ended or was silent too long ({first_line(error)}). Nothing more "
                "was released: start all ranks again, from their checkpoints"
            )
            traceback.clear_frames(error.__traceback__)  # its frames keep the connections alive
            self._close()
            raise self.error from None

    def leave(self, error: BaseException) -> None:
        """Write to the store why this rank ends, and close, without a meeting: others may be in torch's collectives."""
        told = self._left()  # this error may be caused by another rank's leaving
        self.error = told or (error if isinstance(error, Exception) else raised(self._rank, described(error)))
        if told is not None:
            self._close()
            raise told from None
        with suppress(RuntimeError):
            self._store.set(_LEFT, f"{self._rank} {described(error).decode()}")
            self._close()
            end = time.monotonic() + _LISTENING
            while self._store.add(_HEARD, 0) < self._size - 1 and time.monotonic() < end:
                time.sleep(0.01)

    def _left(self) -> Exception | None:
        """The error with which another rank has left; ``None`` if none has."""
        with suppress(RuntimeError):
            if self._store.check([_LEFT]):
                rank, _, text = self._store.get(_LEFT).partition(b" ")
                self._store.add(_HEARD, 1)
                return raised(int(rank), text)
        return None

    def _close(self) -> None:
        """Close the connections, so that ranks that wait for this one hear of it."""
        if dist.is_initialized():
            dist.destroy_process_group()
        del self.control, self.gradients
