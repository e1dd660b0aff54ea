"""Whose a piece of code is: torch's, the engine's, of an installed package, or the program's."""

import contextlib
import dis
import functools
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, cast

import torch

# Folders of torch, of what checks types, and of the engine; a user's folder may be named alike.
_LIBRARIES = tuple(
    os.path.join(os.path.dirname(found.origin), "")
    for found in map(
        find_spec, ("torch", "jaxtyping", "beartype", "decrescendo.clipping", "decrescendo.row_independence")
    )
    if found is not None and found.origin is not None
)


@functools.cache
def is_library(filename: str) -> bool:
    """Whether a file of code is torch's, the engine's or of what checks types."""
    return filename.startswith(("<", *_LIBRARIES))


def is_program(filename: str) -> bool:
    """Whether a file of code is a program's; what was typed into a shell has none."""
    return filename.startswith("<") or not is_library(filename)


# Of a class, that Python code made it.
_PYTHONS = 1 << 9
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_STANDARD = os.path.join(os.path.dirname(os.__file__), "")
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_DYNAMO = os.path.join(_TORCH, "_dynamo", "")
# Where torch takes a node by itself: hooks on modules.
_HOOKING = (os.path.join(_TORCH, "utils", "hooks.py"), os.path.join(_TORCH, "nn", "modules", "module.py"))


@functools.cache
def is_own(filename: str) -> bool:
    """Whether a file of code is a program's, and neither Python's own nor of an installed package or of this one."""
    installed = (
        filename == "<builtins>" or filename.startswith((_STANDARD, _PACKAGE)) or "-packages" in filename
    )
    return is_program(filename) and not installed


def asks_for_a_hook(frame: FrameType | None) -> bool:
    """Whether torch's code for hooks on modules is what asks, and by itself (no C function that it was given to call);
    ``frame``: of the engine, where it is asked."""
    while frame is not None and not is_program(name := frame.f_code.co_filename):
        if name.startswith(_TORCH):
            return name in _HOOKING and frame.f_lasti in _loads(frame.f_code)
        frame = frame.f_back
    return False


@functools.cache
def _loads(code: CodeType) -> frozenset[int]:
    """Where a function takes a node of a tensor."""
    found = (one for one in dis.get_instructions(code) if one.opname == "LOAD_ATTR")
    return frozenset(one.offset for one in found if one.argval == "grad_fn")


def code_of(function: object) -> CodeType | None:
    """What a function runs, past the one by which torch keeps its compiler away from it."""
    while isinstance(function, FunctionType) and function.__code__.co_filename.startswith(_DYNAMO):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        function = next((cell.cell_contents for name, cell in cells if name == "fn"), None)
    return function.__code__ if isinstance(function, FunctionType) else None


def told_of(function: FunctionType) -> dict[str, object]:
    """The attributes of a function, but for those in which torch writes down that it was called."""
    return {key: item for key, item in function.__dict__.items() if not key.startswith("__dynamo")}


def wrapped_by(function: FunctionType) -> list[object]:
    """The functions that one of a library holds: those that its decorators (`torch.no_grad`, `torch.compile`) wrap."""
    held = list(told_of(function).values())
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            held.append(cell.cell_contents)
    return [item for item in held if isinstance(item, (FunctionType, MethodType))]


def is_librarys(kind: type) -> bool:
    """Whether a class is torch's own or the engine's: it is what their module has by its name."""
    return is_found(kind, is_program)


def is_found(kind: type, whose: Callable[[str], bool]) -> bool:
    """Whether a class is what its module has by its name, and this module no program's; ``whose`` says so of a file."""
    module = sys.modules.get(kind.__module__)
    found: object = module
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind and not whose(getattr(module, "__file__", None) or "<>")


def is_made_in_python(kind: type) -> bool:
    """Whether Python code made a class."""
    return bool(kind.__flags__ & _PYTHONS)


def line() -> str:
    """The innermost line of code that is neither torch's nor the engine's."""
    frame = cast("Any", sys)._getframe(1)
    while frame is not None and (
        is_library(frame.f_code.co_filename) or "__tracebackhide__" in frame.f_locals
    ):
        frame = frame.f_back
    if frame is None:
        return "the model"
    return f"{frame.f_code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.f_lineno}"
