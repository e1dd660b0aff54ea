"""Hashes the code of a user's functions, so that processes can check that they run the same, and all that they use, so
that a comparison knows whether it was made with the same."""

import hashlib
import itertools
from collections.abc import Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from decrescendo.base.sealed import digest
from decrescendo.row_independence.tracing import numbers_of
from decrescendo.training.processes.bits import checksum

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def function_digest(function: object) -> str:
    """SHA-256 of a function's bytecode, constants and names.

    Closure values, default and ``partial`` arguments, and called functions are not hashed. For a callable
    without Python code the digest is its class name.

    >>> tasks = {name: eval(f"lambda model, batch: model(batch['{name}'])") for name in ("age", "income")}
    >>> age, income = (function_digest(task) for task in tasks.values())
    >>> age == income, age == function_digest(partial(tasks["age"]))
    (False, True)
    """
    while isinstance(function, (partial, MethodType)):
        function = cast("Any", function.func if isinstance(function, partial) else function.__func__)
    if not isinstance(function, FunctionType):
        kind: Any = type(function)
        called = kind.forward if isinstance(function, nn.Module) else kind.__call__
        if not isinstance(called, FunctionType):
            return f"{kind.__module__}.{kind.__qualname__}"
        function = called
    return hashlib.sha256(repr(_comparable(function.__code__)).encode()).hexdigest()


def program_digest(model: nn.Module, functions: Sequence[object]) -> str:
    """SHA-256 of the code of a model and of functions, and of what they use: closure and default values, arguments of
    ``partial``, attributes, functions and values of the user's modules that they name, tensors and arrays.

    Not hashed: what libraries and C objects keep, files, entries of containers of more than 1,000 that are no numbers
    or texts, and what comes after the first 20,000 objects.

    >>> times = lambda by: lambda model, batch: by * model(batch)
    >>> one, same, other = (program_digest(nn.Tanh(), [times(by)]) for by in (1.0, 1.0, 2.0))
    >>> one == same, one == other
    (True, False)
    """
    found: dict[str, str] = {}

    def told(path: str, value: object) -> None:
        if isinstance(value, _PLAIN):
            found[path] = repr(value)
        elif isinstance(value, FunctionType):
            found[path] = function_digest(value)
        elif isinstance(value, Tensor):
            found[path] = f"{value.dtype} {tuple(value.shape)} {checksum(value).hex()}"
        elif isinstance(value, np.ndarray):
            data = value.tobytes() if value.dtype.kind != "O" else b""
            found[path] = f"{value.dtype} {value.shape} {hashlib.sha256(data).hexdigest()}"
        elif isinstance(value, (list, tuple, dict)):
            items = cast("Any", value.items() if isinstance(value, dict) else value)
            flat = itertools.chain.from_iterable(items) if isinstance(value, dict) else items
            if set(map(type, flat)) <= set(_PLAIN):
                found[path] = hashlib.sha256(repr(value).encode()).hexdigest()

    numbers = numbers_of(model, tuple(functions), told=told)
    return digest({"reached": found, "numbers": {path: repr(value) for path, value in numbers.items()}})


def _comparable(constant: object) -> object:
    """A canonical form of a code constant, identical in every process: no file names, and sets sorted."""
    if isinstance(constant, CodeType):
        names = constant.co_names, constant.co_varnames, constant.co_freevars
        return constant.co_code, names, [*map(_comparable, constant.co_consts)]
    if isinstance(constant, tuple):
        return [*map(_comparable, cast("tuple[object, ...]", constant))]
    if isinstance(constant, frozenset):
        return sorted(repr(_comparable(one)) for one in cast("frozenset[object]", constant))
    return repr(constant)
