"""Finds the tensors that torch's C++ code reads unseen by dispatch modes, and user-defined tensor
subclasses."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.base.storages import listed, tensors_of
from decrescendo.base.torch_private import python_is_excluded
from decrescendo.row_independence.code_origin import is_own

_INDICES = frozenset({Tensor.__getitem__, Tensor.__setitem__})
# Functions that make a tensor, or an index, from lists of numbers. torch reads tensors in these lists by itself.
_MAKERS = (
    "tensor as_tensor asarray sparse_compressed_tensor sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor "
    "sparse_bsr_tensor sparse_bsc_tensor"
)
_LISTS: frozenset[Callable[..., Any]] = (
    _INDICES
    | {Tensor.new_tensor, cast("Any", Tensor).new}
    | frozenset(
        cast("Callable[..., Any]", getattr(torch, form))
        for name in _MAKERS.split()
        for form in (name, f"_{name}_unsafe")
        if hasattr(torch, form)
    )
)
# Methods by which Python reads a tensor's number; legacy constructors (torch.FloatTensor) call them, too.
_ASKS: frozenset[Callable[..., Any]] = frozenset(
    cast("Callable[..., Any]", getattr(Tensor, name))
    for name in ("__index__", "__int__", "__float__", "__complex__", "__bool__", "item")
)


def read_by(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors whose values a torch function reads unseen by any dispatch mode.

    >>> read_by(torch.tensor, ([torch.tensor(1.0), 2.0],), {})
    [tensor(1.)]
    """
    if func in _LISTS:
        return listed((*args, *kwargs.values()), is_index=func in _INDICES)
    if func in _ASKS and python_is_excluded():
        return tensors_of(args)
    return []


@functools.cache
def is_a_users(kind: type) -> bool:
    """Whether operations on tensors of a class run user code (``__torch_dispatch__``)."""
    method = getattr(kind, "__torch_dispatch__", None)
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    return code is not None and is_own(code.co_filename)
