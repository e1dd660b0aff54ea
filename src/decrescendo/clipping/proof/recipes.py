"""Operations that an accepted pass had at the same place: what they were given is compared, and no rule is asked."""

from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.clipping.proof.labels import Public
from decrescendo.clipping.proof.memory import Labels
from decrescendo.clipping.proof.places import Span
from decrescendo.clipping.proof.script import Given, Recipe
from decrescendo.clipping.proof.storage import exactly, kind_of, storage_key

# Types of arguments that are compared as they are; of others the type alone.
NUMBERS = frozenset({
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip


def is_as_before(
    recipe: Recipe, labels: Labels, args: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> bool:
    """Whether an operation is given what it was given in an accepted pass, but for the number of examples."""
    if kwargs:
        if tuple(kwargs) != recipe.names:
            return False
        args = (*args, *kwargs.values())
    elif recipe.names:
        return False
    if len(args) != len(recipe.arguments) or labels.slices:
        return False
    marks = labels.marks
    for value, before in zip(args, recipe.arguments, strict=True):
        if type(before) is not Given:
            if type(value) is not type(before) or value != before or _differ(value, before):
                return False
            continue
        if not isinstance(value, Tensor):
            return False
        key = storage_key(value)
        entry = marks.get(key)
        if entry is None:
            mark, birth = Public.ANY, key
            if key in labels.memory.stale:
                return False
        else:
            mark, birth = entry
        if type(mark) is Span:
            if birth != before.wire or kind_of(value) != before.dtype:
                return False
            if mark.owners is not None or mark.constant or labels.view(value, mark)[1] != before.form:
                return False
        elif (
            mark is not before.label
            or before.shape != (value.dim() if mark is Public.FILL else value.shape)
            or labels.wire(value, key, birth) != before.wire
        ):
            return False
    return True


def arguments_of(
    labels: Labels, args: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> tuple[object, ...] | None:
    """What an operation is given, to compare with in later passes; ``None`` where that does not say enough."""
    found: list[object] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            key = storage_key(value)
            mark, birth = labels.mark_of(key)
            if isinstance(mark, Span):
                if mark.owners is not None or mark.constant:
                    return None
                found.append(Given(birth, labels.view(value, mark)[1], kind_of(value)))
            elif isinstance(mark, Public) and not value.is_nested:
                shape = value.dim() if mark is Public.FILL else value.shape
                found.append(Given(labels.wire(value, key, birth), None, None, mark, shape))
            else:
                return None
        elif isinstance(value, (list, tuple)) and any(
            isinstance(v, Tensor) for v in cast("list[Any]", value)
        ):
            return None
        elif isinstance(value, list) or type(value) in NUMBERS:
            found.append(list(cast("list[Any]", value)) if isinstance(value, list) else value)
        else:
            return None
    return tuple(found)


def _differ(value: object, before: object) -> bool:
    """Whether two numbers, or lists of them, are equal to Python and are not the same (0.0 and -0.0, 1 and True)."""
    if isinstance(value, list):
        return list(map(exactly, value)) != list(map(exactly, cast("list[object]", before)))
    return isinstance(value, (float, complex)) and exactly(value) != exactly(before)
