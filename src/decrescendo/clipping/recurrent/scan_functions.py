"""Autograd functions that replace a recurrent layer in a recorded pass."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from decrescendo.base.storages import FUNCTIONS_OFF, paused, unseen
from decrescendo.clipping.recurrent.recurrence import Recurrence, full_precision
from decrescendo.clipping.recurrent.scan import forward
from decrescendo.errors import UnsupportedModel


class Scan(torch.autograd.Function):
    """A layer's scan over time. The taps are zeros that get the gradients of what weight matrices contribute."""

    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any,
        layer: Recurrence,
        gates: Tensor,
        tap: Tensor | None,
        hidden_tap: Tensor | None,
        projection_tap: Tensor | None,
        state: Tensor,
        cell: Tensor | None,
    ) -> tuple[Tensor, ...]:
        del tap, hidden_tap, projection_tap
        ctx.set_materialize_grads(False)
        place, ranks = layer.found(((gates, layer.place), (state, layer.ranks), (cell, layer.ranks)))
        with paused(), FUNCTIONS_OFF():
            layer.trace = trace = forward(
                layer.mode, gates, state, cell, layer.weights, layer.steps, reverse=layer.reverse
            )
            # (Outputs and last states may be written to, and the backward pass reads them.)
            ends = [end.clone() for end in (trace.last, trace.last_cell) if end is not None]
            outputs = trace.outputs.detach()
        made = [(tensor, place) for tensor in (outputs, trace.before, trace.unprojected)]
        for tensor, label in (*made, *((end, ranks) for end in ends)):
            if tensor is not None:
                layer.tracer.assign(tensor, label)
        ctx.layer = layer
        return (outputs, *ends)

    @staticmethod
    @once_differentiable
    @unseen
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        layer = cast("Recurrence", ctx.layer)
        outputs, last, last_cell = (*gradients, None)[:3]
        needs = cast("tuple[bool, ...]", ctx.needs_input_grad)
        assert layer.trace is not None
        place, ranks = layer.found(((outputs, layer.place), (last, layer.ranks), (last_cell, layer.ranks)))
        with full_precision(layer.trace.outputs), paused(), FUNCTIONS_OFF():
            found = layer.trace.gradients(outputs, last, last_cell, first=needs[5] or needs[6])
        own = ((found.gates, place), (found.hidden, place), (found.projected, place))
        for tensor, label in (*own, (found.state, ranks), (found.cell, ranks)):
            if tensor is not None:
                layer.tracer.assign(tensor, label)
        each = (found.gates, found.gates, found.hidden, found.projected, found.state, found.cell)
        return (
            None,
            *(gradient if needed else None for gradient, needed in zip(each, needs[1:], strict=True)),
        )


class _Tap(torch.autograd.Function):
    """Zeros that stand for the contribution of some parameters, as a gradient edge for it, no more."""

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, like: Tensor, width: int, *parameters: Tensor) -> Tensor:  # noqa: ARG004
        return like.new_zeros(()).expand(*like.shape[:-1], width)

    @staticmethod
    @unseen
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004
        raise UnsupportedModel(
            "the gradient of a recurrent layer's weights must be asked for by the engine alone, got "
            "a call of autograd inside the loss that asks for it. Freeze the layer, or leave that part of the loss out"
        )


def tap_of(like: Tensor, width: int, used: Mapping[str, Tensor]) -> Tensor | None:
    return cast("Tensor", _Tap.apply(like.detach(), width, *used.values())) if used else None
