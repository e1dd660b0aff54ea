"""torch calls replaced by other operations with the same result, which the rules cover better."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from decrescendo.base.torch_private import pack_padded_sequence, pad_packed_sequence, shape_as_tensor
from decrescendo.clipping.recurrent.layers import MODES
from decrescendo.clipping.recurrent.padding import pack, unpack
from decrescendo.row_independence.tracing import (
    CHAINS,
    COUNTED,
    CTC,
    DISTANCES,
    READS,
    SHAPE,
    RowLayout,
    Tracer,
    UnobservedReads,
    check_counted,
    is_given,
    opened,
)

_SHAPE = cast("Callable[..., Any]", shape_as_tensor)
_PACK = cast("Callable[..., Any]", pack_padded_sequence)
_PAD = cast("Callable[..., Any]", pad_packed_sequence)
# They use only the shape of their second argument.
_SHAPED: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.expand_as: Tensor.expand, Tensor.view_as: Tensor.view, Tensor.reshape_as: Tensor.reshape,
}  # fmt: skip
_CALLING = functional.triplet_margin_with_distance_loss
# New in torch 2.13.
_LINEAR_ENTROPY = getattr(functional, "linear_cross_entropy", None)
_NAMED = {Tensor.__setitem__, _PACK, _PAD, functional.one_hot, _SHAPE, _CALLING, _LINEAR_ENTROPY}
_USE = "use_input_stats"
# Instance norms, the batch norms that equal them with running statistics, and the names of their arguments.
_BY_KEPT: dict[Callable[..., Any], tuple[Callable[..., Any], tuple[str, ...]]] = {
    functional.instance_norm: (
        functional.batch_norm, ("input", "running_mean", "running_var", "weight", "bias", _USE, "momentum", "eps")
    ),
    torch.instance_norm: (
        torch.batch_norm,
        ("input", "weight", "bias", "running_mean", "running_var", _USE, "momentum", "eps", "cudnn_enabled"),
    ),
}  # fmt: skip
_RENAMED = {_USE: "training"}
SPECIAL = READS | CTC | DISTANCES | CHAINS | COUNTED | _SHAPED.keys() | _NAMED | _BY_KEPT.keys()


def special(
    recording: AbstractContextManager[object],
    tracer: Tracer,
    run: Callable[..., Any],
    func: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any],
) -> Any:
    """Run ``func``, one of `SPECIAL`. ``recording``: a context that records operations; ``run``: runs one."""
    if func in READS:
        tracer.read(func, args, kwargs)
    elif func in CTC:
        with tracer.reads.reading((*args, *kwargs.values())):
            return run(func, args, kwargs)
    elif func in DISTANCES and not {"compute_mode"} & kwargs.keys() and len(args) < 4:
        # By default torch chooses by the number of rows; the result must not depend on it.
        kwargs = {**kwargs, "compute_mode": "donot_use_mm_for_euclid_dist"}
    elif func is _SHAPE:
        tracer.refuse(
            "a pass must do the same for any number of examples, but `_shape_as_tensor` makes a tensor of it. "
            "Use a constant"
        )
    elif func in _SHAPED and len(args) == 2:
        shape = tracer.counts.size(SHAPE, args[1:], {}) if tracer.labels.counting else args[1].shape
        func, args = _SHAPED[func], (args[0], shape)
        if is_given(args, kwargs):
            return tracer.counts.run_with_sizes(func, args, kwargs, run)
    elif func in _BY_KEPT and not (given := dict(zip(_BY_KEPT[func][1], args, strict=False)) | kwargs).get(_USE, True):
        # torch repeats running statistics for all examples; batch norm gives the same, independently per example.
        return run(_BY_KEPT[func][0], (), {_RENAMED.get(name, name): at for name, at in given.items()})
    elif func is _LINEAR_ENTROPY:
        # By chunks of rows it is one kernel, whose operations are not seen.
        kwargs = {**kwargs, "options": None}
    elif func is _CALLING:
        with recording:  # its ``distance_function`` is recorded
            return opened(func)(*args, **kwargs)
    elif func in CHAINS and len(args[0]) > 2:
        # By default torch chooses the order of the products by the number of rows.
        with recording:
            return functools.reduce(torch.matmul, args[0])
    elif func is _PACK and isinstance(tracer.label(args[0]), RowLayout):
        return pack(tracer, *args)
    elif func is Tensor.__setitem__ and tracer.labels.counting and _is_rows(*args):
        # torch would drop a first dimension of size one, and with it whose row it is.
        func, args = Tensor.index_put_, (args[0], (args[1],), args[2])
    elif func is functional.one_hot:
        classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        if classes > 0:  # torch would read the largest id, to check it
            return (args[0].unsqueeze(-1) == torch.arange(classes, device=args[0].device)).long()
    elif func is _PAD and isinstance(tracer.label(args[0]), RowLayout):
        return unpack(tracer, *args)
    elif func in COUNTED and func not in MODES:
        check_counted(tracer, func, args, kwargs)
    return run(func, args, kwargs)


def _is_rows(target: Tensor, index: object, value: object) -> bool:
    """Whether rows that a mask or an index selects are set to as many others."""
    if not isinstance(index, Tensor) or not isinstance(value, Tensor):
        return False
    selected = (index.dim(), 1) if index.dtype == torch.bool else (1, index.dim())
    return value.dim() == target.dim() - selected[0] + selected[1]


def reading(tracer: Tracer, func: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass inside the loss, in which data reads by Python are seen."""

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        with UnobservedReads(tracer):
            return opened(func)(*args, **kwargs)

    return run


def name_of(func: Callable[..., Any]) -> str:
    """The operation's name for messages; a property is named after itself."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    return str(name or func)


def is_composite(func: Callable[..., Any]) -> bool:
    """Whether ``func`` is one of torch's Python functions, whose operations can be seen one by one."""
    return isinstance(func, FunctionType) and func.__module__ in ("torch.nn.functional", "torch.functional")
