"""The rule for matrix products: vectors in closed form, sequences by Gram matrices or the product itself.

With inputs a_{i,s} and output gradients d_{i,s} at positions s of example i, the weight gradient is
g_i = sum_s d_{i,s} a_{i,s}^T. With one position, |g_i|^2 = |a_i|^2 |d_i|^2 (Goodfellow 2015). With several,
|g_i|^2 = sum_{s,t} (a_s . a_t)(d_s . d_t): cheaper than g_i when there are few positions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.rules import matrices
from decrescendo.clipping.rules.grams import covers, gram_cost, gram_norms, slack_of
from decrescendo.clipping.rules.rule import (
    Call,
    Kernel,
    Rule,
    round_up,
    scale_and_sum,
    square_rows,
    zero_rows,
)
from decrescendo.clipping.workspace import MOVED, Workspace, chunks, product_cost


@dataclass(slots=True)
class LinearKernel:
    """``input @ weight.T + bias``, or ``input @ weight`` if ``transposed``."""

    roles: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    inputs: Float[Tensor, "batch positions features"]
    transposed: bool
    workspace: Workspace
    product: Tensor | None = field(default=None)
    biases: Tensor | None = field(default=None)
    squares: dict[int, Tensor] = field(default_factory=dict)
    absorbing: bool = False
    # |d_i|^2 of one position: the bias's squared norm, and a factor of the weight's.
    lengths: Tensor | None = field(default=None)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        if slot not in self.squares:
            self.squares[slot] = self._squared_norms(slot, self._positions(d))
        return self.squares[slot]

    def absorb(self, d: Tensor) -> bool:
        self.absorbing = True
        for slot in range(len(self.roles)):
            self.squared_norms(slot, d)
        done = self.inputs.shape[1] > 1 and ("weight" not in self.roles or self.product is not None)
        if done:
            self.inputs = self.inputs.new_empty((self.inputs.shape[0], 0, self.inputs.shape[2]))
        return done

    def _squared_norms(self, slot: int, d: Tensor) -> Tensor:
        single = d.shape[1] == 1
        if self.roles[slot] == "bias":
            return self._lengths(d) if single else square_rows(self._bias(d))
        a = self.inputs.to(d.dtype)
        if single:
            return square_rows(a) * self._lengths(d)
        method = self._method(a, d)
        if method == "gram":
            return gram_norms(a, d, slack_of(self.inputs))
        shape = (a.shape[0], d.shape[2], a.shape[2])
        if method == "keep" and (kept := self._room(shape, d)) is not None:
            self.product = kept
            return product_squares(d.transpose(1, 2), a, kept)
        return _product_norms(a, d, slack_of(self.inputs))

    def _lengths(self, d: Tensor) -> Float[Tensor, " batch"]:
        if self.lengths is None:
            self.lengths = square_rows(d)
        return self.lengths

    def _room(self, shape: tuple[int, ...], d: Tensor) -> Tensor | None:
        """Memory for the product: its own if it replaces as much (d and inputs), else out of the workspace."""
        return d.new_empty(shape) if self._replaces(math.prod(shape), d) else self.workspace.take(shape, d)

    def _replaces(self, size: int, d: Tensor) -> bool:
        return self.absorbing and size <= d.numel() + self.inputs.numel()

    def scaled_sum(self, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            biases = self._bias(d)
            return factors.to(biases.dtype) @ biases
        if self.product is not None:
            return self._oriented(scale_and_sum(self.product, factors))
        d = self._positions(d)
        return self._oriented(scaled_product(self.inputs.to(d.dtype), d, factors))

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return self._bias(d)
        d = self._positions(d)
        return self._oriented(torch.bmm(d.transpose(1, 2), self.inputs.to(d.dtype)))

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "LinearKernel":
        product = None if self.product is None else zero_rows(self.product, rows)
        inputs = self.inputs if self.inputs.numel() == 0 else zero_rows(self.inputs, rows)
        biases = None if self.biases is None else zero_rows(self.biases, rows)
        return LinearKernel(self.roles, self.parameters, (), inputs, self.transposed, self.workspace, product, biases)

    def positions(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients as (batch, positions, features), for `repeated`."""
        d = self._positions(d)
        return self.inputs.to(d.dtype), d

    def _positions(self, d: Tensor) -> Tensor:
        return d.reshape(d.shape[0], -1, d.shape[-1])

    def _bias(self, d: Tensor) -> Float[Tensor, "batch outputs"]:
        if self.biases is None:
            d = self._positions(d)
            self.biases = d[:, 0] if d.shape[1] == 1 else d.sum(1)
        return self.biases

    def _method(self, a: Tensor, d: Tensor) -> str:
        """The form with the fewest operations: "gram" matrices; the product, to "keep" for the sum, or made
        "twice"."""
        batch, places, features = a.shape
        outputs = d.shape[2]
        wide = features * outputs
        quick = matrices.covers(a, d)
        product = matrices.COST * places * wide if quick else product_cost(outputs, places, features)
        summed = product_cost(outputs, batch * places, features) / batch
        cost = {
            "gram": gram_cost(places, features, outputs, quick=covers(a, d)) + summed,
            "twice": product + MOVED * wide + summed,
        }
        if self._replaces(batch * wide, d) or batch * wide * d.element_size() <= self.workspace.left:
            cost["keep"] = product + 2 * MOVED * wide
        return self.workspace.choose(cost)

    def _oriented(self, gradient: Tensor) -> Tensor:
        return gradient.transpose(-1, -2) if self.transposed else gradient


