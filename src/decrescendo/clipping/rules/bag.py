"""The rule for `EmbeddingBag`: sums, means and maxima over the embeddings of several ids.

The gradient of example i is, for each id v in its bags b, the sum of c_p d_b over the places p with that id: c_p is 1,
the weight of the place, or one over the size of the bag. For maxima it is d_b, feature by feature, at the id that
has the maximum. Nothing of size (places, dim) is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.rules.rule import Call, Kernel, Rule, square_rows, zero_rows
from decrescendo.clipping.rules.segments import Segments, places_of


@dataclass(slots=True)
class BagKernel:
    """Sums and means: row ``bag`` of d (examples and their bags, flattened) goes to ``ids``, times ``scale``."""

    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    ids: Int[Tensor, " places"]
    bag: Int[Tensor, " places"]
    scale: Float[Tensor, " places"]
    batch: int
    bags: int
    segments: Segments | None = field(default=None)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:  # noqa: ARG002
        return self._segments(d).squared_norms(self.batch)

    def scaled_sum(self, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        return self._segments(d).scaled_sum(tuple(self.parameters[slot].shape), factors)

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        return self._segments(d).per_example(self.batch, tuple(self.parameters[slot].shape))

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "BagKernel":
        # The weights of places may be what was not finite; d is zero there.
        bad = rows.repeat_interleave(self.bags // self.batch)[self.bag]
        scale = self.scale.masked_fill(bad, 0)
        return BagKernel(self.parameters, (), self.ids, self.bag, scale, self.batch, self.bags)

    def _segments(self, d: Tensor) -> Segments:
        if self.segments is None:
            rows = d.reshape(self.bags, -1)
            if not len(self.ids):  # nothing but empty bags: one sum of zeros stands for them
                none = torch.zeros(1, dtype=torch.long, device=d.device)
                self.segments = Segments(torch.zeros_like(rows[:1]), none, none)
                return self.segments
            words = self.parameters[0].shape[0]
            example = torch.div(self.bag, self.bags // self.batch, rounding_mode="floor")
            key, order = torch.sort(example * words + self.ids)
            first = torch.ones_like(key, dtype=torch.bool)
            first[1:] = key[1:] != key[:-1]
            starts = places_of(first)
            scale = self.scale[order].to(rows.dtype)
            sums = functional.embedding_bag(self.bag[order], rows, starts, mode="sum", per_sample_weights=scale)
            pairs = key[starts.clamp(max=len(key) - 1)]
            self.segments = Segments(sums, torch.div(pairs, words, rounding_mode="floor"), pairs % words)
        return self.segments


@dataclass(slots=True)
class MaximumKernel:
    """Maxima: feature f of row b of d goes to the id ``highest[b, f]``, if ``filled[b]``."""

    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    highest: Int[Tensor, "batch bags dim"]
    filled: Bool[Tensor, "batch bags 1"]

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        if self.highest.shape[1] == 1:
            return square_rows(self._rows(d))
        return square_rows(self.per_example(slot, d))

    def scaled_sum(self, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        rows = self._rows(d) * factors.to(d.dtype).reshape(-1, 1, 1)
        total = torch.zeros(self.parameters[slot].shape, dtype=d.dtype, device=d.device)
        return total.scatter_add_(0, self.highest.flatten(0, 1), rows.flatten(0, 1))

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        total = torch.zeros(d.shape[0], *self.parameters[slot].shape, dtype=d.dtype, device=d.device)
        return total.scatter_add_(1, self.highest, self._rows(d))

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "MaximumKernel":
        return MaximumKernel(self.parameters, (), self.highest, self.filled & ~rows.reshape(-1, 1, 1))

    def _rows(self, d: Tensor) -> Tensor:
        return zero_rows(
            d.reshape(self.highest.shape).flatten(0, 1), ~self.filled.flatten()
        ).reshape(self.highest.shape)  # fmt: skip


def _bag(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    ids, weight = bound["input"], bound["weight"]
    offsets: Tensor | None = bound.get("offsets")
    weights, padding = bound.get("per_sample_weights"), bound.get("padding_idx")
    if any(call.is_tracked(value) for value in (ids, offsets, weights)):
        return None
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    ids, count = ids.detach().long(), call.output[0]
    if offsets is None:
        sizes = torch.full((count,), ids.shape[1], device=ids.device)
        owner = torch.arange(count, device=ids.device).unsqueeze(1).expand(ids.shape).flatten()
    elif not bound.get("include_last_offset"):  # no length is made of values, so that passes can be captured
        starts = offsets.detach().long()
        sizes = torch.cat([starts[1:], starts.new_full((1,), len(ids))]) - starts
        owner = torch.searchsorted(starts, torch.arange(len(ids), device=ids.device), right=True) - 1
    else:
        starts = offsets.detach().long()
        sizes = starts.diff()
        owner = torch.repeat_interleave(torch.arange(count, device=ids.device), sizes)
    # With include_last_offset, ids past the last offset are in no bag.
    flat = ids.flatten()[: len(owner)]
    live = torch.ones_like(flat, dtype=torch.bool) if padding is None else flat != padding
    filled = torch.zeros_like(sizes).index_add_(0, owner, live.long())
    # The order of the bags when d is split by examples.
    split = call.layout.split(torch.arange(count, device=ids.device)).reshape(call.layout.batch, -1)
    saved = tuple(value for value in (bound["input"], offsets, weights) if value is not None)
    if bound.get("mode", "mean") == "max":
        if padding is not None:
            flat, owner = flat[live], owner[live]
        highest = _highest(weight.detach(), flat, owner, count)
        return MaximumKernel((weight,), (*saved, weight), highest[split], (filled > 0)[split].unsqueeze(2))
    place = torch.empty_like(sizes)
    place[split.flatten()] = torch.arange(count, device=ids.device)
    scale = torch.ones(len(flat), dtype=weight.dtype, device=ids.device)
    if weights is not None:
        scale = weights.detach().flatten()[: len(flat)].to(weight.dtype)
    if bound.get("mode", "mean") == "mean":
        scale = 1 / filled[owner].clamp(min=1).to(scale.dtype)
    if padding is not None:
        flat, owner, scale = flat[live], owner[live], scale[live]
    return BagKernel((weight,), saved, flat, place[owner], scale, call.layout.batch, count)


def _highest(weight: Tensor, ids: Tensor, owner: Tensor, bags: int) -> Int[Tensor, "bags dim"]:
    """The id with the maximum of each feature of each bag, as torch breaks ties; 0 in empty bags."""
    sizes = torch.zeros(bags, dtype=torch.long, device=ids.device).index_add_(0, owner, torch.ones_like(owner))
    found: Tensor = torch.embedding_bag(weight, ids, torch.cumsum(sizes, 0) - sizes, mode=2)[3]
    return found.clamp(min=0)


NAMES = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip
RULES = {functional.embedding_bag: Rule(NAMES, _bag, ("rows", "folded", "interleaved"))}
