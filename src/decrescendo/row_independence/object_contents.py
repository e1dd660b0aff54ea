"""Contents of Python objects beyond attributes and items, which must not change unnoticed between replays.

Slots, getters of properties, objects of the standard library and of torch (an optimizer's settings), states of
random generators, positions of iterators, bytes of arrays. A content that cannot be read is `unseen`: it counts as
changed each time, so that no pass is replayed.
"""

import gc
import itertools
import operator
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from types import FunctionType, GeneratorType, MappingProxyType, ModuleType
from typing import Any, cast
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.base.storages import key_of
from decrescendo.base.torch_private import DISPATCH_OFF
from decrescendo.row_independence.code_origin import is_own

# Entries of one container, and bytes of one array, that are compared at each pass.
_MAX_ENTRIES, _MAX_BYTES = 100_000, 2**20
_PLAIN = {int, float, complex, bool, str, bytes, type(None)}
# Loggers keep caches, and lead to all others.
_NOT_INSIDE = ("logging", "warnings", "_weakrefset", "_abc")


class Content:
    """A snapshot of an object's contents. Subclasses compare by value (ids of temporary objects may be
    reused); a plain one is equal to no other."""


def unseen() -> object:
    """A content that differs from every earlier one."""
    return Content()


class _Entries(Content):
    """The entries of a long container, compared by identity, then by equality."""

    def __init__(self, entries: tuple[object, ...]) -> None:
        self._entries = entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Entries) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]


def place_of(tensor: Tensor) -> tuple[object, ...]:
    """The tensor, its memory and layout; not its values, which a replay reads anew."""
    with suppress(RuntimeError, NotImplementedError), DISPATCH_OFF():
        key, hooked = key_of(tensor), bool(tensor._backward_hooks)
        laid = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        return id(tensor), key, *laid, tensor.requires_grad, hooked
    return (id(tensor),)


def entries_of(container: Any) -> object:
    """The entries of a container that is too long to be searched one by one."""
    entries = tuple(container.items() if isinstance(container, dict) else container)
    if len(entries) > _MAX_ENTRIES:
        return unseen()
    flat = itertools.chain.from_iterable(entries) if isinstance(container, dict) else entries
    return _Entries(entries) if _PLAIN.issuperset(map(type, flat)) else unseen()


def bytes_of(array: Any) -> object:
    """The bytes of an array, or of any other object with a buffer."""
    view = memoryview(array)
    return hash(view.tobytes()) if view.nbytes <= _MAX_BYTES else unseen()


def contents_of(value: Any, libraries: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """An object's contents beyond items and instance attributes, by name (slots, parameters, generator states);
    for objects of ``libraries`` attributes, too."""
    kind = type(value)
    if isinstance(value, ModuleType):
        if is_own(getattr(value, "__file__", None) or value.__name__):
            simple = (*_PLAIN, list, dict, tuple, set, Tensor, np.ndarray)
            yield from ((n, item) for n, item in vars(value).items() if n[:2] != "__" and isinstance(item, simple))
        return
    if isinstance(value, type):
        return
    yield from slots_of(value)
    if isinstance(value, nn.Module):
        held = vars(value)
        yield "training", held.get("training")
        yield from (*held.get("_parameters", {}).items(), *held.get("_buffers", {}).items())
    elif isinstance(value, FunctionType):
        yield from list(value.__dict__.items())
    elif isinstance(value, property):
        yield "fget", value.fget
    elif isinstance(value, (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)):
        yield "state", _Entries((_state_of(value),))
    elif kind.__module__.split(".")[0] in libraries and not is_unsearched(kind):
        yield from _inside(value)


def slots_of(value: object) -> Iterator[tuple[str, object]]:
    """The values in an object's ``__slots__``, by name."""
    for one in type(value).__mro__:
        slots = vars(one).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            full = f"_{one.__name__.lstrip('_')}{name}" if name[:2] == "__" and name[-2:] != "__" else name
            if full not in ("__dict__", "__weakref__"):
                with suppress(AttributeError):
                    yield name, object.__getattribute__(value, full)


def is_unsearched(kind: type) -> bool:
    """Whether objects of this class are not searched, since they reference all others of their library (loggers)."""
    return kind.__module__ in _NOT_INSIDE


def _state_of(generator: Any) -> object:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state().cpu().numpy().tobytes()
    held = generator.get_state() if isinstance(generator, np.random.RandomState) else generator.bit_generator.state
    return repr(held) if not isinstance(held, tuple) else (repr(held), held[1].tobytes())


def _inside(value: Any) -> Iterator[tuple[str, object]]:
    """The attributes of a library's object that other code has set."""
    if isinstance(value, ContextVar):
        yield "value", cast("ContextVar[object]", value).get(None)
    elif isinstance(value, MappingProxyType):
        yield from ((str(key), item) for key, item in cast("Mapping[object, object]", value).items())
    elif isinstance(value, ref):
        yield "target", value()
    elif isinstance(value, GeneratorType):
        frame = value.gi_frame
        yield "at", None if frame is None else frame.f_lasti
        # Its variables, and the iterators of its loops, which have no name.
        yield from ((f"held {at}", item) for at, item in enumerate(gc.get_referents(value)))
    elif isinstance(value, itertools.count):
        yield "at", repr(value)
    elif hasattr(type(value), "__next__"):
        hint = operator.length_hint(value, -1)
        yield "left", hint if hint >= 0 else unseen()
    elif not isinstance(value, (str, bytes, Tensor)):
        with suppress(TypeError):
            memoryview(value)
            yield "bytes", bytes_of(value)
        held = value.__dict__ if isinstance(value, threading.local) else attributes_of(value)
        yield from list(held.items())


def attributes_of(value: object) -> dict[str, object]:
    """The instance attributes, read without running code of its class."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
