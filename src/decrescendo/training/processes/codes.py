"""The code of a function of the user's, in a form in which several processes can compare it."""

import hashlib
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

from torch import nn


def code_of(function: object) -> str:
    """SHA-256 of what a function does, its constants and names included; not of what it closes over.

    >>> tasks = {name: eval(f"lambda model, batch: model(batch['{name}'])") for name in ("age", "income")}
    >>> code_of(tasks["age"]) == code_of(tasks["income"]), code_of(tasks["age"]) == code_of(partial(tasks["age"]))
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
    return hashlib.sha256(repr(_told(function.__code__)).encode()).hexdigest()


def _told(constant: object) -> object:
    """Without names of files and numbers of lines; sets, which each process has in an order of its own, are sorted."""
    if isinstance(constant, CodeType):
        names = constant.co_names, constant.co_varnames, constant.co_freevars
        return constant.co_code, names, [*map(_told, constant.co_consts)]
    if isinstance(constant, tuple):
        return [*map(_told, cast("tuple[object, ...]", constant))]
    if isinstance(constant, frozenset):
        return sorted(repr(_told(one)) for one in cast("frozenset[object]", constant))
    return repr(constant)
