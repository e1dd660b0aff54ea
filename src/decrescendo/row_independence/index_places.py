"""Helpers of the indexing rules: which rows an index selects."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from decrescendo.base.storages import storage_key
from decrescendo.row_independence.labels import (
    APART,
    LAID_ALONG,
    LONG,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    constant_of,
    is_fixed,
    rows_of,
)
from decrescendo.row_independence.own_index import folded_rows, is_counted, is_single, own_rows, rows_by_index

ELSEWHERE = "an index chooses rows of other examples"


ROW_NUMBERS = "the numbers of examples are used as data"


def spread_indices(call: Call, tensor: Tensor) -> tuple[list[Tensor | None], Tensor | None]:
    """The index of each dimension of ``tensor``, and the mask if the index is a single boolean mask."""
    given = cast("list[Tensor | None]", list(call.args["indices"]))
    masks = [index for index in given if index is not None and index.dtype in (torch.bool, torch.uint8)]
    if masks:
        return given, masks[0] if len(masks) == 1 and sum(index is not None for index in given) == 1 else None
    return [*given, *[None] * (tensor.dim() - len(given))], None


def masked_label(call: Call, tensor: Tensor, mask: Tensor, start: int) -> tuple[Label, RowLayout | None]:
    """The label that ``tensor`` and the mask share, and the row layout of the selected entries."""
    own, chosen = call.label(tensor), call.label(mask)
    for label in (own, chosen):
        if isinstance(label, Mixed):
            return label, None
    selecting, there = rows_of(chosen), rows_of(own)
    place = None if selecting is None else selecting.moved(selecting.dim + start)
    if there is not None:
        if place is not None and not place.same(there):
            return call.mixed(APART), None
        place = there
    if place is None:
        return own, None
    at = place.dim - start
    inside = 0 <= at < mask.dim()
    for constant, label, dim in ((tensor, own, place.dim), (mask, chosen, at)):
        along = dim >= 0 and dim < constant.dim()
        if along and is_fixed(label) and not call.uniform(constant, place.moved(dim)):
            return call.mixed(LAID_ALONG), None
    if not inside:
        return place, place.moved(place.dim - (mask.dim() - 1 if at > 0 else 0))
    column = mask.nonzero()[:, at]
    examples = call.examples(place, tensor.shape[place.dim], mask)[column]
    return place, call.owners(start, examples, counted=selecting is not None)


def first_position(indices: Sequence[Tensor | None]) -> tuple[int, bool]:
    """The position of the indexed dimensions in the output, and whether they are adjacent."""
    at = [dim for dim, index in enumerate(indices) if index is not None]
    together = at == list(range(at[0], at[-1] + 1))
    return (at[0] if together else 0), together


def mixed_with(call: Call, label: Label) -> Label:
    return label if isinstance(label, Mixed) else constant(call)


def row_numbers_of(call: Call, tensor: Tensor, mask: Tensor, start: int) -> Mixed | None:
    """The label of a constant selected by a mask of examples, if its values are the examples' numbers."""
    chosen, found = rows_of(call.label(mask)), cast("Tensor", call.outputs[0])
    if not is_fixed(call.label(tensor)) or chosen is None:
        return None
    own = call.examples(chosen, mask.shape[chosen.dim], mask)[mask.nonzero()[:, chosen.dim]]
    if start or found.dim() != 1 or not call.same(found, own.to(found)):
        return None
    return replace(call.mixed(ROW_NUMBERS, call.owners(0, own, counted=True)), counted=True)


def index_column(call: Call, index: Tensor, dim: int, size: torch.Size) -> Tensor | None:
    """The index of whole rows equivalent to an index of entries that is constant along all other
    dimensions."""
    if dim or index.dim() < 2 or index.shape[1:] != size[1:] or 0 in size[1:]:
        return None
    first = index.flatten(1)[:, 0]
    return first if call.same(index, first.reshape(-1, *[1] * (index.dim() - 1)).expand_as(index)) else None


def constant(call: Call) -> Label:
    """The label of an output whose arguments are constants of any kind."""
    labels = (call.label(t) for t in call.tensors if t is not None)
    return call.mixed(ELSEWHERE) if any(isinstance(label, RowLayout | Mixed) for label in labels) else Public.ANY


