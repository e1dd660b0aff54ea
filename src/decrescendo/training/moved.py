"""Which parameters runs of this process have moved by what they released."""

from itertools import count
from typing import final
from weakref import WeakValueDictionary

from torch import nn

from decrescendo.clipping.clipped import trainable

# Modules that have such parameters; and which run moved these last, by the ids of both. (Nothing refers weakly to the
# parameters: torch would not swap them then, as it does to cast or load models in parts.)
_MODULES: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_BY: dict[int, dict[int, int]] = {}
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
        self._model, self._run, self._marked = model, next(_RUNS), set[int]()

    def mark(self) -> None:
        """A release of this run moves what is trained."""
        trained = {id(parameter) for parameter in trainable(self._model).values()}
        if trained == self._marked:
            return
        for module in self._model.modules():
            own = [id(value) for value in module.parameters(recurse=False) if id(value) in trained]
            if own:
                if _MODULES.get(id(module)) is not module:  # its place was another's, which is gone
                    _MODULES[id(module)], _BY[id(module)] = module, dict[int, int]()
                _BY[id(module)].update(dict.fromkeys(own, self._run))
        self._marked = trained

    def by_others(self) -> bool:
        """Whether another run moved some of them last, in modules that are still there."""
        for gone in _BY.keys() - set(_MODULES):
            del _BY[gone]
        last = {
            id(value): _BY[key][id(value)]
            for key, module in list(_MODULES.items())
            for value in module.parameters(recurse=False)
            if id(value) in _BY[key]
        }
        return any(last.get(id(value), self._run) != self._run for value in trainable(self._model).values())
