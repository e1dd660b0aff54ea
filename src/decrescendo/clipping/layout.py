"""Reshapes tensors to (batch, ...), by the row layout that the tracer found."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from decrescendo.base.storages import paused
from decrescendo.clipping.recurrent.packing import Packing, in_order, make_packing, packing_of
from decrescendo.row_independence.tracing import Owners, RowLayout, Tracer

# rows: (batch, ...)   folded: (batch * k, ...), example-major   columns: (k, batch, ...)
# interleaved: (k * batch, ...), one example after another at each place
# packed: rows of packed data, a different number for each example; deep: any other, (.., outer * batch * inner, ..)
Kind = Literal["rows", "folded", "interleaved", "columns", "packed", "deep"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How to bring a tensor of an operation into the form (batch, ...).

    >>> Layout.of(RowLayout(0, inner=3), 2).split(torch.zeros(6, 4)).shape
    torch.Size([2, 3, 4])
    >>> Layout.of(RowLayout(1), 2).split(torch.zeros(5, 2, 4)).shape
    torch.Size([2, 5, 4])
    >>> Layout.of(RowLayout(2, inner=3), 2).split(torch.zeros(5, 4, 6)).shape
    torch.Size([2, 5, 4, 3])
    """

    kind: Kind
    batch: int
    place: RowLayout
    packing: Packing | None = field(default=None, compare=False)

    @classmethod
    def of(cls, place: RowLayout, batch: int, packing: Packing | None = None) -> "Layout":
        """The layout of a tensor whose ``batch`` examples are at ``place``; ``packing`` of packed data."""
        kind: Kind = "deep"
        if packing is not None:
            kind = "packed"
        elif place.dim == 0 and 1 in (place.inner, place.outer):
            kind = "folded" if place.inner > 1 else "interleaved" if place.outer > 1 else "rows"
        elif place.dim == 1 and place.inner == place.outer == 1:
            kind = "columns"
        return cls(kind, batch, place, packing)

    def split(self, tensor: Tensor) -> Tensor:
        """``tensor`` as (batch, ...); a view where that is possible. Packed sequences are padded with their first
        row."""
        if self.packing is not None:
            return self.packing.pad(tensor.movedim(self.place.dim, 0), self.batch)
        dim, outer, inner = self.place.dim, self.place.outer, self.place.inner
        if self.kind == "rows":
            return tensor
        sizes = (*(outer,) * (outer > 1), self.batch, *(inner,) * (inner > 1))
        return tensor.unflatten(dim, sizes).movedim(dim + (outer > 1), 0)

    def split_gradient(self, gradient: Tensor) -> Tensor:
        """A gradient as (batch, ...); packed sequences are padded with zeros."""
        if self.packing is not None:
            return self.packing.pad_zeros(gradient.movedim(self.place.dim, 0), self.batch)
        return self.split(gradient)

    def single(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that a tensor of this layout would have with one example."""
        own = self.packing.length if self.packing is not None else self.place.inner * self.place.outer
        if self.packing is not None and self.place.dim:
            return (own, *shape[: self.place.dim], *shape[self.place.dim + 1 :])
        return (*shape[: self.place.dim], own, *shape[self.place.dim + 1 :])


@dataclass(slots=True)
class Layouts:
    """The layouts of one pass's tensors, from the tracer's labels, and the padding of packed rows."""

    tracer: Tracer
    packings: dict[int, tuple[Owners, Packing]] = field(default_factory=dict)

    def of(self, tensor: Tensor) -> Layout | None:
        """The layout of a tensor; ``None`` if it has no rows of examples."""
        label = self.tracer.label(tensor)
        if not isinstance(label, RowLayout):
            return None
        owners = label.owners
        packed = None if owners is None or owners.each else self.packing(owners, tensor.device)
        return Layout.of(label, self.tracer.count, packed)

    def packing(self, owners: Owners, device: torch.device, sizes: tuple[int, ...] | None = None) -> Packing:
        """The padding of rows on ``device`` that belong to ``owners``; ``sizes``: of a `PackedSequence`, the number
        of sequences at each step."""
        known = self.packings.get(id(owners))
        if known is None or (sizes is not None and not known[1].sizes):
            with paused():
                example = owners.example.to(device)
                made = packing_of(example, self.tracer.count)
                if sizes is not None:
                    made = make_packing(sizes, in_order(example[: sizes[0]], self.tracer.count))
            known = self.packings[id(owners)] = (owners, made)
        return known[1]
