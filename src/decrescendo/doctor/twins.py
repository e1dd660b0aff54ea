"""The rest of a training, three times from one state: as it is, with other private rows, and without any noise drawn.
In all of them every private step releases what it releases in the first: what else differs is not hidden by noise."""

from __future__ import annotations

import contextlib
import operator
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from decrescendo.base.torch_private import LoaderIterator
from decrescendo.doctor.events import user_frame, wrap
from decrescendo.doctor.neighbours import forked, reap
from decrescendo.doctor.outputs import Outputs

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch

TWINS = ("as it is", "other rows", "other noise")
_SECONDS, _LONGEST = 20, 30  # of the processor and of a clock, for each
_BATCHES = 6  # of a pass over a loader
_LARGEST = 2**30  # bytes of releases
_FEWER = 8  # the other rows are the last eighth, over and over
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
        unclear = self._mixed or not self._noised or not self._trained
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


def _shortened(following: Callable[..., Any], iterator: Any) -> Any:
    if iterator._num_yielded >= _BATCHES:
        raise StopIteration
    return following(iterator)


@dataclass
class TrainedRows:
    """Rows that steps are made of.

    Args:
        sets: data sets, by their identity, with the indices that were drawn, or nothing where all are drawn from.
        tables: tensors, by their address, with numbers of rows.
        seen: the same of what a model was given.
    """

    sets: dict[int, tuple[Any, set[int] | None]] = field(default_factory=dict)
    tables: dict[int, tuple[Tensor, list[Tensor]]] = field(default_factory=dict)
    seen: dict[int, tuple[Tensor, list[Tensor]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.sets or self.tables or self.seen)

    def is_clear(self, before: TrainedRows) -> bool:
        """Whether these, of one step, are all private: one loader's, or one batch of tables, or parts of one tensor."""
        lasting = self.tables.keys() & before.tables.keys()  # (others are parts of a batch)
        if self.sets:
            return len(self.sets) == 1 and not lasting
        batches = [numbers for _, each in self.tables.values() for numbers in each]
        same = all(torch.equal(numbers, batches[0]) for numbers in batches)
        return same if batches else len(self.seen) == 1

    def add(self, window: TrainedRows) -> None:
        """The rows of one more step."""
        for key, (data, drawn) in window.sets.items():
            known = self.sets.get(key, (data, set[int]()))[1]
            self.sets[key] = data, None if drawn is None or known is None else known | drawn
        for own, new in ((self.tables, window.tables), (self.seen, window.seen)):
            for key, (rows, numbers) in new.items():
                own.setdefault(key, (rows, []))[1].extend(numbers)

    def exchange(self) -> None:
        """Give them other content, of others of them.

        Raises:
            TypeError: the class of a data set cannot be exchanged for one below it.
        """
        for data, drawn in self.sets.values():
            exchange(data, drawn)
        for rows, numbers in () if self.sets else (self.tables or self.seen).values():
            exchange_rows(rows, torch.cat(numbers))


def exchange(data: Any, drawn: Collection[int] | None = None) -> None:
    """Give rows of a data set, or all of them, the content of others of them: of the last ones, over and over.

    Raises:
        TypeError: its class cannot be exchanged for one below it.
    """
    places = sorted(drawn) if drawn is not None else list(range(len(data)))
    base, numbers = data, torch.tensor(places)
    while isinstance(base, Subset):
        numbers, base = torch.as_tensor(base.indices)[numbers], base.dataset
    order = dict(zip(places, (places[i] for i in _others(len(places))), strict=True))
    if isinstance(base, TensorDataset):
        for tensor in base.tensors:
            exchange_rows(tensor, numbers)
    elif isinstance(data, Subset):
        data.indices = [int(data.indices[order.get(i, i)]) for i in range(len(data))]
    else:
        _exchange_class(data, order)


def _others(size: int) -> list[int]:
    few = max(2, size // _FEWER)
    return [max(0, size - 1 - i % few) for i in range(size)]


def exchange_rows(rows: Tensor, numbers: Tensor) -> None:
    """Give rows of a tensor, and of its copies among the user's variables, the content of others of them."""
    numbers = numbers.unique()
    order = numbers[_others(len(numbers))]
    own = rows[numbers].detach().clone()
    copies = [held for held in _variables() if held is not rows and _is_copy(held, rows, own)]
    # (Not in place: its memory may be that of a file.)
    exchanged = rows.detach().clone()
    exchanged[numbers] = exchanged[order]
    rows.data = exchanged
    for held in copies:
        new = (exchanged[numbers] if len(held) == len(numbers) else exchanged).reshape(held.shape)
        if isinstance(held, Tensor):
            held.data = new.to(held.dtype)
        else:
            held[...] = new


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
    if isinstance(held, np.ndarray) and not (held.flags.writeable and held.flags.owndata and held.dtype.kind == "f"):
        return False
    # (Labels of other rows may be the same.)
    if getattr(held, "requires_grad", False) or len(held.shape) < 2 or len(held) not in (len(rows), len(own)):
        return False
    other = torch.as_tensor(held).detach().double().flatten()
    whole = rows.detach() if len(held) == len(rows) else own
    return other.numel() == whole.numel() and torch.allclose(other, whole.double().flatten(), equal_nan=True)


def _exchange_class(data: Any, order: Mapping[int, int]) -> None:
    kind: Any = type(data)

    def other(key: Any) -> Any:
        if isinstance(key, list):
            return [order.get(i, i) for i in key]
        with contextlib.suppress(TypeError):
            return order.get(operator.index(key), key)
        return key

    def taking(inner: Any) -> Callable[[Any, Any], Any]:
        return lambda held, key: inner(held, other(key))

    methods = {name: taking(getattr(kind, name)) for name in ("__getitem__", "__getitems__") if hasattr(kind, name)}
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # which its repr may have
    data.__class__ = type(kind.__name__, (kind,), {**methods, **names})
