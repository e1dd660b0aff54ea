"""Tensors to the last bit, as digests. Of a tensor that ranks hold in parts it is this rank's part."""

import hashlib
from typing import Any, cast

from torch import Tensor, uint8

from decrescendo.optim.noise import NoisyMean


def checksum(value: Tensor) -> bytes:
    """SHA-256 of the numbers in ``value``."""
    return hashlib.sha256(_content(value)).digest()


def digest(noisy: NoisyMean) -> bytes:
    """SHA-256 of what a step releases, names included."""
    found = hashlib.sha256()
    for name in sorted(noisy.gradients):
        found.update(name.encode() + b"\0")
        found.update(_content(noisy.gradients[name]))
    return found.digest()


def is_part(value: Tensor) -> bool:
    """Whether a tensor is a rank's part of another (a DTensor)."""
    return hasattr(value, "device_mesh")


def _content(value: Tensor) -> bytes:
    if is_part(value):
        value = cast("Any", value).to_local()
    return value.detach().cpu().contiguous().reshape(-1).view(uint8).numpy().tobytes()
