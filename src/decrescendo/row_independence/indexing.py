"""Independence rules of indexing, gather and scatter: allowed if each index chooses from its own example.

Whether it does is looked up in the values of the index, which an index that is a constant or an example's own may have
in many ways: ``logits[torch.arange(n), last]``, a mask, sorted rows that are put back later.

Longer than most files: every way to choose by index is decided by one question.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.row_independence.labels import (
    LAID_ALONG,
    LONG,
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    constant_of,
    is_fixed,
)
from decrescendo.row_independence.row_layout import view_of
from decrescendo.row_independence.rule_signatures import Rule

_ELSEWHERE = "an index chooses rows of other examples"
_NUMBERS = "the numbers of examples are used as data"


def _spread(call: Call, tensor: Tensor) -> tuple[list[Tensor | None], Tensor | None]:
    """The index of each dimension of ``tensor``, and the mask, if one boolean mask is all that is given."""
    given = cast("list[Tensor | None]", list(call.args["indices"]))
    masks = [index for index in given if index is not None and index.dtype in (torch.bool, torch.uint8)]
    if masks:
        return given, masks[0] if len(masks) == 1 and sum(index is not None for index in given) == 1 else None
    return [*given, *[None] * (tensor.dim() - len(given))], None


def _masked(call: Call, tensor: Tensor, mask: Tensor, start: int) -> tuple[Label, RowLayout | None]:
    """Where the examples are in ``tensor`` and the mask together, and in what the mask selects."""
    own, chosen = call.label(tensor), call.label(mask)
    for label in (own, chosen):
        if isinstance(label, Mixed):
            return label, None
    place = (
        chosen.moved(chosen.dim + start) if isinstance(chosen, RowLayout) and not chosen.constant else None
    )
    if isinstance(own, RowLayout) and not own.constant:
        if place is not None and not place.same(own):
            return call.mixed("examples that do not lie at the same places are put together"), None
        place = own
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
    counted = isinstance(chosen, RowLayout) and not chosen.constant
    return place, call.owners(
        start, call.examples(place, tensor.shape[place.dim], mask)[column], counted=counted
    )


def _position(indices: Sequence[Tensor | None]) -> tuple[int, bool]:
    """Where the dimensions of the index come in the output, and whether all indexed dimensions lie side by side."""
    at = [dim for dim, index in enumerate(indices) if index is not None]
    together = at == list(range(at[0], at[-1] + 1))
    return (at[0] if together else 0), together


def _own(call: Call, place: RowLayout, index: Tensor, shape: tuple[int, ...]) -> RowLayout | None:
    """Along which dimension of the index every entry chooses its own example, if there is one.

    ``place`` is where the examples are along the indexed dimension. Where an example has several rows there, its own
    data may say which of them, or a constant that says the same for each.
    """
    units, given = call.units(place), call.label(index)
    if index.numel() == 0 and isinstance(given, Mixed) and given.numbers is not None and len(shape) == 1:
        return given.numbers
    folded, single = place.inner != 1, _is_single(place)
    rows = _rows(call, index, place) if not single and len(shape) == 1 else None
    rows = rows or _folded(call, index, place, shape)
    if rows is not None:
        return rows
    if place.outer != 1 or (folded and place.owners is not None) or index.numel() == 0:
        return None
    if isinstance(given, Mixed) and not single:
        return None  # that they are of the right example says nothing of which of its rows they are
    index = torch.where(index < 0, index + units * place.inner, index)
    chosen = index // place.inner if place.owners is None else place.owners.example.to(index.device)[index]
    given = given.numbers if isinstance(given, Mixed) and given.numbers is not None else given
    tried = (
        [given.moved(given.dim + len(shape) - index.dim())]
        if isinstance(given, RowLayout) and not given.constant
        else []
    )
    count, told = int(call.units(RowLayout(0))), bool(tried) and not single
    for dim, size in enumerate(() if told else shape):
        if size % count == 0:
            tried += [RowLayout(dim, size // count, 1), RowLayout(dim, 1, size // count)]
    for own in tried:
        at = own.dim - len(shape) + chosen.dim()
        # A part of an index (of the order of the examples, of which two come first) may happen to choose as all would.
        if at < 0 or not chosen.shape[at] == shape[own.dim] == own.inner * own.outer * call.units(own):
            continue
        expected = call.examples(own, shape[own.dim], chosen).reshape(-1, *[1] * (chosen.dim() - 1 - at))
        if call.same(chosen, expected.expand_as(chosen)) and (
            single or told or call.uniform(_within_own(index, place), own.moved(at))
        ):
            return own
    if not single:
        return None
    whole = torch.arange(units, device=index.device)
    if len(shape) == 1 and call.same(index.flatten().sort()[0], whole):
        return call.owners(0, chosen.flatten(), counted=_is_counted(place))  # all of them, in another order
    return None


def _is_single(place: RowLayout) -> bool:
    """Whether no example has several rows at a place, so that the number of its example says which row it is."""
    if place.inner * place.outer != 1 or place.owners is None or place.owners.each:
        return place.inner * place.outer == 1
    return len(place.owners.example.unique()) == len(place.owners.example)


def _within_own(index: Tensor, place: RowLayout) -> Tensor:
    """Which of its example's rows each entry of an index chooses: the first, the second, .."""
    if place.owners is None:
        return index % place.inner
    example, order = place.owners.example.sort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(example, example)
    return rank.to(index.device)[index]


