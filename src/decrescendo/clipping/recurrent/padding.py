"""Packed data as padded rows again, by what is known of whose row is whose."""

from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.clipping.proof.labels import Label, Mixed, Place, Public
from decrescendo.clipping.proof.storage import paused, unseen
from decrescendo.clipping.proof.watch import Watch
from decrescendo.clipping.recurrent.packing import Packing, in_order, make_packing


class _Packed(torch.autograd.Function):
    """Padded rows as packed data; torch's own backward pass goes step by step."""

    @staticmethod
    def forward(
        ctx: Any, watch: Watch, given: Tensor, lengths: Tensor, batch_first: bool
    ) -> tuple[Tensor, Tensor]:
        packed, sizes = cast("Any", torch)._VF._pack_padded_sequence(given, lengths, batch_first)
        ctx.mark_non_differentiable(sizes)
        ctx.set_materialize_grads(False)
        ctx.watch, ctx.batch_first, ctx.sizes = watch, batch_first, sizes
        ctx.shape, ctx.labels = given.shape, (watch.label(packed), watch.label(given))
        return packed, sizes

    @staticmethod
    @unseen
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        gradient = gradients[0]
        if gradient is None:
            return None, None, None, None
        watch, label = ctx.watch, ctx.watch.label(gradient)
        watch.consume("the gradient of packed data", gradient)
        dims = (0, 1) if ctx.batch_first else (1, 0)
        with paused():
            packing = make_packing(tuple(ctx.sizes.tolist()), None, gradient.device)
            padded = gradient.new_zeros(ctx.shape[dims[0]], ctx.shape[dims[1]], *gradient.shape[1:])
            rows = padded[:, : len(packing.sizes)].reshape(-1, *gradient.shape[1:])
            rows.index_copy_(0, packing.slots, gradient)
            padded[:, : len(packing.sizes)] = rows.reshape(packing.source.shape[0], -1, *gradient.shape[1:])
            found = padded if ctx.batch_first else padded.transpose(0, 1)
        packed, padded_label = ctx.labels
        same = (
            isinstance(label, Place) and isinstance(packed, Place) and label.dim == 0 and label.like(packed)
        )
        watch.assign(found, padded_label if same or label is Public.FILL else _wrong(label))
        return None, found, None, None


def _wrong(label: Label) -> Mixed:
    return (
        label
        if isinstance(label, Mixed)
        else Mixed("rows of packed data belong to others than they came from")
    )


def packed_up(watch: Watch, given: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """What ``torch._VF._pack_padded_sequence`` returns."""
    return cast("tuple[Tensor, Tensor]", _Packed.apply(watch, given, lengths, batch_first))


class _Padded(torch.autograd.Function):
    """(rows, ...) as (ranks, length, ...), filled up with one value."""

    @staticmethod
    def forward(ctx: Any, watch: Watch, packing: Packing, value: float, length: int, data: Tensor) -> Tensor:
        ctx.watch, ctx.packing, ctx.place = watch, packing, watch.label(data)
        with paused():
            sequences, steps = packing.source.shape
            padded = data.new_full((sequences * steps, *data.shape[1:]), value)
            padded.index_copy_(0, packing.slots, data)
            found = data.new_full((sequences, max(length, steps), *data.shape[1:]), value)
            found[:, :steps] = padded.reshape(sequences, steps, *data.shape[1:])[packing.order]
        watch.assign(found, _ranks(watch, packing))
        return found

    @staticmethod
    @unseen
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        watch, packing = ctx.watch, ctx.packing
        (gradient,) = gradients
        if gradient is None:
            return None, None, None, None, None
        place = watch.label(gradient)
        watch.consume("the gradient of padded data", gradient)
        with paused():
            gradient = gradient[:, : packing.length]
            ranks = torch.empty_like(gradient)
            ranks[packing.order] = gradient
            found = ranks.flatten(0, 1)[packing.slots]
        there = _ranks(watch, packing)
        same = isinstance(place, Place) and place.dim == 0 and place.like(there)
        watch.assign(found, ctx.place if same or place is Public.FILL else _wrong(place))
        return None, None, None, None, found


def _ranks(watch: Watch, packing: Packing) -> Place:
    with paused():
        return watch.owners(0, packing.order // (len(packing.order) // watch.count))


def padded_again(
    watch: Watch,
    data: Tensor,
    batch_sizes: Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int = 0,
) -> tuple[Tensor, Tensor]:
    """What ``torch._VF._pad_packed_sequence`` returns, with its sequences in the order they were packed in."""
    watch.consume("pad_packed_sequence", data, numbers=(batch_first, padding_value, total_length))
    with paused():
        sizes = tuple(batch_sizes.tolist())
        label = watch.label(data)
        assert isinstance(label, Place)
        example = torch.arange(watch.count) if label.owners is None else label.owners.example
        packing = make_packing(sizes, in_order(example[: sizes[0]], watch.count).to(data.device))
        live = packing.live[packing.order]
        lengths = live.sum(1).cpu()
    output = _Padded.apply(watch, packing, padding_value, total_length, data)
    watch.assign(lengths, _ranks(watch, packing))
    return (output if batch_first else output.transpose(0, 1)), lengths
