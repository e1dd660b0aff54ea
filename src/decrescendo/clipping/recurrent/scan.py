"""Recurrences, one layer in one direction: the pass through time and the pass back, without autograd.

Both work step by step on views of whole buffers, so that what the rules need afterwards (states before each step,
gradients of all gates) lies in one piece. A step works on the first ``size`` sequences only: sequences of different
lengths come longest first, as `torch.nn.utils.rnn.PackedSequence` holds them, and nothing is computed for padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["lstm", "gru", "tanh", "relu"]
GATES: dict[Mode, int] = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_relu_backward = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True, slots=True)
class Steps:
    """Where each step lies in a buffer: (sequences, length, ...) or, packed, (all positions, ...).

    >>> [step.shape[0] for step in Steps((2, 1, 1)).of(torch.zeros(4, 5))]
    [2, 1, 1]
    """

    packed: tuple[int, ...] | None = None

    def of(self, buffer: Tensor) -> Sequence[Tensor]:
        """A view for each step."""
        return buffer.unbind(1) if self.packed is None else buffer.split(list(self.packed))

    def like(self, buffer: Tensor, width: int) -> Tensor:
        """A new buffer of another width, in the same order in memory."""
        if self.packed is None and buffer.stride(0) < buffer.stride(1):
            length, sequences = buffer.shape[1], buffer.shape[0]
            return buffer.new_empty(length, sequences, width).transpose(0, 1)
        return buffer.new_empty(*buffer.shape[:-1], width)


@dataclass(frozen=True, slots=True)
class Weights:
    """What is fed back: hidden to gates (gates * state, output), its bias, and the projection of `nn.LSTM`."""

    hidden: Tensor
    bias: Tensor | None = None
    projection: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """What a pass through time leaves for the pass back, each in the form of the buffer of gates.

    Args:
        gates: after their nonlinearities.
        outputs: what the layer returns.
        before: the output state before each step.
        cell_before, squashed, unprojected: of LSTM only: the cell state before each step, tanh of the cell state
            after it, and the output before its projection.
        candidate: of GRU only: the hidden part of the new state before the reset gate is applied.
    """

    mode: Mode
    steps: Steps
    reverse: bool
    gates: Tensor
    outputs: Tensor
    before: Tensor
    cell_before: Tensor | None = None
    squashed: Tensor | None = None
    unprojected: Tensor | None = None
    candidate: Tensor | None = None

    def order(self) -> range:
        """The steps in the order in which the layer goes through them."""
        length = len(self.steps.of(self.gates))
        return range(length - 1, -1, -1) if self.reverse else range(length)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of the buffer of gates (before their nonlinearities), of what the hidden state contributes to it where that
    differs, of the projection's output, and of the first states."""

    gates: Tensor
    hidden: Tensor
    projected: Tensor | None
    state: Tensor
    cell: Tensor | None


def forward(
    mode: Mode,
    gates: Tensor,
    state: Tensor,
    cell: Tensor | None,
    weights: Weights,
    steps: Steps,
    *,
    reverse: bool,
) -> tuple[Trace, Tensor, Tensor | None]:
    """The pass through time. ``gates`` holds what the inputs and biases contribute, and is overwritten.

    Returns the trace, and the last states, (sequences, width), rows in the order of the buffer.
    """
    size = weights.hidden.shape[0] // GATES[mode]
    width = weights.hidden.shape[1]
    lstm, gru, projected = cell is not None, mode == "gru", weights.projection is not None
    trace = Trace(
        mode,
        steps,
        reverse,
        gates,
        steps.like(gates, width),
        steps.like(gates, width),
        steps.like(gates, size) if lstm else None,
        steps.like(gates, size) if lstm else None,
        steps.like(gates, size) if projected else None,
        steps.like(gates, size) if gru else None,
    )
    # All sequences; a step moves the first of them, the others wait (before their end, or after it).
    state = state.clone()
    cell = cell.clone() if cell is not None else None
    views = _views(trace, trace.gates, trace.outputs, trace.before)
    extra = _views(trace, trace.cell_before, trace.squashed, trace.unprojected, trace.candidate)
    back = weights.hidden.t()
    for t in trace.order():
        gate, output, before = views[0][t], views[1][t], views[2][t]
        live = state[: gate.shape[0]]
        before.copy_(live)
        if cell is not None:
            gate.addmm_(before, back)
            _lstm_step(
                gate, cell[: gate.shape[0]], extra[0][t], extra[1][t], extra[2][t] if projected else live
            )
            if weights.projection is not None:
                torch.mm(extra[2][t], weights.projection.t(), out=live)
        elif gru:
            _gru_step(gate, live, extra[3][t], before, back, weights.bias)
        else:
            gate.addmm_(before, back)
            live.copy_(gate.tanh_() if mode == "tanh" else gate.relu_())
        output.copy_(live)
    return trace, state, cell


def _views(trace: Trace, *buffers: Tensor | None) -> list[Sequence[Tensor]]:
    return [() if buffer is None else trace.steps.of(buffer) for buffer in buffers]


