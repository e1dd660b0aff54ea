"""Operations that are replaced by others whose uses of parameters can be followed one by one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.recurrent.layers import MODES


def lstm_cell(
    inputs: Tensor,
    states: tuple[Tensor, Tensor],
    weight: Tensor,
    back: Tensor,
    bias: Tensor | None = None,
    back_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM as two linear maps and what is element-wise."""
    state, cell = states
    gates = functional.linear(inputs, weight, bias) + functional.linear(state, back, back_bias)
    enter, keep, new, leave = gates.chunk(4, 1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def gru_cell(
    inputs: Tensor,
    state: Tensor,
    weight: Tensor,
    back: Tensor,
    bias: Tensor | None = None,
    back_bias: Tensor | None = None,
) -> Tensor:
    """One step of a GRU."""
    reset, update, new = functional.linear(inputs, weight, bias).chunk(3, 1)
    back_reset, back_update, back_new = functional.linear(state, back, back_bias).chunk(3, 1)
    new = (new + (reset + back_reset).sigmoid() * back_new).tanh()
    return (state - new) * (update + back_update).sigmoid() + new


def rnn_tanh_cell(
    inputs: Tensor,
    state: Tensor,
    weight: Tensor,
    back: Tensor,
    bias: Tensor | None = None,
    back_bias: Tensor | None = None,
) -> Tensor:
    """One step of a simple recurrence."""
    return (functional.linear(inputs, weight, bias) + functional.linear(state, back, back_bias)).tanh()


def rnn_relu_cell(
    inputs: Tensor,
    state: Tensor,
    weight: Tensor,
    back: Tensor,
    bias: Tensor | None = None,
    back_bias: Tensor | None = None,
) -> Tensor:
    """One step of a simple recurrence."""
    return (functional.linear(inputs, weight, bias) + functional.linear(state, back, back_bias)).relu()


_ARGUMENTS = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")
CELLS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: gru_cell,
    torch.rnn_tanh_cell: rnn_tanh_cell,
    torch.rnn_relu_cell: rnn_relu_cell,
}
RECURRENT = frozenset(MODES)


def run_cell(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The cell by its parts; to be called with the recorder active."""
    bound = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
    return CELLS[func](*(bound.get(name) for name in _ARGUMENTS))
