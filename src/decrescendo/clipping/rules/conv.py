"""The rule for convolutions of one to three dimensions.

With the patches U_i (channels * kernel, places) of example i and its output gradient D_i (outputs, places),
the weight gradient is g_i = D_i U_i^T, group by group. Its norm follows from this product, or from the Gram
matrices of pixels and of output gradients; the weighted sum is the product again, or torch's own weight gradient
of the weighted output gradients. Where products.c was compiled, it makes the product without copying a patch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.rules import compiled
from decrescendo.clipping.rules.grams import gram_cost, lengths_of_squares, norms_of_grams, slack_of
from decrescendo.clipping.rules.linear import product_norms, product_squares
from decrescendo.clipping.rules.patches import Geometry, padding_of, patch_grams, spread, unfold
from decrescendo.clipping.rules.rule import (
    Call,
    Kernel,
    Rule,
    round_up,
    scale_and_sum,
    square_rows,
    zero_rows,
)
from decrescendo.clipping.workspace import MOVED, Workspace, chunk_on, chunks, product_cost

# Chunks of patches that are copied at once for products: half of one, as the products lie in the cache too.
_PATCHES = 0.5
# Chunks of images and output gradients that are copied at once for the compiled form, and only read.
_COPIES = 4.0
# What a multiplication costs in the compiled form, and in torch's own weight gradient.
_COMPILED, _SUMMED = 1.2, 1.4


@dataclass(slots=True)
class ConvKernel:
    """A convolution; ``inputs`` (batch * k, channels, *places), with k > 1 where examples are folded.

    A kept ``product`` has the channels of one kernel place side by side.
    """

    roles: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    inputs: Float[Tensor, "images channels *places"]
    batch: int
    shape: tuple[int, ...]
    geometry: Geometry
    workspace: Workspace
    product: Float[Tensor, "batch outputs columns"] | None = field(default=None)
    biases: Float[Tensor, "batch channels_out"] | None = field(default=None)
    squares: dict[int, Tensor] = field(default_factory=dict)
    absorbing: bool = False

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        if slot not in self.squares:
            self.squares[slot] = self._squared_norms(slot, d)
        return self.squares[slot]

    def absorb(self, d: Tensor) -> bool:
        self.absorbing = True
        for slot in range(len(self.roles)):
            self.squared_norms(slot, d)
        return "weight" not in self.roles or self.product is not None

    def _squared_norms(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return square_rows(self._bias(d))
        method = self._method(d)
        if method in ("keep", "compiled"):
            # Memory for the product: its own if it replaces as much (d), else out of the workspace.
            shape = self._product_shape()
            kept = d.new_empty(shape) if self._replaces(d) else self.workspace.take(shape, d)
            if kept is not None:
                self.product = kept
                return self._fill(method, d, kept)
            method = "twice" if method == "keep" else "compiled twice"
        return self._norms(method, d)

    def _replaces(self, d: Tensor) -> bool:
        return self.absorbing and self.batch * math.prod(self.shape) <= d.numel()

    def scaled_sum(self, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            biases = self._bias(d)
            return factors.to(biases.dtype) @ biases
        if self.product is not None:
            return self._oriented(scale_and_sum(self.product, factors))
        return self._sum(d, factors)

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "bias":
            return self._bias(d)
        return self._oriented(self._products(d)[0])

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "ConvKernel":
        images = rows.repeat_interleave(self.inputs.shape[0] // self.batch)
        product, biases = (None if found is None else zero_rows(found, rows) for found in (self.product, self.biases))
        inputs = zero_rows(self.inputs, images)
        return replace(self, saved=(), inputs=inputs, product=product, biases=biases, squares={}, absorbing=False)

    def _bias(self, d: Tensor) -> Float[Tensor, "batch channels_out"]:
        if self.biases is None:
            places = d[0].numel() // self._copies() // self.shape[0]
            self.biases = d.reshape(self.batch, -1, self.shape[0], places).sum((1, 3))
        return self.biases

    def _copies(self) -> int:
        return self.inputs.shape[0] // self.batch

    def _method(self, d: Tensor) -> str:
        """By which form norms and sums are fastest: see `_norms`; "keep" and "compiled" also keep the product."""
        geometry, groups = self.geometry, self.geometry.groups
        outputs, channels = self.shape[0], self.inputs.shape[1]
        weight, patch = math.prod(self.shape), math.prod(self.shape[1:])
        places = d[0].numel() // outputs
        product = groups * product_cost(outputs // groups, places, patch)
        unfolded, multiplied = MOVED * places * patch * groups, places * weight
        summed = _SUMMED * multiplied
        cost = {"twice": product + unfolded + MOVED * weight + summed}
        pixels = math.prod(self._padded_places())
        kept = 2 * MOVED * weight
        room = self._replaces(d) or self.batch * weight * d.element_size() <= self.workspace.left
        if room:
            cost["keep"] = product + unfolded + kept
        if self._copies() == 1 and compiled.covers(geometry, d):
            run = channels * geometry.kernel[-1]
            lanes = -(-run // compiled.LANES) * compiled.LANES / run
            made = _COMPILED * lanes * multiplied + MOVED * pixels * channels
            cost["compiled twice"] = made + MOVED * weight + summed
            if room:
                cost["compiled"] = made + kept
        if groups == 1 and self._copies() == 1 and pixels**2 <= chunk_on(d.device):
            sums = pixels**2 * sum(geometry.kernel) * MOVED / 2
            cost["pixels"] = product_cost(pixels, channels, pixels) + sums + summed
            cost["pixels"] += gram_cost(places, 0, outputs)
        return self.workspace.choose(cost)

    def _padded_places(self) -> list[int]:
        pad, places = self.geometry.pad, self.inputs.shape[2:]
        last = len(places) - 1
        return [size + pad[2 * (last - axis)] + pad[2 * (last - axis) + 1] for axis, size in enumerate(places)]

    def _norms(self, method: str, d: Tensor) -> Float[Tensor, " batch"]:
        """|g_i|^2 by products that are not kept ("twice", "compiled twice"), or Gram matrices of pixels ("pixels")."""
        if method == "compiled twice":
            return self._passing_norms(d)
        if method == "pixels":
            pixels = math.prod(self._padded_places())
            parts = chunks(self.batch, pixels * pixels, d.device)
            return torch.cat([self._pixel_norms(d, part) for part in parts])
        places, slack = d[0].numel() // self.shape[0], slack_of(self.inputs)
        patch = math.prod(self.shape[1:]) * self.geometry.groups
        norms = [
            product_norms(*self._sides(d, part), slack).reshape(part.stop - part.start, -1).sum(1)
            for part in chunks(self.batch, places * patch, d.device)
        ]
        return torch.cat(norms)

    def _passing_norms(self, d: Tensor) -> Float[Tensor, " batch"]:
        """|g_i|^2 from compiled products, part by part in the same memory, which stays in the cache."""
        parts = list(chunks(self.batch, math.prod(self.shape), d.device))
        found = d.new_empty(max(part.stop - part.start for part in parts), *self._product_shape()[1:])
        squares = [self._compiled(d, part, found[: part.stop - part.start]) for part in parts]
        # Slack as in `product_norms`, as the sum rounds gradients differently: (sum_s |u_s||d_s|)^2 is at most |d|^2
        # times sum_s |u_s|^2, in which a pixel is in at most ``often`` patches u_s.
        steps = zip(self.geometry.kernel, self.geometry.stride, strict=True)
        often = math.prod(-(-size // step) for size, step in steps)
        lengths = often * square_rows(self.inputs.to(d.dtype)) * square_rows(d)
        return round_up(torch.cat(squares), math.prod(self.shape)) + slack_of(self.inputs) * lengths

    def _pixel_norms(self, d: Tensor, part: slice) -> Float[Tensor, " rows"]:
        first = patch_grams(self.inputs[part].to(d.dtype), self.geometry)
        outputs = d[part].reshape(part.stop - part.start, self.shape[0], -1)
        second = torch.bmm(outputs.transpose(1, 2), outputs)
        # Each entry is a sum over the channels, and then over the kernel one dimension after another.
        terms = self.shape[1] + sum(self.shape[2:])
        lengths = lengths_of_squares(first.diagonal(0, 1, 2).clone(), terms, math.prod(self.shape[1:]))
        sizes = lengths_of_squares(second.diagonal(0, 1, 2).clone(), self.shape[0], self.shape[0])
        return norms_of_grams(first, second, lengths, sizes, slack_of(self.inputs))

    def _product_shape(self) -> tuple[int, int, int]:
        return self.batch, self.shape[0], math.prod(self.shape[1:])

    def _fill(self, method: str, d: Tensor, kept: Tensor) -> Float[Tensor, " batch"]:
        """Write the product to ``kept``; returns |g_i|^2."""
        if method != "compiled":
            return self._products(d, kept)[1]
        # In parts, so that what has to be copied first (zeros round the images, channels last) stays small.
        size = math.prod(self._padded_places()) * self.inputs.shape[1] + d[0].numel()
        parts = chunks(self.batch, size, d.device, _COPIES)
        squares = [self._compiled(d, part, kept[part]) for part in parts]
        return round_up(torch.cat(squares), math.prod(self.shape))

    def _compiled(self, d: Tensor, part: slice, found: Tensor) -> Float[Tensor, " rows"]:
        return compiled.gradients(self.inputs[part], d[part], self.geometry, found)

    def _products(self, d: Tensor, found: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """g_i, its columns in the order of `_sides`, written to ``found`` if there is one; and |g_i|^2."""
        batch, outputs, columns = self._product_shape()
        found = torch.empty(batch, outputs, columns, dtype=d.dtype, device=d.device) if found is None else found
        groups = self.geometry.groups
        flat = found.view(batch * groups, outputs // groups, columns)
        squares = [
            product_squares(*self._sides(d, part), flat[part.start * groups : part.stop * groups])
            for part in chunks(batch, d[0].numel() // outputs * columns * groups, d.device, _PATCHES)
        ]
        return found, torch.cat(squares).reshape(batch, groups).sum(1)

    def _sides(self, d: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Output gradients (rows * groups, outputs, places) and patches (rows * groups, places, patch)."""
        copies, groups, rows = self._copies(), self.geometry.groups, part.stop - part.start
        patches = unfold(self.inputs[part.start * copies : part.stop * copies].to(d.dtype), self.geometry)
        # (rows, places, kernel, groups, channels of a group), the places of all copies side by side
        patches = patches.reshape(rows, -1, patches.shape[2], groups, self.shape[1])
        right = patches.permute(0, 3, 1, 2, 4).reshape(rows * groups, patches.shape[1], -1)
        left = d[part].reshape(rows, copies, groups, self.shape[0] // groups, -1)
        return left.permute(0, 2, 3, 1, 4).reshape(rows * groups, self.shape[0] // groups, -1), right

    def _oriented(self, gradient: Float[Tensor, "*batch outputs columns"]) -> Tensor:
        """A product, or a sum of it, in the shape of the weight."""
        batch = gradient.shape[:-2]
        rows = gradient.reshape(*batch, self.shape[0], *self.shape[2:], self.shape[1])
        return rows.movedim(-1, len(batch) + 1)

    def _sum(self, d: Tensor, factors: Tensor) -> Tensor:
        """sum_i w_i g_i as torch's weight gradient of the weighted output gradients."""
        copies, geometry = self._copies(), self.geometry
        dimensions = len(geometry.kernel)
        total = torch.zeros(self.shape, dtype=d.dtype, device=d.device)
        scale = factors.to(d.dtype).reshape(-1, *[1] * (d.dim() - 1))
        # Unequal padding is done by hand: the weight gradient takes the same on both sides.
        even = geometry.pad[::2] == geometry.pad[1::2]
        padding = list(geometry.pad[::2][::-1]) if even else [0] * dimensions
        for part in chunks(self.batch, d[0].numel(), d.device):
            images = self.inputs[part.start * copies : part.stop * copies].to(d.dtype)
            images = images if even else geometry.padded(images)
            outputs = (d[part] * scale[part]).reshape(images.shape[0], self.shape[0], *d.shape[-dimensions:])
            found = torch.ops.aten.convolution_backward(
                outputs, images, total, None, list(geometry.stride), padding, list(geometry.dilation), False,
                [0] * dimensions, geometry.groups, [False, True, False],
            )  # fmt: skip
            total = cast("Tensor", found[1]) if part.start == 0 else total + cast("Tensor", found[1])
        return total


def _conv(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    images, weight, bias = bound["input"], bound["weight"], bound.get("bias")
    if call.is_tracked(images) or images.dim() != weight.dim() or not call.holds(images):
        return None
    kernel = tuple(weight.shape[2:])
    dilation = spread(bound.get("dilation", 1), len(kernel))
    geometry = Geometry(
        kernel=kernel,
        stride=spread(bound.get("stride", 1), len(kernel)),
        dilation=dilation,
        pad=padding_of(bound.get("padding", 0), kernel, dilation),
        groups=bound.get("groups", 1),
    )
    slots = [
        (role, cast("Tensor", value)) for role, value in (("weight", weight), ("bias", bias)) if call.is_tracked(value)
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
        workspace=call.workspace,
    )


NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
RULES = {
    conv: Rule(NAMES, _conv, ("rows", "folded")) for conv in (functional.conv1d, functional.conv2d, functional.conv3d)
}
