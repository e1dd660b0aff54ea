"""Packed sequences of different lengths: the example that each row of the data belongs to.

`torch.nn.utils.rnn.PackedSequence` holds the first steps of all sequences, then the second steps of those that have
one, .., the longest sequence first. The data alone does not say whose row is whose; the call that packed it does.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Rows of packed data, and the places of a padded (sequences, length) they come from.

    Args:
        sizes: sequences that have each step.
        order: which sequence is at each rank, longest first.
        slots: for each row of the data its place in the padded form, flattened.
        source: for each place of the padded form its row of the data; the first of its sequence where it has none.
        live: which places have a row.

    >>> packing = make_packing((2, 1), torch.tensor([1, 0]))
    >>> packing.source.tolist(), packing.live.tolist()
    ([[1, 1], [0, 2]], [[True, False], [True, True]])
    """

    sizes: tuple[int, ...]
    order: Int[Tensor, " sequences"]
    slots: Int[Tensor, " rows"]
    source: Int[Tensor, "sequences length"]
    live: Bool[Tensor, "sequences length"]

    @property
    def length(self) -> int:
        """Places of an example in the padded form."""
        return self.source.shape[1]

    def pad(self, data: Tensor, batch: int) -> Tensor:
        """(rows, ...) as (batch, positions, ...), each sequence filled up with its first row."""
        if not len(data):
            return data.new_zeros(batch, self.length, *data.shape[1:])
        return data[self.source.reshape(batch, -1)]

    def pad_zeros(self, data: Tensor, batch: int) -> Tensor:
        """(rows, ...) as (batch, positions, ...), each sequence filled up with zeros."""
        padded = data.new_zeros(self.source.numel(), *data.shape[1:])
        padded.index_copy_(0, self.slots, data)
        return padded.reshape(batch, -1, *data.shape[1:])


def make_packing(
    sizes: tuple[int, ...], order: Int[Tensor, " sequences"] | None, device: torch.device | None = None
) -> Packing:
    """The `Packing` of ``sizes`` sequences at each step, with sequence ``order[r]`` at rank r (``None``: r)."""
    if order is None:
        order = torch.arange(sizes[0], device=device)
    example = torch.cat([order[:size] for size in sizes])
    return replace(packing_of(example, sizes[0]), sizes=sizes, order=order)


def packing_of(example: Int[Tensor, " rows"], batch: int) -> Packing:
    """The `Packing` of rows that belong to these examples, in any order and number.

    >>> packing_of(torch.tensor([1, 0, 1]), 2).source.tolist()
    [[1, 1], [0, 2]]
    """
    order = example.argsort(stable=True)
    counts = torch.bincount(example, minlength=batch)
    starts, length = counts.cumsum(0) - counts, max(1, int(counts.max()))
    step = torch.arange(length, device=example.device)
    live = step < counts.unsqueeze(1)
    ranks = torch.where(live, starts.unsqueeze(1) + step, starts.unsqueeze(1).clamp(max=max(len(order) - 1, 0)))
    source = order[ranks] if len(order) else ranks
    slots = torch.empty_like(order)
    slots[order] = example[order] * length + torch.arange(len(order), device=example.device) - starts[example[order]]
    return Packing((), torch.arange(batch, device=example.device), slots, source, live)


def in_order(example: Int[Tensor, " sequences"], batch: int) -> Int[Tensor, " sequences"]:
    """New numbers of sequences, sorted by example, if each example can have as many; else ``example`` itself.

    >>> in_order(torch.tensor([1, 0, 0, 1]), 2).tolist()
    [2, 0, 1, 3]
    """
    order = example.argsort(stable=True)
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order), device=order.device)
    return number if len(example) % batch == 0 else example
