"""Finds the numbers and lengths that a model and its loss keep in Python from one pass to the next (counters, lists).

Attributes, containers, closures and globals are searched.

A loss may count examples (``self.seen += len(batch)``) or grow a list. The tracer sees no such operation, and later
passes may use it. State in C objects, files and other processes is not searched (docs: pitfalls).
"""

import dis
import functools
import itertools
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeAlias, cast

import numpy as np
from torch import Tensor, nn

from decrescendo.row_independence.code_origin import is_own
from decrescendo.row_independence.object_contents import (
    Content,
    attributes_of,
    bytes_of,
    contents_of,
    entries_of,
    is_unsearched,
    place_of,
    slots_of,
    unseen,
)

# The values found, by the path that leads to each from the loss or the model (``loss.seen``, ``len(loss.names)``).
Numbers: TypeAlias = dict[str, Any]
# Search limits: objects visited (beyond this, recorded as `UNSEARCHED`), and entries visited per container
# (beyond this, only its length and its sum).
_MAX_OBJECTS, _MAX_ENTRIES = 20_000, 1_000
# The entry of `Numbers` that records that there are more objects than were visited.
UNSEARCHED = "(more objects)"
_NUMBERS = (int, float, complex, Fraction)
_CHOICES = (str, bytes, FunctionType, BuiltinFunctionType, type)
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, deque, array)
# Attributes that every nn.Module has: skipped, except hooks (code of the program) and, by `_modules`, child modules.
_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hook" in name)
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) - _HOOKS
# Special methods to search: Python calls them.
_CALLED = (
    "__call__", "__getattr__", "__getattribute__", "__getitem__", "__len__", "__iter__", "__get__", "__float__",
)  # fmt: skip
_LIBRARIES = (*sys.stdlib_module_names, "torch", "numpy")
_ENGINE = ("decrescendo.clipping.", "decrescendo.row_independence.")


def numbers_of(
    model: nn.Module, loss: object, *, identities: bool = False, choices: bool = False,
    objects: list[object] | None = None, told: Callable[[str, object], None] | None = None,
) -> Numbers:  # fmt: skip
    """The Python numbers and container lengths reachable from a model and a loss, by path (``loss.seen``).

    ``identities`` (for graph replay): also record strings, object ids and `object_contents`. ``choices``: also
    record strings, and the ids of functions, classes and None.
    ``objects``: a list that the visited objects are appended to. ``told``: called with each path and object, also
    with tensors.

    >>> seen = []
    >>> numbers_of(nn.Tanh(), lambda model, x: seen.append(len(x)))
    {'len(loss.seen)': 0}
    """
    found: Numbers = {}
    # For replay, the caller compares modules' tensors and training mode.
    own = set(map(id, model.modules())) if identities else set[int]()
    visited: dict[int, object] = {}  # by id; the objects are kept alive, so that no new one gets the same id
    left: deque[tuple[str, object]] = deque([("loss", loss), (type(model).__name__, model)])
    while left:
        if len(visited) >= _MAX_OBJECTS:
            found[UNSEARCHED] = True
            break
        name, value = left.popleft()
        value = value.item() if isinstance(value, np.generic) else value
        if told is not None:
            told(name, value)
        is_number, is_choice, ends, kind = _sort_of(type(value))
        if is_number:
            found[name] = value
            if not identities or type(value) in _NUMBERS or isinstance(value, bool):
                continue
        elif identities:
            plain = isinstance(value, (str, Content))
            found[name] = value if plain else place_of(value) if isinstance(value, Tensor) else id(value)
        elif choices and is_choice:
            found[name] = value if isinstance(value, (str, bytes)) else id(value)
        if ends and identities and isinstance(value, Tensor) and value.__dict__:  # a user's numbers
            left += [(f"{name}.{key}", n) for key, n in value.__dict__.items() if isinstance(n, _NUMBERS)]
        if ends or id(value) in visited:
            continue
        visited[id(value)] = value
        if kind is not None:  # methods of the builtin class: a user's subclass runs no code of its own
            found[f"len({name})"] = size = kind.__len__(value)
            if size > _MAX_ENTRIES:
                what = "entries" if identities else "sum"
                found[f"{what} of {name}"] = entries_of(value) if identities else _sum_of(value, kind)
                continue
            left += _entries(name, value, kind)
        if isinstance(value, np.ndarray):
            found[f"len({name})"] = value.size
            if value.size > _MAX_ENTRIES:
                what = "bytes" if identities else "sum"
                found[f"{what} of {name}"] = bytes_of(value) if identities else _sum_of(value)
            else:
                left += [(f"{name}.{at}", item) for at, item in enumerate(value.flat)]
        left += [(f"{name}.{inner}", item) for inner, item in _reached_from(value)]
        if identities and not isinstance(value, np.ndarray) and id(value) not in own:
            left += [(f"{name}.{inner}", item) for inner, item in contents_of(value, _LIBRARIES)]
    if identities and left:
        found[f"more than {_MAX_OBJECTS} objects"] = unseen()
    if objects is not None:
        objects += visited.values()
    return found


