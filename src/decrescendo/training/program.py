"""A model and a loss as Python holds them, apart from the trained weights: what a loop may change between two steps."""

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from functools import partial
from inspect import getattr_static
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeAlias, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torchs

from decrescendo.base.storages import pieces
from decrescendo.row_independence.code_origin import is_program, wrapped_by
from decrescendo.row_independence.python_state import bits_in, held_in, is_closed
from decrescendo.training.bits import fingerprint, fingerprints, is_part

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_NUMBERS = (bool, int, float, str, bytes)
_PLAIN = frozenset((*_NUMBERS, type(None)))
_EMPTY = frozenset((dict, list, set, OrderedDict))
# Of the global names that a function uses: what a loop would write to; and what is a program's own.
_GLOBAL = (*_NUMBERS, *_CONTAINERS, Tensor, nn.Module, FunctionType, np.ndarray, np.generic, array, bytearray)
# Bytes of an array that are compared.
_SHORT = 2**18
# Entries of a container, and objects, that are looked at: of longer ones (data sets) the length alone.
_ENTRIES, _MOST = 1_000, 20_000
# Numbers of a tensor that is compared bit by bit: a step would wait for larger ones.
_SMALL = 2**16
# Of what was changed so many attributes are named.
_SHOWN = 3
# Of a module: what torch keeps for states that are saved and loaded.
_ASIDE = frozenset(name for name in vars(nn.Module()) if "state_dict" in name)
_EVERYWHERE = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")

# What is found, facts of tensors, and those of frozen parameters by their ids: these may be frozen and unfrozen.
Facts: TypeAlias = tuple[list[object], list[object], dict[int, object]]


@final
class Program:
    """A model and a loss, to be looked at again.

    Modes, settings, hooks, modules, buffers and whatever else lies in their attributes, in containers, closures and
    global names; of an object whose method is the loss, the attributes that the method names. The weights that the
    model is trained by are the optimiser's, and which of its parameters are trained `BetweenSteps` compares.

    >>> model, loss = nn.Sequential(nn.Dropout(0.5)), lambda model, batch: model(batch).sum(1)
    >>> program = Program(model, loss)
    >>> program.note()
    >>> program.changed()
    False
    >>> model[0].p = 0.1
    >>> program.changed(), program.names_of_change()
    (True, ['Dropout.p'])
    """

    def __init__(self, model: object, loss: object) -> None:
        self._model, self._loss = model, loss
        self._noted: Facts | None = None

    def note(self) -> None:
        """As it is now."""
        self._noted = self._facts()

    def changed(self) -> bool:
        """Whether it is other than noted."""
        if self._noted is None:
            return False
        before, now = self._noted, self._facts()
        same = len(before[0]) == len(now[0]) and all(map(_same, before[0], now[0]))
        frozen = before[2].keys() & now[2].keys()
        return not same or before[1] != now[1] or any(before[2][key] != now[2][key] for key in frozen)

    def names_of_change(self) -> list[str]:
        """Attributes that are other than noted, by class and name, as far as they can be told; at most three."""
        before: list[object] = [] if self._noted is None else self._noted[0]
        model = self._model
        own = {id(value) for value in model.parameters()} if isinstance(model, nn.Module) else set[int]()
        found, _, owners = self._reached(own)
        names: list[str] = []
        for at, (was, now) in enumerate(zip(before, found, strict=False)):
            if not _same(was, now):
                held: dict[str, object] = getattr(owners[at], "__dict__", {})
                names += [f"{type(owners[at]).__name__}.{name}" for name, item in held.items() if item is now]
                if len(before) != len(found):
                    break  # what comes after lies elsewhere in the lists
        return list(dict.fromkeys(names))[:_SHOWN]

    def tensors(self) -> list[Tensor]:
        """Those that model and loss reach."""
        return self._reached(set())[1]

    def _facts(self) -> Facts:
        model = self._model
        # (A teacher's in the loss can be trained, too: those are not the model's.)
        own = {id(value) for value in model.parameters()} if isinstance(model, nn.Module) else set[int]()
        found, tensors, _ = self._reached(own)
        return found, *_tensor_facts(tensors, own)

    def _reached(self, own: set[int]) -> tuple[list[object], list[Tensor], list[object]]:
        """What is found, the tensors among it, and in what each lies."""
        found: list[object] = []
        owners: list[object] = []
        tensors: list[Tensor] = []
        seen: set[int] = set()
        left: list[tuple[object, object]] = [(None, self._loss), (None, self._model)]
        left += [(None, getattr(torchs, name, None)) for name in _EVERYWHERE]
        while left:
            owner, value = left.pop()
            owners.append(owner)
            if isinstance(value, Tensor):
                found.append(_which(value, own))
                tensors.append(value)
                continue
            found.append(value)
            if type(value) not in _PLAIN and id(value) not in seen and len(seen) < _MOST:
                seen.add(id(value))
                for item in _held(value):
                    kind = type(item)
                    if kind in _PLAIN:
                        found.append(item)
                        owners.append(value)
                    elif kind in _EMPTY and not item:
                        found.append(kind)
                        owners.append(value)
                    else:
                        left.append((value, item))
        return found, tensors, owners


def _is_own(value: Tensor, own: set[int]) -> bool:
    return id(value) in own and isinstance(value, nn.Parameter)


