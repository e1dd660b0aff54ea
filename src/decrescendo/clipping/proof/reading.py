"""Functions by which Python gets at the numbers of a tensor past the dispatcher, or with numbers read from one."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from decrescendo.clipping.proof.counts import SIZES, is_given
from decrescendo.clipping.proof.watch import Watch

_Method = Callable[..., Any]
READS: frozenset[_Method] = frozenset(
    cast("_Method", method)
    for name in (
        "tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "_typed_storage",
        "__reduce_ex__", "__deepcopy__", "apply_", "map_", "map2_", "share_memory_", "__repr__",
    )
    if (method := getattr(Tensor, name, None)) is not None
)  # fmt: skip
CTC: frozenset[_Method] = frozenset({functional.ctc_loss, torch.ctc_loss})
NODES: frozenset[_Method] = frozenset({cast("Any", Tensor.grad_fn).__get__})
DISTANCES: frozenset[_Method] = frozenset({torch.cdist})
CHAINS: frozenset[_Method] = frozenset({torch.linalg.multi_dot, torch.chain_matmul})


class Reading(TorchFunctionMode):
    """Refuses reads of the data by Python code that runs in the backward pass (hooks, functions of one's own)."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: _Method, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in READS:
            self._watch.read(func, args, kwargs or {})
        elif func in NODES:
            self._watch.looks.check_node(self._watch.labels.counting)
        elif self._watch.labels.counting:
            if func in SIZES:
                return self._watch.counts.size(func, args, kwargs or {})
            self._watch.counts.enter(func, args, kwargs or {})
            if is_given(args, kwargs or {}):
                return self._watch.counts.given(func, args, kwargs or {}, func)
        return func(*args, **(kwargs or {}))
