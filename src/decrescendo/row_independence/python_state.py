"""What Python keeps from one pass to the next, where no dispatcher looks: numbers and lengths that follow the batch.

Longer than most files: where Python keeps things, and what tells one from another, is one walk.
"""

import contextlib
import dis
import functools
import gc
import io
import itertools
import operator
import queue
import random
import re
import sys
import threading
import warnings
import weakref
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from contextvars import ContextVar
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.base.storages import content_of, key_of, state_of
from decrescendo.row_independence.code_origin import (
    is_made_in_python,
    is_own,
    is_program,
    told_of,
    wrapped_by,
)

# Numbers, and lengths of containers, by where they are kept.
Numbers: TypeAlias = dict[str, Any]
# What was looked at: where it is, what it is, and of a module the names in it.
Visited: TypeAlias = tuple[str, object, tuple[str, ...]]
# Objects of a program, and entries of a container, that are looked at; longer ones as a whole, and the longest (data
# sets) by their length alone.
_MOST, _ENTRIES, _LONGEST = 50_000, 10_000, 2**22
# Numbers of a tensor, and letters of a text, that are compared.
_SMALL = 1_000
# Where there are more objects than are looked at.
BEYOND = f"more than {_ENTRIES:,} objects in one, or {_MOST:,} in all"
_NUMBERS = (int, float, complex, Decimal, Fraction)
# Functions whose names are remembered; how a function takes a global name, or gets at all of them.
_CODES = 4096
_GLOBAL = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "STORE_NAME", "DELETE_GLOBAL"}
)
_NAMESPACES = frozenset(
    {"globals", "vars", "eval", "exec", "sys", "builtins", "inspect", "importlib", "import_module", "gc", "operator",
     "__globals__", "__import__", "__builtins__", "__dict__", "__self__", "attrgetter"}
)  # fmt: skip
# Of the global names that a function of an installed package uses: those that may be its memory.
_MEMORIES = (int, float, dict, list, set, deque, FunctionType)
# What classes have without code of the program's.
_OF_ALL = frozenset(dir(type)) | {
    "__weakref__", "__slots__", "__parameters__", "__orig_bases__", "__abstractmethods__", "__static_attributes__",
    "__firstlineno__", "__annotate__", "__dataclass_fields__", "__dataclass_params__", "__match_args__",
}  # fmt: skip
# What a function or a class says of itself.
_SPOKEN = ("__doc__",)
_TEXTS = (str, bytes, bytearray, array)
_ITEMS = (list, tuple, set, frozenset, deque)
_TORCHS = frozenset(vars(nn.Module()))
_HOOKS = frozenset(name for name in _TORCHS if "_hook" in name) | {"_modules", "_non_persistent_buffers_set"}
# What C code keeps where no attribute leads: random numbers, places in files and arrays, calls that were counted.
_STATES: dict[type, Callable[[Any], object]] = {
    random.Random: lambda value: hash(value.getstate()),
    np.random.Generator: lambda value: repr(value.bit_generator.state),
    np.random.RandomState: lambda value: repr(value.get_state(legacy=False)),
    torch.Generator: state_of,
    np.flatiter: lambda value: value.index,
    io.BytesIO: lambda value: value.closed or (value.tell(), value.getvalue()),
    io.StringIO: lambda value: value.closed or (value.tell(), value.getvalue()),
    type(functools.lru_cache(len)): lambda value: tuple(value.cache_info()),
    GeneratorType: lambda value: value.gi_frame and value.gi_frame.f_lasti,
    itertools.cycle: lambda value: _turned(value),
    queue.SimpleQueue: lambda value: value.qsize(),
    torch.UntypedStorage: lambda value: value.nbytes(),
    **dict.fromkeys((itertools.count, itertools.repeat), repr),
    **dict.fromkeys(
        (operator.itemgetter, operator.attrgetter, operator.methodcaller),
        lambda value: repr(value.__reduce__()[1]),
    ),
}
# What says by itself what it is.
_CONSTANTS = (
    range, date, time, timedelta, np.dtype, torch.dtype, torch.device, torch.layout, torch.memory_format
)  # fmt: skip
KEYS = frozenset({int, float, complex, bool, str, bytes, type(None)})
_SHARING = "torch.distributed."
# An engine, to which an attribute of the program's may lead, and all that it is made of.
_ENGINE = "decrescendo.clipping."
# torch writes down in these how they are called.
_OPERATIONS = (type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor))


