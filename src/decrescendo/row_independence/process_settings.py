"""torch's global settings: by these the same operation computes something else, and no operation shows them."""

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch

from decrescendo.base.precision import SWITCHES
from decrescendo.errors import UnsupportedModel

_C, _BACKENDS = cast("Any", torch)._C, cast("Any", torch).backends
_SMALLEST, _ONE = 5e-324, 1.0
# Of the precision of products: nothing set at any level is float32's own (torch.backends.cudnn.flags leaves one for
# the other).
_EXACT = {"none": "ieee"}
CHANGED = (
    "a pass must leave torch's global settings (default dtype, threads, flush_denormal, ..) and the garbage collector "
    "as they are, as no operation shows them, got one that is changed in the pass. Set it before training"
)


class _Collector:
    """Python's garbage collector, which stands still in a pass: what it calls would run while the proof looks at an
    operation, and at nothing else."""

    def __init__(self) -> None:
        self._lock, self._passes, self._ran = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._passes:
                self._ran = gc.isenabled()
                gc.disable()
            self._passes += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._passes -= 1
            if not self._passes and self._ran:
                gc.enable()


COLLECTOR = _Collector()


def is_flushing() -> bool:
    """Whether numbers below the normal ones are taken for zero."""
    return _SMALLEST * _ONE == 0


def is_traced() -> bool:
    """Whether operations are written down for another run, with what they were given now (`torch.func.linearize`)."""
    return _C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is not None


def settings() -> tuple[object, ...]:
    """All that is known of them."""
    return (
        torch.get_default_dtype(), *(_EXACT.get(name := switch.fp32_precision, name) for switch in SWITCHES),
        is_flushing(), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
        torch.get_default_device(), _BACKENDS.mkldnn.enabled,
        _BACKENDS.cudnn.enabled, _BACKENDS.cuda.flash_sdp_enabled(), _BACKENDS.cuda.math_sdp_enabled(),
        _BACKENDS.cuda.mem_efficient_sdp_enabled(),
    )  # fmt: skip


@contextmanager
def settled() -> Generator[None]:
    """Refuse what changes them inside, and put back what is known how to."""
    before, dtype, threads = settings(), torch.get_default_dtype(), torch.get_num_threads()
    flushing, deterministic = is_flushing(), torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        changed = settings() != before
        if changed:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            torch.set_flush_denormal(flushing)
            torch.use_deterministic_algorithms(deterministic)
    if changed:
        raise UnsupportedModel(CHANGED)
