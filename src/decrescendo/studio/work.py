"""A computation that ends when it is no longer wanted: a page that asks anew takes back what it asked before."""

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, final


class Superseded(BaseException):
    """Nobody waits for this any more. No `Exception`: code that catches those must not go on."""


@final
class Work(threading.Thread):
    """One computation, in a thread of its own, which `drop` ends within a moment, whatever it is at.

    Args:
        page: whose it is.
        compute: what to do.

    >>> work = Work("a page", lambda: 3)
    >>> work.start(), work.join(), work.found, work.dropped
    (None, None, 3, False)
    """

    def __init__(self, page: str, compute: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.page, self.dropped = page, False
        self.found: Any = None
        self.error: Exception | None = None
        self._compute, self._ended, self._guard = compute, False, threading.Lock()

    def run(self) -> None:
        """Compute, and keep what came of it."""
        try:
            try:
                self.found = self._compute()
            except Exception as error:
                self.error = error
            with self._guard:
                self._ended = True
            time.sleep(0)  # where an interruption that came late is raised
        except Superseded:
            pass

    def drop(self) -> None:
        """End it: `Superseded` is raised in its thread at its next line of Python, after an import under way.

        A module that was imported by half cannot always be imported again.
        """
        while True:
            with self._guard:
                if self._ended or self.ident is None:
                    return
                if not _imports(self.ident):
                    self.dropped = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(self.ident), ctypes.py_object(Superseded)
                    )
                    return
            time.sleep(0.01)


def _imports(ident: int) -> bool:
    """Whether a thread is in the middle of an import."""
    frame = sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


@final
class Desktop:
    """The computations under way: one computes at a time, and a page has one at most."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._guard, self._turn = threading.Lock(), threading.Lock()

    def do(self, page: str, compute: Callable[[], Any]) -> Work:
        """The computation, ended: done, failed, or dropped as the same ``page`` asked for another."""

        def in_turn() -> Any:
            with self._turn:
                return compute()

        work = Work(page, in_turn)
        with self._guard:
            before = [other for other in self._works if page and other.page == page]
            self._works.append(work)
            work.start()
        for other in before:
            other.drop()
        work.join()
        with self._guard:
            self._works.remove(work)
        return work