def numbers_of(
    model: nn.Module, loss: object, stale: Collection[int] | None = None, visited: list[Visited] | None = None
) -> Numbers:
    """The numbers and lengths that a model and a loss reach: by attributes, those of their classes and hooks among
    them, containers, closures and global names, the nearest first.

    ``stale``: also texts, which function or kind of object lies there, and tensors: of those whose memory is in it
    the shape alone. No code of the program runs for that. ``visited``: gets what was looked at.
    """
    found: Numbers = {}
    follows = visited is not None
    if visited is None:
        visited = []
    seen: dict[int, tuple[str, object]] = {}
    again = Counter[str]()
    own = set(map(id, (*model.modules(), *model.parameters()))) if stale is not None else set[int]()
    if stale is not None:  # what is trained moves in each step, whoever else refers to it
        stale = {*stale, *(key_of(p) for p in model.parameters() if _is_plain(p))}
    left: deque[tuple[str, object]] = deque([("loss", loss), (type(model).__name__, model)])
    # Modules come last: of each, what has a name that some function uses.
    modules, used = list[tuple[str, ModuleType]](), set[str]()
    while (left or modules) and len(seen) < _MOST:
        if not left:
            for name, module in modules:
                names = [inner for inner in vars(module) if inner in used and not inner.startswith("__")]
                inside = [(f"{name}.{inner}", vars(module)[inner]) for inner in names]
                left += [(inner, item) for inner, item in inside if _is_followed(item, follows=follows)]
                visited.append((name, module, tuple(used)))
            modules.clear()
            continue
        name, value = left.popleft()
        if name:  # two things may have one name: what a function closes over, and an attribute of it
            again[name] += 1
            name = name if again[name] == 1 else f"{name} ({again[name]})"
        if isinstance(value, ModuleType):
            if not is_closed(value) and id(value) not in seen:
                seen[id(value)] = name, value
                modules.append((name, value))
            continue
        if isinstance(value, FunctionType) and is_program(value.__code__.co_filename):
            used.update(names_in(value.__code__))
        if isinstance(value, np.generic):
            value = value.item()
        if stale is not None and id(value) not in own:
            # (What it has without a name of its own comes after.)
            found.setdefault(f"{name} ", _which(value, stale))
            found.setdefault(f"{name}  ", _one_of_several(value, stale))
        if stale is not None and isinstance(value, nn.Module):
            found[f"{name}.training"], found[f"{name}   "] = value.training, id(value)
        if isinstance(value, (*_NUMBERS, np.ndarray, *_TEXTS)) and not is_closed(type(value)):
            held = getattr(value, "__dict__", None)  # of a class of the program's
            if type(held) is dict:
                left += [(f"{name}.{key}", item) for key, item in held.items()]
                visited.append((name, held, ()))
        if isinstance(value, _NUMBERS):
            found[name] = value
        elif isinstance(value, np.ndarray):
            found[f"{name}.size"] = value.size
            visited.append((name, value, ()))
            if value.dtype.kind in "biuf" and value.size <= _SMALL:
                found[f"{name}.sum()"] = float(value.view(np.ndarray).sum())
            if value.dtype.kind == "O" and value.size > _ENTRIES:
                found[BEYOND] = True
            elif value.dtype.kind == "O":
                left += [(f"{name}.{at}", item) for at, item in enumerate(value.ravel().tolist())]
        elif isinstance(value, _TEXTS):
            found[f"len({name})"] = len(value)
            visited.append((name, value, ()))
        elif id(value) in seen:
            if stale is not None and seen[id(value)][0] != name:
                found[f"{name}   "] = f"as {seen[id(value)][0]}"
        elif not is_closed(value):
            seen[id(value)] = name, value  # held: no other has its address
            visited.append((name, value, ()))
            if isinstance(value, (dict, *_ITEMS)):
                found[f"len({name})"] = size = len(cast("Sized", value))
                if size > _ENTRIES:
                    if stale is not None and size <= _LONGEST:
                        items: list[tuple[object, object]] = list(held_in(value))
                        if isinstance(value, dict):
                            items += enumerate(cast("dict[object, object]", value))
                        found[f"{name} "] = hash(tuple(_number_or_id(item) for _, item in items))
                        if not all(type(item) in KEYS for _, item in items):
                            found[BEYOND] = True
                    continue
                if isinstance(value, dict):
                    keys = list(cast("dict[object, object]", value))
                    left += [(f"{name}.[{at}]", key) for at, key in enumerate(keys) if type(key) not in KEYS]
            left += [(f"{name}.{key}" if key else name, item) for key, item in held_in(value)]
            if stale is not None and (order := _order(value)) is not None:
                found[f"{name}    "] = order
            if isinstance(value, nn.Module) and stale is not None and id(value) not in own:
                kept = {**vars(value).get("_buffers", {}), **vars(value).get("_parameters", {})}
                left += [(f"{name}.{key}", item) for key, item in kept.items() if item is not None]
        if stale is not None and isinstance(value, Tensor) and id(value) not in own:
            left += _beside(name, value)
    if left:
        found[BEYOND] = True
    return found


