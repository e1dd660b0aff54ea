"""The image patches that a convolution reads, their Gram matrix (computed without them), and convolution
arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of a convolution, one number a dimension; ``pad`` as ``F.pad`` takes it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    groups: int

    def reach(self, axis: int) -> int:
        """Pixels from the first to the last that one output place sees, both counted."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1

    def padded(self, images: Float[Tensor, "images channels *places"]) -> Tensor:
        """The zero-padded images."""
        return functional.pad(images, list(self.pad)) if any(self.pad) else images


def unfold(
    images: Float[Tensor, "images channels *places"], geometry: Geometry
) -> Float[Tensor, "images out kernel channels"]:
    """The patches that each output place sees, with the channels of one kernel place side by side.

    >>> geometry = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)
    >>> unfold(torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]), geometry)[0].tolist()
    [[[1.0, 4.0], [2.0, 5.0]], [[2.0, 5.0], [3.0, 6.0]]]
    """
    dimensions = len(geometry.kernel)
    windows = geometry.padded(images).movedim(1, -1).contiguous()
    for axis in range(dimensions):
        windows = windows.unfold(1 + axis, geometry.reach(axis), geometry.stride[axis])
        windows = windows[..., :: geometry.dilation[axis]]
    order = (*range(1 + dimensions), *range(2 + dimensions, 2 + 2 * dimensions), 1 + dimensions)
    return windows.permute(order).reshape(images.shape[0], -1, torch.Size(geometry.kernel).numel(), images.shape[1])


def patch_grams(
    images: Float[Tensor, "images channels *places"], geometry: Geometry
) -> Float[Tensor, "images out out"]:
    """Inner products of the patches of each two output places, without making the patches.

    Inner products of pixels, one matrix product over the channels, are added along the diagonals that the
    kernel runs through, one dimension after another.

    >>> geometry = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)
    >>> patch_grams(torch.tensor([[[1.0, 2.0, 3.0]]]), geometry)
    tensor([[[ 5.,  8.],
             [ 8., 13.]]])
    """
    images = geometry.padded(images)
    count, places = images.shape[0], images.shape[2:]
    flat = images.flatten(2)
    grams = torch.bmm(flat.transpose(1, 2), flat).reshape(count, *places, *places)
    dimensions = len(places)
    for axis in range(dimensions):
        stride, dilation = geometry.stride[axis], geometry.dilation[axis]
        out = (places[axis] - geometry.reach(axis)) // stride + 1
        steps: list[Tensor] = []
        for offset in range(0, geometry.kernel[axis] * dilation, dilation):
            inside = slice(offset, offset + stride * (out - 1) + 1, stride)
            index = [slice(None)] * grams.dim()
            index[1 + axis] = index[1 + dimensions + axis] = inside
            steps.append(grams[tuple(index)])
        total = steps[0] + steps[1] if len(steps) > 1 else steps[0]
        for step in steps[2:]:
            total += step
        grams = total
    size = torch.Size(grams.shape[1 : 1 + dimensions]).numel()
    return grams.reshape(count, size, size)


def spread(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dimensions
    values = tuple(int(item) for item in value)
    return values * dimensions if len(values) == 1 else values


def padding_of(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
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
        sides = [(size, size) for size in spread(padding, len(kernel))]
    return tuple(size for side in reversed(sides) for size in side)