def _index(call: Call) -> Label:
    tensor = call.args["self"]
    indices, mask = _spread(call, tensor)
    if mask is not None:
        start = _indexed(indices)
        label, selected = _masked(call, tensor, mask, start)
        return selected or _numbers(call, tensor, mask, start) or _mixed(call, label)
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return constant(call)
    return _chosen(call, tensor, indices)


def _mixed(call: Call, label: Label) -> Label:
    return label if isinstance(label, Mixed) else constant(call)


def _numbers(call: Call, tensor: Tensor, mask: Tensor, start: int) -> Mixed | None:
    """Of a constant in which a mask of the examples' selects: the number of each one's example, if it is that."""
    chosen, found = call.label(mask), cast("Tensor", call.outputs[0])
    if not is_fixed(call.label(tensor)) or not isinstance(chosen, RowLayout) or chosen.constant:
        return None
    own = call.examples(chosen, mask.shape[chosen.dim], mask)[mask.nonzero()[:, chosen.dim]]
    if start or found.dim() != 1 or not call.same(found, own.to(found)):
        return None
    return replace(call.mixed(_NUMBERS, call.owners(0, own, counted=True)), counted=True)


def _repeated(call: Call) -> Label:
    """Each example's number, as often as its own data say."""
    label, found = call.label(call.args["repeats"]), cast("Tensor", call.outputs[0])
    if not isinstance(label, RowLayout) or label.constant or not _is_single(label):
        return constant(call)
    own = call.owners(0, call.examples(label, len(call.args["repeats"]), found)[found], counted=True)
    return replace(call.mixed(_NUMBERS, own), counted=True)


def _column(call: Call, index: Tensor, dim: int, size: torch.Size) -> Tensor | None:
    """The index of whole rows that one for each entry is, where it is the same along all other dimensions."""
    if dim or index.dim() < 2 or index.shape[1:] != size[1:] or 0 in size[1:]:
        return None
    first = index.flatten(1)[:, 0]
    return first if call.same(index, first.reshape(-1, *[1] * (index.dim() - 1)).expand_as(index)) else None


def constant(call: Call) -> Label:
    """Of an output about which nothing is known but that its arguments are constants."""
    labels = [call.label(t) for t in call.tensors if t is not None]
    return (
        call.mixed(_ELSEWHERE)
        if any(isinstance(label, RowLayout | Mixed) for label in labels)
        else Public.ANY
    )


def _chosen(call: Call, tensor: Tensor, indices: Sequence[Tensor | None]) -> Label:
    own = call.label(tensor)
    if isinstance(own, Mixed):
        return own
    given = [index for index in indices if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in given))
    start, together = _position(indices)
    if isinstance(own, RowLayout) and indices[own.dim] is None:
        label = call.joined(given, len(shape))
        if isinstance(label, Mixed) or (isinstance(label, RowLayout) and not label.constant):
            return label if isinstance(label, Mixed) else call.mixed("examples meet examples")
        before = sum(index is None for index in indices[: own.dim])
        return own.moved(before + (len(shape) if not together or own.dim > start else 0))
    if isinstance(own, RowLayout) and not own.constant:
        index = cast("Tensor", indices[own.dim])
        place = _own(call, own, index, tuple(shape))
        others = _beside(indices, own.dim)
        if place is None:
            return call.mixed(_ELSEWHERE)
        if not fits(call, others, place, len(shape)):
            return call.mixed(LAID_ALONG)
        return place.moved(place.dim + start)
    label = call.joined(given, len(shape))
    if isinstance(own, RowLayout) and not isinstance(label, Mixed):
        index = cast("Tensor", indices[own.dim])
        laid = isinstance(label, RowLayout) and label.constant
        place = _own(call, own, index, tuple(shape)) if laid else None
        if place is None or not place.same(label):
            return call.mixed(LONG)
    return label.moved(label.dim + start) if isinstance(label, RowLayout) else _plain(label)


