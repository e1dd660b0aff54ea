"""Hashes the code of a user's function (the loss, say), so that processes can check that they run the same
one."""

import hashlib
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

from torch import nn


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
