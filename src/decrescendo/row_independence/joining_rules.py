"""Independence rules of operations that concatenate, stack, repeat or pad tensors."""

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor

from decrescendo.row_independence.labels import (
    APART,
    LAID_ALONG,
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    is_fixed,
)
from decrescendo.row_independence.layer_rules import holds_rows
from decrescendo.row_independence.rule_signatures import Rule, signature


def diag_embed(call: Call) -> Label:
    label, dims = call.label(call.args["self"]), call.dims
    last = {call.args["dim1"] % dims, call.args["dim2"] % dims} == {dims - 1, dims - 2}
    if not isinstance(label, RowLayout):
        return _widened(label)
    return label if last and label.dim < dims - 2 else call.mixed(SUMMED)


def concatenated(call: Call) -> Label:
    tensors = [t for t in cast("list[Tensor]", call.args["tensors"]) if t.numel()]
    dims = call.dims
    labels = [call.label(t) for t in tensors]
    at = call.args.get("dim", 0) % dims
    if call.name == "stack":
        label = call.joined(tensors, dims - 1)
        return label.moved(label.dim + (label.dim >= at)) if isinstance(label, RowLayout) else label
    there = [label for label in labels if isinstance(label, RowLayout) and label.dim == at]
    if not there:
        if any(isinstance(label, Mixed) for label in labels):
            return next(label for label in labels if isinstance(label, Mixed))
        return _side_by_side(call, tensors, labels)
    first = there[0]
    same = all(label.inner == first.inner and label.owners is first.owners for label in there)
    if len(there) < len(labels) or not same or first.owners is not None or any(x.constant for x in there):
        return call.mixed("rows are added to the batch")
    return RowLayout(at, first.inner, sum(label.outer for label in there))


def _side_by_side(call: Call, tensors: Sequence[Tensor], labels: Sequence[Label]) -> Label:
    places = [label for label in labels if isinstance(label, RowLayout)]
    rows = [place for place in places if not place.constant] or places
    if not rows:
        kinds = set(labels)
        return Public.RANDOM if kinds == {Public.RANDOM} else Public.ANY
    if not all(map(rows[0].same, rows)):
        return call.mixed(APART)
    if rows[0].constant:
        return rows[0]
    uniform = all(call.uniform(t, rows[0]) for t, label in zip(tensors, labels, strict=True) if is_fixed(label))
    return rows[0] if uniform else call.mixed(LAID_ALONG)


def repeated(call: Call) -> Label:
    label = call.label(call.args["self"])
    if not isinstance(label, RowLayout):
        return label
    repeats = cast("list[int]", call.args["repeats"])
    dim = label.dim + len(repeats) - call.args["self"].dim()
    return label._replace(dim=dim, outer=label.outer * repeats[dim])


def padded(call: Call) -> Label:
    label, dims = call.label(call.args["self"]), call.dims
    pads = cast("list[int]", call.args["pad"])
    widened = {dims - 1 - at // 2 for at, width in enumerate(pads) if width}
    return call.mixed("rows are added to the batch") if isinstance(label, RowLayout) and label.dim in widened else label


def set_back(view: Callable[..., Tensor]) -> Rule:
    """The gradient of a view, written into zeros: its rows are where the view has them."""

    def rule(call: Call) -> Label:
        given, whole = cast("Tensor", call.tensors[0]), cast("Tensor", call.outputs[0])
        label = call.label(given)
        if not isinstance(label, RowLayout):
            return _widened(label)
        numbers = [value for value in call.args.values() if isinstance(value, int)]
        shown = view(whole, *numbers)
        if shown.shape != given.shape:
            return call.mixed("a gradient is spread over several places")
        period = label.inner * call.units(label)
        if call.name == "slice_backward" and numbers[0] % whole.dim() == label.dim and numbers[3] == 1:
            rounds, rest = divmod(whole.shape[label.dim], period)  # rounds over all examples
            start = numbers[1] % whole.shape[label.dim] if numbers[1] < whole.shape[label.dim] else 0
            if not rest and start % period == 0:
                return label._replace(outer=rounds)
        seen = shown.shape[label.dim], shown.stride(label.dim)
        there = (label.moved(d) for d in range(whole.dim()) if seen == (whole.shape[d], whole.stride(d)))
        return next(there, call.mixed("a part of the batch is taken"))

    return rule


def _widened(label: Label) -> Label:
    """The label of values written into zeros: they are no longer the same everywhere."""
    return Public.ANY if isinstance(label, Public) else label


def isin(call: Call) -> Label | Sequence[Label]:
    """Each id is looked up independently; but with ``assume_unique`` all ids are sorted together."""
    if call.args.get("assume_unique") and holds_rows(call):
        return call.mixed("ids that are said to be unique are compared with those of other examples")
    return signature(".,A->.")(call)


def searched(call: Call) -> Label | Sequence[Label]:
    first = call.args["sorted_sequence"]
    return signature("A,.->." if first.dim() == 1 else ".A,.B->.B")(call)
