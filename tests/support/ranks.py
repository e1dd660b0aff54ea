"""Ranks of one training as processes of this machine: quick to start, each with one thread, all ended by force if they
hang."""

import contextlib
import faulthandler
import functools
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, cast

_CONTEXT = multiprocessing.get_context("forkserver")


@functools.cache
def _ready(*others: str) -> None:
    """Start the process that ranks are forked from, with everything imported that they need."""
    cast("Any", forkserver)._forkserver._stop()
    _CONTEXT.set_forkserver_preload(["rank_life", "rank_races", *others])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # preloading does not know the path of this process
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@dataclass(frozen=True)
class Outcome:
    """What a rank ended with: a value, or an error; or neither, if it was killed."""

    value: Any = None
    error: str = ""
    message: str = ""
    gone: bool = False


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Life:
    """Ranks under way: ``<scenario>(**options)`` of `rank_life` or `rank_races` on ``started`` of ``size`` ranks; with
    size 0 one process without ``torchrun``."""

    def __init__(self, scenario: str, size: int, *, started: int | None = None, port: int = 0, **options: Any) -> None:
        _ready(*["peft"] * ("peft" in options.get("name", "")))  # slow to import
        port = port or free_port()
        self._lives: list[tuple[Any, Connection]] = []
        for rank in range(max(size, 1) if started is None else started):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(
                target=_life,
                args=(theirs, scenario, rank, size, port, options),
                daemon=not options.get("workers"),
            )
            process.start()
            theirs.close()
            self._lives.append((process, ours))
        self._began = 0.0

    def waits_for(self, condition: Callable[[], bool]) -> bool:
        """Wait until it holds; false if a rank ends before."""
        while not condition():
            if not all(process.is_alive() for process, _ in self._lives):
                return False
            time.sleep(0.002)
        return True

    def pause(self, seconds: float) -> None:
        """Let them go on."""
        time.sleep(seconds)

    def kill(self, ranks: list[int]) -> None:
        """SIGKILL."""
        self._began = time.monotonic()
        for rank in ranks:
            self._lives[rank][0].kill()

    def ends(self, within: float) -> tuple[list[Outcome], float]:
        """Outcomes, and the seconds to the end of all from the moment that the last began, or one was killed."""
        outcomes: list[Outcome] = []
        limit = time.monotonic() + within
        began = self._began
        for _, pipe in self._lives:
            with contextlib.suppress(EOFError):
                assert pipe.poll(max(0.0, limit - time.monotonic())), "a rank did not begin"
                assert pipe.recv() == "began"
            began = self._began or time.monotonic()
        for process, pipe in self._lives:
            try:
                ended = pipe.poll(max(0.0, limit - time.monotonic()))
                found = pipe.recv() if ended else Outcome(error="hangs")
            except (EOFError, ConnectionResetError):
                found = Outcome(gone=True)
            outcomes.append(found)
            if found.error == "hangs":
                os.kill(process.pid, signal.SIGABRT)  # shows where its threads are
        seconds = time.monotonic() - began
        for process, pipe in self._lives:
            process.join(10)
            if process.is_alive():
                process.kill()
            pipe.close()
        return outcomes, seconds


def run_ranks(
    scenario: str, size: int, *, started: int | None = None, within: float = 120.0, **options: Any
) -> tuple[list[Outcome], float]:
    """The outcomes of one life, and the seconds it took from the moment that the last rank had begun."""
    return Life(scenario, size, started=started, **options).ends(within)


def _life(pipe: Connection, scenario: str, rank: int, size: int, port: int, options: dict[str, Any]) -> None:
    import rank_life
    import rank_races
    import torch

    os.environ |= {} if not size else {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    faulthandler.enable()
    torch.set_num_threads(1)
    pipe.send("began")
    try:
        scenarios = rank_races if hasattr(rank_races, scenario) else rank_life
        outcome = Outcome(getattr(scenarios, scenario)(**options))
    except Exception as error:
        outcome = Outcome(error=type(error).__name__, message=str(error))
    pipe.send(outcome)
