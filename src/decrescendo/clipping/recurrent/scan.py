"""One recurrent layer in one direction: the forward scan over time, and its backward pass.

What the rules need afterwards (states before each step, gradients of all gates) comes in one piece. A step works on
the first ``size`` sequences only: sequences of different lengths come longest first, as
`torch.nn.utils.rnn.PackedSequence` holds them, and nothing is computed for padding. The backward pass is written out:
autograd's copies the gradient of each gate twice, and took a third of the whole step of an LSTM on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from decrescendo.errors import UnsupportedModel

_BACK = cast("Any", torch.ops.aten)
Mode = Literal["lstm", "gru", "tanh", "relu"]


@dataclass(frozen=True, slots=True)
class Steps:
    """The position of each time step in a buffer: (sequences, length, ...) or, packed, (all positions, ...).

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
    """The recurrent weights: hidden to gates (gates * state, output), its bias, and the projection of
    `nn.LSTM`."""

    hidden: Tensor
    bias: Tensor | None = None
    projection: Tensor | None = None

    def versions(self) -> tuple[int, ...]:
        """The version counters of the weights that the backward pass reads."""
        read = [weight for weight in (self.hidden, self.projection) if weight is not None]
        return tuple(0 if weight.is_inference() else weight._version for weight in read)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of the gates (before their nonlinearities), of what the hidden state contributes to them, of the
    projection's output, and of the first states."""

    gates: Tensor
    hidden: Tensor
    projected: Tensor | None
    state: Tensor | None
    cell: Tensor | None


@dataclass(frozen=True, slots=True)
class Trace:
    """The intermediate values of a scan over time, in the layout of the gate buffer.

    Args:
        order: of the steps.
        outputs: what the layer returns.
        before: the output state before each step.
        unprojected: of LSTM with a projection only: the output before it.
        last, last_cell: states after the last step.
        kept: for each step the tensors that its backward pass reads.
        versions: of the weights in the forward scan.
    """

    mode: Mode
    weights: Weights
    steps: Steps
    order: Sequence[int]
    outputs: Tensor
    before: Tensor
    unprojected: Tensor | None
    last: Tensor
    last_cell: Tensor | None
    kept: Sequence[tuple[Tensor, ...]]
    versions: tuple[int, ...]

    @torch.no_grad()
    def gradients(
        self, outputs: Tensor | None, last: Tensor | None, last_cell: Tensor | None, *, first: bool = True
    ) -> Gradients:
        """The backward scan, from gradients of outputs and last states. ``first``: whether first states need theirs.

        Errors:
            UnsupportedModel: the weights were written to since the forward scan.
        """
        if self.weights.versions() != self.versions:
            raise UnsupportedModel(
                "the weights of a recurrent layer must be in the backward pass what they were in the forward pass, got "
                "some that were written in place between. Write to a copy of them"
            )
        back, projection = self.weights.hidden, self.weights.projection
        gates = self.outputs.new_empty((*self.outputs.shape[:-1], back.shape[0]))
        hidden = torch.empty_like(gates) if self.mode == "gru" else gates
        projected = None if projection is None else torch.empty_like(self.outputs)
        each, own, fed_back = (self.steps.of(buffer) for buffer in (self.outputs, gates, hidden))
        given = None if outputs is None else self.steps.of(outputs)
        through = None if projected is None else self.steps.of(projected)
        state = torch.zeros_like(self.last) if last is None else last
        cell = None
        if self.last_cell is not None:
            cell = torch.zeros_like(self.last_cell) if last_cell is None else last_cell
        for t in reversed(self.order):
            size = len(each[t])
            live = state[:size] if given is None else state[:size] + given[t]
            if projection is not None and through is not None:
                through[t].copy_(live)
                live = torch.mm(live, projection)
            straight: Tensor | None = None
            if cell is not None:
                cell = _first_rows_replaced(_lstm_back(live, cell[:size], self.kept[t], own[t]), cell)
            elif self.mode == "gru":
                straight = _gru_back(live, self.kept[t], own[t], fed_back[t])
            elif self.mode == "tanh":
                _BACK.tanh_backward(live, *self.kept[t], grad_input=own[t])
            else:
                _BACK.threshold_backward(live, *self.kept[t], 0, grad_input=own[t])
            if first or t != self.order[0]:
                moved = torch.mm(fed_back[t], back)
                state = _first_rows_replaced(moved if straight is None else moved.add_(straight), state)
        return Gradients(gates, hidden, projected, state if first else None, cell if first else None)


def _first_rows_replaced(live: Tensor, state: Tensor) -> Tensor:
    """A state with its first rows replaced by ``live``."""
    return live if len(live) == len(state) else torch.cat([live, state[len(live) :]])


