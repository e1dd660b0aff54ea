"""The rule for normalisation with an affine map: layer, RMS, group and instance norm, and batch norm in
evaluation.

The output is x_hat * weight + bias with x_hat computed within one example, so g_i = sum of d x_hat (weight)
or of d (bias) over the places of example i.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.layout import MERGED, Kind
from decrescendo.clipping.rules import Call, Kernel, Rule, square_rows, weigh, zero_rows
from decrescendo.errors import UnsupportedModel


@dataclass(slots=True)
class AffineKernel:
    """``normalised * weight + bias``; sums run over ``places``, dimensions of (batch, ...)."""

    roles: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    normalised: Float[Tensor, "batch *rest"] | None
    places: tuple[int, ...]
    bad: Bool[Tensor, " batch"] | None = None

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        return square_rows(self.per_example(slot, d))

    def weighted_sum(self, slot: int, d: Tensor, weights: Tensor) -> Tensor:
        return weigh(self.per_example(slot, d), weights)

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        if self.roles[slot] == "weight" and self.normalised is not None:
            d = d * self.normalised.to(d.dtype)
            if self.bad is not None:
                d = zero_rows(d, self.bad)
        summed = d.sum(self.places) if self.places else d
        return summed.reshape(d.shape[0], *self.parameters[slot].shape)

    def without(self, rows: Bool[Tensor, " batch"]) -> "AffineKernel":
        return AffineKernel(self.roles, self.parameters, (), self.normalised, self.places, rows)


def _affine(
    call: Call, bound: Mapping[str, Any], plain: Callable[[Tensor], Tensor], features: int | None
) -> Kernel | None:
    """``plain`` normalises without the affine map; ``features``: how many last dimensions the parameters
    have, or ``None`` where they have the channels, dimension 1 of what was called."""
    rows, weight, bias = bound["input"], bound.get("weight"), bound.get("bias")
    if call.is_tracked(rows) or not call.layout.holds(rows):
        return None
    slots = [
        (role, cast("Tensor", value))
        for role, value in (("weight", weight), ("bias", bias))
        if call.is_tracked(value)
    ]
    if features is not None and features >= rows.dim():
        return None
    needed = any(role == "weight" for role, _ in slots)
    normalised = call.layout.split(plain(rows.detach())) if needed else None
    dimensions = rows.dim() + (call.layout.kind in MERGED)
    if features is None:
        channel = dimensions - rows.dim() + 1
        places = tuple(axis for axis in range(1, dimensions) if axis != channel)
    else:
        places = tuple(range(1, dimensions - features))
    return AffineKernel(
        tuple(role for role, _ in slots), tuple(value for _, value in slots), (), normalised, places
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


def check_batch_norm(bound: Mapping[str, Any]) -> None:
    """Refuse statistics over the batch: they make every example's gradient depend on every other example."""
    if bound.get("training"):
        raise UnsupportedModel(
            "examples must not see each other, got batch_norm with training=True, which averages over the "
            "batch. "
            "Replace BatchNorm by GroupNorm, or call .eval() on it and keep its statistics public"
        )


def check_instance_norm(bound: Mapping[str, Any]) -> None:
    """Refuse running statistics that are updated: they store the data without noise."""
    if bound.get("use_input_stats", True) and bound.get("running_mean") is not None:
        raise UnsupportedModel(
            "a model must not store statistics of its inputs, got instance_norm updating its running "
            "statistics. "
            "Construct it with track_running_stats=False"
        )


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
_IMAGES: tuple[Kind, ...] = ("rows", "folded", "shared")


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
