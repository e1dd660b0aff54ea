"""Independence rules of packed sequences and `EmbeddingBag`, where one dimension holds several rows of each example."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from decrescendo.row_independence.index_places import constant, same_layout
from decrescendo.row_independence.labels import (
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    constant_of,
    is_data,
)
from decrescendo.row_independence.rule_signatures import Rule


def _pack(call: Call) -> Sequence[Label]:
    """Packs the rows of padded sequences: step by step, and within a step in the order of the batch."""
    sequences = 0 if call.args["batch_first"] else 1
    label, lengths = call.label(call.args["input"]), call.label(call.args["lengths"])
    sizes = cast("Tensor", call.outputs[1])
    kept = call.mixed("the numbers of sequences at each step are those of the whole batch")
    if not isinstance(label, RowLayout):
        return [
            label if isinstance(label, Mixed) else call.mixed(SUMMED) if is_data(lengths) else Public.ANY,
            kept,
        ]
    if label.dim != sequences or not same_layout(call, [call.args["lengths"]], label.moved(0), 1):
        return [call.mixed("the lengths are not those of the sequences"), kept]
    ranks = call.examples(label, call.args["input"].shape[sequences], sizes)
    example = torch.cat([ranks[:size] for size in sizes.tolist()])
    return [call.owners(0, example, counted=is_data(lengths)), kept]


def _embedding_bag(call: Call) -> Sequence[Label]:
    """Bags of ids: each bag belongs to one example, bags are in the order of the examples, and none is left
    out. An id's bag follows from its position."""
    own = _bags(call)
    return [own, call.mixed("which bag an id is in follows from its place in the batch"), own, own]


def _bags(call: Call) -> Label:
    indices, offsets, weights = (
        call.args["indices"],
        call.args["offsets"],
        call.args.get("per_sample_weights"),
    )
    label = call.joined([t for t in (indices, weights) if t is not None], indices.dim())
    if not len(indices) and not isinstance(call.label(call.args["weight"]), RowLayout | Mixed):
        count = len(offsets) - bool(call.args.get("include_last_offset"))
        width, rest = divmod(count, int(call.units(RowLayout(0))))
        return constant(call) if rest or not width else RowLayout(0, width)  # nothing but empty bags: zeros
    if not isinstance(label, RowLayout) or isinstance(call.label(call.args["weight"]), RowLayout | Mixed):
        return constant(call)
    closed = bool(call.args.get("include_last_offset"))
    starts, bags = (offsets[:-1], len(offsets) - 1) if closed else (offsets, len(offsets))
    width, rest = divmod(bags, int(call.units(RowLayout(0))))
    if width > 1 and not rest:  # several bags per example: their cuts must be the same in all examples
        cuts = starts.diff(append=starts.new_tensor([len(indices)])).reshape(-1, width)
        if not call.same(cuts, cuts[:1].expand_as(cuts)) or is_data(call.label(offsets)):
            return call.mixed("an example's ids are put into bags by its place, or by other examples")
    whole = bags > 0 and call.same(starts[:1], torch.zeros_like(starts[:1]))
    whole = whole and (not closed or call.same(offsets[-1:], torch.full_like(offsets[-1:], len(indices))))
    bag = _bag_of(starts, len(indices))
    own = RowLayout(0, max(width, 1))
    apart = (
        not rest
        and whole
        and call.same(call.examples(label, len(indices), offsets), call.examples(own, bags, offsets)[bag])
    )
    return own if apart else call.mixed("a bag has ids of several examples, or not all of its own")


def _bag_of(starts: Tensor, ids: int) -> Tensor:
    """The bag number of each id."""
    return torch.searchsorted(starts.contiguous(), torch.arange(ids, device=starts.device), right=True) - 1


def _bag_weights(call: Call) -> Label:
    """Gradients of the weights in bags: allowed if the bags follow the offsets, and these keep examples
    independent."""
    gradient, indices, offsets = call.args["grad"], call.args["indices"], call.args["offsets"]
    label, own, bag = call.label(gradient), call.label(indices), call.args["offset2bag"]
    if isinstance(label, Mixed) or isinstance(call.label(call.args["weight"]), RowLayout | Mixed):
        return label if isinstance(label, Mixed) else call.mixed(SUMMED)
    if not isinstance(own, RowLayout):
        return constant(call)
    starts = offsets[: gradient.shape[0]]
    found = _bag_of(starts, len(indices))
    width, rest = divmod(gradient.shape[0], int(call.units(RowLayout(0))))
    bags = RowLayout(0, max(width, 1))
    apart = (
        not rest
        and (not bag.numel() or call.same(bag, found.to(bag)))
        and call.same(call.examples(own, len(indices), offsets), call.examples(bags, gradient.shape[0], offsets)[found])
    )
    fine = constant_of(label) is Public.FILL or (isinstance(label, RowLayout) and label.dim == 0)
    return own if apart and fine else call.mixed(SUMMED)


RULES: dict[str, Rule] = {
    "_embedding_bag_per_sample_weights_backward": _bag_weights,
    "_pack_padded_sequence": _pack, "_embedding_bag": _embedding_bag, "_embedding_bag_forward_only": _embedding_bag,
}  # fmt: skip
