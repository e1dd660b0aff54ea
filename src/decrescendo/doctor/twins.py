"""The rest of a training, three times from one state: as it is, with other private rows, and with other noise. In all
of them each private step takes the noisy gradient of the first: what else changes with the rows is not hidden."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.torch_private import LoaderIterator
from decrescendo.doctor.events import wrap
from decrescendo.doctor.exchanged import TrainedRows
from decrescendo.doctor.neighbours import forked, reap
from decrescendo.doctor.outputs import Outputs

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch

TWINS = ("as it is", "other rows", "other noise")
_SECONDS, _LONGEST = 20, 30  # of the processor and of a clock, for each
_BATCHES = 6  # of a pass over a loader
_LARGEST = 2**30  # bytes of releases
_END = 10**12
_MOST = 64  # tables that are kept


class Twins:
    """Three processes that go on to the end of the script, and leave what they print, log, write and save.

    Args:
        watch: of the training.
    """

    def __init__(self, watch: TorchWatch) -> None:
        self._watch = watch
        self.outputs = Outputs()
        self._name = ""
        self._releases: Any = None
        self._mark: Any = None  # a file that is no longer empty once other rows have led to another gradient
        self._trained, self._window = TrainedRows(), TrainedRows()  # in all steps, and since the last one
        self._steps, self._mixed = 0, False
        self._draws, self._noised = 0, True
        self._uniform = 0  # uniform draws until the last batch or release

    def fetched(self, data: Any, indices: Sequence[int], *, all_are_drawn: bool) -> None:
        """Rows of a data set are taken, by a loader that draws from all of them, or from some."""
        self._uniform = self._watch.draws.others
        if torch.is_grad_enabled():
            known = self._window.sets.get(id(data), (data, set[int]()))[1]
            drawn = None if all_are_drawn or known is None else known.union(indices)
            self._window.sets[id(data)] = data, drawn

    def taken(self, rows: Tensor, numbers: Tensor, *, by_a_model: bool = False) -> None:
        """Rows of a table are taken, or a model is given them."""
        self._uniform = self._watch.draws.others
        tables = self._window.seen if by_a_model else self._window.tables
        if torch.is_grad_enabled() and (rows.data_ptr() in tables or len(tables) < _MOST):
            tables.setdefault(rows.data_ptr(), (rows, []))[1].append(numbers)

    def forget(self) -> None:
        """A step was made that is not looked at."""
        self._window = TrainedRows()
        self._draws = self._watch.draws.count

    def stepped(self, *, of_a_round: bool = False) -> None:
        """A step was made of the rows that were taken before it."""
        self._noised = self._noised and self._watch.draws.count > self._draws  # (else it may be one on public rows)
        self._draws = self._watch.draws.count
        window, self._window = self._window, TrainedRows()
        self._steps += 1
        if self._steps > 1:  # (before the first one a script may evaluate)
            self._mixed = self._mixed or not (of_a_round or window.is_clear(self._trained))
            self._trained.add(window)

    def start(self) -> bool:
        """Make the three, one after another. Whether this process is one of them."""
        unclear = self._mixed or not self._noised or not self._trained or _writes_to_shared_memory()
        if self._name or unclear or not hasattr(os, "fork"):
            return False
        folder = self._watch.events.folder
        sys.stdout.flush()
        sys.stderr.flush()
        for name in TWINS:
            child = forked()
            if child == 0:
                self._become(name, folder)
                return True
            reap(child, _LONGEST)
            if not (folder / f"{TWINS[0]}.releases").exists():
                break
        return False

    def _become(self, name: str, folder: Path) -> None:
        self._name = name
        watch = self._watch
        watch.neighbours.role = "louder" if name == "other noise" else "twin"
        watch.events.silence()
        watch.steps = _END
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LONGEST)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        watch.draws.watch_scipy()
        wrap(LoaderIterator, "__next__", _shortened)
        kept = (folder / f"{TWINS[0]}.releases").open("wb" if name == TWINS[0] else "rb")
        self._releases = kept
        self._mark = (folder / f"{name}.moved").open("wb", buffering=0)
        self.outputs.start(folder / f"{name}.outputs", folder, kept.fileno(), self._mark.fileno())
        if name == "other rows":
            try:
                self._trained.exchange()
            except (AttributeError, TypeError, ValueError, RuntimeError):
                os._exit(1)

    def release(self, tensors: Sequence[Tensor]) -> None:
        """What a private step takes: the first process keeps it, and the others are given what it kept."""
        self._uniform = self._watch.draws.others
        if not self.active:
            return
        numbers = torch.cat([t.detach().flatten().double() for t in tensors]) if tensors else torch.zeros(0)
        size = 8 * len(numbers)
        if self._name == TWINS[0]:
            if self._releases.tell() + size > _LARGEST:
                os._exit(0)
            self._releases.write(size.to_bytes(8, "little") + numbers.numpy().tobytes())
            self._releases.flush()
            return
        if int.from_bytes(self._releases.read(8), "little") != size:
            os._exit(0)
        kept = torch.from_numpy(np.frombuffer(self._releases.read(size)).copy())
        if not torch.equal(kept, numbers.cpu()):
            self._mark.write(b".")
        for tensor, part in zip(tensors, kept.split([t.numel() for t in tensors]), strict=True):
            tensor.detach().copy_(part.view_as(tensor))

    def state(self) -> list[int]:
        """What shows that random numbers are those of the other twins, and how many were drawn that may be noise."""
        held: Any = np.random.get_state()
        states = (
            torch.get_rng_state().numpy().tobytes(),
            held[1].tobytes(),
            repr((held[2:], random.getstate())).encode(),
        )
        return [zlib.crc32(b"".join(states)), self._watch.draws.others - self._uniform]

    @property
    def active(self) -> bool:
        """Whether this process is one of them."""
        return bool(self._name)

    def cannot_hold(self) -> None:
        """A step whose release nothing can be put in the place of: the rest shows nothing."""
        if self._name:
            os._exit(0)


def _writes_to_shared_memory() -> bool:
    """Whether a file is mapped for writing, or memory that other processes have: a twin would change it."""
    with contextlib.suppress(OSError):  # (there is no such list on other systems than Linux)
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            access, path = line.split(maxsplit=1)[1][:4], line.partition("/")[2]
            if access == "rw-s" and path and (not path.startswith("dev/") or path.startswith("dev/shm/")):
                return True
    return False


def _shortened(following: Callable[..., Any], iterator: Any) -> Any:
    if iterator._num_yielded >= _BATCHES:
        raise StopIteration
    return following(iterator)
