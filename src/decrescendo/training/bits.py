"""Tensors to the last bit, as digests. Of a tensor that ranks hold in parts it is this rank's part."""

import hashlib
from typing import Any, cast

from torch import Tensor, hash_tensor, int64, uint8, view_as_real, zeros

from decrescendo.optim.noise import NoisyMean


def checksum(value: Tensor) -> bytes:
    """SHA-256 of the numbers in ``value``."""
    return hashlib.sha256(_content(value)).digest()


def fingerprint(value: Tensor) -> Tensor:
    """One number of all numbers in ``value``, at the speed of memory: it sees what is written, not what is forged."""
    local = _local(value.detach())
    if not local.numel():
        return zeros((), dtype=int64, device=local.device)
    return hash_tensor(view_as_real(local) if local.is_complex() else local).view(int64)


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


def _local(value: Tensor) -> Tensor:
    return cast("Tensor", cast("Any", value).to_local()) if is_part(value) else value


def _content(value: Tensor) -> bytes:
    return _local(value).detach().cpu().contiguous().reshape(-1).view(uint8).numpy().tobytes()
