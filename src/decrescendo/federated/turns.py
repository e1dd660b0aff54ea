"""Whose turn it is: the calls of one server come one after another, whole, in one process.

A round that two threads close is released twice, and a sum that a call has half added to has a client in it that nobody
counted: neither can be seen afterwards in what the server holds.
"""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import final

from decrescendo.errors import PlanViolation


@final
class Turns:
    """The turns that calls take, on any thread.

    >>> turns = Turns()
    >>> with turns.one():
    ...     with turns.one():
    ...         pass
    Traceback (most recent call last):
    ...
    decrescendo.errors.PlanViolation: a call of a server must end before the next begins, got one in the midst of ...
    """

    def __init__(self) -> None:
        self._lock, self._owner = threading.RLock(), os.getpid()
        # Whether a call is under way, and whether one broke off in its midst.
        self._busy, self.broken = False, False

    @contextmanager
    def one(self) -> Generator[None]:
        """A turn of a call that moves something: others wait for its end, and none begins within it."""
        with self.between():
            if self._busy:
                raise PlanViolation(
                    "a call of a server must end before the next begins, got one in the midst of another: by a signal "
                    "handler, or a hook. Call from a thread, which waits"
                )
            try:
                self._busy = True
                yield
            finally:
                self._busy = False

    @contextmanager
    def between(self) -> Generator[None]:
        """A turn of a call that moves nothing: it waits for other threads alone, and may come within a call."""
        if os.getpid() != self._owner:
            raise PlanViolation(
                "a federated run must go on in the process that began it, got a call in a forked one. Both would "
                "release their sums with the same noise: begin runs after the fork"
            )
        with self._lock:
            yield

    @contextmanager
    def whole(self) -> Generator[None]:
        """What must be done whole: where it breaks off, by memory, a full disk or Ctrl-C, `broken` says so from then
        on."""
        self.broken = True
        yield
        self.broken = False
