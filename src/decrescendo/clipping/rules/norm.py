"""The rule for layer and RMS norm: an elementwise operation on rows normalised within one example.

The output is x_hat * weight + bias, so g_i = sum of d x_hat (weight) or of d (bias) over the places of example i.
x_hat is computed again when it is needed: autograd keeps the rows anyway. Other norms are decomposed (`decompose`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decrescendo.clipping.rules.elementwise import Factor, kernel_of, operand_of
from decrescendo.clipping.rules.rule import Call, Kernel, Rule


def _norm(plain: Callable[..., Tensor], eps: float | None) -> Callable[[Call, Mapping[str, Any]], Kernel | None]:
    def build(call: Call, bound: Mapping[str, Any]) -> Kernel | None:
        rows, shape = bound["input"], list(bound["normalized_shape"])
        if call.is_tracked(rows) or len(shape) >= rows.dim() or not call.holds(rows):
            return None
        operand = operand_of(call, rows)

        def scaled(d: Tensor, part: slice) -> Tensor:
            return d * plain(operand.value[part], shape, eps=bound.get("eps", eps)).to(d.dtype)

        factors: dict[str, Factor | None] = {"weight": scaled, "bias": None}
        roles = [role for role in factors if call.is_tracked(bound.get(role))]
        saved = (rows,) if "weight" in roles else ()
        return kernel_of(call, [bound[role] for role in roles], [factors[role] for role in roles], saved)

    return build


_LAYER = Rule(("input", "normalized_shape", "weight", "bias", "eps"), _norm(functional.layer_norm, 1e-5))
_RMS = Rule(("input", "normalized_shape", "weight", "eps"), _norm(functional.rms_norm, None))
RULES = {
    **dict.fromkeys((functional.layer_norm, torch.layer_norm), _LAYER),
    **dict.fromkeys((functional.rms_norm, torch.rms_norm), _RMS),
}
