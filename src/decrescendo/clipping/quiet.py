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
            # Padded or packed, dropout between layers comes after the number of layers.
            at = 5 if isinstance(args[3], bool) else 6
            args = (*args[:at], 0.0, *args[at + 1 :])
        if func is functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            elif "dropout_p" in kwargs:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)
