"""The rule for convolutions of one to three dimensions: unfolded input patches times output gradients.

With the patches U_i (channels * kernel, places) of example i and its output gradient D_i (outputs, places),
the weight gradient is g_i = D_i U_i^T, group by group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.rules import Call, Kernel, Rule, square_rows, weigh, zero_rows


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a convolution does, with one number a dimension; ``pad`` as ``F.pad`` takes it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    groups: int


@dataclass(slots=True)
class ConvKernel:
    """A convolution; ``inputs`` (batch * k, channels, *places), with k > 1 where examples are folded."""

    roles: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    inputs: Float[Tensor, "images channels *places"]
    batch: int
    shape: tuple[int, ...]
    geometry: Geometry
    budget: int
    product: Tensor | None = field(default=None)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return square_rows(self._bias(d))
        if self._fits(d):
            self.product = self._product(d, 0, self.batch)
            return square_rows(self.product)
        rows = self._chunk(d)
        parts = [
            square_rows(self._product(d, start, min(start + rows, self.batch)))
            for start in range(0, self.batch, rows)
        ]
        return torch.cat(parts)

    def weighted_sum(self, slot: int, d: Tensor, weights: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return weights.to(d.dtype) @ self._bias(d)
        if self.product is not None:
            return weigh(self.product, weights).reshape(self.shape)
        total = torch.zeros(self.shape, dtype=d.dtype, device=d.device)
        rows = self._chunk(d)
        for start in range(0, self.batch, rows):
            stop = min(start + rows, self.batch)
            total += weigh(self._product(d, start, stop), weights[start:stop]).reshape(self.shape)
        return total

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return self._bias(d)
        return self._product(d, 0, self.batch).reshape(self.batch, *self.shape)

    def without(self, rows: Bool[Tensor, " batch"]) -> "ConvKernel":
        images = rows.repeat_interleave(self.inputs.shape[0] // self.batch)
        inputs = zero_rows(self.inputs, images)
        return ConvKernel(
            self.roles, self.parameters, (), inputs, self.batch, self.shape, self.geometry, self.budget
        )

    def _bias(self, d: Tensor) -> Tensor:
        channels = self.shape[0]
        return d.reshape(self.batch, -1, channels, d[0].numel() // self._copies() // channels).sum((1, 3))

    def _copies(self) -> int:
        return self.inputs.shape[0] // self.batch

    def _row_bytes(self, d: Tensor) -> int:
        weight = torch.Size(self.shape).numel()
        places = d[0].numel() // self.shape[0]
        patch = self.inputs.shape[1] * torch.Size(self.geometry.kernel).numel() * places
        return (weight + patch) * d.element_size()

    def _fits(self, d: Tensor) -> bool:
        return self.batch * self._row_bytes(d) <= self.budget

    def _chunk(self, d: Tensor) -> int:
        return max(1, self.budget // max(1, self._row_bytes(d)))

    def _product(self, d: Tensor, start: int, stop: int) -> Float[Tensor, "rows groups outputs patch"]:
        copies, rows, groups = self._copies(), stop - start, self.geometry.groups
        images = self.inputs[start * copies : stop * copies].to(d.dtype)
        patches = unfold(images, self.geometry)
        outputs = self.shape[0] // groups
        places = patches.shape[-1]
        d = d[start:stop].reshape(rows, copies, groups, outputs, places)
        patches = patches.reshape(rows, copies, groups, -1, places)
        if copies > 1:
            d = d.permute(0, 2, 3, 1, 4)
            patches = patches.permute(0, 2, 3, 1, 4)
        left = d.reshape(rows * groups, outputs, copies * places)
        right = patches.reshape(rows * groups, -1, copies * places)
        return torch.bmm(left, right.transpose(1, 2)).reshape(rows, groups, outputs, -1)


def unfold(
    images: Float[Tensor, "images channels *places"], geometry: Geometry
) -> Float[Tensor, "images patch out"]:
    """The patches that each output place sees: rows ordered (channel, kernel place).

    >>> geometry = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)
    >>> unfold(torch.tensor([[[1.0, 2.0, 3.0]]]), geometry)
    tensor([[[1., 2.],
             [2., 3.]]])
    """
    if any(geometry.pad):
        images = functional.pad(images, list(geometry.pad))
    windows = images
    dimensions = len(geometry.kernel)
    for axis in range(dimensions):
        reach = (geometry.kernel[axis] - 1) * geometry.dilation[axis] + 1
        windows = windows.unfold(2 + axis, reach, geometry.stride[axis])
        windows = windows[..., :: geometry.dilation[axis]]
    order = (0, 1, *range(2 + dimensions, 2 + 2 * dimensions), *range(2, 2 + dimensions))
    windows = windows.permute(order)
    patch = windows.shape[1] * torch.Size(geometry.kernel).numel()
    return windows.reshape(images.shape[0], patch, -1)


def _spread(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dimensions
    values = tuple(int(item) for item in value)
    return values * dimensions if len(values) == 1 else values


def _padding(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Padding as ``F.pad`` takes it: (before, after) from the last dimension to the first."""
    sides: list[tuple[int, int]] = []
    if padding == "valid":
        sides = [(0, 0)] * len(kernel)
    elif padding == "same":
        # An even reach needs one more zero on one side; torch puts it after.
        for size, step in zip(kernel, dilation, strict=True):
            total = step * (size - 1)
            sides.append((total // 2, total - total // 2))
    else:
        sides = [(size, size) for size in _spread(padding, len(kernel))]
    return tuple(size for side in reversed(sides) for size in side)


def _conv(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    images, weight, bias = bound["input"], bound["weight"], bound.get("bias")
    if call.is_tracked(images) or images.dim() != weight.dim() or not call.layout.holds(images):
        return None
    kernel = tuple(weight.shape[2:])
    dilation = _spread(bound.get("dilation", 1), len(kernel))
    geometry = Geometry(
        kernel=kernel,
        stride=_spread(bound.get("stride", 1), len(kernel)),
        dilation=dilation,
        pad=_padding(bound.get("padding", 0), kernel, dilation),
        groups=bound.get("groups", 1),
    )
    slots = [
        (role, cast("Tensor", value))
        for role, value in (("weight", weight), ("bias", bias))
        if call.is_tracked(value)
    ]
    saved = (images,) if slots[0][0] == "weight" else ()
    return ConvKernel(
        roles=tuple(role for role, _ in slots),
        parameters=tuple(value for _, value in slots),
        saved=saved,
        inputs=images.detach(),
        batch=call.layout.batch,
        shape=tuple(weight.shape),
        geometry=geometry,
        budget=call.budget,
    )


NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
RULES = {
    conv: Rule(NAMES, _conv, ("rows", "folded", "shared"))
    for conv in (functional.conv1d, functional.conv2d, functional.conv3d)
}
