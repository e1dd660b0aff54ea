"""The rule for normalisation with an affine map: layer, RMS, group and instance norm, and batch norm in
evaluation.

The output is x_hat * weight + bias with x_hat computed within one example, so g_i = sum of d x_hat (weight)
or of d (bias) over the places of example i.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.layout import MERGED, Kind, Layout
from decrescendo.clipping.means import chunks
from decrescendo.clipping.rules.rule import Call, Kernel, Rule, square_rows, weigh, zero_rows


@dataclass(slots=True)
class AffineKernel:
    """``normalised * weight + bias``; sums run over ``places``, dimensions of (batch, ...).

    The normalised rows are made again when they are needed: autograd keeps the rows anyway.
    """

    roles: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    rows: Tensor
    normalise: Callable[[Tensor], Tensor]
    layout: Layout
    places: tuple[int, ...]
    bad: Bool[Tensor, " batch"] | None = None
    found: dict[int, Tensor] = field(default_factory=dict)

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        return square_rows(self.per_example(slot, d))

    def weighted_sum(self, slot: int, d: Tensor, weights: Tensor) -> Tensor:
        return weigh(self.per_example(slot, d), weights)

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        if slot not in self.found:
            self.found[slot] = self._summed(slot, d).reshape(d.shape[0], *self.parameters[slot].shape)
        return self.found[slot]

    def absorb(self, d: Tensor) -> bool:
        for slot in range(len(self.roles)):
            self.per_example(slot, d)
        if self.places:
            self.rows = self.rows.new_empty(0)
        return bool(self.places)

    def without(self, rows: Bool[Tensor, " batch"]) -> "AffineKernel":
        found = {slot: zero_rows(gradient, rows) for slot, gradient in self.found.items()}
        return AffineKernel(
            self.roles, self.parameters, (), self.rows, self.normalise, self.layout, self.places, rows, found
        )

    def _summed(self, slot: int, d: Tensor) -> Tensor:
        """The gradients; small where there are places to sum over."""
        if self.roles[slot] == "bias":
            return d.sum(self.places) if self.places else d
        found = torch.cat(
            [
                self._sum(d[part] * normalised.to(d.dtype))
                for part, normalised in self._normalised(d[0].numel())
            ]
        )
        return found if self.bad is None else zero_rows(found, self.bad)

    def _sum(self, terms: Tensor) -> Tensor:
        return terms.sum(self.places) if self.places else terms

    def _normalised(self, size: int) -> Iterator[tuple[slice, Tensor]]:
        batch = self.layout.batch
        if self.layout.kind not in ("rows", "folded"):
            yield slice(0, batch), self.layout.split(self.normalise(self.rows))
            return
        copies = self.rows.shape[0] // batch
        for part in chunks(batch, size):
            some = self.normalise(self.rows[part.start * copies : part.stop * copies])
            yield part, replace(self.layout, batch=part.stop - part.start).split(some)


def _affine(
    call: Call, bound: Mapping[str, Any], plain: Callable[[Tensor], Tensor], features: int | None
) -> Kernel | None:
    """``plain`` normalises without the affine map; ``features``: how many last dimensions the parameters
    have, or ``None`` where they have the channels, dimension 1 of what was called."""
    rows, weight, bias = bound["input"], bound.get("weight"), bound.get("bias")
    if call.is_tracked(rows) or not call.holds(rows):
        return None
    slots = [
        (role, cast("Tensor", value))
        for role, value in (("weight", weight), ("bias", bias))
        if call.is_tracked(value)
    ]
    if features is not None and features >= rows.dim():
        return None
    saved = (rows,) if any(role == "weight" for role, _ in slots) else ()
    dimensions = rows.dim() + (call.layout.kind in MERGED)
    if features is None:
        channel = dimensions - rows.dim() + 1
        places = tuple(axis for axis in range(1, dimensions) if axis != channel)
    else:
        places = tuple(range(1, dimensions - features))
    return AffineKernel(
        tuple(role for role, _ in slots),
        tuple(value for _, value in slots),
        saved,
        rows.detach(),
        plain,
        call.layout,
        places,
    )


def _layer_norm(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    shape, eps = bound["normalized_shape"], bound.get("eps", 1e-5)
    return _affine(call, bound, lambda rows: functional.layer_norm(rows, shape, eps=eps), len(shape))


def _rms_norm(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    shape, eps = bound["normalized_shape"], bound.get("eps")
    return _affine(call, bound, lambda rows: functional.rms_norm(rows, shape, eps=eps), len(shape))


def _group_norm(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    groups, eps = bound["num_groups"], bound.get("eps", 1e-5)
    return _affine(call, bound, lambda rows: functional.group_norm(rows, groups, eps=eps), None)


def _instance_norm(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    mean, variance = bound.get("running_mean"), bound.get("running_var")
    fresh, eps = bound.get("use_input_stats", True), bound.get("eps", 1e-5)

    def plain(rows: Tensor) -> Tensor:
        if fresh:
            return functional.instance_norm(rows, eps=eps)
        return functional.instance_norm(rows, mean, variance, use_input_stats=False, eps=eps)

    return _affine(call, bound, plain, None)


def _batch_norm(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
    mean, variance, eps = bound["running_mean"], bound["running_var"], bound.get("eps", 1e-5)
    return _affine(call, bound, lambda rows: functional.batch_norm(rows, mean, variance, eps=eps), None)


BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
INSTANCE_NORM = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    "use_input_stats",
    "momentum",
    "eps",
)
_IMAGES: tuple[Kind, ...] = ("rows", "folded")


def _reordered(names: tuple[str, ...]) -> tuple[str, ...]:
    """The functions in the torch namespace take the affine parameters before the statistics."""
    return (names[0], names[3], names[4], names[1], names[2], *names[5:])


RULES = {
    functional.layer_norm: Rule(("input", "normalized_shape", "weight", "bias", "eps"), _layer_norm),
    torch.layer_norm: Rule(("input", "normalized_shape", "weight", "bias", "eps"), _layer_norm),
    functional.rms_norm: Rule(("input", "normalized_shape", "weight", "eps"), _rms_norm),
    torch.rms_norm: Rule(("input", "normalized_shape", "weight", "eps"), _rms_norm),
    functional.group_norm: Rule(("input", "num_groups", "weight", "bias", "eps"), _group_norm, _IMAGES),
    torch.group_norm: Rule(("input", "num_groups", "weight", "bias", "eps"), _group_norm, _IMAGES),
    functional.instance_norm: Rule(INSTANCE_NORM, _instance_norm, _IMAGES),
    torch.instance_norm: Rule(_reordered(INSTANCE_NORM), _instance_norm, _IMAGES),
    functional.batch_norm: Rule(BATCH_NORM, _batch_norm, _IMAGES),
    torch.batch_norm: Rule(_reordered(BATCH_NORM), _batch_norm, _IMAGES),
}