def _lstm_step(gate: Tensor, cell: Tensor, before: Tensor, squashed: Tensor, output: Tensor) -> None:
    size = cell.shape[1]
    gate[:, : 2 * size].sigmoid_()
    gate[:, 2 * size : 3 * size].tanh_()
    gate[:, 3 * size :].sigmoid_()
    enter, keep, new, leave = gate.chunk(4, 1)
    before.copy_(cell)
    cell.mul_(keep).addcmul_(enter, new)
    torch.tanh(cell, out=squashed)
    torch.mul(leave, squashed, out=output)


def _gru_step(
    gate: Tensor, live: Tensor, candidate: Tensor, before: Tensor, back: Tensor, bias: Tensor | None
) -> None:
    size = candidate.shape[1]
    hidden = torch.mm(before, back) if bias is None else torch.addmm(bias, before, back)
    gate[:, : 2 * size].add_(hidden[:, : 2 * size]).sigmoid_()
    candidate.copy_(hidden[:, 2 * size :])
    reset, update, new = gate.chunk(3, 1)
    new.addcmul_(reset, candidate).tanh_()
    # The torch layers' own form: (old - new) * update + new.
    live.sub_(new).mul_(update).add_(new)


def backward(
    trace: Trace,
    weights: Weights,
    outputs: Tensor | None,
    state: Tensor | None,
    cell: Tensor | None,
    rows: tuple[int, int],
    *,
    first: bool,
) -> Gradients:
    """The pass back, from gradients of the outputs and of the last states.

    ``rows``: sequences, and the width of the cell state. ``first``: whether the first states want a gradient.
    """
    sequences, size = rows
    gates = torch.empty_like(trace.gates)
    gru, projected = trace.mode == "gru", weights.projection is not None
    hidden = torch.empty_like(trace.gates) if gru else gates
    projection = torch.empty_like(trace.outputs) if projected else None
    carried = gates.new_zeros(sequences, trace.outputs.shape[-1]) if state is None else state.clone()
    memory = gates.new_zeros(sequences, size) if cell is None else cell.clone()
    views = _views(trace, trace.gates, gates, hidden, trace.before, outputs, projection)
    extra = _views(trace, trace.cell_before, trace.squashed, trace.candidate)
    order = trace.order()
    for t in reversed(order):
        gate, d_gate, d_hidden = views[0][t], views[1][t], views[2][t]
        live = carried[: gate.shape[0]]
        if outputs is not None:
            live.add_(views[4][t])
        inner = live
        if weights.projection is not None:
            views[5][t].copy_(live)
            inner = torch.mm(live, weights.projection)
        if trace.mode == "lstm":
            _lstm_back(gate, d_gate, inner, memory[: gate.shape[0]], extra[0][t], extra[1][t])
        elif gru:
            _gru_back(gate, d_gate, d_hidden, live, views[3][t], extra[2][t])
        elif trace.mode == "tanh":
            _tanh_backward(live, gate, grad_input=d_gate)
        else:
            _relu_backward(live, gate, 0, grad_input=d_gate)
        if t == order[0] and not first and trace.steps.packed is None:
            break  # nobody asks for the gradient of the first state
        if gru:
            live.addmm_(d_hidden, weights.hidden)
        else:
            torch.mm(d_hidden, weights.hidden, out=live)
    return Gradients(gates, hidden, projection, carried, memory if trace.mode == "lstm" else None)


def _lstm_back(
    gate: Tensor, d_gate: Tensor, d: Tensor, memory: Tensor, before: Tensor, squashed: Tensor
) -> None:
    enter, keep, new, leave = gate.chunk(4, 1)
    d_enter, d_keep, d_new, d_leave = d_gate.chunk(4, 1)
    scratch = torch.mul(d, squashed)
    _sigmoid_backward(scratch, leave, grad_input=d_leave)
    torch.mul(d, leave, out=scratch)
    _tanh_backward(scratch, squashed, grad_input=scratch)
    memory.add_(scratch)
    _sigmoid_backward(torch.mul(memory, new, out=scratch), enter, grad_input=d_enter)
    _sigmoid_backward(torch.mul(memory, before, out=scratch), keep, grad_input=d_keep)
    _tanh_backward(torch.mul(memory, enter, out=scratch), new, grad_input=d_new)
    memory.mul_(keep)


def _gru_back(
    gate: Tensor, d_gate: Tensor, d_hidden: Tensor, live: Tensor, before: Tensor, candidate: Tensor
) -> None:
    """``live``: gradient of the new state; left behind: its direct part of the gradient of the old one."""
    reset, update, new = gate.chunk(3, 1)
    d_reset, d_update, d_new = d_gate.chunk(3, 1)
    scratch = torch.mul(live, before - new)
    _sigmoid_backward(scratch, update, grad_input=d_update)
    torch.sub(live, live * update, out=scratch)
    _tanh_backward(scratch, new, grad_input=d_new)
    _sigmoid_backward(torch.mul(d_new, candidate, out=scratch), reset, grad_input=d_reset)
    size = candidate.shape[1]
    d_hidden[:, : 2 * size].copy_(d_gate[:, : 2 * size])
    torch.mul(d_new, reset, out=d_hidden[:, 2 * size :])
    live.mul_(update)
