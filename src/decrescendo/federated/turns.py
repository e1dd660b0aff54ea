"""Calls of a server, one after another and each as a whole."""

import functools
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar, final

from decrescendo.errors import PlanViolation

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S")


@final
class Turns:
    """Whose turn it is, and whether a call broke off in its midst.

    >>> turns = Turns()
    >>> with turns.whole():
    ...     pass
    >>> turns.check_whole(opened=False)
    """

    def __init__(self) -> None:
        # Reentrant: a call asks what other calls give.
        self._lock, self._owner, self._broken = threading.RLock(), os.getpid(), False

    @contextmanager
    def taken(self) -> Generator[None]:
        """Inside, no other call is under way; in the process that began the run only."""
        if os.getpid() != self._owner:
            raise PlanViolation(
                "a federated run must go on in the process that began it, got a call in a forked one. Both would "
                "release their sums with the same noise: begin runs after the fork"
            )
        with self._lock:
            yield

    @contextmanager
    def whole(self) -> Generator[None]:
        """What must be done whole: where it breaks off, no call goes on from there."""
        self._broken = True
        yield
        self._broken = False

    def check_whole(self, *, opened: bool) -> None:
        """Refuse to go on after a call that broke off; ``opened``: whether a round is open."""
        if self._broken:
            raise PlanViolation(
                "a call must have ended before the next, got one that broke off in its midst. "
                + (
                    "Abort the round: what is in its sum cannot be told"
                    if opened
                    else "Stop the server, and start it again from its journal"
                )
            )


def one_at_a_time(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """One call after another: replies and deadlines may come on any thread, in the process that began the run."""

    @functools.wraps(method)
    def called(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        turns: Turns = self._turns
        with turns.taken():
            return method(self, *args, **kwargs)

    return called