def _plain(label: Label) -> Label:
    return label if isinstance(label, Mixed) else Public.ANY


def fits(call: Call, tensors: Sequence[Tensor], place: RowLayout, dims: int) -> bool:
    """Whether tensors beside one with its examples at ``place`` have them there too, or none."""
    for tensor in tensors:
        label, here = _within(call, tensor), place.moved(place.dim - dims + tensor.dim())
        if isinstance(label, Mixed):
            return False
        if isinstance(label, RowLayout) and (
            not here.same(label) if not label.constant else here.dim != label.dim
        ):
            return False
        if is_fixed(label) and not call.uniform(tensor, here):
            return False
    return True


def _beside(indices: Sequence[Tensor | None], dim: int) -> list[Tensor]:
    """The indices of the other dimensions; one tensor may be the index of two."""
    return [index for at, index in enumerate(indices) if index is not None and at != dim]


def _within(call: Call, index: Tensor) -> Label:
    """Of an index; places within examples from a list of places of what is not zero are each its own example's."""
    label = call.label(index)
    if (
        isinstance(label, Mixed)
        and label.numbers is not None
        and label.within is not None
        and index.dim() == 1
    ):
        key, columns = label.within
        if _key(index) == key and (index.storage_offset(), index.stride(0)) in columns:
            return label.numbers if len(index) == call.units(label.numbers) else label
    return label


def _rows(call: Call, index: Tensor, place: RowLayout) -> RowLayout | None:
    """Whose the entries of an index are that is a list of rows of what is not zero, of which each example has those
    that it has along the indexed dimension: each chooses from its own example, where that example's own data say."""
    label = call.label(index)
    if not isinstance(label, Mixed) or label.numbers is None or label.rows is None or index.dim() != 1:
        return None
    (where, *memory), whole = label.rows, len(index) == call.units(label.numbers)
    if (
        not whole
        or memory != [_key(index), (index.storage_offset(), index.stride(0))]
        or not place.like(where)
    ):
        return None
    size = call.units(place) * place.inner * place.outer
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < size:
        return None
    own = call.examples(label.numbers, len(index), index)
    return label.numbers if call.same(call.examples(place, size, index)[index], own) else None


