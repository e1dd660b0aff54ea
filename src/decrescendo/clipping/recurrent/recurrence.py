"""Arguments of a recurrent layer, and a check of its labels."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from decrescendo.base.storages import paused
from decrescendo.clipping.recurrent.scan import Mode, Steps, Trace, Weights
from decrescendo.row_independence.tracing import (
    LAID_ALONG,
    Label,
    Mixed,
    Public,
    RowLayout,
    Tracer,
    is_data,
    is_fixed,
    is_uniform,
)


@dataclass(slots=True)
class Recurrence:
    """One recurrent layer in one direction, which `Scan` hands from its forward to its backward pass."""

    mode: Mode
    weights: Weights
    steps: Steps
    reverse: bool
    tracer: Tracer
    # `place`: of gates and outputs; `ranks`: states.
    place: Label
    ranks: Label
    trace: Trace | None = None

    def found(self, given: Sequence[tuple[Tensor | None, Label]]) -> tuple[Label, Label]:
        """Labels of outputs and states; both `Mixed` if a ``given`` tensor does not fit its label."""
        for tensor, expected in given:
            label = Public.FILL if tensor is None else self.tracer.label(tensor)
            if isinstance(label, Mixed):
                return label, label
            own = is_data(label)
            if own and not (isinstance(expected, RowLayout) and expected.same(label)):
                wrong = Mixed("states and inputs are not of the same examples", "a recurrent layer")
                return wrong, wrong
            if tensor is not None and is_fixed(label) and isinstance(expected, RowLayout):
                with paused():
                    uniform = is_uniform(tensor, expected, self.tracer.units(expected))
                if not uniform:
                    return Mixed(LAID_ALONG), Mixed(LAID_ALONG)
        return self.place, self.ranks


def named_weights(weights: Sequence[Tensor], *, biases: bool) -> dict[str, Tensor]:
    roles = ("weight", "back weight", "bias", "back bias") if biases else ("weight", "back weight")
    return dict(zip((*roles, "projection"), weights, strict=False))


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Disable autocast inside: sums over time steps are as precise as norms."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