# What models and losses had when the engine began that first accepted a pass of theirs, by their identity.
_NO_MODEL = nn.Module()
_FIRST: dict[int, tuple[weakref.ref[object], Numbers]] = {}


def since_another(
    model: nn.Module, loss: object, stale: Collection[int]
) -> tuple[set[str], list[tuple[object, Numbers]]]:
    """What is kept in another way than when another engine began with this model, or this loss, whose passes may have
    left it there; and what is kept now, to be remembered."""
    now: list[tuple[object, Numbers]] = [
        (model, numbers_of(model, None, stale)),
        (loss, numbers_of(_NO_MODEL, loss, stale)),
    ]
    found: set[str] = set()
    for value, kept in now:
        if id(value) in _FIRST:
            found |= moved(_FIRST[id(value)][1], kept)
    return {name for name in found if not name.endswith(".training")}, now


def remember(began: Iterable[tuple[object, Numbers]]) -> None:
    """A pass was accepted: another engine may find what passes leave from here on."""
    for value, kept in began:
        with contextlib.suppress(TypeError):  # what nobody can refer to
            _FIRST.setdefault(id(value), (weakref.ref(value, functools.partial(_drop, id(value))), kept))


def _drop(key: int, _: object, first: dict[int, Any] = _FIRST) -> None:
    first.pop(key, None)  # (at the end of a process names of modules may be gone)


def _which(value: object, stale: Collection[int]) -> object:
    """What tells a value that is no number from another that may lie in its place, in any process."""
    if isinstance(value, Tensor):
        if not _is_plain(value) or key_of(value) in stale or not value.untyped_storage().nbytes():
            return value.shape, str(value.dtype)
        version = None if value.is_inference() else value._version
        laid = value.stride(), value.storage_offset(), value.requires_grad
        return (
            value.shape,
            str(value.dtype),
            laid,
            version,
            content_of(value) if value.numel() <= _SMALL else None,
        )
    if isinstance(value, str):
        return value[:_SMALL]
    if (memory := bits_in(value)) is not None:
        return memory
    if isinstance(value, _CONSTANTS) and not is_made_in_python(type(value)):
        return repr(value)
    if (state := kept_by_c(value)) is not None:
        return state(value)
    if type(value) is deque:
        return value.maxlen
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        return value.__module__, value.__qualname__, value.__name__
    return type(value).__qualname__