def chosen_rows(call: Call, tensor: Tensor, indices: Sequence[Tensor | None]) -> Label:
    own = call.label(tensor)
    if isinstance(own, Mixed):
        return own
    given = [index for index in indices if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in given))
    start, together = first_position(indices)
    if isinstance(own, RowLayout) and indices[own.dim] is None:
        label = call.joined(given, len(shape))
        if isinstance(label, Mixed) or rows_of(label) is not None:
            return label if isinstance(label, Mixed) else call.mixed("examples meet examples")
        before = sum(index is None for index in indices[: own.dim])
        return own.moved(before + (len(shape) if not together or own.dim > start else 0))
    if isinstance(own, RowLayout) and not own.constant:
        index = cast("Tensor", indices[own.dim])
        place = own_rows(call, own, index, tuple(shape))
        others = indices_beside(indices, own.dim)
        if place is None:
            return call.mixed(ELSEWHERE)
        if not same_layout(call, others, place, len(shape)):
            return call.mixed(LAID_ALONG)
        return place.moved(place.dim + start)
    label = call.joined(given, len(shape))
    if isinstance(own, RowLayout) and not isinstance(label, Mixed):
        index = cast("Tensor", indices[own.dim])
        laid = isinstance(label, RowLayout) and label.constant
        place = own_rows(call, own, index, tuple(shape)) if laid else None
        if place is None or not place.same(label):
            return call.mixed(LONG)
    return label.moved(label.dim + start) if isinstance(label, RowLayout) else plain_label(label)


def plain_label(label: Label) -> Label:
    return label if isinstance(label, Mixed) else Public.ANY


def same_layout(call: Call, tensors: Sequence[Tensor], place: RowLayout, dims: int) -> bool:
    """Whether each of ``tensors`` has the row layout ``place``, or is the same for all examples."""
    for tensor in tensors:
        label, here = within_rows(call, tensor), place.moved(place.dim - dims + tensor.dim())
        if isinstance(label, Mixed):
            return False
        if isinstance(label, RowLayout) and (not here.same(label) if not label.constant else here.dim != label.dim):
            return False
        if is_fixed(label) and not call.uniform(tensor, here):
            return False
    return True


def indices_beside(indices: Sequence[Tensor | None], dim: int) -> list[Tensor]:
    """The indices of the dimensions other than ``dim``; one tensor may index two."""
    return [index for at, index in enumerate(indices) if index is not None and at != dim]


def within_rows(call: Call, index: Tensor) -> Label:
    """The label of an index within examples: positions from a `nonzero` list are each its own example's."""
    label = call.label(index)
    if isinstance(label, Mixed) and label.numbers is not None and label.within is not None and index.dim() == 1:
        key, columns = label.within
        if storage_key(index) == key and (index.storage_offset(), index.stride(0)) in columns:
            return label.numbers if len(index) == call.units(label.numbers) else label
    return label


def indexed_dims(indices: Sequence[Tensor | None]) -> int:
    """The dimension that the only index applies to."""
    return next(dim for dim, index in enumerate(indices) if index is not None)


def gathered_label(call: Call, column: Tensor | None = None) -> Label:
    """The label of rows summed per example (`index_add`, as over rows of packed data)."""
    tensor, index = call.args["self"], call.args["index"] if column is None else column
    source = call.args.get("source", call.args.get("src"))
    dim, label = call.args["dim"] % max(tensor.dim(), 1), None if source is None else call.label(source)
    target = RowLayout(dim)
    if source is None or not isinstance(label, RowLayout) or label.dim != dim or label.constant:
        return constant(call)
    if index.dim() == 1 and index.shape[0] != source.shape[dim]:
        return call.mixed("a part of the batch is taken")
    inner, rest = divmod(tensor.shape[dim], int(call.units(target)))
    target = RowLayout(dim, max(inner, 1))
    rows = None
    if inner and not rest:
        rows = rows_by_index(call, index, target) or folded_rows(call, index, target, tuple(index.shape))
    found = rows is not None and rows.same(label.moved(0))
    own, flat = call.examples(label, source.shape[dim], index), index.flatten()
    if (
        not found
        and is_single(label)
        and constant_of(call.label(tensor)) is Public.FILL
        and call.same(flat.sort()[0], torch.arange(tensor.shape[dim], device=flat.device).to(flat))
    ):
        return call.owners(
            dim, torch.empty_like(own).index_copy_(0, flat, own), counted=is_counted(label)
        )  # all of them, in another order
    if rest or not inner:
        return constant(call)
    within = flat - own * inner  # the position in its own example that each row is added to
    chosen = call.label(index)
    public = chosen is Public.ANY or (isinstance(chosen, RowLayout) and chosen.constant)
    alike = (
        inner == 1
        or found
        or (public and label.owners is None and call.uniform(within, label.moved(0)))
        or (chosen == label.moved(0) and index.dim() == 1)
    )
    inside = (within >= 0) & (within < inner)
    inside = call.same(inside, torch.ones_like(inside))
    apart = alike and inside and same_layout(call, [tensor], target, tensor.dim())
    return target if apart else call.mixed(ELSEWHERE)
