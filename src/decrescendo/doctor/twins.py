"""The rest of a training, three times from one state: as it is, with other private rows, and without any noise drawn.
In all of them every private step releases what it releases in the first: what else differs is not hidden by noise."""

from __future__ import annotations

import contextlib
import operator
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from decrescendo.base.torch_private import LoaderIterator
from decrescendo.doctor.events import user_frame, wrap
from decrescendo.doctor.outputs import Outputs

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch

# (Clocks go on: what is equal in the first and the last does not follow the time.)
TWINS = ("as it is", "other rows", "no noise")
_SECONDS, _LONGEST = 20, 40  # of the processor and of a clock, for each
_BATCHES = 6  # of a pass over a loader
_LARGEST = 2**30  # bytes of releases
_FEWER = 8  # the other rows are the last eighth, over and over
_END = 10**12


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
        self._fetched: dict[int, Any] = {}  # data sets, since the last step
        self._sets: dict[int, Any] = {}  # those that are trained on
        self._mixed = False
        self._draws, self._noised = 0, True

    def fetched(self, data: Any) -> None:
        """Rows of a data set are taken."""
        if torch.is_grad_enabled():
            self._fetched[id(data)] = data

    def forget(self) -> None:
        """A step was made that is not looked at."""
        self._fetched = {}
        self._draws = self._watch.draws.count

    def stepped(self, *, of_a_round: bool = False) -> None:
        """A step was made of the rows that were taken before it."""
        self._noised = self._noised and self._watch.draws.count > self._draws  # (else it may be one on public rows)
        self._draws = self._watch.draws.count
        self._mixed = self._mixed or (len(self._fetched) > 1 and not of_a_round)  # (public ones among them, perhaps)
        self._sets |= self._fetched
        self._fetched = {}

    def start(self) -> bool:
        """Make the three, one after another. Whether this process is one of them."""
        taken, seen = self._watch.rows.taken, self._watch.rows.seen
        several = len(seen) > 1 and not self._watch.servers.rounds
        tables = taken or ({} if several else seen)
        tables = tables if not self._sets else dict[int, tuple[Tensor, Tensor]]()
        unclear = self._mixed or not self._noised or not (self._sets or tables)
        if self._name or unclear or not hasattr(os, "fork"):
            return False
        folder = self._watch.events.folder
        sys.stdout.flush()
        sys.stderr.flush()
        for name in TWINS:
            child = os.fork()
            if child == 0:
                self._become(name, folder, tables.values())
                return True
            os.waitpid(child, 0)
            if not (folder / f"{TWINS[0]}.releases").exists():
                break
        return False

    def _become(self, name: str, folder: Path, tables: Iterable[tuple[Tensor, Tensor]]) -> None:
        import resource  # (not on every system)

        self._name = name
        watch = self._watch
        watch.neighbours.role = "quiet" if name == "no noise" else "twin"
        watch.events.silence()
        watch.steps = _END
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LONGEST)
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        wrap(LoaderIterator, "__next__", _shortened)
        kept = (folder / f"{TWINS[0]}.releases").open("wb" if name == TWINS[0] else "rb")
        self._releases = kept
        self._mark = (folder / f"{name}.moved").open("wb", buffering=0)
        self.outputs.start(folder / f"{name}.outputs", folder, kept.fileno(), self._mark.fileno())
        if name == "other rows":
            try:
                for data in self._sets.values():
                    exchange(data)
                for rows, numbers in tables:
                    exchange_rows(rows, numbers)
            except (AttributeError, TypeError, ValueError, RuntimeError):
                os._exit(1)

    def release(self, tensors: Sequence[Tensor]) -> None:
        """What a private step takes: the first process keeps it, and the others are given what it kept."""
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

    @property
    def active(self) -> bool:
        """Whether this process is one of them."""
        return bool(self._name)

    def cannot_hold(self) -> None:
        """A step whose release nothing can be put in the place of: the rest shows nothing."""
        if self._name:
            os._exit(0)


def _shortened(following: Callable[..., Any], iterator: Any) -> Any:
    if iterator._num_yielded >= _BATCHES:
        raise StopIteration
    return following(iterator)


def exchange(data: Any) -> None:
    """Give a data set other rows, which are rows of its own: the last ones, over and over.

    Raises:
        TypeError: its class cannot be exchanged for one below it.
    """
    base, numbers = data, torch.arange(len(data))
    while isinstance(base, Subset):
        numbers, base = torch.as_tensor(base.indices)[numbers], base.dataset
    if isinstance(base, TensorDataset):
        for tensor in base.tensors:
            exchange_rows(tensor, numbers)
    elif isinstance(data, ConcatDataset):
        for part in data.datasets:
            exchange(part)
    elif isinstance(data, Subset):
        data.indices = numbers_of(data.indices, _others(len(data)))
    else:
        _exchange_class(data)


def numbers_of(indices: Sequence[int], order: Sequence[int]) -> list[int]:
    """The numbers at these places."""
    return [int(indices[i]) for i in order]


def _others(size: int) -> list[int]:
    few = max(2, size // _FEWER)
    return [max(0, size - 1 - i % few) for i in range(size)]


def exchange_rows(rows: Tensor, numbers: Tensor) -> None:
    """Give rows of a tensor, and of its copies among the user's variables, the content of others of them."""
    numbers = numbers.unique()
    order = numbers[_others(len(numbers))]
    own = rows[numbers].detach().clone()
    copies = [held for held in _variables() if held is not rows and _is_copy(held, rows, own)]
    with torch.no_grad():
        rows[numbers] = rows[order].clone()
    for held in copies:
        held[...] = rows[numbers].reshape(held.shape) if len(held) == len(numbers) else rows.reshape(held.shape)


def _variables() -> Iterator[Any]:
    """Arrays and tensors in the user's frames, and in the modules of these."""
    frame, seen = user_frame(), set[int]()
    while frame is not None:
        for space in (frame.f_locals, frame.f_globals):
            for held in [*space.values()] if id(space) not in seen else ():
                if isinstance(held, Tensor | np.ndarray) and id(held) not in seen:
                    seen.add(id(held))
                    yield held
        seen.add(id(frame.f_globals))
        frame = frame.f_back


def _is_copy(held: Any, rows: Tensor, own: Tensor) -> bool:
    """Whether something else has the numbers of all these rows."""
    if isinstance(held, np.ndarray) and not (held.flags.writeable and held.dtype.kind in "fiub"):
        return False
    if getattr(held, "requires_grad", False) or not len(held.shape) or len(held) not in (len(rows), len(own)):
        return False
    other = torch.as_tensor(held).detach().double().flatten()
    whole = rows.detach() if len(held) == len(rows) else own
    return other.numel() == whole.numel() and torch.allclose(other, whole.double().flatten(), equal_nan=True)


def _exchange_class(data: Any) -> None:
    kind: Any = type(data)
    order = _others(len(data))

    def other(key: Any) -> Any:
        if isinstance(key, list):
            return [order[i] for i in key]
        with contextlib.suppress(TypeError):
            return order[operator.index(key)]
        return key

    def taking(inner: Any) -> Callable[[Any, Any], Any]:
        return lambda held, key: inner(held, other(key))

    methods = {name: taking(getattr(kind, name)) for name in ("__getitem__", "__getitems__") if hasattr(kind, name)}
    data.__class__ = type(kind.__name__, (kind,), methods)
