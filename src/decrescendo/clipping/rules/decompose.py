"""Operations replaced by several others, which are recorded one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Given = Tensor | None


def cell(step: Callable[[Tensor, Tensor, Any], Any]) -> Callable[..., Any]:
    """A recurrent cell as two linear maps and the elementwise ``step``."""

    def run(
        input: Tensor, hx: Tensor | Sequence[Tensor], w_ih: Tensor, w_hh: Tensor,
        b_ih: Given = None, b_hh: Given = None,
    ) -> Any:  # fmt: skip
        state = hx if isinstance(hx, Tensor) else hx[0]
        return step(functional.linear(input, w_ih, b_ih), functional.linear(state, w_hh, b_hh), hx)

    return run


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """New output and cell state, from the gates before their nonlinearities and the old cell state."""
    enter, keep, new, leave = gates.chunk(4, 1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def gru_step(gates: Tensor, fed_back: Tensor, state: Tensor) -> Tensor:
    """The new state in torch's form of GRU, from the inputs' and the state's parts of the gates and the old state."""
    (reset, update, new), (own, other, candidate) = gates.chunk(3, 1), fed_back.chunk(3, 1)
    new = (new + (reset + own).sigmoid() * candidate).tanh()
    return (state - new) * (update + other).sigmoid() + new


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
    """Group norm without weights, then scaled and shifted."""
    return _affine(functional.group_norm(input, num_groups, eps=eps), weight, bias)


def statistics_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``torch.instance_norm`` or ``torch.batch_norm`` without weights, then scaled and shifted."""

    def norm(input: Tensor, weight: Given, bias: Given, *rest: Any, **named: Any) -> Tensor:
        return _affine(function(input, None, None, *rest, **named), weight, bias)

    return norm


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """PReLU with one slope for all channels, or one for each entry of dimension 1."""
    slope = weight.reshape(-1, *[1] * (input.dim() - 2)) if input.dim() > 2 else weight
    return torch.where(input > 0, input, input * slope)


DECOMPOSED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm_cell: cell(lambda own, fed_back, hx: lstm_step(own + fed_back, hx[1])),
    torch.gru_cell: cell(gru_step),
    torch.rnn_tanh_cell: cell(lambda own, fed_back, _: (own + fed_back).tanh()),
    torch.rnn_relu_cell: cell(lambda own, fed_back, _: (own + fed_back).relu()),
    torch.group_norm: group_norm,
    torch.instance_norm: statistics_norm(torch.instance_norm),
    torch.batch_norm: statistics_norm(torch.batch_norm),
    torch.prelu: prelu,
    Tensor.prelu: prelu,
}
