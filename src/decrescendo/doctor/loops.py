"""What the frames of a training say of it: how many epochs its loops go through, and numbers by their names."""

import ast
import functools
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

# Names that people give to what an accountant needs. (A sigma is at times a standard deviation, at times over the clip
# norm.)
_NAMES = {
    "noise": ("noise_multiplier", "noise_mult", "dp_noise_multiplier"),
    "sigma": ("sigma", "noise_scale", "sigma_dp"),
    "clip": (
        "max_grad_norm",
        "l2_norm_clip",
        "clip",
        "clip_norm",
        "max_norm",
        "clipping_bound",
        "clip_bound",
        "c",
    ),
    "epsilon": ("epsilon", "target_epsilon", "eps"),
    "delta": ("delta", "target_delta"),
}


@functools.cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Of a name, an attribute, a key or a sum of such: nothing of the user's is called."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        held = _value(node.value, frame)
        return vars(held).get(node.attr) if isinstance(held, Namespace) or hasattr(held, "__dict__") else None
    if isinstance(node, ast.Subscript):
        held, key = _value(node.value, frame), _value(node.slice, frame)
        return held.get(key) if isinstance(held, dict) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        left, right = _value(node.left, frame), _value(node.right, frame)
        if isinstance(left, int) and isinstance(right, int):
            return left + right if isinstance(node.op, ast.Add) else left - right
    return None


def _turns(loop: ast.For, frame: FrameType) -> int | None:
    """How often a loop over a range turns: `range(..)`, or a progress bar of one."""
    call = loop.iter
    while isinstance(call, ast.Call) and not (isinstance(call.func, ast.Name) and call.func.id == "range"):
        if not call.args:
            return None
        call = call.args[0]
    if not isinstance(call, ast.Call):
        return None
    bounds = [_value(argument, frame) for argument in call.args]
    if not all(isinstance(bound, int) for bound in bounds):
        return None
    return len(range(*bounds))


def _takes_batches(loop: ast.For) -> bool:
    """Whether each turn takes a batch: `for step in range(steps): batch = next(batches)`."""
    waiting: list[ast.AST] = [*loop.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next":
            return True
        if not isinstance(node, (ast.For, ast.While, ast.FunctionDef)):
            waiting += ast.iter_child_nodes(node)
    return False


def epochs_asked(frame: FrameType | None) -> int | None:
    """The product of the ranges of all loops around the current line, or nothing if there is no such loop."""
    product, found = 1, False
    while frame is not None:
        tree = _tree(frame.f_code.co_filename)
        for node in ast.walk(tree) if tree is not None else ():
            # (A comprehension's frame lies in the loop of the frame around it.)
            inside = (
                isinstance(node, ast.For)
                and node.lineno >= frame.f_code.co_firstlineno
                and (node.body[0].lineno <= frame.f_lineno <= (node.end_lineno or 0))
            )
            if inside and not _takes_batches(node) and (turns := _turns(node, frame)) is not None:
                product, found = product * turns, True
        frame = frame.f_back
    return product if found else None


def named_numbers(frame: FrameType | None) -> dict[str, float]:
    """Noise, clip norm, epsilon and delta by the names that the innermost frames have for them."""
    found: dict[str, float] = {}
    while frame is not None:
        for scope in (frame.f_locals, frame.f_globals):
            values = list(scope.values())
            for holder in (scope, *(held for held in values if isinstance(held, (Namespace, dict)))):
                _collect(vars(holder) if isinstance(holder, Namespace) else holder, found)
            for held in values:
                if type(held).__module__ != "builtins" and isinstance(getattr(held, "__dict__", None), dict):
                    _collect(vars(held), found)
        frame = frame.f_back
    return found


def _collect(names: Mapping[Any, Any], found: dict[str, float]) -> None:
    for kind, spellings in _NAMES.items():
        for name, value in list(names.items()):
            plain = isinstance(name, str) and name.lower().replace("-", "_") in spellings
            if plain and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(kind, float(value))
