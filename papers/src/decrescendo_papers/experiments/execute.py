"""Many specs: what is finished is not repeated, the rest is shared among processes, a crash loses little."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from threading import Thread
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from decrescendo.base.sealed import check_writable
from decrescendo.errors import InvalidValue, check_integer
from decrescendo_papers.experiments.results import find, path_of, read_all, save
from decrescendo_papers.experiments.spec import Spec

# How often a run may take its process down before it is given up.
ATTEMPTS = 2

# Large blocks go back to the operating system after every step, and come back page by page, which costs up to a third
# of a small model's step. These ask the GNU allocator to keep them; others ignore it.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a list of specs.

    Args:
        kept: runs that were finished before.
        done: runs finished now.
        failed: name of each run that failed, and why.
    """

    kept: int
    done: int
    failed: dict[str, str] = field(default_factory=dict[str, str])


def missing(specs: Iterable[Spec], folder: Path) -> list[Spec]:
    """Specs without a finished result in ``folder``, each once; damaged results count as missing."""
    return [spec for spec in dict.fromkeys(specs) if find(folder, spec) is None]


def damaged(specs: Iterable[Spec], folder: Path) -> list[str]:
    """What is wrong with lines of the files that the results of these specs are in."""
    files = dict.fromkeys(path for spec in specs if (path := path_of(folder, spec)).is_file())
    return [reason for path in files for reason in read_all(path)[1]]


def choose_device(device: str) -> str:
    """``auto`` is CUDA where there is one; anything else is taken as it is.

    >>> choose_device("cpu")
    'cpu'
    """
    import torch

    if device != "auto":
        try:
            torch.device(device)
        except RuntimeError:
            raise InvalidValue(f"device must be auto, cpu or cuda, got device={device!r}") from None
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def execute(
    specs: Sequence[Spec], folder: Path, *, jobs: int, device: str = "cpu", console: Console | None = None
) -> Outcome:
    """Run what has no result yet, ``jobs`` processes at a time with one thread each, in the order given.

    A run that raises an error is reported and the others go on. A process that dies takes only the runs in flight with
    it; they are tried once more. Interrupted, everything finished is kept, and the next call goes on from there.

    Args:
        specs: the runs; the same one twice is run once.
        folder: where results are kept.
        jobs: processes, >= 1.
        device: see `choose_device`.
        console: where progress is drawn; standard error by default.

    Raises:
        OSError: the folder cannot be written to; nothing was run.
    """
    check_integer("jobs", jobs, at_least=1)
    wanted = list(dict.fromkeys(specs))
    todo = missing(wanted, folder)
    show = console or Console(stderr=True, emoji=False)
    for reason in damaged(wanted, folder):
        show.print(f"left out, and run again if it is asked for: {reason}", soft_wrap=True, highlight=False)
    if not todo:
        return Outcome(len(wanted), 0)
    check_writable(folder)
    state = _State(todo, folder, min(jobs, len(todo)), choose_device(device), show)
    state.run()
    return Outcome(len(wanted) - len(todo), state.done, state.failed)


class _State:
    """One call of `execute`: which runs wait, which are in flight, and the line on the terminal."""

    def __init__(self, todo: list[Spec], folder: Path, jobs: int, device: str, console: Console) -> None:
        self.waiting = list(todo)
        self.folder, self.jobs, self.device, self.console = folder, jobs, device, console
        self.done, self.finished = 0, 0.0
        self.failed: dict[str, str] = {}
        self.attempts: dict[Spec, int] = {}
        self.context = get_context("spawn")
        # One number a process, without a lock: a process that is killed while it holds one would stop all others.
        self.share: Any = RawArray("d", jobs)
        self.total = len(todo)
        self.work = sum(_work(spec) for spec in todo)

    def run(self) -> None:
        columns = (
            BarColumn(),
            TextColumn("{task.percentage:>4.1f} %"), TimeElapsedColumn(), TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.fields[now]}"),
        )  # fmt: skip
        before = {name: os.environ.get(name) for name in ALLOCATOR}
        for name, value in ALLOCATOR.items():
            os.environ.setdefault(name, value)
        try:
            with Progress(*columns, console=self.console, speed_estimate_period=600) as show:
                bar = show.add_task("", total=self.work, now="")
                while self.waiting:
                    self._with_pool(lambda work, now: show.update(bar, completed=work, now=now))
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)

    def _with_pool(self, update: Callable[[float, str], None]) -> None:
        """Work until nothing waits or a process died."""
        pool = ProcessPoolExecutor(self.jobs, mp_context=self.context, initializer=_start, initargs=(self.share,))
        flying: dict[Future[float], tuple[Spec, int]] = {}
        try:
            while self.waiting or flying:
                while self.waiting and len(flying) < self.jobs:
                    spec = self.waiting.pop(0)
                    self.attempts[spec] = self.attempts.get(spec, 0) + 1
                    slot = min(set(range(self.jobs)) - {slot for _, slot in flying.values()})
                    self.share[slot] = 0.0
                    flying[pool.submit(_one, spec, str(self.folder), self.device, slot)] = spec, slot
                ended, _ = wait(flying, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._end(future, flying.pop(future)[0])
                under_way = sum(_work(spec) * self.share[slot] for spec, slot in flying.values())
                update(self.finished + under_way, f"{self.done + len(self.failed)} of {self.total} runs")
        except BrokenProcessPool:
            for spec, _ in flying.values():
                self._retry(spec)
        except BaseException:
            for process in list(pool._processes.values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, future: "Future[float]", spec: Spec) -> None:
        try:
            seconds = future.result()
            self.finished += _work(spec)
        except BrokenProcessPool:
            self._retry(spec)
            raise
        except Exception as error:
            self.finished += _work(spec)
            self.failed[spec.name] = f"{type(error).__name__}: {error}"
            self.console.print(f"[red]failed[/red] {spec.name}: {error}", soft_wrap=True, highlight=False)
            return
        self.done += 1
        self.console.print(f"{seconds:7.1f} s  {spec.name}", soft_wrap=True, highlight=False)

    def _retry(self, spec: Spec) -> None:
        if self.attempts[spec] < ATTEMPTS:
            self.waiting.insert(0, spec)
        else:
            self.failed[spec.name] = "its process died"


_SHARE: list[Any] = []


def _start(share: Any) -> None:
    import torch

    torch.set_num_threads(1)
    _SHARE[:] = [share]
    Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End when the executor has ended, however it did: it may be started again, and two would do the same run."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _one(spec: Spec, folder: str, device: str, slot: int) -> float:
    """In a process of its own: one run, saved by the process that computed it."""
    from decrescendo.clipping import EngineSettings
    from decrescendo_papers.experiments.perform import perform

    start = time.monotonic()

    def tick(steps: int) -> None:
        _SHARE[0][slot] += steps / spec.steps

    # Captured passes: a sixth faster on a processor's thread, several times on a GPU.
    save(Path(folder), perform(spec, device=device, tick=tick, engine=EngineSettings(capture=True)))
    return time.monotonic() - start


def _work(spec: Spec) -> float:
    from decrescendo_papers.experiments.tasks import find_task

    return spec.steps * spec.batch * max(spec.records, 1) * find_task(spec.task).cost
