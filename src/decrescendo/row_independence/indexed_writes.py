"""Independence rules of operations that write to rows by index or mask."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from decrescendo.row_independence.index_places import (
    ELSEWHERE,
    constant,
    first_position,
    gathered_label,
    index_column,
    indexed_dims,
    indices_beside,
    masked_label,
    plain_label,
    same_layout,
    spread_indices,
)
from decrescendo.row_independence.labels import (
    LAID_ALONG,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    constant_of,
    rows_of,
)
from decrescendo.row_independence.own_index import is_counted, is_single, own_rows, rows_by_index


def index_put_rule(call: Call) -> Label:
    tensor, values = call.args["self"], cast("Tensor", call.args["values"])
    indices, mask = spread_indices(call, tensor)
    written = call.label(values)
    if isinstance(written, Mixed):
        return written
    if mask is not None:
        return _put_by_mask(call, mask, indexed_dims(indices), written)
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return constant(call)
    own = call.label(tensor)
    if isinstance(own, Mixed):
        return own
    given = [index for index in indices if index is not None]
    shape = tuple(torch.broadcast_shapes(*(index.shape for index in given)))
    dims, free = len(shape) + sum(index is None for index in indices), _places_of_others(indices, len(shape))
    place, given_rows = rows_of(own), rows_of(written)
    if place is None and given_rows is not None:
        at = given_rows.dim + dims - values.dim()
        if at in free:
            place = given_rows.moved(free[at])
    if place is not None and indices[place.dim] is None:
        at = next(key for key, dim in free.items() if dim == place.dim)
        constants = all(not isinstance(call.label(index), RowLayout | Mixed) for index in given)
        fitting = constants and same_layout(call, [values], place.moved(at), dims)
        return place if fitting and same_layout(call, [tensor], place, tensor.dim()) else call.mixed(ELSEWHERE)
    found = _put_by_rows(call, indices, place, shape, dims)
    found = found or _put_in_order(call, indices, own, written, shape)
    return constant(call) if found is None else found


def _put_by_mask(call: Call, mask: Tensor, start: int, written: Public | RowLayout) -> Label:
    """The label after values were written to the entries that a mask selects."""
    tensor, values = call.args["self"], cast("Tensor", call.args["values"])
    label, selected = masked_label(call, tensor, mask, start)
    if selected is None:
        return _written_by_constant(call, mask, start, written) if isinstance(written, RowLayout) else label
    single = values.numel() == 1 and not isinstance(written, RowLayout)
    fitting = single or same_layout(call, [values], selected, tensor.dim() - mask.dim() + 1)
    return label if fitting else call.mixed(ELSEWHERE)


def _places_of_others(indices: Sequence[Tensor | None], dims: int) -> dict[int, int]:
    """The tensor's non-indexed dimensions, by the dimension of the values: these have the ``dims`` of the index
    at `first_position`, surrounded by those of the tensor."""
    start, together = first_position(indices)
    others = [dim for dim, index in enumerate(indices) if index is None]
    given = len(indices) - len(others)
    if together:
        return {dim if dim < start else dim - given + dims: dim for dim in others}
    return {at + dims: dim for at, dim in enumerate(others)}


def _put_by_rows(
    call: Call, indices: Sequence[Tensor | None], place: RowLayout | None, shape: tuple[int, ...], dims: int
) -> RowLayout | None:
    """The row layout after values were written by an index whose entries select rows of their own example."""
    tensor, values = call.args["self"], cast("Tensor", call.args["values"])
    start = first_position(indices)[0]
    for dim, index in enumerate(indices):
        if index is None or (place is not None and dim != place.dim):
            continue
        inner = max(tensor.shape[dim] // int(call.units(RowLayout(dim))), 1)
        target = place if place is not None else RowLayout(dim, inner)
        if tensor.shape[dim] != call.units(target) * target.inner:
            continue
        found = own_rows(call, target, index, shape)
        if found is not None and same_layout(call, indices_beside(indices, dim), found, len(shape)):
            there = found.moved(found.dim + start)
            if same_layout(call, [values], there, dims) and same_layout(call, [tensor], target, tensor.dim()):
                return target
    return None


def _put_in_order(
    call: Call, indices: Sequence[Tensor | None], own: Public | RowLayout, written: Public | RowLayout,
    shape: tuple[int, ...],
) -> Label | None:  # fmt: skip
    """The label after each example's rows were written over a constant, at distinct positions (a reordering)."""
    given = [index for index in indices if index is not None]
    if len(given) != 1 or constant_of(own) is not Public.FILL or len(shape) != 1:
        return None
    start = first_position(indices)[0]
    if not isinstance(written, RowLayout) or not is_single(written) or written.dim != start:
        return None
    index, size = given[0], call.args["self"].shape[indexed_dims(indices)]
    if not call.same(index.sort()[0], torch.arange(size, device=index.device)):
        return None
    own_of = call.examples(written, len(index), index)
    order = torch.empty_like(own_of).index_copy_(0, index, own_of)
    return call.owners(indexed_dims(indices), order, counted=is_counted(written))


