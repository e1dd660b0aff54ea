"""Which parameters runs of this process have moved by what they released."""

from itertools import count
from typing import Any, cast, final
from weakref import WeakValueDictionary

import torch
from torch import nn

from decrescendo.clipping.clipped import trainable
from decrescendo.clipping.proof.storage import key_of

_STORAGE = cast("Any", torch.UntypedStorage)
# Modules that have such parameters; and which run moved these last, by the ids of both. (Nothing refers weakly to the
# parameters: torch would not swap them then, as it does to cast or load models in parts.)
_MODULES: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_BY: dict[int, dict[int, int]] = {}
# The same by the memory that they lie in, which a weak reference keeps from being another's.
_IN: dict[int, int] = {}
_RUNS = count()


@final
class Moved:
    """A run, and the parameters of its model.

    >>> model = nn.Linear(2, 1)
    >>> one, other = Moved(model), Moved(model)
    >>> one.mark()
    >>> one.by_others(), other.by_others()
    (False, True)
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._run, self._marked = model, next(_RUNS), set[tuple[int, int]]()

    def mark(self) -> None:
        """A release of this run moves what is trained."""
        values = trainable(self._model).values()
        trained = {(id(value), key_of(value)) for value in values}
        if trained == self._marked:
            return
        ids = {value for value, _ in trained}
        for module in self._model.modules():
            own = [id(value) for value in module.parameters(recurse=False) if id(value) in ids]
            if own:
                if _MODULES.get(id(module)) is not module:  # its place was another's, which is gone
                    _MODULES[id(module)], _BY[id(module)] = module, dict[int, int]()
                _BY[id(module)].update(dict.fromkeys(own, self._run))
        for value in values:
            key = key_of(value)
            if key > 0:
                if key not in _IN:
                    cast("Any", value.untyped_storage())._weak_ref()
                _IN[key] = self._run
        self._marked = trained

    def by_others(self) -> bool:
        """Whether another run moved some of the model's last, frozen ones too, in modules or in memory still there."""
        for gone in _BY.keys() - set(_MODULES):
            del _BY[gone]
        for gone in [key for key in _IN if _STORAGE._expired(key)]:
            del _IN[gone]
            _STORAGE._free_weak_ref(gone)
        last = {
            id(value): _BY[key][id(value)]
            for key, module in list(_MODULES.items())
            for value in module.parameters(recurse=False)
            if id(value) in _BY[key]
        }
        return any(
            run not in (None, self._run)
            for value in self._model.parameters()
            for run in (last.get(id(value)), _IN.get(key_of(value)))
        )
