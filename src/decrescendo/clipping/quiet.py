"""A forward pass without dropout, so that batches of different sizes can be compared."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_DROPOUTS: frozenset[Callable[..., Any]] = frozenset({
    functional.dropout, functional.alpha_dropout, functional.dropout1d, functional.dropout2d,
    functional.dropout3d,
    functional.feature_alpha_dropout,
    torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout,
})  # fmt: skip
_RECURRENT = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})


class Quiet(TorchFunctionMode):
    """While active, dropout returns its input and attention drops nothing.

    >>> with Quiet():
    ...     functional.dropout(torch.ones(3), p=0.9)
    tensor([1., 1., 1.])
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func in _RECURRENT:
            args, kwargs = _undropped(args, kwargs)
        if func is functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            elif "dropout_p" in kwargs:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


class QuietPacked(TorchFunctionMode):
    """While active, recurrent layers on packed sequences drop nothing between their layers.

    Which row of packed data gets which random number depends on the lengths of all sequences, so that even with the
    same random numbers a loss moves when other rows are exchanged.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RECURRENT and _is_packed(args, kwargs):
            args, kwargs = _undropped(args, kwargs)
        return func(*args, **kwargs)


def _is_packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return "batch_sizes" in kwargs or (len(args) > 3 and not isinstance(args[3], bool))


def _undropped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a recurrent layer with no dropout: it comes two places after what says whether it has biases."""
    at = 6 if _is_packed(args, kwargs) else 5
    if len(args) > at:
        return (*args[:at], 0.0, *args[at + 1 :]), kwargs
    return args, {**kwargs, "dropout": 0.0}
