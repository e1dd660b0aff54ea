"""Neighbouring data sets, by forks: before a batch is collated the process forks, and each child goes on with one
record of it changed until the next release. Model, random numbers and code are those of the parent, to the bit."""

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from decrescendo.doctor.events import Events

# "same" shows that a run is repeatable; "quiet" draws no noise, so that the difference is the noise.
ROLES = ("same", "replaced", "removed", "large", "opposite", "quiet")
# Those that are coupled have another record, step by what "same" released, and go on; "later" goes on with nothing
# changed. (One of the two records has a gradient, at least.)
COUPLED = {"coupled": "opposite", "coupled, too": "large"}
GOING_ON = ("later", *COUPLED)
AFTER = 3  # releases that are compared
_LONGEST = 60  # seconds that a child may take
LARGEST = 20_000_000  # numbers of a release that are kept: a part of a vector is no longer than all of it
# A large record may be one that the model gets right by far, of no gradient: its opposite then has a long one.
SCALES = {"large": 1000.0, "opposite": -1000.0}
_TIMES = 3  # loaders that are forked for: one that evaluates may come before the one that trains


def scaled(sample: Any, scale: float) -> Any:
    """A record whose real numbers are so many times as large: what clipping must hold."""
    if isinstance(sample, Tensor):
        return sample * scale if sample.is_floating_point() else sample
    if isinstance(sample, Mapping):
        return {key: scaled(value, scale) for key, value in sample.items()}
    if isinstance(sample, (tuple, list)):
        return type(sample)([scaled(value, scale) for value in sample])
    if hasattr(sample, "dtype") and sample.dtype.kind == "f":
        return sample * scale
    return sample * scale if isinstance(sample, float) else sample


def enlarged(role: str, first: Any, others: Sequence[Any]) -> Any:
    """A large record: the first, or for "opposite" the first with the label of one of the others."""
    if role == "opposite" and isinstance(first, tuple):
        *inputs, own = first
        unlike = (other[-1] for other in others if _unlike(own, other[-1]))
        if (label := next(unlike, None)) is not None:
            return (*(scaled(one, SCALES["large"]) for one in inputs), label)
    return scaled(first, SCALES[role])


def enlarging(collate: Callable[[list[Any]], Any], role: str) -> Callable[[list[Any]], Any]:
    """What makes a batch of records, the first of them enlarged."""
    return lambda rows: collate([enlarged(role, rows[0], rows[1:]), *rows[1:]])


def another(row: Tensor) -> Tensor:
    """Another row, where there is none beside it: numbers in another order, codes of others of the same range."""
    if row.is_floating_point():
        return row.flip(-1) if row.dim() else row
    return row if row.dtype == torch.bool else row.max() - row


def changed_rows(role: str, rows: Tensor, *, whole: bool) -> Tensor:
    """The rows of a neighbour: with another first one, or with all of them changed, where a client is the unit."""
    batch = rows.clone()
    changed = batch if whole else batch[:1]
    if role == "replaced":
        changed.copy_(rows[1:2] if len(changed) < len(batch) else another(changed))
    elif role in SCALES and batch.is_floating_point():
        changed *= SCALES[role]
    return batch


