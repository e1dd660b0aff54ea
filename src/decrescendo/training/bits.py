"""Tensors to the last bit, as digests. Of a tensor that ranks hold in parts it is this rank's part."""

import hashlib
import os
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, int64, uint8, view_as_real

from decrescendo.optim.noise import NoisyMean


def checksum(value: Tensor) -> bytes:
    """SHA-256 of the numbers in ``value``."""
    return hashlib.sha256(_content(value)).digest()


def fingerprint(value: Tensor) -> Tensor:
    """One number of all numbers in ``value`` and of their places, near the speed of memory.

    sum_i k_i b_i modulo 2^64, of their bits b_i in words of at most 32 and of random numbers k_i that this process has
    drawn: two tensors of a shape that differ have the same one with a probability below 2^-30, whatever the difference
    is (a change of all signs, an exchange of rows).
    """
    flat = _local(value.detach())
    flat = (view_as_real(flat) if flat.is_complex() else flat).reshape(-1).contiguous()
    words = flat if flat.dtype == torch.bool else flat.view(_WORDS[flat.element_size()])
    keys = _keys(words.device)
    while words.numel() > _WEIGHED:
        wide = words.new_empty(_WEIGHED, dtype=int64)
        words = torch.stack([_weighed(wide[: len(part)].copy_(part), keys) for part in words.split(_WEIGHED)])
    return _weighed(words.to(int64, copy=True), keys)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
# So many words are weighed at once: they, and as many random numbers, stay in the cache.
_WEIGHED = 2**16


def _weighed(words: Tensor, keys: Tensor) -> Tensor:
    """sum_i k_i b_i; overwrites the words."""
    own = keys[: len(words)]
    # Whole numbers have no dot product on a GPU.
    return words.dot(own) if words.device.type == "cpu" else words.mul_(own).sum()


@lru_cache
def _keys(device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(os.urandom(8 * _WEIGHED), dtype=np.int64).copy()).to(device)


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
