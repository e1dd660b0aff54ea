"""Whether Python still keeps for a program what it kept: quick to ask, where a pass is to be done again without it."""

import operator
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.base.storages import FUNCTIONS_OFF, key_of
from decrescendo.row_independence.code_origin import is_made_in_python, is_program, told_of
from decrescendo.row_independence.python_state import (
    KEYS,
    Visited,
    bits_in,
    content,
    globals_in,
    held_in,
    kept_by_c,
    numbers_of,
    plain,
    same,
    slots_in,
)  # fmt: skip

# What there is in a thing, and how it is read.
_Read: TypeAlias = Callable[[], Iterable[Any]]
_Place: TypeAlias = tuple[object, ...] | None
_SEQUENCES = (list, tuple, set, frozenset, deque)
# Bytes of an array that are compared.
_SMALL = 100_000
_VALUES = operator.methodcaller("values")
# Of what a module has by torch, dictionaries that the walk leaves aside where they are empty.
_CALLED = tuple(name for name in vars(nn.Module()) if "_hook" in name or name == "_modules")


class StateSnapshot:
    """All that a model and a loss reach by attributes, containers, closures and global names, as it is now.

    What lies at a place is compared by identity, numbers and texts by value, and small arrays and what C code keeps
    (the state of a generator) by what they hold. Tensors are not: what is in them is read where it lies, so it is
    compared where that is (of the model's own, whose place is asked for at each pass, it is not).

    >>> weights = {"aux": 0.0}
    >>> kept = StateSnapshot(nn.Linear(1, 1), lambda model, x: model(x) * weights["aux"])
    >>> kept.changed()
    ''
    >>> weights["aux"] = 0.5
    >>> kept.changed()
    'loss.weights'
    """

    def __init__(self, model: nn.Module, loss: object) -> None:
        visited: list[Visited] = []
        numbers_of(model, loss, (), visited)
        self._held: list[tuple[str, _Read, tuple[Any, ...]]] = []
        self._tensors: list[tuple[str, Tensor, _Place]] = []
        seen: set[int] = set()
        known = set(map(id, (*model.modules(), *model.parameters(), *model.buffers())))
        for name, value, names in visited:
            if id(value) in seen:
                continue
            seen.add(id(value))
            reads = _reads(value, names)
            if isinstance(value, nn.Module):
                reads.append(_hooks_of(value))
                if id(value) not in known:
                    reads.append(lambda value=value: _tensors_of(value))
            read_now = [(name, read, tuple(read())) for read in reads]
            self._held += read_now
            for item in (item for _, _, items in read_now for item in items):
                if isinstance(item, Tensor) and id(item) not in known:
                    known.add(id(item))
                    self._tensors.append((name, item, _place(item)))
        # (It holds what it has seen, so that nothing else gets its identity.)
        self._visited = visited

    def changed(self) -> str:
        """Where something else is kept now, the first that is found; empty: nowhere."""
        for name, read, before in self._held:
            now = tuple(read())
            if len(now) != len(before) or not all(map(operator.is_, now, before)):
                if len(now) == len(before) and all(map(_is_same, now, before)):
                    continue
                return plain(name)
        return next((plain(name) for name, tensor, place in self._tensors if _place(tensor) != place), "")


def _hooks_of(module: nn.Module) -> _Read:
    """What torch calls beside it, and the modules in it. (Other dictionaries would be other attributes of it.)"""
    held = [part for name in _CALLED if isinstance(part := vars(module).get(name), dict)]
    return lambda: chain.from_iterable(map(_VALUES, held))


def _tensors_of(module: nn.Module) -> list[Tensor | None]:
    """Its own, which lie in dictionaries that the walk leaves aside."""
    held = [vars(module).get(kind) or {} for kind in ("_parameters", "_buffers")]
    return [tensor for own in held for tensor in own.values()]


def _place(tensor: Tensor) -> _Place:
    """Where a tensor lies: other memory may be put there (``.data``, ``set_``, ``resize_``)."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    with FUNCTIONS_OFF():
        gradient = tensor.grad if tensor.is_leaf else None
        return (
            tensor.data_ptr(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            gradient is not None and key_of(gradient),
        )


def _is_same(now: object, before: object) -> bool:
    return now is before or (type(now) is type(before) and type(now) in KEYS and same(now, before))


def _reads(value: object, names: tuple[str, ...]) -> list[_Read]:
    """How what is in a value is read."""
    if isinstance(value, ModuleType):
        held = vars(value)
        return [lambda: map(held.get, names)]
    if isinstance(value, FunctionType):
        return [_read_function(value)]
    if isinstance(value, (type, threading.local)):
        return [lambda: vars(value).values()]
    if isinstance(value, (np.ndarray, bytearray, array)):
        small = (
            memoryview(value).nbytes <= _SMALL
            if not isinstance(value, np.ndarray)
            else value.nbytes <= _SMALL
        )
        return [lambda: [bits_in(value)]] if small else []
    found: list[_Read] = []
    if isinstance(value, dict):
        kind = cast("Any", dict)
        found += [lambda: kind.keys(value), lambda: kind.values(value)]
    elif isinstance(value, _SEQUENCES):
        own_kind = cast("Any", next(kind for kind in type(value).__mro__ if kind in _SEQUENCES))
        found.append(lambda: own_kind.__iter__(value))
    elif (state := kept_by_c(value)) is not None:
        found.append(lambda: [state(value)])
    kinds = [kind for kind in type(value).__mro__ if is_made_in_python(kind)]
    slots = [slot for kind in kinds for slot in slots_in(kind)]
    if slots:
        found.append(lambda: [content(slot, value) for slot in slots])
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    if type(own) is dict:
        attributes = cast("dict[str, Any]", own)
        found += [attributes.keys, attributes.values]
    if not found and not kinds:
        found.append(lambda: [item for _, item in held_in(value)])
    return found


def _read_function(function: FunctionType) -> _Read:
    names = globals_in(function.__code__) if is_program(function.__code__.co_filename) else ()
    cells = function.__closure__ or ()
    return lambda: [
        function.__code__, function.__defaults__, function.__kwdefaults__, *told_of(function).values(),
        *(content(cell, None) for cell in cells), *map(function.__globals__.get, names),
    ]  # fmt: skip
