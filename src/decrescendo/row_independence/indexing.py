"""Independence rules of indexing, gather and scatter: allowed if each index selects from its own example.

The rules compare the values of the index with the examples' numbers, since programs write such an index in many ways:
``logits[torch.arange(n), last]``, a mask, sorted rows that are put back later.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from decrescendo.base.storages import storage_key
from decrescendo.row_independence.index_places import (
    ELSEWHERE,
    ROW_NUMBERS,
    chosen_rows,
    constant,
    index_column,
    indexed_dims,
    masked_label,
    mixed_with,
    plain_label,
    row_numbers_of,
    same_layout,
    spread_indices,
)
from decrescendo.row_independence.indexed_writes import (
    index_add_rule,
    index_fill_rule,
    index_put_rule,
    scatter_rule,
)
from decrescendo.row_independence.labels import (
    LAID_ALONG,
    LONG,
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    rows_of,
)
from decrescendo.row_independence.own_index import is_counted, is_single
from decrescendo.row_independence.rule_signatures import Rule


def _index(call: Call) -> Label:
    tensor = call.args["self"]
    indices, mask = spread_indices(call, tensor)
    if mask is not None:
        start = indexed_dims(indices)
        label, selected = masked_label(call, tensor, mask, start)
        return selected or row_numbers_of(call, tensor, mask, start) or mixed_with(call, label)
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return constant(call)
    return chosen_rows(call, tensor, indices)


def _repeated(call: Call) -> Label:
    """`repeat_interleave`: each example's number, repeated as often as its own data say."""
    label, found = rows_of(call.label(call.args["repeats"])), cast("Tensor", call.outputs[0])
    if label is None or not is_single(label):
        return constant(call)
    own = call.owners(0, call.examples(label, len(call.args["repeats"]), found)[found], counted=True)
    return replace(call.mixed(ROW_NUMBERS, own), counted=True)


def _index_select(call: Call) -> Label:
    tensor = call.args["self"]
    if tensor.dim() == 0:
        return call.label(tensor)
    indices: list[Tensor | None] = [None] * tensor.dim()
    indices[call.args["dim"]] = cast("Tensor", call.args["index"]).reshape(-1)
    return chosen_rows(call, tensor, indices)


def _gather(call: Call) -> Label:
    tensor, index = call.args["self"], call.args["index"]
    dim, own, label = call.args["dim"] % max(tensor.dim(), 1), call.label(tensor), call.label(index)
    column = index_column(call, index, dim, tensor.shape) if isinstance(label, Mixed) and label.numbers else None
    if column is not None:
        return chosen_rows(call, tensor, [column])
    for found in (own, label):
        if isinstance(found, Mixed):
            return found
    places = [found for found in (own, label) if isinstance(found, RowLayout)]
    rows = [place for place in places if not place.constant] or places
    if not rows:
        return Public.ANY
    place = rows[0]
    if isinstance(own, RowLayout) and own.dim == dim:
        return call.mixed(ELSEWHERE)
    if any(other.dim != place.dim for other in places):
        return call.mixed(LONG)
    beside = [index] if place.dim == dim else [tensor, index]
    whole = index.shape[place.dim] == cast("Tensor", call.outputs[0]).shape[place.dim]
    return (
        place
        if place.constant or (whole and same_layout(call, beside, place, tensor.dim()))
        else call.mixed(LAID_ALONG)
    )


def _nonzero(call: Call) -> Label:
    """The positions of nonzero entries, one row each; each belongs to one example if the input has rows."""
    tensor = call.args["self"]
    label = call.label(tensor)
    found = cast("Tensor", call.outputs[0])
    if not isinstance(label, RowLayout) or label.constant:
        return call.mixed(SUMMED) if isinstance(label, RowLayout) else plain_label(label)
    column = found[:, label.dim]
    own = call.owners(0, call.examples(label, tensor.shape[label.dim], tensor)[column], counted=True)
    columns = [(int(found.storage_offset()) + at * found.stride(1), found.stride(0)) for at in range(tensor.dim())]
    numbers = call.mixed(ROW_NUMBERS, own)
    return replace(
        numbers,
        within=(
            storage_key(found),
            frozenset(column for at, column in enumerate(columns) if at != label.dim),
        ),
        rows=(label.moved(0), storage_key(found), columns[label.dim]),
        counted=True,
    )


def _masked_select(call: Call) -> Label:
    tensor, mask = call.args["self"], call.args["mask"]
    if tensor.shape != mask.shape:
        return constant(call)
    label, selected = masked_label(call, tensor, mask, 0)
    return selected or row_numbers_of(call, tensor, mask, 0) or plain_label(label)


def _sort(call: Call) -> Label | Sequence[Label]:
    """Sort along features; or sort the examples by a key, where the returned indices are their order."""
    label = call.joined(call.tensors, call.dims)
    if not isinstance(label, RowLayout) or label.dim != call.args.get("dim", -1) % call.dims:
        return plain_label(label) if not isinstance(label, RowLayout) else label
    values, order = cast("list[Tensor]", call.outputs)
    if label.constant:
        # Otherwise the last example may come first, and its number shows the batch size.
        places = torch.arange(order.shape[label.dim], device=order.device)
        still = call.same(order.movedim(label.dim, -1), places.expand_as(order.movedim(label.dim, -1)))
        return label if still and call.uniform(values, label) else call.mixed(SUMMED)
    if call.dims > 1 or label.inner * label.outer != 1:
        return call.mixed(SUMMED)
    own = call.owners(0, call.examples(label, len(order), order)[order], counted=is_counted(label))
    return [own, call.mixed(ROW_NUMBERS, own)]


RULES: dict[str, Rule] = {
    "index": _index, "index_put": index_put_rule, "_unsafe_index": _index, "_unsafe_index_put": index_put_rule,
    "_index_put_impl": index_put_rule, "index_select": _index_select, "gather": _gather,
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), scatter_rule),
    "index_add": index_add_rule, "index_copy": index_add_rule, "index_fill": index_fill_rule, "nonzero": _nonzero,
    "masked_select": _masked_select, "sort": _sort, "repeat_interleave": _repeated,
}  # fmt: skip
