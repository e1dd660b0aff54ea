"""The rule for transposed convolutions: a convolution with input and output gradient in each other's place.

o = conv_transpose(x, w) is the adjoint of the convolution by w, which maps the places of o to the places of x. So the
gradient of w is that convolution's: patches of d_i, times x_i.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.means import Means
from decrescendo.clipping.rules.conv import ConvKernel
from decrescendo.clipping.rules.patches import Geometry, copies_runs_of_places
from decrescendo.clipping.rules.rule import Call, Kernel, Rule, square_rows, weigh, zero_rows


@dataclass(slots=True)
class TransposedKernel:
    """A transposed convolution of ``inputs`` (batch, ...), with k images an example where they are folded."""

    roles: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    inputs: Float[Tensor, "batch *rest"]
    shape: tuple[int, ...]
    geometry: Geometry
    means: Means
    mirror: ConvKernel | None = field(default=None)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return square_rows(self._bias(d))
        return self._mirrored(d).squared_norms(0, self.inputs.to(d.dtype))

    def weighted_sum(self, slot: int, d: Tensor, weights: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return weigh(self._bias(d), weights)
        return self._mirrored(d).weighted_sum(0, self.inputs.to(d.dtype), weights)

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return self._bias(d)
        return self._mirrored(d).per_example(0, self.inputs.to(d.dtype))

    def without(self, rows: Bool[Tensor, " batch"]) -> "TransposedKernel":
        inputs = zero_rows(self.inputs, rows)
        return TransposedKernel(
            self.roles, self.parameters, (), inputs, self.shape, self.geometry, self.means
        )

    def _bias(self, d: Tensor) -> Float[Tensor, "batch outputs"]:
        channels = self.shape[1] * self.geometry.groups
        places = d.shape[-len(self.geometry.kernel) :].numel()
        return d.reshape(d.shape[0], -1, channels, places).sum((1, 3))

    def _mirrored(self, d: Tensor) -> ConvKernel:
        """The convolution whose weight gradient this is."""
        if self.mirror is None:
            images = d.reshape(-1, *d.shape[-len(self.geometry.kernel) - 1 :])
            self.mirror = ConvKernel(
                ("weight",),
                self.parameters[:1],
                (),
                images,
                d.shape[0],
                self.shape,
                self.geometry,
                self.means,
                by_places=not copies_runs_of_places(images, self.geometry, self.inputs.shape[-1]),
            )
        return self.mirror


def _spread(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dimensions if len(values) == 1 else values


def _transposed(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    images, weight, bias = bound["input"], bound["weight"], bound.get("bias")
    if call.is_tracked(images) or images.dim() != weight.dim() or not call.holds(images):
        return None
    dimensions = weight.dim() - 2
    padding = _spread(bound.get("padding", 0), dimensions)
    extra = _spread(bound.get("output_padding", 0), dimensions)
    # Places that no input place reaches are cut off: a negative padding.
    sides = [(before, before - more) for before, more in zip(padding, extra, strict=True)]
    geometry = Geometry(
        kernel=tuple(weight.shape[2:]),
        stride=_spread(bound.get("stride", 1), dimensions),
        dilation=_spread(bound.get("dilation", 1), dimensions),
        pad=tuple(size for side in reversed(sides) for size in side),
        groups=bound.get("groups", 1),
    )
    slots = [
        (role, cast("Tensor", value))
        for role, value in (("weight", weight), ("bias", bias))
        if call.is_tracked(value)
    ]
    return TransposedKernel(
        roles=tuple(role for role, _ in slots),
        parameters=tuple(value for _, value in slots),
        saved=(images,) if slots[0][0] == "weight" else (),
        inputs=call.layout.split(images.detach()),
        shape=tuple(weight.shape),
        geometry=geometry,
        means=call.means,
    )


NAMES = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
RULES = {
    convolution: Rule(NAMES, _transposed, ("rows", "folded"))
    for convolution in (
        functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d,
        torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
    )
}  # fmt: skip
