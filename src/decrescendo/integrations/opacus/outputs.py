"""Containers of arguments, and what functions and models return: torch's trees, and a dataclass round them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from decrescendo.base import torch_private

# What is a leaf of every tree.
_LEAVES = (Tensor, int, float, str)


def tree_leaves(tree: Any) -> list[Any]:
    """As torch's, in a third of the time for tuples, lists and dictionaries: a loop asks for some forty a step."""
    found = list[Any]()
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Any]) -> None:
    kind = type(tree)
    if kind is tuple or kind is list:
        for one in tree:
            _collect(one, found)
    elif kind is dict:
        for one in tree.values():
            _collect(one, found)
    elif tree is None or isinstance(tree, _LEAVES):
        found.append(tree)
    else:
        found += torch_private.tree_leaves(tree)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """As torch's, in a third of the time."""
    kind = type(tree)
    if kind is tuple:
        return tuple([tree_map(function, one) for one in tree])
    if kind is list:
        return [tree_map(function, one) for one in tree]
    if kind is dict:
        return {name: tree_map(function, one) for name, one in tree.items()}
    if tree is None or isinstance(tree, _LEAVES):
        return function(tree)
    return torch_private.tree_map(function, tree)


def leaves(found: Any) -> list[Any]:
    """What a function returned, opened: containers, and one dataclass round them."""
    return tree_leaves(vars(found) if _is_plain_dataclass(found) else found)


def mapped(function: Callable[[Any], Any], found: Any) -> Any:
    """The same with each of its leaves replaced."""
    if not _is_plain_dataclass(found):
        return tree_map(function, found)
    copied = object.__new__(type(found))
    vars(copied).update(tree_map(function, vars(found)))
    return copied


def _is_plain_dataclass(found: Any) -> bool:
    known = isinstance(found, (dict, tuple, list))  # those of torch, and of Transformers
    return dataclasses.is_dataclass(found) and not known and hasattr(found, "__dict__")
