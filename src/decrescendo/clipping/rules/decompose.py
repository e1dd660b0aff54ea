"""Operations replaced by several others, which are recorded one by one."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Given = Tensor | None
ATTENTION = functional.scaled_dot_product_attention


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


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Given = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """`scaled_dot_product_attention` as products, a softmax and a dropout, so that a mask which is a parameter and the
    random numbers are those of the pass. A place that may look at nothing gets zero; half types are widened."""
    kind = query.device.type
    autocast = torch.is_autocast_enabled(kind) and query.dtype == torch.float32
    dtype = torch.get_autocast_dtype(kind) if autocast else query.dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    query, key, value = (one.to(dtype).to(wide) for one in (query, key, value))
    if enable_gqa:
        key, value = (one.repeat_interleave(query.size(-3) // one.size(-3), -3) for one in (key, value))
    with torch.autocast(kind, enabled=False):
        weights = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
        if is_causal:
            seen = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
            weights = weights.masked_fill(~seen, -math.inf)
        if attn_mask is not None:
            is_choice = attn_mask.dtype == torch.bool
            weights = weights.masked_fill(~attn_mask, -math.inf) if is_choice else weights + attn_mask.to(wide)
        nothing = (weights == -math.inf).all(-1, keepdim=True)
        weights = weights.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
        return (functional.dropout(weights, dropout_p) @ value).to(dtype)


def drops(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is attention with dropout."""
    given = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    return func is ATTENTION and given > 0


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
