"""Refuses functions that give Python a tensor's values unseen by the dispatcher (``tolist``, ``numpy``)."""

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from decrescendo.row_independence.dynamic_sizes import SIZES, is_given
from decrescendo.row_independence.labels import Mixed, is_data
from decrescendo.row_independence.tracer import Tracer

_Method = Callable[..., Any]
READS: frozenset[_Method] = frozenset(
    cast("_Method", method)
    for name in (
        "tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "const_data_ptr", "untyped_storage", "storage",
        "_typed_storage", "__reduce_ex__", "__deepcopy__", "apply_", "map_", "map2_", "share_memory_", "__repr__",
    )
    if (method := getattr(Tensor, name, None)) is not None
)  # fmt: skip


def _forms(name: str) -> Iterator[_Method]:
    """All callables of an operation: the aten operation, its overloads, and the function in torch."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is not None:
        yield from (packet, *(getattr(packet, overload) for overload in packet.overloads()))
    if hasattr(torch, name):
        yield getattr(torch, name)


# Functions that read a number of rows, or split positions, from their second argument, unseen by dispatch modes.
COUNTED: frozenset[_Method] = frozenset({Tensor.tensor_split}).union(
    form
    for name in (
        "_pad_packed_sequence", "tensor_split", "gru", "lstm", "rnn_tanh", "rnn_relu", "quantized_gru",
        "quantized_lstm",
    )
    for form in _forms(name)
)  # fmt: skip
CTC: frozenset[_Method] = frozenset({functional.ctc_loss, torch.ctc_loss})
# Functions that run a backward pass, which may call user code.
BACKWARD: frozenset[_Method] = frozenset({torch.autograd.grad, torch.autograd.backward, Tensor.backward})
DISTANCES: frozenset[_Method] = frozenset({torch.cdist})
CHAINS: frozenset[_Method] = frozenset({torch.linalg.multi_dot, torch.chain_matmul})


class UnobservedReads(TorchFunctionMode):
    """Refuses data reads by Python code that runs in the backward pass (hooks, custom autograd functions)."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: _Method, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._tracer.check_called(func, args, kwargs)
        if func in BACKWARD:
            with self:
                return opened(func)(*args, **kwargs)
        if func in COUNTED:
            check_counted(self._tracer, func, args, kwargs)
        if func in READS:
            self._tracer.read(func, args, kwargs)
        elif self._tracer.labels.counting:
            if func in SIZES:
                return self._tracer.counts.size(func, args, kwargs)
            self._tracer.counts.enter(func, args, kwargs)
            if is_given(args, kwargs):
                return self._tracer.counts.run_with_sizes(func, args, kwargs, func)
        return func(*args, **kwargs)


def check_counted(tracer: Tracer, func: _Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse row counts, or positions to split at, that depend on the data, except in recurrent layers'
    states."""
    names = {"batch_sizes", "tensor_indices_or_sections", "indices_or_sections"} & kwargs.keys()
    padded = "batch_first" in kwargs or (len(args) > 3 and isinstance(args[3], bool))
    states = padded and "pad" not in str(func)
    given = [kwargs[name] for name in names] + ([] if states else list(args[1:2]))
    if any(isinstance(value, Tensor) and is_data(tracer.label(value)) for value in given):
        rows = tracer.label(args[0]) if args else None
        if isinstance(rows, Mixed):
            tracer.refuse(
                f"packed sequences must have one sequence per example, or the same number for each, but {rows.why}"
            )
        tracer.reads.refuse_integer("where to split, or how many sequences have each step,")


def opened(func: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a composite function that does not dispatch itself to the active mode, so that its inner
    calls are traced."""
    function = cast("FunctionType", func)

    def no(*_: object) -> bool:
        return False

    ungated = {key: no for key in function.__globals__ if key.startswith("has_torch_function")}
    copy = FunctionType(
        function.__code__, {**function.__globals__, **ungated}, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
