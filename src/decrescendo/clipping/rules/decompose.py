"""Operations that are replaced by others, which are recorded one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Given = Tensor | None


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Given = None,
    b_hh: Given = None,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM as two linear maps and what is element-wise."""
    state, cell = hx
    gates = functional.linear(input, w_ih, b_ih) + functional.linear(state, w_hh, b_hh)
    enter, keep, new, leave = gates.chunk(4, 1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Given = None,
    b_hh: Given = None,
) -> Tensor:
    """One step of a GRU."""
    reset, update, new = functional.linear(input, w_ih, b_ih).chunk(3, 1)
    back_reset, back_update, back_new = functional.linear(hx, w_hh, b_hh).chunk(3, 1)
    new = (new + (reset + back_reset).sigmoid() * back_new).tanh()
    return (hx - new) * (update + back_update).sigmoid() + new


def rnn_cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """One step of a simple recurrence."""

    def cell(
        input: Tensor,
        hx: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Given = None,
        b_hh: Given = None,
    ) -> Tensor:
        return activation(functional.linear(input, w_ih, b_ih) + functional.linear(hx, w_hh, b_hh))

    return cell


def _affine(rows: Tensor, weight: Given, bias: Given) -> Tensor:
    """``rows * weight + bias``, with one weight for each entry of dimension 1."""
    shape = (-1, *[1] * (rows.dim() - 2))
    rows = rows if weight is None else rows * weight.reshape(shape)
    return rows if bias is None else rows + bias.reshape(shape)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Given = None,
    bias: Given = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,  # noqa: ARG001
) -> Tensor:
    """Normalised, then scaled and moved."""
    return _affine(functional.group_norm(input, num_groups, eps=eps), weight, bias)


def statistics_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``torch.instance_norm`` or ``torch.batch_norm``: normalised, then scaled and moved."""

    def norm(input: Tensor, weight: Given, bias: Given, *rest: Any, **named: Any) -> Tensor:
        return _affine(function(input, None, None, *rest, **named), weight, bias)

    return norm


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """One slope below zero for all channels, or one for each entry of dimension 1."""
    slope = weight.reshape(-1, *[1] * (input.dim() - 2)) if input.dim() > 2 else weight
    return torch.where(input > 0, input, input * slope)


DECOMPOSED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: gru_cell,
    torch.rnn_tanh_cell: rnn_cell(torch.tanh),
    torch.rnn_relu_cell: rnn_cell(torch.relu),
    torch.group_norm: group_norm,
    torch.instance_norm: statistics_norm(torch.instance_norm),
    torch.batch_norm: statistics_norm(torch.batch_norm),
    torch.prelu: prelu,
    Tensor.prelu: prelu,
}
