"""Converts padded sequences to packed data and back, with the example of each row known; torch's own
conversion goes step by step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from decrescendo.base.storages import paused, unseen
from decrescendo.base.torch_private import pack_padded_sequence
from decrescendo.clipping.recurrent.packing import in_order, make_packing
from decrescendo.row_independence.tracing import Label, Mixed, Public, RowLayout, Tracer, constant_of, is_data


@dataclass(frozen=True, slots=True)
class Move:
    """Rows at ``slots`` of a padded form, (sequences, length) flattened, moved into it or (``packs``) out of it."""

    tracer: Tracer
    packs: bool
    slots: Int[Tensor, " rows"]
    sequences: int
    length: int
    given: Label
    made: Label

    def out_of(self, padded: Tensor) -> Tensor:
        """The rows at ``slots`` of the padded form."""
        return padded.flatten(0, 1)[self.slots]

    def into(self, rows: Tensor, value: float) -> Tensor:
        """The padded form of ``rows``, with ``value`` at all other places."""
        padded = rows.new_full((self.sequences * self.length, *rows.shape[1:]), value)
        return padded.index_copy_(0, self.slots, rows).unflatten(0, (self.sequences, self.length))


class _Moved(torch.autograd.Function):
    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, move: Move, given: Tensor, make: Callable[[], Tensor]) -> Tensor:  # noqa: ARG004
        ctx.set_materialize_grads(False)
        ctx.move, made = move, make()
        move.tracer.assign(made, move.made)
        return made

    @staticmethod
    @unseen
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        move, (gradient,) = cast("Move", ctx.move), gradients
        if gradient is None:
            return None, None, None
        tracer, label = move.tracer, move.tracer.label(gradient)
        tracer.consume("the gradient of packed or padded data", gradient)
        with paused():
            found = move.into(gradient, 0) if move.packs else move.out_of(gradient)
        if constant_of(label) is Public.FILL or (
            is_data(label) and isinstance(move.made, RowLayout) and move.made.same(label)
        ):
            label = move.given
        elif not isinstance(label, Mixed):
            label = Mixed("rows of packed data belong to others than they came from")
        tracer.assign(found, label)
        return None, found, None


def _slots(sizes: Tensor, length: int, device: torch.device) -> Tensor:
    """Where each row is in a padded form of that length, whose sequences are in order of their ranks."""
    packing = make_packing(tuple(sizes.tolist()), None, device)
    return packing.slots // packing.length * length + packing.slots % packing.length


_NOT_PACKED = object()


def sizes_of(tracer: Tracer, label: RowLayout, sizes: Tensor) -> tuple[int, ...]:
    """How many sequences have each step, read from the tensor that packing rows of that label made, or from a constant.

    Raises:
        UnsupportedModel: the sizes depend on data in another way, or do not fit the rows of this label.
    """
    if is_data(tracer.label(sizes)) and tracer.packed.get(tracer.written(sizes), _NOT_PACKED) is not label.owners:
        tracer.reads.refuse_integer("how many sequences have each step")
    with paused():
        read = tuple(cast("list[int]", sizes.tolist()))
        units, rows = tracer.units(label), sum(read)
        example = torch.arange(units, device="cpu") if label.owners is None else label.owners.example.cpu()
        example = example.repeat_interleave(label.inner).repeat(label.outer)
        parts = [example[: max(size, 0)] for size in read]
        same = not label.dim and bool(parts) and len(example) == rows and torch.equal(torch.cat(parts), example)
    if not same:
        tracer.refuse(
            "packed sequences must be packed by pack_padded_sequence, or hold the same steps of each example, got "
            "numbers of sequences at each step that are not those of the rows"
        )
    return read


def pack(tracer: Tracer, given: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """What ``torch._VF._pack_padded_sequence`` returns."""
    with torch.no_grad():
        packed, sizes = pack_padded_sequence(given, lengths, batch_first)
    given = given if batch_first else given.transpose(0, 1)
    sequences, length = given.shape[:2]
    with paused():
        slots = _slots(sizes, length, given.device)
    label = tracer.label(packed)
    if isinstance(label, RowLayout):
        tracer.packed[tracer.written(sizes)] = label.owners
    move = Move(tracer, True, slots, sequences, length, tracer.label(given), label)
    return cast("Tensor", _Moved.apply(move, given, lambda: packed)), sizes


def unpack(
    tracer: Tracer,
    data: Tensor,
    batch_sizes: Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int = 0,
) -> tuple[Tensor, Tensor]:
    """What ``torch._VF._pad_packed_sequence`` returns, with its sequences in the order they were packed in."""
    tracer.consume("pad_packed_sequence", data, numbers=(batch_first, padding_value, total_length))
    label = tracer.label(data)
    assert isinstance(label, RowLayout)
    sizes = sizes_of(tracer, label, batch_sizes)
    with paused():
        sequences, length = sizes[0], max(total_length, len(sizes))
        lengths = (batch_sizes.unsqueeze(1) > torch.arange(sequences, device="cpu")).sum(0)
        example = torch.arange(tracer.count, device="cpu") if label.owners is None else label.owners.example
        order = in_order(example[:sequences], tracer.count)
        ranks = tracer.owners(0, order.to(data.device) // (sequences // tracer.count))
        slots = _slots(batch_sizes, length, data.device)
    move = Move(tracer, False, slots, sequences, length, label, ranks)

    def make() -> Tensor:
        with paused():
            return move.into(data.detach(), padding_value)

    output = cast("Tensor", _Moved.apply(move, data, make))
    tracer.assign(lengths, ranks)
    return (output if batch_first else output.transpose(0, 1)), lengths
