"""The patches of an image that a convolution sees, and their Gram matrix without them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a convolution does, with one number a dimension; ``pad`` as ``F.pad`` takes it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    groups: int

    def reach(self, axis: int) -> int:
        """Pixels from the first to the last that one output place sees, both counted."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1

    def padded(self, images: Float[Tensor, "images channels *places"]) -> Tensor:
        """The images with the zeros round them."""
        return functional.pad(images, list(self.pad)) if any(self.pad) else images


def unfold(
    images: Float[Tensor, "images channels *places"], geometry: Geometry
) -> Float[Tensor, "images patch out"]:
    """The patches that each output place sees: rows ordered (channel, kernel place).

    >>> geometry = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)
    >>> unfold(torch.tensor([[[1.0, 2.0, 3.0]]]), geometry)
    tensor([[[1., 2.],
             [2., 3.]]])
    """
    dimensions = len(geometry.kernel)
    if has_phases(geometry):
        windows = _phase_windows(geometry.padded(images), geometry)
    else:
        windows = _windows(geometry.padded(images), geometry, 2)
        order = (0, 1, *range(2 + dimensions, 2 + 2 * dimensions), *range(2, 2 + dimensions))
        windows = windows.permute(order)
    patch = windows.shape[1] * torch.Size(geometry.kernel).numel()
    return windows.reshape(images.shape[0], patch, -1)


def unfold_places(
    images: Float[Tensor, "images channels *places"], geometry: Geometry
) -> Float[Tensor, "images out patch"]:
    """The same with a row for each output place, and its columns ordered (kernel place, channel).

    Copies runs of channels: many channels, small images and strides are quicker this way.

    >>> geometry = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)
    >>> unfold_places(torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]), geometry)
    tensor([[[1., 4., 2., 5.],
             [2., 5., 3., 6.]]])
    """
    dimensions = len(geometry.kernel)
    last = geometry.padded(images).movedim(1, -1).contiguous()
    windows = _windows(last, geometry, 1)
    order = (*range(1 + dimensions), *range(2 + dimensions, 2 + 2 * dimensions), 1 + dimensions)
    windows = windows.permute(order)
    patch = images.shape[1] * torch.Size(geometry.kernel).numel()
    return windows.reshape(images.shape[0], -1, patch)


def has_strips(geometry: Geometry, channels: int) -> bool:
    """Whether `unfold_strips` is quicker than copying whole patches: one in many rows, each wide enough for a product.

    >>> geometry = Geometry(kernel=(8, 8), stride=(2, 2), dilation=(1, 1), pad=(3, 3, 3, 3), groups=1)
    >>> has_strips(geometry, channels=1)
    True
    """
    if len(geometry.kernel) != 2 or geometry.groups > 1 or geometry.dilation != (1, 1):
        return False
    (high, wide), step = geometry.kernel, geometry.stride[0]
    return high % step == 0 and high // step >= _FEWEST_STRIPS and step * wide * channels >= _NARROWEST


def unfold_strips(
    images: Float[Tensor, "images channels high wide"], geometry: Geometry
) -> list[Float[Tensor, "images out columns"]]:
    """The patches in parts, one for each ``stride`` rows of the kernel, columns (kernel place, channel).

    An output place one row further down sees in one strip of the kernel what its upper neighbour saw in the next. So
    the strips are views of one tensor, a kernel's height smaller than all patches.

    >>> geometry = Geometry(kernel=(2, 1), stride=(1, 1), dilation=(1, 1), pad=(0, 0, 0, 0), groups=1)
    >>> [strip.tolist() for strip in unfold_strips(torch.tensor([[[[1.0], [2.0], [3.0]]]]), geometry)]
    [[[[1.0], [2.0]]], [[[2.0], [3.0]]]]
    """
    (high, wide), (step, along) = geometry.kernel, geometry.stride
    last = geometry.padded(images).movedim(1, -1).contiguous()
    count, channels = last.shape[0], last.shape[3]
    down, across = (last.shape[1] - high) // step + 1, (last.shape[2] - wide) // along + 1
    strips = high // step
    rows = down + strips - 1
    found = last.new_empty(count, rows, across, step, wide, channels)
    for phase in range(step):  # long runs of one copy, not short ones of all
        windows = last[:, phase : phase + step * (rows - 1) + 1 : step].unfold(2, wide, along)
        found[:, :, :, phase] = windows.transpose(3, 4)
    flat = found.reshape(count, rows * across, step * wide * channels)
    return [flat[:, strip * across : (strip + down) * across] for strip in range(strips)]


# Measured: with fewer strips little copying is saved, with narrower ones the products are slow.
_FEWEST_STRIPS, _NARROWEST = 3, 16


def copies_runs_of_places(images: Tensor, geometry: Geometry, width: int) -> bool:
    """Whether `unfold` copies longer runs of memory than `unfold_places`; ``width`` is of the output."""
    along = width if geometry.stride[-1] == 1 or has_phases(geometry) else 1
    across = images.shape[1] * (geometry.kernel[-1] if geometry.dilation[-1] == 1 else 1)
    return geometry.groups > 1 or along >= across


def has_phases(geometry: Geometry) -> bool:
    """Whether the last dimension falls into ``stride`` interleaved rows, each of which a window walks by ones."""
    stride = geometry.stride[-1]
    return stride > 1 and geometry.dilation[-1] == 1 and geometry.kernel[-1] % stride == 0


def _phase_windows(images: Tensor, geometry: Geometry) -> Float[Tensor, "images channels *kernel_and_out"]:
    """The windows of a strided convolution with neighbouring output places side by side in memory.

    Kernel place x of output place o is pixel x + stride o: pixel o + x // stride of the row of those pixels that leave
    the rest x % stride. With these rows laid apart, runs as long as the output are copied instead of single numbers.
    """
    stride, dimensions = geometry.stride[-1], len(geometry.kernel)
    width = (images.shape[-1] - geometry.kernel[-1]) // stride + geometry.kernel[-1] // stride
    rows = images[..., : width * stride].unflatten(-1, (width, stride)).movedim(-1, 2).contiguous()
    windows = rows
    for axis in range(dimensions - 1):
        windows = windows.unfold(3 + axis, geometry.reach(axis), geometry.stride[axis])
        windows = windows[..., :: geometry.dilation[axis]]
    windows = windows.unfold(2 + dimensions, geometry.kernel[-1] // stride, 1)
    # (images, channels, phase, *out, *kernel, kernel of the last over stride): the phase goes last in the kernel
    kernel = range(3 + dimensions, 3 + 2 * dimensions)
    return windows.permute(0, 1, *kernel, 2, *range(3, 3 + dimensions))


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


def _windows(images: Tensor, geometry: Geometry, first: int) -> Tensor:
    """Views of what each output place sees; the dimensions of places start at ``first``."""
    windows = images
    for axis in range(len(geometry.kernel)):
        windows = windows.unfold(first + axis, geometry.reach(axis), geometry.stride[axis])
        windows = windows[..., :: geometry.dilation[axis]]
    return windows
