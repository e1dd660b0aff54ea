"""Where the examples are in the output of one recorded operation."""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from decrescendo.clipping.recurrent.packing import Packing

# rows: (batch, ...)   folded: (batch * k, ...), example-major   columns: (k, batch, ...)
# interleaved: (k * batch, ...), one example after another at each place
# packed: the data of a PackedSequence
# shared: no example in it; the operation only makes another form of its parameters
Kind = Literal["rows", "folded", "interleaved", "columns", "packed", "shared"]
# Examples and places within them lie in one dimension.
MERGED: frozenset[Kind] = frozenset({"folded", "interleaved", "packed"})


@dataclass(frozen=True, slots=True)
class Layout:
    """How to bring a tensor of an operation into the form (batch, ...).

    >>> import torch
    >>> Layout("folded", 2).split(torch.zeros(6, 4)).shape
    torch.Size([2, 3, 4])
    >>> Layout("columns", 2).split(torch.zeros(5, 2, 4)).shape
    torch.Size([2, 5, 4])
    """

    kind: Kind
    batch: int
    packing: Packing | None = field(default=None, compare=False)

    def split(self, tensor: Tensor) -> Tensor:
        """``tensor`` as (batch, ...); a view where that is possible. Shorter sequences repeat their first row."""
        if self.packing is not None:
            return self.packing.pad(tensor, self.batch)
        if self.kind == "folded":
            return tensor.reshape(self.batch, tensor.shape[0] // self.batch, *tensor.shape[1:])
        if self.kind == "interleaved":
            places = tensor.shape[0] // self.batch
            return tensor.reshape(places, self.batch, *tensor.shape[1:]).transpose(0, 1)
        if self.kind == "columns":
            return tensor.transpose(0, 1)
        return tensor

    def split_gradient(self, gradient: Tensor) -> Tensor:
        """A gradient as (batch, ...): where a sequence has ended there is none."""
        if self.packing is not None:
            return self.packing.pad_zeros(gradient, self.batch)
        return self.split(gradient)

    def holds(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` can have this layout."""
        if self.kind == "packed":
            return tensor.dim() > 0 and self.packing is not None and tensor.shape[0] == self.packing.rows
        if self.kind == "columns":
            return tensor.dim() > 1 and tensor.shape[1] == self.batch
        if self.kind in ("folded", "interleaved"):
            return tensor.dim() > 0 and tensor.shape[0] >= self.batch and tensor.shape[0] % self.batch == 0
        return tensor.dim() > 0 and tensor.shape[0] == self.batch


def candidates(tensor: Tensor, batch: int) -> tuple[Kind, ...]:
    """The layouts that the shape allows, likeliest first; the self-check finds out which is true.

    >>> import torch
    >>> candidates(torch.zeros(6, 3), batch=3)
    ('folded', 'interleaved', 'columns', 'shared')
    >>> candidates(torch.zeros(3, 5), batch=3)
    ('rows', 'shared')
    """
    # A matrix (batch * k, features) is far likelier than a transposed one; more dimensions are likelier
    # sequences.
    order: tuple[Kind, ...] = ("rows", "columns", "folded", "interleaved")
    if tensor.dim() < 3:
        order = ("rows", "folded", "interleaved", "columns")
    same = tensor.dim() > 0 and tensor.shape[0] == batch
    merged = ("folded", "interleaved")
    found: list[Kind] = [
        kind for kind in order if Layout(kind, batch).holds(tensor) and not (same and kind in merged)
    ]
    return (*found, "shared")
