"""What Python keeps from one pass to the next, where no dispatcher looks: numbers and lengths that follow the batch."""

import functools
import inspect
from collections import deque
from collections.abc import Iterable
from types import CellType, FunctionType, MethodType
from typing import Any, TypeAlias, cast

import numpy as np
from torch import Tensor, nn

from decrescendo.clipping.proof.looks import is_program

# Numbers, and lengths of containers, by where they are kept.
Numbers: TypeAlias = dict[str, float]
# Objects of a program, and entries of a container, that are looked at: longer ones (data sets) by their length alone.
_MOST, _ENTRIES = 20_000, 1_000
_CLOSED = (str, bytes, type, Tensor, np.ndarray)
# Of a module: what is torch's own, parameters and buffers among it.
_TORCHS = frozenset(vars(nn.Module())) - {"_modules"}
# Of the global names that a function uses: those that may be a program's memory.
_MEMORIES = (int, float, dict, list, set, deque, FunctionType)


def numbers_of(model: nn.Module, loss: object) -> Numbers:
    """The numbers and lengths that a model and a loss reach by attributes, containers, closures and global names.

    No code of the program runs for that.
    """
    found: Numbers = {}
    seen: set[int] = set()
    left: list[tuple[str, object]] = [("loss", loss), (type(model).__name__, model)]
    while left and len(seen) < _MOST:
        name, value = left.pop()
        if isinstance(value, (int, float)):
            found[name] = value
        elif id(value) not in seen and not isinstance(value, _CLOSED):
            seen.add(id(value))
            if isinstance(value, (dict, list, tuple, set, deque)):
                found[f"len({name})"] = size = len(cast("list[object]", value))
                if size > _ENTRIES:
                    continue
            left += [(f"{name}.{key}" if key else name, item) for key, item in _held(value)]
    return found


def _held(value: object) -> Iterable[tuple[str, object]]:
    """What a value holds, by name."""
    if isinstance(value, dict):
        return [
            (str(key), item)
            for key, item in dict[object, object].items(cast("dict[object, object]", value))
            if type(key) in (str, int)
        ]
    if type(value) in (list, tuple, deque):
        return [(str(at), item) for at, item in enumerate(cast("list[object]", value))]
    if isinstance(value, functools.partial):
        return [("", cast("Any", value).func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, MethodType):
        return [("", value.__self__), ("", value.__func__)]
    if isinstance(value, FunctionType):
        code = value.__code__
        if not is_program(code.co_filename):
            return []
        names = [(name, value.__globals__.get(name)) for name in code.co_names]
        cells = [
            (name, _content(cell))
            for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=False)
        ]
        names = [(name, item) for name, item in names if isinstance(item, _MEMORIES)]
        return [*names, *cells, ("", value.__defaults__), ("", value.__kwdefaults__), ("", value.__dict__)]
    try:
        held = cast("dict[str, object]", object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return []
    forward = (
        [("forward", inspect.getattr_static(value, "forward", None))] if isinstance(value, nn.Module) else []
    )
    return [
        *forward,
        *((name, item) for name, item in list(held.items()) if item is not None and name not in _TORCHS),
    ]


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def following(one: tuple[int, Numbers, Numbers], two: tuple[int, Numbers, Numbers]) -> list[str]:
    """Of two passes (how many examples, what was kept before and after): which numbers follow that number, or grow by
    it. What grows alike in both counts passes.

    >>> two = 2, {"seen": 5, "calls": 1}, {"seen": 7, "calls": 2}
    >>> three = 3, {"seen": 7, "calls": 2}, {"seen": 10, "calls": 3}
    >>> following(two, three)
    ['seen']
    """
    found: list[str] = []
    for name in one[2].keys() & two[2].keys():
        growth = [after[name] - before.get(name, 0) for _, before, after in (one, two)]
        for mine, its in (growth, (one[2][name], two[2][name])) if growth[0] != growth[1] else ():
            if mine != its and mine * two[0] == its * one[0]:
                found.append(name)
                break
    return sorted(found)
