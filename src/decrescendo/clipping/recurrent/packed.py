"""The rule for weights of recurrent layers on packed sequences: only sequences of similar length are padded
together.

Padding to the longest sequence of a batch would be most of the work: names have 7 letters in the mean, the longest 19.
The weighted sum needs none, it is one matrix product over all rows. Norms take Gram matrices of a few sequences at a
time, which are packed longest first: those side by side differ by a quarter at most.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decrescendo.clipping.clipped import norm_dtype
from decrescendo.clipping.recurrent.packing import Packing
from decrescendo.clipping.rules.grams import gram_norms, slack_of
from decrescendo.clipping.rules.linear import LinearKernel, product_norms, scaled_product
from decrescendo.clipping.rules.rule import square_rows
from decrescendo.clipping.workspace import Workspace, chunks


@dataclass(frozen=True, slots=True)
class Places:
    """A few sequences: their numbers, their row of the data at each step (after the end their first), and where they
    have ended."""

    which: Int[Tensor, " sequences"]
    rows: Int[Tensor, "sequences length"]
    ended: Bool[Tensor, "sequences length 1"]


def groups(sizes: tuple[int, ...]) -> Iterator[tuple[slice, int]]:
    """Ranks whose sequences are at most a quarter shorter than the first of them, and the length of that one.

    Args:
        sizes: sequences that have each step.

    >>> list(groups((4, 2, 2, 2, 1)))
    [(slice(0, 2, None), 5), (slice(2, 4, None), 1)]
    """
    first, length = 0, len(sizes)
    while first < sizes[0]:
        while sizes[length - 1] <= first:
            length -= 1
        last = sizes[max(1, -(-3 * length // 4)) - 1]
        yield slice(first, last), length
        first = last


@dataclass(slots=True)
class PackedKernel:
    """A linear layer on packed rows, one sequence per example. Its ``d`` is (rows, outputs), as the data are."""

    roles: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    inputs: Float[Tensor, "rows features"]
    packing: Packing
    workspace: Workspace
    biases: Float[Tensor, "batch outputs"] | None = field(default=None)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return square_rows(self._bias(d))
        a, slack = self.inputs.to(d.dtype), slack_of(self.inputs)
        found = torch.empty(self.packing.sizes[0], dtype=norm_dtype(d.device), device=d.device)
        for places in self._places(d.shape[1]):
            found[places.which] = self._norms(a, d, places, slack)
        return found

    def scaled_sum(self, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            biases = self._bias(d)
            return factors.to(biases.dtype) @ biases
        a = self.inputs.to(d.dtype)
        return scaled_product(a.unsqueeze(1), d.unsqueeze(1), factors[self._owners()])

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        kernel, padded = self.padded(d)
        return kernel.per_example(slot, padded)

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "PackedKernel":
        inputs = self.zeroed(self.inputs, rows)
        biases = None if self.biases is None else self.biases.masked_fill(rows.unsqueeze(1), 0)
        return PackedKernel(self.roles, self.parameters, (), inputs, self.packing, self.workspace, biases)

    def zeroed(self, d: Tensor, rows: Bool[Tensor, " batch"]) -> Tensor:
        """Packed rows ``d``, with those of the examples ``rows`` zero."""
        return d.masked_fill(rows[self._owners()].unsqueeze(1), 0)

    def padded(self, d: Tensor) -> tuple[LinearKernel, Float[Tensor, "batch length outputs"]]:
        """Kernel and ``d`` of a linear layer on padded rows, for forms that need an example's positions side by
        side."""
        batch = self.packing.sizes[0]
        inputs = self.packing.pad(self.inputs, batch)
        kernel = LinearKernel(
            self.roles,
            self.parameters,
            (),
            inputs,
            transposed=False,
            workspace=self.workspace,
            biases=self.biases,
        )
        return kernel, self.packing.pad_zeros(d, batch)

    def _norms(self, a: Tensor, d: Tensor, places: Places, slack: float) -> Float[Tensor, " sequences"]:
        """|g_i|^2 of a few sequences, from Gram matrices or from the products, whichever takes fewer operations."""
        left = a[places.rows]
        (length, features), outputs = left.shape[1:], d.shape[1]
        # Reading or writing a number costs about as much as eight multiplications.
        if length**2 * (features + outputs) <= (length + 16) * features * outputs:
            return gram_norms(left, _rows(d, places), slack)
        right = _rows(d, places).transpose(1, 2)
        parts = chunks(left.shape[0], features * outputs, left.device)
        return torch.cat([product_norms(right[part], left[part], slack) for part in parts])

    def _places(self, outputs: int) -> Iterator[Places]:
        """All sequences, in parts whose output gradients fit a cache."""
        packing = self.packing
        for ranks, length in groups(packing.sizes):
            order = packing.order[ranks]
            for part in chunks(len(order), length * outputs, packing.source.device):
                which = order[part]
                yield Places(which, packing.source[which, :length], ~packing.live[which, :length].unsqueeze(2))

    def _bias(self, d: Tensor) -> Float[Tensor, "batch outputs"]:
        if self.biases is None:
            total = d[: self.packing.sizes[0]].clone()  # in order of rank
            start = total.shape[0]
            for size in self.packing.sizes[1:]:
                total[:size] += d[start : start + size]
                start += size
            self.biases = torch.empty_like(total).index_copy_(0, self.packing.order, total)
        return self.biases

    def _owners(self) -> Int[Tensor, " rows"]:
        """The example that each row belongs to."""
        return self.packing.slots // len(self.packing.sizes)


def _rows(d: Tensor, places: Places) -> Float[Tensor, "sequences length outputs"]:
    return d[places.rows].masked_fill_(places.ended, 0)
