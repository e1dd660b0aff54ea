"""Detects a run that starts from parameters trained by an earlier run in this process; listed as an
assumption."""

from collections.abc import Iterable
from itertools import count
from threading import Lock
from typing import final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.training.processes.bits import local

BEGAN_TRAINED = assumed("began-trained")
BEGAN_WITHOUT_NOISE = assumed("began-without-noise")
# For each storage: the last run that trained a tensor in it, and whether all releases behind it had noise. Entries of
# freed storages vanish.
_TRAINED: WeakKeyDictionary[torch.UntypedStorage, tuple[int, bool]] = WeakKeyDictionary()
_LOCK, _RUNS = Lock(), count()


@final
class EarlierRuns:
    """Detects which tensors of a run earlier runs of this process trained: by their storage, so copies are not
    detected.

    >>> model = torch.nn.Linear(2, 2)
    >>> one, other = EarlierRuns(), EarlierRuns()
    >>> one.trains(model.parameters(), noisy=True)
    >>> one.before(model.parameters()), other.before(model.parameters()) == {BEGAN_TRAINED}
    (set(), True)
    """

    def __init__(self) -> None:
        self._run, self._noisy = next(_RUNS), True

    def trains(self, parameters: Iterable[Tensor], *, noisy: bool) -> None:
        """Note that a release of this run, with noise or without, updates these parameters, or did before the
        run was resumed."""
        self._noisy = self._noisy and noisy
        _note(parameters, self._run, self._noisy)

    def before(self, tensors: Iterable[Tensor]) -> set[Assumption]:
        """The assumptions about other runs that trained some of ``tensors``."""
        with _LOCK:
            found = [_TRAINED.get(memory) for memory in map(_memory, tensors) if memory is not None]
        others = {noisy for run, noisy in filter(None, found) if run != self._run}
        # This run's weights depend on the others' releases, too.
        self._noisy = self._noisy and False not in others
        return {BEGAN_TRAINED if noisy else BEGAN_WITHOUT_NOISE for noisy in others}


def note_trained(tensors: Iterable[Tensor], *, noisy: bool) -> None:
    """Note that a tensor computed from trained weights, such as their average, depends on the same private
    data."""
    _note(tensors, next(_RUNS), noisy)


def _note(tensors: Iterable[Tensor], run: int, noisy: bool) -> None:
    with _LOCK:
        for memory in map(_memory, tensors):
            if memory is not None:
                _TRAINED[memory] = run, noisy


def _memory(tensor: Tensor) -> torch.UntypedStorage | None:
    """The storage of this rank's part of a tensor; ``None`` for wrapper subclasses, which have none of their own."""
    try:
        return local(tensor.detach()).untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
