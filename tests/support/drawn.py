"""The noise of a seeded run the plain way: one word a coordinate, its quantile in float64; then the public grid."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from scipy.special import ndtri

from decrescendo.base.rng import Keystream


def normals(stream: Keystream, shapes: Mapping[str, torch.Size | tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """N(0, 1) in float64 of each parameter of one step, in the order of the sorted names."""
    stream.take(-stream.position % 16)  # each step begins with a whole block
    found: dict[str, torch.Tensor] = {}
    for name in sorted(shapes):
        words = stream.words(torch.Size(shapes[name]).numel())
        size = -ndtri(((words % np.uint64(2**63)).astype(np.float64) + 0.5) * 2.0**-64)
        found[name] = torch.from_numpy(np.where(words >> np.uint64(63), -size, size)).reshape(shapes[name])
    return found


def on_grid(noisy: torch.Tensor, std: float) -> torch.Tensor:
    """The nearest multiples of the power of two in (std 2^-21, std 2^-20]."""
    gamma = 2.0 ** (math.floor(math.log2(std)) - 20)
    return torch.round(noisy.double() / gamma) * gamma
