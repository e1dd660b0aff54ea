"""Independence rules of operations that other libraries register with torch: bitsandbytes' quantised layers.

A frozen quantised weight times rows is a linear layer: rows stay independent, and weights and their scales are public.
Operations that quantise activations blockwise, or by columns, mix rows.
"""

from collections.abc import Sequence

from decrescendo.row_independence.labels import Call, Label
from decrescendo.row_independence.rule_signatures import Rule, signature

OUTLIERS = "columns with large entries are looked for over all rows of the batch"


def _by_row(call: Call) -> Label | Sequence[Label]:
    """Each row is scaled by its own largest entry; with a threshold, outlier columns depend on all rows
    together."""
    if call.args["threshold"]:
        return call.mixed(OUTLIERS)
    return signature("nK->nK,n,_" if call.args["A"].dim() == 2 else ".K->.K,*,_")(call)


_BITSANDBYTES = {
    "gemm_4bit": ".K,*,*,O,*,*,*->.O", "gemv_4bit": ".K,*,*,*->.O",
    "dequantize_4bit": "*,*->*", "dequantize_blockwise": "*,*,*->*",
    "quantize_4bit": "*->*,*", "quantize_blockwise": "*,*->*,*",
    "int8_linear_matmul": ".K,OK->.O", "int8_scaled_mm": "nK,OK,n,O,O->nO", "int8_mm_dequant": "nO,n,O,O->nO",
    "int8_vectorwise_dequant": "nK,n->nK", "int8_mixed_scaled_mm": "nK,nK,OK,n,O,*,O->nO,nX",
}  # fmt: skip

# By the operation's full name.
RULES: dict[str, Rule] = {
    **{f"bitsandbytes::{name}": signature(text) for name, text in _BITSANDBYTES.items()},
    "bitsandbytes::int8_vectorwise_quant": _by_row,
}
