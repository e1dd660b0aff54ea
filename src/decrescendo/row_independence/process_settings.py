"""torch's global settings (precision, threads, autocast), which change results without showing in any
operation."""

from typing import Any, cast

import torch

from decrescendo.base.precision import SWITCHES

_BACKENDS = cast("Any", torch).backends
# Precision settings of equal effect: "none" at every level is full float32, as "ieee" is
# (torch.backends.cudnn.flags leaves one for the other).
_EXACT = {"none": "ieee"}


def settings() -> tuple[object, ...]:
    """The settings that must be unchanged when a captured pass is replayed."""
    return (
        torch.get_default_dtype(), *(_EXACT.get(name := switch.fp32_precision, name) for switch in SWITCHES),
        torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"), torch.get_default_device(), _BACKENDS.mkldnn.enabled,
        _BACKENDS.cudnn.enabled, _BACKENDS.cuda.flash_sdp_enabled(), _BACKENDS.cuda.math_sdp_enabled(),
        _BACKENDS.cuda.mem_efficient_sdp_enabled(),
    )  # fmt: skip
