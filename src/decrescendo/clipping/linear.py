"""The rule for matrix products: vectors in closed form, sequences by Gram matrices or the product itself.

With inputs a_{i,s} and output gradients d_{i,s} at positions s of example i, the weight gradient is
g_i = sum_s d_{i,s} a_{i,s}^T. With one position, |g_i|^2 = |a_i|^2 |d_i|^2 (Goodfellow 2015). With several,
|g_i|^2 = sum_{s,t} (a_s . a_t)(d_s . d_t): cheaper than g_i when there are few positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.clipped import norm_dtype
from decrescendo.clipping.rules import Call, Kernel, Rule, square_rows, weigh, zero_rows

# What the float64 copies of a few examples may take at once.
_GRAM_BYTES = 2**23


@dataclass(slots=True)
class LinearKernel:
    """``input @ weight.T + bias``, or ``input @ weight`` where ``transposed``."""

    roles: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    inputs: Float[Tensor, "batch positions features"]
    transposed: bool
    budget: int
    product: Tensor | None = field(default=None)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        d = self._positions(d)
        if self.roles[slot] == "bias":
            return square_rows(d[:, 0] if d.shape[1] == 1 else d.sum(1))
        a = self.inputs.to(d.dtype)
        if a.shape[1] == 1:
            return square_rows(a) * square_rows(d)
        positions, wide = a.shape[1], a.shape[2] * d.shape[2]
        if positions * (a.shape[2] + d.shape[2]) < wide or wide * a.shape[0] * d.element_size() > self.budget:
            return gram_norms(self.inputs, d)
        return square_rows(self._product(a, d))

    def weighted_sum(self, slot: int, d: Tensor, weights: Tensor) -> Tensor:
        d = self._positions(d)
        if self.roles[slot] == "bias":
            return weights.to(d.dtype) @ (d[:, 0] if d.shape[1] == 1 else d.sum(1))
        if self.product is not None:
            return self._oriented(weigh(self.product, weights))
        scaled = (d * weights.to(d.dtype).reshape(-1, 1, 1)).flatten(0, 1)
        return self._oriented(scaled.T @ self.inputs.to(d.dtype).flatten(0, 1))

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        d = self._positions(d)
        if self.roles[slot] == "bias":
            return d.sum(1)
        return self._oriented(self._product(self.inputs.to(d.dtype), d))

    def without(self, rows: Bool[Tensor, " batch"]) -> "LinearKernel":
        inputs = zero_rows(self.inputs, rows)
        return LinearKernel(self.roles, self.parameters, (), inputs, self.transposed, self.budget)

    def _positions(self, d: Tensor) -> Tensor:
        return d.reshape(d.shape[0], -1, d.shape[-1])

    def _product(self, a: Tensor, d: Tensor) -> Tensor:
        if self.product is None:
            self.product = torch.bmm(d.transpose(1, 2), a)
        return self.product

    def _oriented(self, gradient: Tensor) -> Tensor:
        return gradient.transpose(-1, -2) if self.transposed else gradient


def gram_norms(
    a: Float[Tensor, "batch positions features"], d: Float[Tensor, "batch positions outputs"]
) -> Float[Tensor, " batch"]:
    """|sum_s d_s a_s^T|^2 from Gram matrices in float64, rounded upwards.

    Guarantee:
        never below the exact value: with L = sum_s |a_s||d_s|, rounding in float64 takes at most
        (features + outputs + positions^2 + 4) 2^-53 L^2, which is added. (Gram matrices of float32 could take
        2^29 times that.) And where positions cancel, the sum that is weighed afterwards has errors of its own
        in proportion to L: 2^-22 L^2 (2^-51 L^2 for inputs in float64) is added for them, see docs/rounding.md.
        So a norm may be overestimated where there is cancellation, never underestimated.

    >>> a, d = torch.ones(1, 2, 3), torch.tensor([[[1.0], [1.0]]])
    >>> round(gram_norms(a, d).item(), 3)
    12.0
    """
    positions, features, outputs = a.shape[1], a.shape[2], d.shape[2]
    wide = norm_dtype(a.device)
    rows = max(1, _GRAM_BYTES // (8 * positions * (features + outputs + 2 * positions)))
    found: list[Tensor] = []
    for start in range(0, a.shape[0], rows):
        left, right = a[start : start + rows].to(wide), d[start : start + rows].to(wide)
        squares = (torch.bmm(left, left.mT) * torch.bmm(right, right.mT)).sum((1, 2))
        lengths = torch.linalg.vector_norm(left, dim=2) * torch.linalg.vector_norm(right, dim=2)
        largest = lengths.sum(1)
        lost = (features + outputs + positions**2 + 4) * 2.0**-53
        found.append(squares.clamp(min=0) + (lost + 2 * torch.finfo(a.dtype).eps) * largest.square())
    return torch.cat(found)


def _linear(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    return _build(call, bound["input"], bound["weight"], bound.get("bias"), transposed=False)


def _matmul(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    return _build(call, bound["input"], bound["other"], None, transposed=True)


def _build(
    call: Call, rows: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool
) -> Kernel | None:
    if call.is_tracked(rows) or rows.dim() < 2 or weight.dim() != 2 or not call.layout.holds(rows):
        return None
    if call.layout.kind == "columns" and rows.dim() < 3:
        return None
    roles = tuple(
        role
        for role, value in (("weight", weight), ("bias", bias))
        if value is not None and call.is_tracked(value)
    )
    parameters = tuple(weight if role == "weight" else bias for role in roles)
    split = call.layout.split(rows.detach())
    inputs = split.reshape(split.shape[0], -1, split.shape[-1])
    kept = tuple(parameter for parameter in parameters if parameter is not None)
    saved = (rows,) if "weight" in roles else ()
    return LinearKernel(roles, kept, saved, inputs, transposed, call.budget)


RULES = {
    functional.linear: Rule(("input", "weight", "bias"), _linear),
    torch.matmul: Rule(("input", "other"), _matmul),
    torch.mm: Rule(("input", "other"), _matmul),
    Tensor.matmul: Rule(("input", "other"), _matmul),
    Tensor.__matmul__: Rule(("input", "other"), _matmul),
    Tensor.mm: Rule(("input", "other"), _matmul),
}
