"""What functions and models return: containers of torch's trees, and a dataclass round them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from decrescendo.base.torch_private import tree_leaves, tree_map


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
