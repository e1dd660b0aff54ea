"""Contexts that turn TF32, bfloat16 products and autocast off while gradients are measured and summed."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from decrescendo.base.torch_private import get_cudnn_tf32, set_cudnn_tf32

# Each of torch's switches may be set to compute float32 products in TF32 or bfloat16 (10 or 8 bits).
_BACKENDS: Any = torch.backends
SWITCHES: tuple[Any, ...] = (
    _BACKENDS.cuda.matmul,
    _BACKENDS.cudnn.conv,
    _BACKENDS.cudnn.rnn,
    _BACKENDS.mkldnn.matmul,
    _BACKENDS.mkldnn.conv,
    _BACKENDS.mkldnn.rnn,
)
# The switches for the CPU.
ON_CPU = SWITCHES[3:]
_DEVICES = ("cpu", "cuda", "xpu")


@contextmanager
def exact_products() -> Generator[None]:
    """Compute products of float32 tensors in full float32 inside, whatever was set; restore the settings afterwards.

    >>> torch.set_float32_matmul_precision("medium")
    >>> with exact_products():
    ...     torch.backends.cuda.matmul.fp32_precision
    'ieee'
    >>> torch.backends.cuda.matmul.fp32_precision
    'tf32'
    >>> torch.set_float32_matmul_precision("highest")
    """
    before, old = [switch.fp32_precision for switch in SWITCHES], None
    with suppress(RuntimeError):  # (raised where the two switches of cuDNN differ)
        old = bool(get_cudnn_tf32())
    try:
        if old:  # torch.backends.cudnn.flags (around a Transformers loss) raises if the old switch differs
            set_cudnn_tf32(False)
        for switch in SWITCHES:
            switch.fp32_precision = "ieee"
        yield
    finally:
        if old:
            set_cudnn_tf32(True)
        for switch, value in zip(SWITCHES, before, strict=True):
            switch.fp32_precision = value


@contextmanager
def full_precision() -> Generator[None]:
    """`exact_products`, and no autocast: for measuring and summing gradients.

    Two settings would let a stored gradient exceed the clip norm: ``torch.set_float32_matmul_precision`` (and the
    switches behind it), and an ``autocast`` round the whole training loop. The model's own forward and backward pass
    is left as the user set it: there they define the function, here they would only blur a sum.
    """
    on = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
    with exact_products():
        if not on:
            yield
            return
        with ExitStack() as stack:
            for device in on:
                stack.enter_context(torch.autocast(device, enabled=False))
            yield
