"""What runs of this process have trained: where it lies, and to which numbers they came."""

from collections.abc import Container, Iterable
from itertools import count
from threading import RLock
from typing import Any, cast, final

import torch
from torch import Tensor, float64, view_as_real

from decrescendo.base.storages import key_of, pieces
from decrescendo.training.bits import fingerprint, local

BEGAN_TRAINED = (
    "what it began from (weights, buffers), of which some is what an earlier run of this "
    "process trained, or lies where that did, is paid for there: on the same data both ledgers add up"
)
BEGAN_WITHOUT_NOISE = (
    "what it began from (weights, buffers), of which some is what an earlier run of this "
    "process trained without noise, or lies where that did, comes from public data alone"
)
_STORAGE = cast("Any", torch.UntypedStorage)
# Which run trained what last, and whether all in it had noise: by memory, which a weak reference keeps from being
# another's (nothing refers weakly to parameters: torch would not swap them then, as it does to cast or load models in
# parts); and by how many numbers there are and a fingerprint of them, as copies have them, too.
_IN: dict[int, tuple[int, bool]] = {}
_ENDED: dict[int, dict[bytes, tuple[int, bool]]] = {}
_LOCK = RLock()
_RUNS = count()


@final
class Moved:
    """A run, and what others of this process trained before it.

    >>> model = torch.nn.Linear(2, 2)
    >>> one, other = Moved(), Moved()
    >>> one.mark(model.parameters(), noisy=True)
    >>> one.before(model.parameters()), other.before(model.parameters()) == {BEGAN_TRAINED}
    (set(), True)
    >>> _ = model.weight.data.neg_()
    >>> copied = model.weight.detach().clone()
    >>> other.before([copied])
    set()
    >>> one.left([model.weight])
    >>> other.before([copied]) == {BEGAN_TRAINED}
    True
    """

    def __init__(self) -> None:
        self._run, self._noisy, self._marked = next(_RUNS), True, set[int]()
        # What it began from; without gradients and noise some does not move.
        self._first: set[bytes] | None = None

    def resume(self, trained: Iterable[Tensor], *, noisy: bool) -> None:
        """An earlier life of the run moved these."""
        self._first = set()
        self.mark(trained, noisy=noisy)

    def mark(self, trained: Iterable[Tensor], *, noisy: bool) -> None:
        """A release of this run is about to move these, with noise or without."""
        self._noisy, trained = self._noisy and noisy, list(trained)
        if self._first is None:
            self._first = codes(trained)
        for value in trained:
            key = key_of(value)
            if key > 0 and key not in self._marked:
                self._marked.add(key)
                with _LOCK:
                    if key not in _IN:
                        cast("Any", value.untyped_storage())._weak_ref()
                    _IN[key] = self._run, self._noisy

    def left(self, found: Iterable[Tensor]) -> None:
        """The run came to these, if to anything."""
        if self._first is not None:
            note(found, noisy=self._noisy, run=self._run, but=self._first)

    def before(self, found: Iterable[Tensor]) -> set[str]:
        """What is supposed where other runs trained some of these, or came to the numbers that are in them."""
        by: list[tuple[int, bool] | None] = []
        with _LOCK:
            for gone in [key for key in _IN if _STORAGE._expired(key)]:
                del _IN[gone]
                _STORAGE._free_weak_ref(gone)
            for value in found if _IN or _ENDED else ():
                by.append(_IN.get(key_of(value)))
                own = _own(value)
                alike = None if own is None else _ENDED.get(own.numel())
                if alike and (numbers := _numbers(value)) is not None:
                    by.append(alike.get(fingerprint(numbers)))
        others = {noisy for run, noisy in filter(None, by) if run != self._run}
        # What comes of it has no better a past.
        self._noisy = self._noisy and False not in others
        return {BEGAN_TRAINED if noisy else BEGAN_WITHOUT_NOISE for noisy in others}


def note(found: Iterable[Tensor], *, noisy: bool, run: int = -1, but: Container[bytes] = ()) -> None:
    """What is made of a run's weights, such as their average, is a run's, too; but what has these fingerprints."""
    for numbers in map(_numbers, found):
        if numbers is not None and (code := fingerprint(numbers)) not in but:
            with _LOCK:
                _ENDED.setdefault(len(numbers), {})[code] = run, noisy


def codes(found: Iterable[Tensor]) -> set[bytes]:
    """Fingerprints of the numbers in each."""
    return {fingerprint(numbers) for numbers in map(_numbers, found) if numbers is not None}


def _own(value: Tensor) -> Tensor | None:
    """This process's part of a tensor, as real numbers."""
    own = local(value.detach())
    if pieces(own)[0][0]:
        return None  # a wrapper of tensors: a weight that is quantised, and not trained
    if own.layout is not torch.strided or own.is_meta or own.is_nested or own.is_quantized:
        return None
    return view_as_real(own.resolve_conj()) if own.is_complex() else own


def _numbers(value: Tensor) -> Tensor | None:
    """In one line, in float64; of none, one, or many that are all the same nothing is told."""
    own = _own(value)
    if own is None or own.numel() < 2:
        return None
    wide = own.to("cpu", float64).flatten()
    return None if bool((wide == wide[0]).all()) else wide
