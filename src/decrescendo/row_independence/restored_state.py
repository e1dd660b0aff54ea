"""Restores what a model and its loss stored in Python at an earlier time, for the duration of a pass."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.row_independence.python_state import is_of_a_library, numbers_of

# Most numbers of a tensor or an array, and most entries of a container, that are stored.
_MAX_VALUES = 10_000
# Container classes whose methods run no user code.
_MAPPINGS, _LISTS = (dict, defaultdict, OrderedDict, Counter), (list, deque)


class Stored:
    """A snapshot of container entries, attributes, variables and small tensors that a model and a loss reach.

    >>> seen = []
    >>> loss = lambda model, x: seen.append(len(x))
    >>> before = Stored(nn.Tanh(), loss)
    >>> loss(None, "abc")
    >>> with before.restored():
    ...     print(seen)
    []
    >>> seen
    [3]
    """

    def __init__(self, model: nn.Module, loss: object) -> None:
        self._model, self._loss = model, loss
        objects: list[object] = []
        numbers_of(model, loss, objects=objects)
        self._put_back = [write for value in objects for write in _writes(value)]

    @contextmanager
    def restored(self) -> Generator[None]:
        """Restore the snapshot's state inside, and the state on entry afterwards."""
        now = Stored(self._model, self._loss)
        try:
            for write in self._put_back:
                write()
            yield
        finally:
            for write in now._put_back:
                write()


def _writes(value: Any) -> Iterator[Callable[[], None]]:
    """Functions that restore the present contents of an object."""
    inside: list[Any] = []
    if type(value) in _MAPPINGS and len(value) <= _MAX_VALUES:
        entries = dict(value)
        inside += entries.values()
        yield partial(_fill, value, entries)
    elif type(value) in _LISTS and len(value) <= _MAX_VALUES:
        inside += value
        yield partial(_extend, value, list(value))
    elif isinstance(value, np.ndarray):
        if value.size <= _MAX_VALUES and value.flags.writeable:
            yield partial(np.copyto, value, value.copy())
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # a cell without a value yet
                inside.append(cell.cell_contents)
                yield partial(setattr, cell, "cell_contents", cell.cell_contents)
        for name in {*value.__code__.co_names} & value.__globals__.keys():
            inside.append(value.__globals__[name])
            yield partial(value.__globals__.__setitem__, name, value.__globals__[name])
    elif isinstance(value, type):
        stored = {name: item for name, item in vars(value).items() if isinstance(item, (int, float, Tensor))}
        inside += stored.values()
        yield from (partial(_set, value, name, item) for name, item in stored.items())
    elif hasattr(value, "__dict__") and (
        isinstance(value, (nn.Module, SimpleNamespace)) or not is_of_a_library(type(value))
    ):
        entries = dict(vars(value))
        inside += entries.values()
        yield partial(_fill, vars(value), entries)
        if isinstance(value, nn.Module):  # torch's own dicts, such as hooks that the first pass installs
            yield from (partial(_fill, item, dict(item)) for item in entries.values() if type(item) in _MAPPINGS)
    for item in inside:
        if isinstance(item, Tensor) and item.numel() <= _MAX_VALUES and not item.is_inference():
            yield partial(_copy, item, item._version, item.detach().clone())


def _fill(mapping: dict[Any, Any], entries: dict[Any, Any]) -> None:
    if mapping.keys() != entries.keys() or any(mapping[key] is not item for key, item in entries.items()):
        mapping.clear()
        mapping.update(entries)


def _set(kind: type, name: str, item: object) -> None:
    if vars(kind).get(name) is not item:
        setattr(kind, name, item)


def _extend(values: Any, entries: list[Any]) -> None:
    values.clear()
    values.extend(entries)


def _copy(tensor: Tensor, version: int, values: Tensor) -> None:
    if tensor._version != version:
        with torch.no_grad():
            tensor.copy_(values)
