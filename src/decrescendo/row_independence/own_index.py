"""Finds out whether an index selects rows of each example from its own rows."""

import torch
from torch import Tensor

from decrescendo.base.storages import storage_key
from decrescendo.row_independence.labels import Call, Mixed, RowLayout, rows_of
from decrescendo.row_independence.row_layout import place_in


def own_rows(call: Call, place: RowLayout, index: Tensor, shape: tuple[int, ...]) -> RowLayout | None:
    """The dimension of the index along which every entry selects its own example, if there is one.

    ``place`` is where the examples are along the indexed dimension. Where an example has several rows there, its own
    data may say which of them, or a constant that says the same for each.
    """
    units, given = call.units(place), call.label(index)
    if index.numel() == 0 and isinstance(given, Mixed) and given.numbers is not None and len(shape) == 1:
        return given.numbers
    folded, single = place.inner != 1, is_single(place)
    rows = rows_by_index(call, index, place) if not single and len(shape) == 1 else None
    rows = rows or folded_rows(call, index, place, shape)
    if rows is not None:
        return rows
    if place.outer != 1 or (folded and place.owners is not None) or index.numel() == 0:
        return None
    if isinstance(given, Mixed) and not single:
        return None  # the index gives the right example, but not which of its rows
    index = torch.where(index < 0, index + units * place.inner, index)
    chosen = index // place.inner if place.owners is None else place.owners.example.to(index.device)[index]
    given = given.numbers if isinstance(given, Mixed) and given.numbers is not None else given
    there = rows_of(given)
    tried = list[RowLayout]() if there is None else [there.moved(there.dim + len(shape) - index.dim())]
    count, told = int(call.units(RowLayout(0))), bool(tried) and not single
    for dim, size in enumerate(() if told else shape):
        if size % count == 0:
            tried += [RowLayout(dim, size // count, 1), RowLayout(dim, 1, size // count)]
    for own in tried:
        at = own.dim - len(shape) + chosen.dim()
        # A part of an index (the first two entries of a permutation) may pass by coincidence: all must be there.
        if at < 0 or not chosen.shape[at] == shape[own.dim] == own.inner * own.outer * call.units(own):
            continue
        expected = call.examples(own, shape[own.dim], chosen).reshape(-1, *[1] * (chosen.dim() - 1 - at))
        if call.same(chosen, expected.expand_as(chosen)) and (
            single or told or call.uniform(within_own_rows(index, place), own.moved(at))
        ):
            return own
    if not single:
        return None
    whole = torch.arange(units, device=index.device)
    if len(shape) == 1 and call.same(index.flatten().sort()[0], whole):
        return call.owners(0, chosen.flatten(), counted=is_counted(place))  # all rows, in another order
    return None


def is_single(place: RowLayout) -> bool:
    """Whether each example has at most one row at a position, so that the example's number identifies the
    row."""
    if place.inner * place.outer != 1 or place.owners is None or place.owners.each:
        return place.inner * place.outer == 1
    return len(place.owners.example.unique()) == len(place.owners.example)


def within_own_rows(index: Tensor, place: RowLayout) -> Tensor:
    """The position, among its example's rows, of the row that each entry of an index selects: 0, 1, .."""
    if place.owners is None:
        return index % place.inner
    example, order = place.owners.example.sort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(example, example)
    return rank.to(index.device)[index]


def rows_by_index(call: Call, index: Tensor, place: RowLayout) -> RowLayout | None:
    """The example of each entry of an index made by `nonzero`, if each selects from its own example's rows
    along the indexed dimension, as that example's data say."""
    label = call.label(index)
    if not isinstance(label, Mixed) or label.numbers is None or label.rows is None or index.dim() != 1:
        return None
    (where, *memory), whole = label.rows, len(index) == call.units(label.numbers)
    own = [storage_key(index), (index.storage_offset(), index.stride(0))]
    if not whole or memory != own or not place.like(where):
        return None
    size = call.units(place) * place.inner * place.outer
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < size:
        return None
    theirs = call.examples(label.numbers, len(index), index)
    return label.numbers if call.same(call.examples(place, size, index)[index], theirs) else None


def folded_rows(call: Call, index: Tensor, place: RowLayout, shape: tuple[int, ...]) -> RowLayout | None:
    """The row layout of an index into flattened rows, made from the number of rows before each example's and
    that example's own data, if each entry selects from its own example."""
    label = call.label(index)
    if not isinstance(label, Mixed) or label.folded is None or place != RowLayout(place.dim, place.inner):
        return None
    times, key, span = label.folded
    if (times, key, torch.int64, shape) != (place.inner, storage_key(index), index.dtype, tuple(index.shape)):
        return None
    own = place_in(index, span)
    if own is None or not index.numel():
        return None
    expected = call.examples(own, shape[own.dim], index).reshape(-1, *[1] * (len(shape) - 1 - own.dim))
    return own if call.same(index // place.inner, expected.expand_as(index)) else None


def is_counted(place: RowLayout) -> bool:
    return place.owners is not None and place.owners.counted