def kept_by_c(value: object) -> Callable[[Any], object] | None:
    """What tells the state of a value that C code keeps, where no attribute leads."""
    if type(value) in _STATES:
        return _STATES[type(value)]
    if isinstance(value, np.random.BitGenerator) and is_closed(type(value)):
        return lambda bits: repr(bits.state)
    return _left if isinstance(value, Iterator) and is_closed(type(value)) else None


def _left(iterator: Any) -> object:
    """In an iterator of C code."""
    left = operator.length_hint(iterator, -1)
    return _numbers_in(iterator) if left < 0 else left


def _one_of_several(value: object, stale: Collection[int]) -> int | None:
    """The same in this process alone: of what has no numbers to compare, or too many, which one it is."""
    if isinstance(value, Tensor):
        if not _is_plain(value):
            return id(value)
        return key_of(value) if value.numel() > _SMALL and key_of(value) not in stale else None
    if isinstance(value, str):
        return hash(value) if len(value) > _SMALL else None
    if isinstance(value, np.ndarray):
        return hash((str(value.dtype), value.shape, value.strides, value.flags.writeable))
    if isinstance(value, FunctionType):
        return id(value.__code__) if is_own(value.__code__.co_filename) else None
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict  # its order is another one than dict's
        keys = list(cast("Any", kind).__iter__(value))
        return hash(tuple(map(_key, keys))) if len(keys) <= _ENTRIES else None
    return id(value) if isinstance(value, type) else None


def _beside(name: str, value: Tensor) -> Iterator[tuple[str, object]]:
    """What hangs on a tensor."""
    if type(value) in (Tensor, nn.Parameter) and value.is_leaf and value.grad is not None:
        yield f"{name}.grad", value.grad
    for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
        yield f"{name}.hooks", hooks or hooks is None
    if value.layout is torch.sparse_coo:
        yield f"{name}.nnz", value._nnz()


def _is_followed(item: object, *, follows: bool) -> bool:
    """Of what a module has: functions are of the program alone, and are followed where asked (`StateSnapshot`)."""
    return not isinstance(item, FunctionType) or (follows and is_program(item.__code__.co_filename))


def _is_plain(value: Tensor) -> bool:
    kinds = (Tensor, nn.Parameter, nn.Buffer)
    return type(value) in kinds and value.layout is torch.strided and not value.is_quantized


def _key(value: object) -> object:
    """Of a dictionary."""
    if isinstance(value, tuple):
        return tuple(map(_key, cast("tuple[object, ...]", value)))
    return repr(value) if type(value) in KEYS else type(value).__qualname__


def bits_in(value: object) -> object:
    """What lies in the memory that a value shows to any C code (arrays, numbers of ctypes, mapped files), in short."""
    if isinstance(value, np.ndarray):
        plain = value.dtype.kind != "O" and value.nbytes <= _LONGEST
        return hash(value.view(np.ndarray).tobytes()) if plain else None
    if isinstance(getattr(type(value), "__buffer__", None), FunctionType):
        return None  # code of the program's
    try:
        shown = memoryview(cast("Any", value))
    except (TypeError, ValueError, BufferError):
        return None
    with shown:
        whole = shown.format, shown.shape, shown.tobytes()
        return hash(whole) if shown.nbytes <= _LONGEST else None


class _Order(tuple[str, ...]):
    """Names in an order; those that are new or gone are told by themselves.

    >>> one = _Order(("a", "b"))
    >>> one == _Order(("b", "a")), one == _Order(("b", "a", "c"))
    (False, True)
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) or sorted(self) != sorted(cast("tuple[str, ...]", other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def _order(value: object) -> _Order | None:
    """In which order attributes were given to an object, and buffers and the like to a module."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    if type(held) is not dict:
        return None
    kinds = ("_parameters", "_buffers", "_modules") if isinstance(value, nn.Module) else ()
    names = list(map(str, held))
    for kind in kinds:
        inside = held.get(kind)
        names += [f"{kind}.{name}" for name in inside] if isinstance(inside, dict) else []
    return _Order(names)


