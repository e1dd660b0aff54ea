"""Meetings of ranks: every operation of a group begins with one.

Each rank says which operation it is at and whether it failed, and hears it of all others, with their messages where
they are short. So an error of one rank, or ranks that are not at the same place, end all of them with one error, before
the operation sends anything.
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
# Where a rank says in the store why it leaves, and how many know; seconds that it waits for them.
_LEFT, _HEARD, _LISTENING = "decrescendo/left", "decrescendo/heard", 3.0
# What a rank says at a meeting: which training it is at, and where in it, whether it failed,
# how long its message is, and how that begins.
HEAD = 224
_MET = struct.Struct(f"<4q{HEAD}s")


@final
class Meetings:
    """How the ranks of a group meet, and what ends them.

    Args:
        control: a gloo group of all ranks.
        gradients: the group that sums travel in.

    After an error they are over: whatever is asked of them raises that error.
    """

    def __init__(self, control: dist.ProcessGroup, gradients: dist.ProcessGroup) -> None:
        self.control, self.gradients = control, gradients
        self._store, self._owner, self._size = default_store(), os.getpid(), dist.get_world_size(control)
        self._rank = dist.get_rank(control)
        # Of which training the operation under way is; whether a model of one lies in parts.
        self._number, self.in_parts = 0, False
        self.error: Exception | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the processes that joined are joined still, without an error."""
        return self.error is None and dist.is_initialized() and self._store is default_store()

    @contextmanager
    def of(self, number: int) -> Generator[None]:
        """Inside, an operation of this training."""
        before, self._number = self._number, number
        try:
            yield
        finally:
            self._number = before

    def exchange(self, at: At, message: Callable[[], bytes]) -> list[bytes]:
        """A message of every rank, on every rank."""
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
        """Make a message, and meet: its length (or ``number``) and those of all, where all are at the same place; and
        how each message begins."""
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
            # Only those that failed have something to say.
            said = [length if bad else 0 for length, bad in zip(lengths, failed, strict=True)]
            texts = self._exchanged(content if error is not None else b"", said, heads)
            first = failed.index(1)
            self.over(error if error is not None else raised(first, texts[first]))

    def _check_places(self, places: list[int], trainings: list[int]) -> None:
        """End all ranks where they are not at the same operation of the same training."""
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
        """End with an error that all ranks have."""
        self.error = error
        raise error

    @contextmanager
    def talking(self) -> Generator[None]:
        """Inside, what fails is a rank that is lost."""
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
            traceback.clear_frames(error.__traceback__)  # which hold on to the connections
            self._close()
            raise self.error from None

    def leave(self, error: BaseException) -> None:
        """Say why this rank ends, and end, without a meeting: the others may be in what torch gathers by itself."""
        told = self._left()  # this error may come of another rank's leaving
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
        """Why another rank has left, where one has."""
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