@functools.lru_cache(4096)
def _sort_of(kind: type) -> tuple[bool, bool, bool, Any]:
    """Of the values of a class: whether they are numbers, whether they are choices, whether nothing is searched behind
    them, and the builtin container that they are."""
    return (
        issubclass(kind, _NUMBERS),
        issubclass(kind, (*_CHOICES, type(None))),
        issubclass(kind, (str, bytes, Tensor, Content, type(None))),
        next((one for one in _CONTAINERS if issubclass(kind, one)), None),
    )


def _entries(name: str, value: Any, kind: Any) -> list[tuple[str, object]]:
    """The items of a container of the builtin class ``kind``, by path."""
    if kind is dict:
        return [(f"{name}[{key}]", item) for key, item in list(dict[Any, Any].items(value))]
    items = list(kind.__iter__(value))
    if all(type(item) is str for item in items) and kind in (set, frozenset):
        items.sort()  # their order is another in each process
    return [(f"{name}.{at}", item) for at, item in enumerate(items)]


def _sum_of(value: Any, kind: Any = None) -> float:
    """The sum of the real numbers in an array, or in a container of the builtin class ``kind``."""
    if kind is None:
        return value.sum().item() if value.dtype.kind in "biuf" else 0
    items = dict[Any, Any].values(value) if kind is dict else kind.__iter__(value)
    return sum(item for item in items if type(item) in (int, float))


def is_of_a_library(kind: type) -> bool:
    """Whether the object's class belongs to a library whose attributes are not searched."""
    return kind.__module__.split(".")[0] in _LIBRARIES or kind.__module__.startswith(_ENGINE)


def _reached_from(value: Any) -> Iterator[tuple[str, object]]:
    """The objects to visit after ``value``, by name: its attributes, its class, what its function uses."""
    if isinstance(value, ModuleType):
        return
    if isinstance(value, type):  # user-defined classes: counters in class attributes, and what methods use
        module = sys.modules.get(value.__module__)
        if is_own(getattr(module, "__file__", None) or value.__module__):
            names = [name for name in vars(value) if name[:2] != "__" or name in _CALLED]
            yield from ((name, vars(value)[name]) for name in names)
            yield from ((kind.__name__, kind) for kind in value.__bases__)
        return
    if isinstance(value, FunctionType):
        yield from _reached_from_function(value)
    elif isinstance(value, (MethodType, staticmethod, classmethod)):
        yield from (("__self__", getattr(value, "__self__", None)), ("__func__", value.__func__))
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, property):
        yield "fget", value.fget
    elif isinstance(value, functools.cached_property):
        yield "func", value.func
    kind = type(value)
    held = attributes_of(value)
    if isinstance(value, nn.Module):
        yield from cast("dict[str, object]", held.get("_modules", {})).items()  # (scripted ones have none)
        held = {
            name: item for name, item in held.items() if name not in _MODULE_ATTRIBUTES and (name not in _HOOKS or item)
        }
    elif kind is not SimpleNamespace and (is_of_a_library(kind)):
        # Settings and records (`argparse.Namespace`), but not what is a library's own object.
        plain = () if is_unsearched(kind) else (*_NUMBERS, *_CONTAINERS)
        held = {name: item for name, item in held.items() if name == "__wrapped__" or isinstance(item, plain)}
    else:
        yield from slots_of(value)
    yield from list(held.items())
    yield kind.__name__, kind