def _written_by_constant(call: Call, mask: Tensor, start: int, written: RowLayout) -> Label:
    """The label after the examples' rows were written over a constant at the entries of a constant mask that is
    the same for each example."""
    tensor, values = call.args["self"], cast("Tensor", call.args["values"])
    filled = constant_of(call.label(tensor)) is Public.FILL
    if not filled or written.constant or isinstance(call.label(mask), Mixed):
        return call.mixed(ELSEWHERE)
    chosen, dims = mask.nonzero(), tensor.dim() - mask.dim() + 1
    for at in range(mask.dim()):
        size = mask.shape[at]
        inner, rest = divmod(size, call.units(RowLayout(at)))
        target = RowLayout(at, inner)
        if inner and not rest and call.uniform(mask, target):
            owned = call.owners(start, call.examples(target, size, mask)[chosen[:, at]])
            whole = values.dim() == dims and values.shape[start] == len(chosen)
            if whole and same_layout(call, [values], owned, dims):
                return target.moved(at + start)
    return call.mixed(ELSEWHERE)


def scatter_rule(call: Call) -> Label:
    tensors = [t for t in call.tensors if t is not None]
    dim = call.args["dim"] % max(tensors[0].dim(), 1)
    numbers, source = call.label(call.args["index"]), call.args.get("src")
    if isinstance(numbers, Mixed) and numbers.numbers and isinstance(source, Tensor):
        column = index_column(call, call.args["index"], dim, source.shape)
        if column is not None and source.shape[1:] == tensors[0].shape[1:] and len(column) == len(source):
            return gathered_label(call, column)
    label = call.joined(tensors, tensors[0].dim())
    if isinstance(label, RowLayout) and label.dim != dim:
        # An index with fewer rows than the tensor is not broadcast: it applies to the first rows only.
        every = all(t.dim() == 0 or t.shape[label.dim] == tensors[0].shape[label.dim] for t in tensors)
        return label if every else call.mixed(ELSEWHERE)
    if tensors[0].dim() == 1 and len(tensors) == 3 and call.args["index"].dim() == 1:
        return gathered_label(call)
    return call.mixed(ELSEWHERE) if isinstance(label, RowLayout) else plain_label(label)


def index_add_rule(call: Call) -> Label:
    tensor, source, index = call.args["self"], call.args["source"], call.args["index"]
    dim = call.args["dim"] % max(tensor.dim(), 1)
    fixed = call.label(source) is Public.ANY
    label = call.label(tensor) if fixed else call.joined([tensor, source], tensor.dim())
    if isinstance(label, RowLayout) and label.dim != dim:
        if fixed and source.dim() and not call.uniform(source, label):
            return call.mixed(LAID_ALONG)
        return label if not isinstance(call.label(index), RowLayout | Mixed) else call.mixed(ELSEWHERE)
    return gathered_label(call)


def index_fill_rule(call: Call) -> Label:
    tensor, dim = call.args["self"], call.args["dim"] % max(call.args["self"].dim(), 1)
    label = call.joined([t for t in (tensor, call.args["value"]) if isinstance(t, Tensor)], tensor.dim())
    index = call.label(call.args["index"])
    numbers = index.numbers if isinstance(index, Mixed) else None
    if numbers is not None and (constant_of(label) is Public.FILL or label == RowLayout(dim)):
        size = call.args["index"].numel()
        own, every = call.examples(numbers, size, call.args["index"]), size == call.units(numbers)
        filled = every and tensor.shape[dim] == call.units(RowLayout(dim))
        if filled and call.same(call.args["index"].flatten(), own):
            return RowLayout(dim)
    own = RowLayout(dim, max(tensor.shape[dim] // int(call.units(RowLayout(dim))), 1)) if tensor.dim() else None
    filled = constant_of(label) is Public.FILL or label == own
    if own is not None and filled and rows_by_index(call, call.args["index"], own) is not None:
        return own
    if isinstance(index, RowLayout | Mixed) or (isinstance(label, RowLayout) and label.dim == dim):
        return call.mixed(ELSEWHERE)
    return plain_label(label) if not isinstance(label, RowLayout) else label