def _numbers_in(value: Any) -> object:
    """Those that an iterator of C code says of itself (`enumerate`); Python has some say them up to 3.13."""
    try:
        with warnings.catch_warnings(action="ignore"):
            told = value.__reduce__()
    except (TypeError, AttributeError):
        return None
    return repr(
        [
            item
            for part in told[1:]
            for item in (part if type(part) is tuple else (part,))
            if type(item) is int
        ]
    )


def _turned(cycle: Any) -> object:
    """Where a cycle is in what it has kept; Python says so up to 3.13."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return operator.length_hint(cycle.__reduce__()[1][0], -1)
    except TypeError:
        return None


def _number_or_id(value: object) -> object:
    return repr(value) if type(value) in KEYS else id(value)


def moved(before: Numbers, now: Numbers) -> set[str]:
    """Where something else is kept than before; nothing inside of what is another one as a whole.

    >>> sorted(moved({"n": 1, "len(d)": 0, "m": 2}, {"n": 2, "len(d)": 1, "d.0": 5, "m": 2}))
    ['d', 'n']
    """
    names = {name for name in before.keys() & now.keys() if not same(before[name], now[name])}
    found = {plain(name) for name in names | (before.keys() ^ now.keys())}
    return {name for name in found if not any(name[:at] in found for at in _dots(name))}


def plain(name: str) -> str:
    name = name[len("len(") : -1] if name.startswith("len(") else name.rstrip()
    return re.sub(r" \(\d+\)", "", name)


def _dots(name: str) -> Iterator[int]:
    return (at for at, letter in enumerate(name) if letter == ".")


def same(one: object, two: object) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return repr(one) == repr(two)  # -0.0 is another one than 0.0, and nan is nan
    return type(one) is type(two) and (one == two or (one != one and two != two))


def is_closed(value: object) -> bool:
    """Whether what lies behind is no program's."""
    if isinstance(value, type):
        module = sys.modules.get(str(vars(value).get("__module__")))
        return module is None or not is_own(getattr(module, "__file__", None) or f"<{module.__name__}>")
    if isinstance(value, ModuleType):
        return not is_own(getattr(value, "__file__", None) or f"<{value.__name__}>")
    if type(value).__module__.startswith(_SHARING) and not isinstance(value, nn.Module):
        return True  # parts of parameters, put together for a while and given up again
    if isinstance(value, _OPERATIONS) or type(value).__module__.startswith(_ENGINE):
        return True
    return value is None or (isinstance(value, Tensor) and not object.__getattribute__(value, "__dict__"))