def _which(value: Tensor, own: set[int]) -> object:
    """What tells a tensor from another; of those that a pass has made their number alone, for they are not to live on
    for this, and of the model's and sharded parameters nothing: these come and go."""
    if _is_own(value, own) or is_part(value):
        return None
    return value if value.grad_fn is None else id(value)


def _tensor_facts(tensors: list[Tensor], own: set[int]) -> tuple[list[object], dict[int, object]]:
    """Which memory, which were written to as far as torch counts it, and the bits of those that are small; the model's
    frozen parameters by their ids."""
    facts: list[object] = []
    small: list[Tensor] = []
    frozen: dict[int, Tensor] = {}
    for tensor in tensors:
        if _is_own(tensor, own) and not tensor.requires_grad and not is_part(tensor):
            frozen[id(tensor)] = tensor
    for tensor in (part for whole in tensors if not _is_own(whole, own) for _, part in pieces(whole)):
        facts.append(tensor.requires_grad)
        if not is_part(tensor):
            facts.append(_place_of(tensor))
            if _is_small(tensor):
                small.append(tensor)
    codes = fingerprints(*filter(_is_small, frozen.values()))
    bits = dict(zip(filter(lambda key: _is_small(frozen[key]), frozen), codes, strict=True))
    held = {
        key: ([_place_of(part) for _, part in pieces(tensor)], bits.get(key))
        for key, tensor in frozen.items()
    }
    return [*facts, fingerprint(*small)], cast("dict[int, object]", held)


def _place_of(tensor: Tensor) -> object:
    counted = not tensor.is_inference() and tensor.layout == torch.strided
    return (tensor.data_ptr(), tensor._version) if counted else None


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() <= _SMALL and tensor.layout == torch.strided


def _held(value: object) -> Iterable[object]:
    """What a value holds: its parts, and marks that tell it from what it was."""
    kind = type(value)
    if isinstance(value, nn.Module):
        return [kind, *(item for name, item in vars(value).items() if name not in _ASIDE)]
    if isinstance(value, _CONTAINERS):
        return [kind, *_entries(value)]
    if isinstance(value, partial):
        made = cast("partial[Any]", value)
        return [made.func, made.args, made.keywords]
    if isinstance(value, MethodType):
        if not is_program(getattr(getattr(value.__func__, "__code__", None), "co_filename", "<")):
            return []
        return [value.__func__, *_named(value.__self__, value.__func__)]
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, type):
        return [] if is_closed(value) else [item for _, item in held_in(value)]
    if isinstance(value, (np.ndarray, np.generic, array, bytearray)):
        size = (
            value.nbytes if isinstance(value, (np.ndarray, np.generic)) else len(memoryview(value).cast("B"))
        )
        return [kind, bits_in(value) if size <= _SHORT else id(value)]
    if kind.__module__.startswith("torch.distributions."):
        return [kind, *vars(value).values()]
    if kind.__module__.split(".")[0] in ("torch", "builtins"):
        return []
    method = getattr_static(kind, "__call__", None)
    if isinstance(method, FunctionType):
        return [method, *_named(value, method)]
    slots = [name for base in kind.__mro__ for name in _slots(base)]
    return [kind, *getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def _slots(kind: type) -> list[str]:
    """Names of what Python keeps of an object in no dictionary, of classes that a program wrote."""
    found = vars(kind).items() if not is_closed(kind) else ()
    return [name for name, item in found if isinstance(item, MemberDescriptorType)]


def _entries(value: Any) -> Iterator[object]:
    yield len(value)
    if len(value) <= _ENTRIES:
        if isinstance(value, dict):
            yield from cast("dict[object, object]", value).values()
        elif not isinstance(value, (set, frozenset)):
            yield from value


def _named(owner: object, method: Any) -> Iterator[object]:
    """The attributes of a method's owner that it names, and the methods that it calls; a model's own are all of it."""
    if isinstance(owner, nn.Module):
        yield owner
        return
    names, left, seen = set[str](), [method], set[int]()
    while left:
        code = getattr(left.pop(), "__code__", None)
        if not isinstance(code, CodeType) or id(code) in seen:
            continue
        seen.add(id(code))
        new = set(_names(code)) - names
        names |= new
        left += [found for name in new if (found := getattr(type(owner), name, None)) is not None]
    held: dict[str, object] = getattr(owner, "__dict__", {})
    yield from (held.get(name) for name in sorted(names & held.keys()))


def _of_function(function: FunctionType) -> Iterator[object]:
    code = function.__code__
    yield code
    if not is_program(code.co_filename):
        yield from wrapped_by(function)
        return
    known, names = function.__globals__, _names(code)
    for item in (known[name] for name in names if name in known):
        if isinstance(item, ModuleType):
            if not is_closed(item):
                yield from (vars(item)[name] for name in names if name in vars(item))
        elif isinstance(item, _GLOBAL) or not is_closed(item if isinstance(item, type) else type(item)):
            yield item
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            yield None
    yield from (function.__defaults__, function.__kwdefaults__, function.__dict__)


def _names(code: CodeType) -> list[str]:
    """Of a function, and of those that are written in it."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return [*code.co_names, *inner]


def _same(one: object, other: object) -> bool:
    return one is other or (
        isinstance(one, _NUMBERS) and type(one) is type(other) and (one == other or one != one)
    )