def putting(gradients: Sequence[Tensor]) -> Callable[[Tensor], None]:
    """What writes a vector into gradients."""

    def put(vector: Tensor) -> None:
        parts = vector.split([g.numel() for g in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.detach().copy_(part.view_as(gradient))

    return put


def _unlike(label: Any, other: Any) -> bool:
    """Whether two classes differ."""
    if isinstance(label, Tensor):
        return label.numel() == 1 and not label.is_floating_point() and not torch.equal(label, other)
    return isinstance(label, int) and label != other


def forked() -> int:
    """As `os.fork`; Python seeds its own random numbers anew in a child, which gets those of the parent here."""
    state = random.getstate()
    child = os.fork()
    if child == 0:
        random.setstate(state)
    return child


def reap(child: int, seconds: float) -> None:
    """Wait for a child, and end it after so many seconds, whatever it has done to its signals."""
    deadline = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.002)


class Neighbours:
    """Which process this is, and what it releases.

    Args:
        events: whose folder takes the releases.
    """

    def __init__(self, events: Events) -> None:
        self._events, self._folder = events, events.folder
        self.role = "parent"
        # Dropout and the like: other numbers of rows are given other random numbers.
        self.random_layers = False
        # Running statistics of layers: whether a record moves them.
        self.buffers: list[Tensor] = []
        self._forked: list[int] = []
        # Whether a batch was changed, and nothing was released since.
        self.waiting = False
        self._releases, self._again = 0, False
        self._later: list[Tensor] = []
        self._own, self._whose, self._others = torch.zeros(0), None, False

    @property
    def change(self) -> str:
        """What is changed in this process, as the role that changes it says."""
        return COUPLED.get(self.role, self.role)

    def due(self, loader: int) -> bool:
        """Whether to fork before this batch: until there was a release that a record moved, once a loader."""
        if self.role != "parent" or not hasattr(os, "fork"):
            return False
        is_open = loader not in self._forked and len(self._forked) < _TIMES
        return self._again or (is_open and not (self._folder / "parent.pt").exists())

    def fork(self, loader: int) -> str:
        """Make the children, one after another. In each it returns what is changed, in the parent "parent"."""
        self._forked.append(loader)
        self.waiting, self._again = True, False
        for role in ("parent", *ROLES, *GOING_ON):
            (self._folder / f"{role}.pt").unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        for role in (*ROLES, *GOING_ON):
            child = forked()
            if child == 0:
                self._become(role)
                return self.change
            reap(child, _LONGEST)
            if role == "same" and not (self._folder / f"{role}.pt").exists():
                break  # nothing is released after this batch, and the others would search as long
        return "parent"

    def _become(self, role: str) -> None:
        self.role = role
        self._events.silence()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LONGEST)
        torch.save = lambda *_, **__: None  # nothing of a child stays

    def release(
        self,
        vector: Callable[[], Tensor],
        facts: Mapping[str, Any],
        put: Callable[[Tensor], None] | None = None,
    ) -> None:
        """What would be released now, of which children leave the first and end; ``put`` puts another in its place."""
        if not self.waiting:
            self._follow(vector, facts)
            return
        self.waiting = False
        if self.role in GOING_ON:
            same = released(self._folder, "same")
            if put is None or same is None or len(same["release"]) == LARGEST:
                os._exit(1)
            self._own = vector().detach().to(torch.float64).flatten().clone()
            put(same["release"])
            self._whose = facts.get("whose")
            return
        # Of several loaders the last one that came before a release is the one that trains.
        kept = vector().detach().to(torch.float64).flatten()[:LARGEST].clone()
        path = self._folder / f"{self.role}.pt"
        # Not by torch.save, which the observers see.
        buffers = torch.cat([held.detach().double().flatten() for held in self.buffers] or [torch.zeros(0)])
        about = {"random": self.random_layers, "buffers": buffers, "loader": self._forked[-1], **facts}
        torch.serialization.save({"release": kept, **about}, path)
        if self.role != "parent":
            os._exit(0)
        # A record that the model gets right has no gradient: then another batch is compared.
        others = [released(self._folder, role) for role in ROLES if role not in ("same", "quiet")]
        self._releases += 1
        self._again = self._releases < _TIMES and all(
            held is not None and torch.equal(held["release"], kept) for held in others
        )

    def _follow(self, vector: Callable[[], Tensor], facts: Mapping[str, Any]) -> None:
        """Of a child that goes on: what it releases after the first."""
        if self.role not in GOING_ON:
            return
        # Two private optimisers, of which one was given the same release.
        self._others = self._others or bool(facts.get("noised") and facts["whose"] != self._whose)
        self._later.append(vector().detach().to(torch.float64).flatten())
        if len(self._later) == AFTER:
            after = {
                "release": torch.cat(self._later),
                "own": self._own,
                "first": len(self._later[0]),
                "others": self._others,
            }
            torch.serialization.save({**after, **facts}, self._folder / f"{self.role}.pt")
            os._exit(0)

    def ended(self) -> None:
        """A child that comes to the end of the training has released nothing."""
        if self.role != "parent":
            os._exit(1)


def changed_indices(role: str, indices: Sequence[int], size: int) -> list[int]:
    """The batch of a neighbour: without its first record, or with another one in its place."""
    rest = list(indices[1:])
    if role == "removed":
        return rest
    if role == "replaced":
        taken = set(indices)
        other = next((i for i in range(size) if i not in taken), indices[0])
        return [other, *rest]
    return list(indices)


def released(folder: Path, role: str) -> dict[str, Any] | None:
    """What a process left, or nothing."""
    with contextlib.suppress(OSError, RuntimeError, UnpicklingError):
        return torch.load(folder / f"{role}.pt", weights_only=True)
    return None