def held_in(value: object) -> Iterable[tuple[str, object]]:
    """What a value holds, by name."""
    if isinstance(value, dict):
        entries = dict[object, object].items(cast("dict[object, object]", value))
        return [(_named(key, at), item) for at, (key, item) in enumerate(entries)]
    if isinstance(value, _ITEMS):
        kind = next(kind for kind in type(value).__mro__ if kind in _ITEMS)
        return [(str(at), item) for at, item in enumerate(cast("Any", kind).__iter__(value))]
    if isinstance(value, type):
        own = [
            (name, item)
            for name, item in vars(value).items()
            if name not in _OF_ALL or type(item) is FunctionType or name in _SPOKEN
        ]
        kinds = (type(value), *value.__bases__)
        return [*own, *((kind.__name__, kind) for kind in kinds if not is_closed(kind))]
    if isinstance(value, FunctionType):
        code = value.__code__
        if not is_program(code.co_filename):
            return [("", item) for item in wrapped_by(value)]
        cells = [
            (name, content(cell, None))
            for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=False)
        ]
        names = [(name, value.__globals__.get(name)) for name in globals_in(code)]
        if not is_own(code.co_filename):
            names = [(name, item) for name, item in names if isinstance(item, _MEMORIES)]
        names += [(name, item) for name, item in _imported(code) if not is_closed(item)]
        spoken = [(name, getattr(value, name)) for name in _SPOKEN]
        return [
            *cells,
            *names,
            *spoken,
            ("", value.__defaults__),
            ("", value.__kwdefaults__),
            ("", told_of(value)),
        ]
    if isinstance(value, ModuleType):
        return []  # of which the names that functions use say what is looked at
    if isinstance(value, weakref.ref):
        return [("", weakref.ref.__call__(cast("weakref.ref[Any]", value)))]
    if isinstance(value, ContextVar):
        return [("", value.get(None))]
    if isinstance(value, threading.local):
        return list(vars(value).items())
    if isinstance(value, Tensor):
        return list(cast("dict[str, object]", object.__getattribute__(value, "__dict__")).items())
    kinds = [kind for kind in type(value).__mro__ if is_made_in_python(kind)]
    if not kinds:
        return [(f"[{at}]", item) for at, item in enumerate(gc.get_referents(value))]
    entries = [(kind.__name__, kind) for kind in kinds if not is_closed(kind)]
    entries += [("forward", vars(kind).get("forward")) for kind in kinds if isinstance(value, nn.Module)]
    slots = [slot for kind in kinds for slot in slots_in(kind)]
    entries += [(slot.__name__, content(slot, value)) for slot in slots]
    try:
        held = cast("dict[str, object]", object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return entries
    # Of what a module is made of by torch: the modules in it, and hooks.
    aside = _TORCHS if isinstance(value, nn.Module) else ()
    named = [
        (name, item) for name, item in list(held.items()) if name not in aside or (item and name in _HOOKS)
    ]
    if aside:
        for kind in ("_parameters", "_buffers"):  # scripted ones have none
            own = cast("dict[str, Tensor | None]", held.get(kind, {}))
            named += [(name, item) for name, item in own.items() if item is not None and item.__dict__]
            named.append((kind, tuple(name for name, item in own.items() if item is None)))
            named += [
                (f"{name}.grad", item.grad)
                for name, item in own.items()
                if item is not None and not item.requires_grad and item.is_leaf and item.grad is not None
            ]
    return [*named, *entries]


def _named(key: object, at: int) -> str:
    """An entry of a dictionary; what a function wraps has its name."""
    if key == "__wrapped__":
        return ""
    return key if type(key) is str and key.isidentifier() and key.isascii() else f"[{at}]"


@functools.lru_cache(_CODES)
def names_in(code: CodeType) -> tuple[str, ...]:
    """The names that a function uses, those of functions inside of it too, and of attributes."""
    inside = [names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    return tuple(dict.fromkeys(itertools.chain(code.co_names, *inside)))


@functools.lru_cache(_CODES)
def globals_in(code: CodeType) -> tuple[str, ...]:
    """Those of them that may be global: all of a function that gets at names in another way."""
    if not _NAMESPACES.isdisjoint(code.co_names):
        return names_in(code)
    own = [one.argval for one in dis.get_instructions(code) if one.opname in _GLOBAL]
    inside = [globals_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    return tuple(dict.fromkeys(itertools.chain(own, *inside)))


def _imported(code: CodeType) -> Iterator[tuple[str, ModuleType]]:
    """The modules that a function may import where it runs, or reach by the packages that hold them."""
    used = set(names_in(code))
    for name in used:
        for path in (name, *(f"{name}.{inner}" for inner in used)):
            module = sys.modules.get(path)
            if module is not None:
                yield path, module


def slots_in(kind: type) -> list[MemberDescriptorType]:
    """Where a class keeps attributes in no dictionary. (`functools.partial` and other classes of C have more such
    descriptors, as `__weaklistoffset__`: these give an address, which changes when somebody refers to the object.)"""
    found = vars(kind).items()
    return [slot for name, slot in found if isinstance(slot, MemberDescriptorType) and name[:2] != "__"]


def content(slot: Any, value: object) -> object:
    """What lies in a slot of an object, or in a cell; ``None`` if it is empty."""
    try:
        return slot.cell_contents if isinstance(slot, CellType) else slot.__get__(value)
    except (AttributeError, ValueError):
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
