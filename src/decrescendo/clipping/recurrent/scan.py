"""Recurrences, one layer in one direction: the pass through time, and autograd's way back through it.

What the rules need afterwards (states before each step, gradients of all gates) comes in one piece. A step works on
the first ``size`` sequences only: sequences of different lengths come longest first, as
`torch.nn.utils.rnn.PackedSequence` holds them, and nothing is computed for padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["lstm", "gru", "tanh", "relu"]


@dataclass(frozen=True, slots=True)
class Steps:
    """Where each step lies in a buffer: (sequences, length, ...) or, packed, (all positions, ...).

    >>> steps = Steps((2, 1, 1))
    >>> [step.shape[0] for step in steps.of(torch.zeros(4, 5))], steps.joined(steps.of(torch.zeros(4, 5))).shape
    ([2, 1, 1], torch.Size([4, 5]))
    """

    packed: tuple[int, ...] | None = None

    def of(self, buffer: Tensor) -> Sequence[Tensor]:
        """A view for each step."""
        return buffer.unbind(1) if self.packed is None else buffer.split(list(self.packed))

    def joined(self, steps: Sequence[Tensor]) -> Tensor:
        """A buffer of all steps."""
        return torch.stack(list(steps), 1) if self.packed is None else torch.cat(list(steps))


@dataclass(frozen=True, slots=True)
class Weights:
    """What is fed back: hidden to gates (gates * state, output), its bias, and the projection of `nn.LSTM`."""

    hidden: Tensor
    bias: Tensor | None = None
    projection: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of the buffer of gates (before their nonlinearities), of what the hidden state contributes to it, of the
    projection's output, and of the first states."""

    gates: Tensor
    hidden: Tensor
    projected: Tensor | None
    state: Tensor | None
    cell: Tensor | None


@dataclass(frozen=True, slots=True)
class Trace:
    """What a pass through time leaves, in the form of the buffer of gates where it has a time.

    Args:
        outputs: what the layer returns.
        before: the output state before each step.
        unprojected: of LSTM with a projection only: the output before it.
        last, last_cell: states after the last step.
        given: gates and first states, from which autograd's graph starts.
        hidden: of GRU only: what the hidden state contributes at each step.
        projected: outputs of the projection at each step.
    """

    steps: Steps
    outputs: Tensor
    before: Tensor
    unprojected: Tensor | None
    last: Tensor
    last_cell: Tensor | None
    given: tuple[Tensor, Tensor, Tensor | None]
    hidden: Sequence[Tensor]
    projected: Sequence[Tensor]

    def gradients(self, outputs: Tensor | None, last: Tensor | None, last_cell: Tensor | None) -> Gradients:
        """From gradients of the outputs and of the last states."""
        pairs = ((self.outputs, outputs), (self.last, last), (self.last_cell, last_cell))
        ends = [(end, gradient) for end, gradient in pairs if end is not None and gradient is not None]
        starts = [tensor for tensor in self.given if tensor is not None and tensor.requires_grad]
        found = torch.autograd.grad(
            [end for end, _ in ends], [*starts, *self.hidden, *self.projected], [g for _, g in ends],
            retain_graph=True, materialize_grads=True,
        )  # fmt: skip
        known = dict(zip(map(id, starts), found, strict=False))
        rest = found[len(starts) :]
        hidden, projected = rest[: len(self.hidden)], rest[len(self.hidden) :]
        gates, state, cell = (known.get(id(tensor)) for tensor in self.given)
        assert gates is not None
        return Gradients(
            gates,
            self.steps.joined(hidden) if hidden else gates,
            self.steps.joined(projected) if projected else None,
            state,
            cell,
        )


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Output and cell, from what all gates get and the cell before."""
    enter, keep, new, leave = gates.chunk(4, 1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def gru_step(gates: Tensor, fed_back: Tensor, state: Tensor) -> Tensor:
    """The output in the form of torch's layers, from what inputs and state give to the gates, and the state."""
    (reset, update, new), (own, other, candidate) = gates.chunk(3, 1), fed_back.chunk(3, 1)
    new = (new + (reset + own).sigmoid() * candidate).tanh()
    return (state - new) * (update + other).sigmoid() + new


@torch.enable_grad()
def forward(
    mode: Mode,
    gates: Tensor,
    state: Tensor,
    cell: Tensor | None,
    weights: Weights,
    steps: Steps,
    *,
    reverse: bool,
    first: bool = True,
) -> Trace:
    """The pass through time. ``gates`` holds what the inputs and biases contribute.

    ``first``: whether the first states want a gradient. Last states are (sequences, width), in the order of the buffer.
    """
    gates, state = gates.detach().requires_grad_(), state.detach().requires_grad_(first)
    cell = None if cell is None else cell.detach().requires_grad_(first)
    given = (gates, state, cell)
    parts = steps.of(gates)
    before, outputs, unprojected, hidden = ([gates] * len(parts) for _ in range(4))
    back = weights.hidden.t()
    for t in range(len(parts) - 1, -1, -1) if reverse else range(len(parts)):
        size = len(parts[t])
        live = before[t] = state[:size]
        if cell is not None:
            live, moved = lstm_step(torch.addmm(parts[t], live, back), cell[:size])
            unprojected[t] = live
            cell = moved if size == len(cell) else torch.cat([moved, cell[size:]])
            if weights.projection is not None:
                live = torch.mm(live, weights.projection.t())
        elif mode == "gru":
            fed_back = torch.mm(live, back)
            hidden[t] = (fed_back if weights.bias is None else fed_back + weights.bias).requires_grad_()
            live = gru_step(parts[t], hidden[t], live)
        else:
            live = torch.addmm(parts[t], live, back)
            live = live.tanh() if mode == "tanh" else live.relu()
        outputs[t] = live
        state = live if size == len(state) else torch.cat([live, state[size:]])
    projected = weights.projection is not None
    return Trace(
        steps,
        steps.joined(outputs),
        steps.joined(before).detach(),
        steps.joined(unprojected).detach() if projected else None,
        state,
        cell,
        given,
        hidden if mode == "gru" else (),
        outputs if projected else (),
    )
