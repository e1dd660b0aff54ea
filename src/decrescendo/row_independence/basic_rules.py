"""Independence rules of basic torch operations: elementwise ones, constants, reductions along dimensions."""

from collections.abc import Collection, Sequence
from typing import cast

from torch import Tensor

from decrescendo.row_independence.labels import (
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    is_data,
    rows_of,
)
from decrescendo.row_independence.rule_signatures import Rule


def pointwise(call: Call) -> Label:
    """Every output entry depends on the entries that broadcasting puts at its position."""
    return call.joined(call.tensors, call.dims)


def fill(call: Call) -> Label:
    """A constant, whatever the arguments are; one row per example if made like such a tensor (`zeros_like`)."""
    return _made_like(call, Public.FILL)


def drawn(call: Call) -> Label:
    """Independent random numbers of one distribution, which a tensor may bound (`randint_like`)."""
    bound = call.args.get("high")
    if isinstance(bound, Tensor) and is_data(call.label(bound)):
        return call.mixed("random numbers are bounded by a number of an example's")
    like = call.args.get("self")
    own = rows_of(call.label(like)) if isinstance(like, Tensor) else None
    # Made with the row layout of an argument, or written over it: each row's numbers are its own.
    return own or _made_like(call, Public.RANDOM)


def _made_like(call: Call, label: Public) -> Label:
    like = call.args.get("self")
    own = call.label(like) if isinstance(like, Tensor) and call.name.endswith("_like") else None
    rows = isinstance(own, RowLayout) and (label is Public.FILL or own.owners is not None)
    return own if own is not None and (rows or (isinstance(own, Mixed) and own.counted)) else label


def along(*names: str) -> Rule:
    """Mixes entries along the dimensions that an argument names (all dimensions if it names none)."""

    def rule(call: Call) -> Label:
        dims = call.dims
        label = call.joined(call.tensors, dims)
        named = _dims(call, names, dims)
        return call.mixed(SUMMED) if isinstance(label, RowLayout) and label.dim in named else label

    return rule


def reduced(*names: str) -> Rule:
    """Reduces the dimensions that an argument names (all dimensions if it names none)."""

    def rule(call: Call) -> Label:
        (tensor, *_) = (t for t in call.tensors if t is not None)
        label, named = call.joined(call.tensors, tensor.dim()), _dims(call, names, tensor.dim())
        if not isinstance(label, RowLayout):
            return label
        return label if call.args.get("keepdim") and label.dim not in named else without_dims(call, label, named)

    return rule


def without_dims(call: Call, place: RowLayout, dims: Collection[int]) -> Label:
    """The label of a result that has reduced ``dims`` of an argument with the row layout ``place``."""
    moved = place.moved(place.dim - sum(dim < place.dim for dim in dims))
    return call.mixed(SUMMED) if place.dim in dims else moved


def _dims(call: Call, names: Sequence[str], dims: int) -> set[int]:
    given = next((call.args[name] for name in names if call.args.get(name) is not None), None)
    if given is None or given == []:
        return set(range(dims))
    listed = cast("list[int]", given if isinstance(given, (list, tuple)) else [given])
    return {dim % max(dims, 1) for dim in listed}


def either(first: Rule, second: Rule) -> Rule:
    """The rule of ``max`` and similar: ``first`` for two tensors, ``second`` for one along a dimension."""
    return lambda call: first(call) if "other" in call.args else second(call)
