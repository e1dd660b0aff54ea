"""Detects a run that starts from parameters trained by an earlier run in this process; listed as an
assumption."""

from collections.abc import Iterable
from itertools import count
from threading import Lock
from typing import SupportsIndex, TypeAlias, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.training.processes.bits import local

BEGAN_TRAINED = assumed("began-trained")
BEGAN_WITHOUT_NOISE = assumed("began-without-noise")
BEGAN_WITH_THE_SEED = assumed("began-with-the-seed")
# For each storage: the last run that trained a tensor in it, whether all releases behind it had noise, and the whole
# numbers that the noise behind it was drawn from. Entries of freed storages vanish.
_Known: TypeAlias = tuple[int, bool, frozenset[int]]
_TRAINED: WeakKeyDictionary[torch.UntypedStorage, _Known] = WeakKeyDictionary()
_LOCK, _RUNS = Lock(), count()


@final
class EarlierRuns:
    """Detects which tensors of a run earlier runs of this process trained: by their storage, so copies are not
    detected. ``seed``: the whole number that this run's noise is drawn from, if it is one.

    >>> model = torch.nn.Linear(2, 2)
    >>> one, other = EarlierRuns(), EarlierRuns()
    >>> one.trains(model.parameters(), noisy=True)
    >>> one.before(model.parameters()), other.before(model.parameters()) == {BEGAN_TRAINED}
    (set(), True)
    """

    def __init__(self, seed: object = None) -> None:
        self._run, self._noisy = next(_RUNS), True
        # This run's own, and those of the noise behind its weights.
        self._own = self._seeds = frozenset({int(seed)} if isinstance(seed, SupportsIndex) else ())

    def trains(self, parameters: Iterable[Tensor], *, noisy: bool) -> None:
        """Note that a release of this run, with noise or without, updates these parameters, or did before the
        run was resumed."""
        self._noisy = self._noisy and noisy
        _note(parameters, self._run, self._noisy, self._seeds if noisy else frozenset())

    def before(self, tensors: Iterable[Tensor]) -> set[Assumption]:
        """The assumptions about other runs that trained some of ``tensors``."""
        with _LOCK:
            found = [_TRAINED.get(memory) for memory in map(_memory, tensors) if memory is not None]
        earlier = [(noisy, seeds) for run, noisy, seeds in filter(None, found) if run != self._run]
        others = {noisy for noisy, _ in earlier}
        # This run's weights depend on the others' releases, too.
        self._noisy = self._noisy and False not in others
        behind = frozenset[int]().union(*(seeds for _, seeds in earlier))
        also = {BEGAN_WITH_THE_SEED} if behind & self._own else set[Assumption]()
        self._seeds |= behind
        return also | {BEGAN_TRAINED if noisy else BEGAN_WITHOUT_NOISE for noisy in others}


def note_trained(tensors: Iterable[Tensor], *, noisy: bool) -> None:
    """Note that a tensor computed from trained weights, such as their average, depends on the same private
    data."""
    _note(tensors, next(_RUNS), noisy, frozenset())


def _note(tensors: Iterable[Tensor], run: int, noisy: bool, seeds: frozenset[int]) -> None:
    with _LOCK:
        for memory in map(_memory, tensors):
            if memory is not None:
                _TRAINED[memory] = run, noisy, seeds


def _memory(tensor: Tensor) -> torch.UntypedStorage | None:
    """The storage of this rank's part of a tensor; ``None`` for wrapper subclasses, which have none of their own."""
    try:
        return local(tensor.detach()).untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