def _lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """New output and cell, and what `_lstm_back` reads; ``gates`` is overwritten with its nonlinearities."""
    enter, keep, new, leave = gates.chunk(4, 1)
    gates[:, : 2 * cell.shape[1]].sigmoid_()
    leave.sigmoid_()
    new.copy_(new.contiguous().tanh_())  # (torch takes three times as long for tanh of a view, on a CPU)
    moved = torch.addcmul(keep * cell, enter, new)
    squashed = moved.tanh()
    return leave * squashed, moved, (gates, cell, squashed)


def _lstm_back(live: Tensor, moved: Tensor, kept: tuple[Tensor, ...], found: Tensor) -> Tensor:
    """The gradient of the old cell state; the gradient of the gates is written to ``found``."""
    gates, cell, squashed = kept
    (enter, keep, new, leave), parts = gates.chunk(4, 1), found.chunk(4, 1)
    _BACK.sigmoid_backward(live * squashed, leave, grad_input=parts[3])
    moved = moved + _BACK.tanh_backward(live * leave, squashed)
    _BACK.sigmoid_backward(moved * new, enter, grad_input=parts[0])
    _BACK.sigmoid_backward(moved * cell, keep, grad_input=parts[1])
    _BACK.tanh_backward(moved * enter, new, grad_input=parts[2])
    return moved * keep


def _gru(given: Tensor, fed_back: Tensor, state: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The new state in torch's form of GRU, from the inputs' and the state's parts of the gates, and the old state;
    and what `_gru_back` reads."""
    width = state.shape[1]
    both = (given[:, : 2 * width] + fed_back[:, : 2 * width]).sigmoid_()
    reset, update = both.chunk(2, 1)
    candidate = fed_back[:, 2 * width :]
    new = torch.addcmul(given[:, 2 * width :], reset, candidate).tanh_()
    return torch.addcmul(new, state - new, update), (reset, update, new, candidate, state)


def _gru_back(live: Tensor, kept: tuple[Tensor, ...], found: Tensor, fed_back: Tensor) -> Tensor:
    """The gradient of the old state, without that through the gates, which is written to ``fed_back`` (the state's
    part of the gates) and ``found`` (the inputs')."""
    reset, update, new, candidate, state = kept
    parts, straight = found.chunk(3, 1), live * update
    own = _BACK.tanh_backward(live - straight, new, grad_input=parts[2])
    _BACK.sigmoid_backward(live * (state - new), update, grad_input=parts[1])
    _BACK.sigmoid_backward(own * candidate, reset, grad_input=parts[0])
    width = state.shape[1]
    fed_back[:, : 2 * width].copy_(found[:, : 2 * width])
    torch.mul(own, reset, out=fed_back[:, 2 * width :])
    return straight


@torch.no_grad()
def forward(
    mode: Mode,
    gates: Tensor,
    state: Tensor,
    cell: Tensor | None,
    weights: Weights,
    steps: Steps,
    *,
    reverse: bool,
) -> Trace:
    """The scan over time. ``gates`` holds what the inputs and biases contribute.

    Last states are (sequences, width), in the order of the buffer.
    """
    # (Copies: the backward pass must not read what a program writes meanwhile.)
    state, cell = state.clone(), None if cell is None else cell.clone()
    parts = steps.of(gates)
    order = range(len(parts) - 1, -1, -1) if reverse else range(len(parts))
    before, outputs, unprojected = ([gates] * len(parts) for _ in range(3))
    kept: list[tuple[Tensor, ...]] = [()] * len(parts)
    back = weights.hidden.t()
    for t in order:
        size = len(parts[t])
        live = before[t] = state[:size]
        if cell is not None:
            live, moved, kept[t] = _lstm(torch.addmm(parts[t], live, back), cell[:size])
            unprojected[t], cell = live, _first_rows_replaced(moved, cell)
            if weights.projection is not None:
                live = torch.mm(live, weights.projection.t())
        elif mode == "gru":
            fed_back = torch.mm(live, back)
            live, kept[t] = _gru(parts[t], fed_back if weights.bias is None else fed_back.add_(weights.bias), live)
        else:
            live = torch.addmm(parts[t], live, back)
            live = live.tanh_() if mode == "tanh" else live.relu_()
            kept[t] = (live,)
        outputs[t], state = live, _first_rows_replaced(live, state)
    plain = None if weights.projection is None else steps.joined(unprojected)
    joined = steps.joined(outputs), steps.joined(before)
    return Trace(mode, weights, steps, order, *joined, plain, state, cell, kept, weights.versions())
