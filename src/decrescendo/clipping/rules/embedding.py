"""The rule for embeddings: output gradients are added over equal ids within an example.

The gradient of example i is, for each id v that it contains, sum of d_{i,s} over its positions s with that
id. Nothing of size (batch, vocabulary, dim) is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.rules.compiled import is_captured
from decrescendo.clipping.rules.rule import Call, Kernel, Rule, zero_rows
from decrescendo.clipping.rules.segments import Blocks, Segments, blocks_of, covers, places_of
from decrescendo.errors import UnsupportedModel


@dataclass(slots=True)
class EmbeddingKernel:
    """``weight[ids]``, with no gradient at ``padding``."""

    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    ids: Int[Tensor, "batch positions"]
    padding: int | None
    segments: Segments | Blocks | None = field(default=None)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:  # noqa: ARG002
        return self._segments(d).squared_norms(self.ids.shape[0])

    def absorb(self, d: Tensor) -> bool:
        self._segments(d)
        return True

    def scaled_sum(self, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        return self._segments(d).scaled_sum(tuple(self.parameters[slot].shape), factors)

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        return self._segments(d).per_example(self.ids.shape[0], tuple(self.parameters[slot].shape))

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "EmbeddingKernel":
        left = None if self.segments is None else self.segments.without_rows(rows)
        return EmbeddingKernel(self.parameters, (), self.ids, self.padding, left)

    def _segments(self, d: Tensor) -> Segments | Blocks:
        if self.segments is None:
            rows = d.reshape(*self.ids.shape, -1)
            self.segments = (
                blocks_of(self.ids, rows, self.parameters[0].shape[0], self.padding)
                if covers(self.ids, rows)
                else sum_segments(self.ids, rows, self.padding)
            )
        return self.segments


def sum_segments(
    ids: Int[Tensor, "batch positions"], d: Float[Tensor, "batch positions dim"], padding: int | None
) -> Segments:
    """The sum of ``d`` over the positions of each distinct id of each example, by sorting the ids.

    >>> found = sum_segments(torch.tensor([[5, 2, 5]]), torch.tensor([[[1.0], [2.0], [4.0]]]), None)
    >>> found.identity.tolist(), found.sums.flatten().tolist()
    ([2, 5], [2.0, 5.0])
    """
    batch, positions = ids.shape
    ordered, order = torch.sort(ids, dim=1, stable=ids.device.type == "cpu" or is_captured())
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = places_of(first.flatten())
    source = (order + torch.arange(batch, device=ids.device).unsqueeze(1) * positions).flatten()
    # A bag sum gathers and adds in one pass, without a sorted copy of d.
    sums = functional.embedding_bag(source, d.reshape(batch * positions, -1), starts, mode="sum")
    last = starts.clamp(max=max(ids.numel() - 1, 0))
    identity = ordered.flatten()[last]
    if padding is not None:
        sums = zero_rows(sums, identity == padding)
    return Segments(sums, torch.div(last, positions, rounding_mode="floor"), identity)


def _embedding(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    ids, weight = bound["input"], bound["weight"]
    if not call.holds(ids) or call.is_tracked(ids):
        return None
    padding = bound.get("padding_idx")
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    split = call.layout.split(ids)
    return EmbeddingKernel((weight,), (ids,), split.reshape(split.shape[0], -1).long(), padding)


def check_embedding(bound: Mapping[str, Any]) -> None:
    """Refuse the options that rescale shared weights, or count ids over the batch."""
    if bound.get("max_norm") is not None:
        raise UnsupportedModel(
            "an embedding must not rescale its weights in the forward pass, got max_norm set. "
            "The rescaling shows which ids were in the batch, without noise; construct it with max_norm=None"
        )
    if bound.get("scale_grad_by_freq"):
        raise UnsupportedModel(
            "an embedding must not scale gradients by counts over the batch, got scale_grad_by_freq=True. "
            "The counts mix examples; construct it with scale_grad_by_freq=False"
        )


RULES = {
    functional.embedding: Rule(
        ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
        _embedding,
    ),
    torch.embedding: Rule(("weight", "input", "padding_idx", "scale_grad_by_freq", "sparse"), _embedding),
}
