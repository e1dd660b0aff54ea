"""That a contender does the work: its clipped sum against one plain backward pass an example."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.engine.contenders import Setting
from decrescendo.clipping import Reference

TOLERANCE = 1e-3
# On a GPU torch multiplies convolutions in TF32 (10 bits) unless it is told not to, whoever asks for them.
TOLERANCE_ON_GPU = 5e-2


def reference_sum(setting: Setting) -> dict[str, np.ndarray]:
    """`clipping.Reference` on the workload: slow, obvious, and nobody's engine."""
    workload = setting.workload
    reference = Reference(workload.model(setting.device), workload.loss)
    clipped = reference.clipped_sum(workload.batch(setting.device), workload.clip_norm)
    return as_arrays(clipped.gradients)


def as_arrays(gradients: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Any library's tensors as float64 arrays."""
    return {
        name: np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value, dtype=np.float64)
        for name, value in gradients.items()
    }


def relative_error(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> float:
    """|found - expected| / |expected| over all parameters jointly; infinite where names or shapes differ."""
    arrays = as_arrays(found)
    if arrays.keys() != expected.keys():
        return float("inf")
    if any(arrays[name].shape != expected[name].shape for name in expected):
        return float("inf")
    difference = sum(float(np.square(arrays[name] - expected[name]).sum()) for name in expected)
    size = sum(float(np.square(value).sum()) for value in expected.values())
    return float(np.sqrt(difference / size))