def scaled_product(
    a: Float[Tensor, "batch positions features"],
    d: Float[Tensor, "batch positions outputs"],
    factors: Float[Tensor, " batch"],
) -> Float[Tensor, "outputs features"]:
    """sum_i w_i sum_s d_{i,s} a_{i,s}^T, by matrix products over all positions of many examples.

    >>> a, d = torch.ones(2, 1, 2), torch.tensor([[[1.0]], [[10.0]]])
    >>> scaled_product(a, d, torch.tensor([1.0, 0.5]))
    tensor([[6., 6.]])
    """
    scale = factors.to(d.dtype).reshape(-1, 1, 1)
    narrow = d.shape[2] <= a.shape[2]
    total = torch.zeros(d.shape[2], a.shape[2], dtype=d.dtype, device=d.device)
    for part in chunks(d.shape[0], d.shape[1] * min(d.shape[2], a.shape[2]), d.device):
        # The smaller of the two is scaled: a copy costs more than its multiplications.
        left, right = (d[part] * scale[part], a[part]) if narrow else (d[part], a[part] * scale[part])
        total.addmm_(left.flatten(0, 1).T, right.flatten(0, 1))
    return total


def product_squares(
    left: Float[Tensor, "batch outputs positions"],
    right: Float[Tensor, "batch positions features"],
    found: Float[Tensor, "batch outputs features"],
) -> Float[Tensor, " batch"]:
    """Write the products to ``found``; returns the squares of their norms, never below the exact ones."""
    if matrices.covers(right, left):
        return round_up(matrices.products(right, left, found), found[0].numel())
    return square_rows(torch.bmm(left, right, out=found))


def product_norms(
    left: Float[Tensor, "batch outputs positions"],
    right: Float[Tensor, "batch positions features"],
    slack: float,
) -> Float[Tensor, " batch"]:
    """|left right|^2 of products that are not kept, plus slack, as the sum computes them again with other
    rounding."""
    lengths = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=2)
    found = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    return product_squares(left, right, found) + slack * lengths.sum(1).square()


def _product_norms(a: Tensor, d: Tensor, slack: float) -> Float[Tensor, " batch"]:
    """|sum_s d_s a_s^T|^2 from the products, a few at a time."""
    return torch.cat(
        [
            product_norms(d[part].transpose(1, 2), a[part], slack)
            for part in chunks(a.shape[0], a.shape[2] * d.shape[2], a.device)
        ]
    )


def _linear(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    return _build(call, bound["input"], bound["weight"], bound.get("bias"), transposed=False)


def _matmul(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    return _build(call, bound["input"], bound["other"], None, transposed=True)


def _addmm(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    """``input + mat1 @ mat2``: a linear layer with a transposed weight (GPT-2)."""
    bias, rows, weight = bound["input"], bound["mat1"], bound["mat2"]
    plain = float(bound.get("alpha", 1)) == float(bound.get("beta", 1)) == 1
    if not plain or bias.dim() != 1 or bias.shape[0] != weight.shape[-1]:
        return None
    return _build(call, rows, weight, bias, transposed=True)


def _build(call: Call, rows: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> Kernel | None:
    if call.is_tracked(rows) or rows.dim() < 2 or weight.dim() != 2 or not call.holds(rows):
        return None
    if call.layout.kind == "columns" and rows.dim() < 3:
        return None
    roles = tuple(
        role for role, value in (("weight", weight), ("bias", bias)) if value is not None and call.is_tracked(value)
    )
    parameters = tuple(weight if role == "weight" else bias for role in roles)
    split = call.layout.split(rows.detach())
    inputs = split.reshape(split.shape[0], -1, split.shape[-1])
    kept = tuple(parameter for parameter in parameters if parameter is not None)
    saved = (rows,) if "weight" in roles else ()
    return LinearKernel(roles, kept, saved, inputs, transposed, call.workspace)


_PRODUCT = Rule(("input", "other"), _matmul)
_ADDED = Rule(("input", "mat1", "mat2"), _addmm)
RULES: dict[Callable[..., Any], Rule] = {
    functional.linear: Rule(("input", "weight", "bias"), _linear),
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm), _PRODUCT),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _ADDED),
}
