"""Fast path: an operation with the same inputs as in an accepted pass gets the same labels; its rule does not run."""

from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.base.storages import byte_form, exactly, storage_key
from decrescendo.row_independence.dataflow import Labels
from decrescendo.row_independence.labels import Public
from decrescendo.row_independence.row_layout import Span
from decrescendo.row_independence.trace import Event, Given, ReplayedOperation

# Types of arguments that are compared by value; of all others only the type is compared.
NUMBERS = frozenset({
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip


def as_before(recipe: ReplayedOperation, labels: Labels, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Event | None:
    """The accepted pass's record of an operation with the same inputs, except for the batch size.

    A view's label is that of its memory, whatever its sizes: these may differ, and are compared with those of the
    accepted pass at the end of this one.
    """
    if tuple(kwargs) != recipe.names:
        return None
    args = (*args, *kwargs.values())
    if len(args) != len(recipe.arguments) or labels.slices:
        return None
    marks, sizes = labels.marks, cast("list[list[int]]", [])
    for value, before in zip(args, recipe.arguments, strict=True):
        if type(before) is not Given:
            if type(value) is not type(before):
                return None
            if value != before or _differ(value, before):
                if not isinstance(value, list):
                    return None
                sizes.append(cast("list[int]", value))
            continue
        if not isinstance(value, Tensor):
            return None
        key = storage_key(value)
        if key < 0:
            return None  # (a tensor without storage has the label of its parts)
        entry = marks.get(key)
        if entry is None:
            mark, birth = Public.ANY, key
            # (Another storage may have the key of one that an earlier pass used.)
            if key in labels.memory.stale or labels.memory.withholds(value):
                return None
        else:
            mark, birth = entry
        if type(mark) is Span:
            if birth != before.identity or byte_form(value) != before.dtype:
                return None
            if mark.owners is not None or mark.constant or labels.view(value, mark)[1] != before.form:
                return None
        elif (
            mark is not before.label
            or before.shape != (value.dim() if mark is Public.FILL else value.shape)
            or labels.identity_of(value, key, birth) != before.identity
        ):
            return None
    if not sizes:
        return recipe.event
    if recipe.labels != (None,) or len(recipe.event.numbers) != 1 or labels.counting:
        return None  # not a view given by sizes alone, or a size may be the number of rows the data selected
    return recipe.event._replace(numbers=(tuple(map(exactly, sizes[0])),))


def arguments_of(labels: Labels, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, ...] | None:
    """The arguments of an operation, to compare with later passes; ``None`` if they cannot be compared."""
    found: list[object] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            key = storage_key(value)
            if key < 0:
                return None
            mark, birth = labels.mark_of(key)
            if isinstance(mark, Span):
                if mark.owners is not None or mark.constant:
                    return None
                found.append(Given(birth, labels.view(value, mark)[1], byte_form(value)))
            elif isinstance(mark, Public) and not value.is_nested:
                shape = value.dim() if mark is Public.FILL else value.shape
                found.append(Given(labels.identity_of(value, key, birth), None, None, mark, shape))
            else:
                return None
        elif isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in cast("list[Any]", value)):
            return None
        elif isinstance(value, list) or type(value) in NUMBERS:
            found.append(list(cast("list[Any]", value)) if isinstance(value, list) else value)
        else:
            return None
    return tuple(found)


def _differ(value: object, before: object) -> bool:
    """Whether two numbers, or lists of them, that Python calls equal are not identical (0.0 and -0.0, 1 and
    True)."""
    if isinstance(value, list):
        return list(map(exactly, value)) != list(map(exactly, cast("list[object]", before)))
    return isinstance(value, (float, complex)) and exactly(value) != exactly(before)