def _folded(call: Call, index: Tensor, place: RowLayout, shape: tuple[int, ...]) -> RowLayout | None:
    """Where the examples are in an index of folded rows that was made of the number of rows before each example's, and
    of its own data alone, if each chooses from its own."""
    label = call.label(index)
    if not isinstance(label, Mixed) or label.folded is None or place != RowLayout(place.dim, place.inner):
        return None
    times, key, span = label.folded
    if (times, key, torch.int64, shape) != (place.inner, _key(index), index.dtype, tuple(index.shape)):
        return None
    width = index.element_size()
    view = view_of(index.shape, index.stride(), index.storage_offset() * width, width, span[:3])
    own = view.place
    if own is None or not index.numel():
        return None
    expected = call.examples(own, shape[own.dim], index).reshape(-1, *[1] * (len(shape) - 1 - own.dim))
    return own if call.same(index // place.inner, expected.expand_as(index)) else None


def _is_counted(place: RowLayout) -> bool:
    return place.owners is not None and place.owners.counted


def _key(tensor: Tensor) -> int:
    return cast("int", cast("Any", tensor.untyped_storage())._cdata)


def _index_put(call: Call) -> Label:
    tensor, values = call.args["self"], cast("Tensor", call.args["values"])
    indices, mask = _spread(call, tensor)
    written = call.label(values)
    if isinstance(written, Mixed):
        return written
    if mask is not None:
        return _put_by_mask(call, mask, _indexed(indices), written)
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return constant(call)
    own = call.label(tensor)
    if isinstance(own, Mixed):
        return own
    given = [index for index in indices if index is not None]
    shape = tuple(torch.broadcast_shapes(*(index.shape for index in given)))
    dims, free = len(shape) + sum(index is None for index in indices), _places_of_others(indices, len(shape))
    place = own if isinstance(own, RowLayout) and not own.constant else None
    if place is None and isinstance(written, RowLayout) and not written.constant:
        at = written.dim + dims - values.dim()
        if at in free:
            place = written.moved(free[at])
    if place is not None and indices[place.dim] is None:
        at = next(key for key, dim in free.items() if dim == place.dim)
        constants = all(not isinstance(call.label(index), RowLayout | Mixed) for index in given)
        apart = (
            constants
            and fits(call, [values], place.moved(at), dims)
            and fits(call, [tensor], place, tensor.dim())
        )
        return place if apart else call.mixed(_ELSEWHERE)
    found = _put_by_rows(call, indices, place, shape, dims) or _put_in_order(
        call, indices, own, written, shape
    )
    return constant(call) if found is None else found


def _put_by_mask(call: Call, mask: Tensor, start: int, written: Public | RowLayout) -> Label:
    """Values written where a mask says."""
    tensor, values = call.args["self"], cast("Tensor", call.args["values"])
    label, selected = _masked(call, tensor, mask, start)
    if selected is None:
        return _written_by_constant(call, mask, start, written) if isinstance(written, RowLayout) else label
    single = values.numel() == 1 and not isinstance(written, RowLayout)
    fitting = single or fits(call, [values], selected, tensor.dim() - mask.dim() + 1)
    return label if fitting else call.mixed(_ELSEWHERE)


def _places_of_others(indices: Sequence[Tensor | None], dims: int) -> dict[int, int]:
    """By dimension of the values, the dimension of the tensor that is not indexed. The values have the ``dims`` of the
    index at `_position`, and those of the tensor round them."""
    start, together = _position(indices)
    others = [dim for dim, index in enumerate(indices) if index is None]
    given = len(indices) - len(others)
    if together:
        return {dim if dim < start else dim - given + dims: dim for dim in others}
    return {at + dims: dim for at, dim in enumerate(others)}


def _put_by_rows(
    call: Call, indices: Sequence[Tensor | None], place: RowLayout | None, shape: tuple[int, ...], dims: int
) -> RowLayout | None:
    """Values written by an index that has each example's own places along the examples."""
    tensor, values = call.args["self"], cast("Tensor", call.args["values"])
    start = _position(indices)[0]
    for dim, index in enumerate(indices):
        if index is None or (place is not None and dim != place.dim):
            continue
        inner = max(tensor.shape[dim] // int(call.units(RowLayout(dim))), 1)
        target = place if place is not None else RowLayout(dim, inner)
        if tensor.shape[dim] != call.units(target) * target.inner:
            continue
        found = _own(call, target, index, shape)
        if found is not None and fits(call, _beside(indices, dim), found, len(shape)):
            there = found.moved(found.dim + start)
            if fits(call, [values], there, dims) and fits(call, [tensor], target, tensor.dim()):
                return target
    return None


def _put_in_order(
    call: Call, indices: Sequence[Tensor | None], own: Public | RowLayout, written: Public | RowLayout,
    shape: tuple[int, ...],
) -> Label | None:  # fmt: skip
    """Rows of the examples written over one number, each at a place of its own: they come in another order."""
    given = [index for index in indices if index is not None]
    if len(given) != 1 or constant_of(own) is not Public.FILL or len(shape) != 1:
        return None
    if not isinstance(written, RowLayout) or not _is_single(written) or written.dim != _position(indices)[0]:
        return None
    index, size = given[0], call.args["self"].shape[_indexed(indices)]
    if not call.same(index.sort()[0], torch.arange(size, device=index.device)):
        return None
    own_of = call.examples(written, len(index), index)
    order = torch.empty_like(own_of).index_copy_(0, index, own_of)
    return call.owners(_indexed(indices), order, counted=_is_counted(written))


def _written_by_constant(call: Call, mask: Tensor, start: int, written: RowLayout) -> Label:
    """Examples' rows written over one number, where a constant mask says, which chooses the same of each example."""
    tensor, values = call.args["self"], cast("Tensor", call.args["values"])
    if (
        constant_of(call.label(tensor)) is not Public.FILL
        or written.constant
        or isinstance(call.label(mask), Mixed)
    ):
        return call.mixed(_ELSEWHERE)
    chosen, dims = mask.nonzero(), tensor.dim() - mask.dim() + 1
    for at in range(mask.dim()):
        size = mask.shape[at]
        inner, rest = divmod(size, call.units(RowLayout(at)))
        target = RowLayout(at, inner)
        if inner and not rest and call.uniform(mask, target):
            owned = call.owners(start, call.examples(target, size, mask)[chosen[:, at]])
            if (
                values.dim() == dims
                and values.shape[start] == len(chosen)
                and fits(call, [values], owned, dims)
            ):
                return target.moved(at + start)
    return call.mixed(_ELSEWHERE)


def _indexed(indices: Sequence[Tensor | None]) -> int:
    """The dimension that the one index is of."""
    return next(dim for dim, index in enumerate(indices) if index is not None)


def _index_select(call: Call) -> Label:
    tensor = call.args["self"]
    if tensor.dim() == 0:
        return call.label(tensor)
    indices: list[Tensor | None] = [None] * tensor.dim()
    indices[call.args["dim"]] = cast("Tensor", call.args["index"]).reshape(-1)
    return _chosen(call, tensor, indices)


def _gather(call: Call) -> Label:
    tensor, index = call.args["self"], call.args["index"]
    dim, own, label = call.args["dim"] % max(tensor.dim(), 1), call.label(tensor), call.label(index)
    column = _column(call, index, dim, tensor.shape) if isinstance(label, Mixed) and label.numbers else None
    if column is not None:
        return _chosen(call, tensor, [column])
    for found in (own, label):
        if isinstance(found, Mixed):
            return found
    places = [found for found in (own, label) if isinstance(found, RowLayout)]
    rows = [place for place in places if not place.constant] or places
    if not rows:
        return Public.ANY
    place = rows[0]
    if isinstance(own, RowLayout) and own.dim == dim:
        return call.mixed(_ELSEWHERE)
    if any(other.dim != place.dim for other in places):
        return call.mixed(LONG)
    beside = [index] if place.dim == dim else [tensor, index]
    whole = index.shape[place.dim] == cast("Tensor", call.outputs[0]).shape[place.dim]
    return (
        place
        if place.constant or (whole and fits(call, beside, place, tensor.dim()))
        else call.mixed(LAID_ALONG)
    )


def _scatter(call: Call) -> Label:
    tensors = [t for t in call.tensors if t is not None]
    dim = call.args["dim"] % max(tensors[0].dim(), 1)
    numbers, source = call.label(call.args["index"]), call.args.get("src")
    if isinstance(numbers, Mixed) and numbers.numbers and isinstance(source, Tensor):
        column = _column(call, call.args["index"], dim, source.shape)
        if column is not None and source.shape[1:] == tensors[0].shape[1:] and len(column) == len(source):
            return _gathered(call, column)
    label = call.joined(tensors, tensors[0].dim())
    if isinstance(label, RowLayout) and label.dim != dim:
        # An index of fewer rows is not spread over all: it says of the first ones where to write.
        every = all(t.dim() == 0 or t.shape[label.dim] == tensors[0].shape[label.dim] for t in tensors)
        return label if every else call.mixed(_ELSEWHERE)
    if tensors[0].dim() == 1 and len(tensors) == 3 and call.args["index"].dim() == 1:
        return _gathered(call)
    return call.mixed(_ELSEWHERE) if isinstance(label, RowLayout) else _plain(label)


def _index_add(call: Call) -> Label:
    tensor, source, index = call.args["self"], call.args["source"], call.args["index"]
    dim = call.args["dim"] % max(tensor.dim(), 1)
    label = (
        call.joined([tensor, source], tensor.dim())
        if call.label(source) is not Public.ANY
        else call.label(tensor)
    )
    if isinstance(label, RowLayout) and label.dim != dim:
        if call.label(source) is Public.ANY and source.dim() and not call.uniform(source, label):
            return call.mixed(LAID_ALONG)
        return label if not isinstance(call.label(index), RowLayout | Mixed) else call.mixed(_ELSEWHERE)
    return _gathered(call)


def _gathered(call: Call, column: Tensor | None = None) -> Label:
    """Rows added to the example that they belong to, as sums over the rows of packed data are."""
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
        rows = _rows(call, index, target) or _folded(call, index, target, tuple(index.shape))
    found = rows is not None and rows.same(label.moved(0))
    own, flat = call.examples(label, source.shape[dim], index), index.flatten()
    if (
        not found
        and _is_single(label)
        and constant_of(call.label(tensor)) is Public.FILL
        and call.same(flat.sort()[0], torch.arange(tensor.shape[dim], device=flat.device).to(flat))
    ):
        return call.owners(
            dim, torch.empty_like(own).index_copy_(0, flat, own), counted=_is_counted(label)
        )  # all of them, in another order
    if rest or not inner:
        return constant(call)
    within = flat - own * inner  # where in its own example each is added
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
    apart = alike and inside and fits(call, [tensor], target, tensor.dim())
    return target if apart else call.mixed(_ELSEWHERE)


def _index_fill(call: Call) -> Label:
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
    own = (
        RowLayout(dim, max(tensor.shape[dim] // int(call.units(RowLayout(dim))), 1)) if tensor.dim() else None
    )
    filled = constant_of(label) is Public.FILL or label == own
    if own is not None and filled and _rows(call, call.args["index"], own) is not None:
        return own
    if isinstance(index, RowLayout | Mixed) or (
        isinstance(label, RowLayout) and label.dim == dim % tensor.dim()
    ):
        return call.mixed(_ELSEWHERE)
    return _plain(label) if not isinstance(label, RowLayout) else label


def _nonzero(call: Call) -> Label:
    """The places of what is not zero, a row each: of one example, if it is along the rows that examples lie."""
    tensor = call.args["self"]
    label = call.label(tensor)
    found = cast("Tensor", call.outputs[0])
    if not isinstance(label, RowLayout) or label.constant:
        return call.mixed(SUMMED) if isinstance(label, RowLayout) else _plain(label)
    column = found[:, label.dim]
    own = call.owners(0, call.examples(label, tensor.shape[label.dim], tensor)[column], counted=True)
    columns = [
        (int(found.storage_offset()) + at * found.stride(1), found.stride(0)) for at in range(tensor.dim())
    ]
    numbers = call.mixed(_NUMBERS, own)
    return replace(
        numbers,
        within=(_key(found), frozenset(column for at, column in enumerate(columns) if at != label.dim)),
        rows=(label.moved(0), _key(found), columns[label.dim]),
        counted=True,
    )


def _masked_select(call: Call) -> Label:
    tensor, mask = call.args["self"], call.args["mask"]
    if tensor.shape != mask.shape:
        return constant(call)
    label, selected = _masked(call, tensor, mask, 0)
    return selected or _numbers(call, tensor, mask, 0) or _plain(label)


def _sort(call: Call) -> Label | Sequence[Label]:
    """Along the features; or the examples themselves, which stay whole: their order is known."""
    label = call.joined(call.tensors, call.dims)
    if not isinstance(label, RowLayout) or label.dim != call.args.get("dim", -1) % call.dims:
        return _plain(label) if not isinstance(label, RowLayout) else label
    values, order = cast("list[Tensor]", call.outputs)
    if label.constant:
        # Of others the last one may come first, which says how many there are.
        places = torch.arange(order.shape[label.dim], device=order.device)
        still = call.same(order.movedim(label.dim, -1), places.expand_as(order.movedim(label.dim, -1)))
        return label if still and call.uniform(values, label) else call.mixed(SUMMED)
    if call.dims > 1 or label.inner * label.outer != 1:
        return call.mixed(SUMMED)
    own = call.owners(0, call.examples(label, len(order), order)[order], counted=_is_counted(label))
    return [own, call.mixed(_NUMBERS, own)]


RULES: dict[str, Rule] = {
    "index": _index, "index_put": _index_put, "_unsafe_index": _index, "_unsafe_index_put": _index_put,
    "_index_put_impl": _index_put, "index_select": _index_select, "gather": _gather,
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _scatter),
    "index_add": _index_add, "index_copy": _index_add, "index_fill": _index_fill, "nonzero": _nonzero,
    "masked_select": _masked_select, "sort": _sort, "repeat_interleave": _repeated,
}  # fmt: skip