def _reached_from_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    """A function's closure and defaults and, if it is the user's code, the globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell without a value yet
            yield name, cell.cell_contents
    yield from (("__defaults__", function.__defaults__), ("__kwdefaults__", function.__kwdefaults__))
    if not is_own(function.__code__.co_filename):
        return
    names, attributes = _names_in(function.__code__)
    for name in (name for name in names if name in function.__globals__):
        item = function.__globals__[name]
        yield name, item
        yield from _named_in(name, item, attributes)
    for name in attributes:  # modules that the function imports itself
        if (item := sys.modules.get(name)) is not None:
            yield from _named_in(name, item, attributes)


def _named_in(name: str, module: object, attributes: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The attributes with these names in a user module and its submodules."""
    if not isinstance(module, ModuleType) or not is_own(getattr(module, "__file__", None) or module.__name__):
        return
    for inner in attributes:
        if inner in vars(module):
            item = vars(module)[inner]
            yield f"{name}.{inner}", item
            if isinstance(item, ModuleType) and item.__name__.startswith(module.__name__ + "."):
                yield from _named_in(f"{name}.{inner}", item, attributes)


@functools.lru_cache(16_384)
def _names_in(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of globals in a function's code, and all of its ``co_names`` (attributes too), with nested functions."""
    found = [
        one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    ]
    inside = [_names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    names = dict.fromkeys(itertools.chain(found, *(one for one, _ in inside)))
    return tuple(names), tuple(dict.fromkeys(itertools.chain(code.co_names, *(two for _, two in inside))))


def changed_places(before: Numbers, now: Numbers) -> list[str]:
    """The places whose number or length differs between two calls of `numbers_of`.

    >>> changed_places({"n": 1, "len(d)": 0, "m": 2}, {"n": 2, "len(d)": 1, "m": 2})
    ['d', 'n']
    """
    if before == now:  # nearly always, and quickly seen
        return []
    nothing = object()
    pairs = ((name, before.get(name, nothing), now.get(name, nothing)) for name in before.keys() | now.keys())
    names = {name for name, one, two in pairs if one != two and repr(one) != repr(two)}
    return sorted(set(map(_without_len, names)))


def _without_len(name: str) -> str:
    return name[len("len(") : -1] if name.startswith("len(") else name


def without_keys(place: str) -> str:
    """A place without dictionary keys, which may be data (names of people).

    Everything from the first "[" to the last "]" is dropped, attribute names between them too.

    >>> without_keys("loss.seen[ann].total")
    'loss.seen[...].total'
    """
    first, last = place.find("["), place.rfind("]")
    return place if first < 0 else f"{place[:first]}[...]{place[last + 1 :]}"


def growing_with_rows(one: tuple[int, Numbers, Numbers], two: tuple[int, Numbers, Numbers]) -> list[str]:
    """The places whose value, or its growth over a pass, is proportional to the batch size.

    They are found by comparing passes of two batch sizes.

    Args:
        one: batch size of a pass, and `numbers_of` (without ``identities``) before and after it.
        two: the same for a pass of another batch size. A place that grows equally in both counts passes: left out.

    >>> two = 2, {"seen": 5, "calls": 1}, {"seen": 7, "calls": 2}
    >>> three = 3, {"seen": 7, "calls": 2}, {"seen": 10, "calls": 3}
    >>> growing_with_rows(two, three)
    ['seen']
    """
    found: list[str] = []
    for name in one[2].keys() & two[2].keys():
        growth = [after[name] - before.get(name, 0) for _, before, after in (one, two)]
        for mine, its in (growth, (one[2][name], two[2][name])) if growth[0] != growth[1] else ():
            if mine != its and mine * two[0] == its * one[0]:
                found.append(_without_len(name))
                break
    return sorted(found)
