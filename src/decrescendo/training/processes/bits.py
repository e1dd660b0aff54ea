"""Exact digests of tensors. For a tensor sharded over ranks the digest is of this rank's part."""

import ctypes
import hashlib
import os
from functools import lru_cache
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor, int64, uint8, view_as_real

from decrescendo.base.storages import ORDINARY, pieces
from decrescendo.optim.noise import NoisyMean

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def checksum(value: Tensor) -> bytes:
    """SHA-256 of the entries of ``value``."""
    return hashlib.sha256(b"".join(map(_content, _parts(value)))).digest()


def fingerprint(*values: Tensor) -> bytes:
    """A short hash of all entries of ``values`` and their order, near memory speed; only comparable within
    this process.

    The keys are random and drawn by this process. On a CPU the hash is the AES-GCM tag of each tensor; elsewhere
    sum_i k_i b_i modulo 2^64, with b_i the content as words of at most 32 bits. Two different lists of tensors have
    the same fingerprint with a probability below 2^-30, whatever the difference is (a change of all signs, an
    exchange of rows).

    >>> fingerprint(torch.tensor([1.0, 2.0])) == fingerprint(torch.tensor([2.0, 1.0]))
    False
    """
    return b"".join(fingerprints(*values))


def fingerprints(*values: Tensor) -> list[bytes]:
    """The `fingerprint` of each of ``values``; those on a GPU are copied to the host together.

    >>> one, other = fingerprints(torch.tensor([1.0]), torch.tensor([2.0]))
    >>> one == other
    False
    """
    if all(map(_is_plain, values)):  # nearly always: nothing is to be taken apart
        return list(map(_code, values))
    found: list[bytes] = []
    summed: list[Tensor] = []
    parts: list[tuple[int, int]] = []  # index in ``found``, and the number of its sums
    held = [_parts(value) for value in values]
    for value in chain.from_iterable(held):
        flat = local(value.detach()).resolve_conj().resolve_neg().contiguous()
        if flat.device.type == _HASHED:
            found.append(_code(flat))
        else:
            sums = _summed(flat)
            parts.append((len(found), len(sums)))
            found.append(flat.numel().to_bytes(8, "little"))
            summed += sums
    if summed:
        brought = _content(torch.stack([value.to(summed[0].device) for value in summed]))
        for place, count in parts:
            found[place] += brought[: 8 * count]
            brought = brought[8 * count :]
    codes = iter(found)
    return [b"".join(islice(codes, len(tensors))) for tensors in held]


def _is_plain(value: Tensor) -> bool:
    """Whether the entries of a tensor lie in the host's memory as they are, in a line."""
    if type(value) not in ORDINARY or value.device.type != _HASHED or value.layout is not torch.strided:
        return False
    return value.is_contiguous() and not value.is_conj() and not value.is_neg()


def _code(flat: Tensor) -> bytes:
    size = flat.numel() * flat.element_size()
    # (Making a NumPy array of a tensor takes longer than hashing a small one.)
    content = memoryview(_memory(size).from_address(flat.data_ptr())).cast("B") if size else b""
    if size <= _CHUNK:
        return _codes().encrypt(_NONCE, b"", content)
    return b"".join(_codes().encrypt(_NONCE, b"", content[at : at + _CHUNK]) for at in range(0, size, _CHUNK))


# The device whose tensors are hashed in place. (Copies from other devices would take longer than sums on them.)
_HASHED = "cpu"
# Bytes: OpenSSL takes less than 2^31 at once.
_CHUNK = 2**30
# Fixed, so that equal content has equal codes: safe, since no code is ever published.
_NONCE = bytes(12)


@lru_cache(512)
def _memory(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * size


@lru_cache
def _codes() -> AESGCM:
    return AESGCM(os.urandom(32))


def _summed(flat: Tensor) -> list[Tensor]:
    """sum_i k_i b_i for each block of words."""
    flat = _in_line(view_as_real(flat) if flat.is_complex() else flat)
    words = flat if flat.dtype == torch.bool else flat.view(_WORDS[flat.element_size()])
    keys = _keys(words.device)
    # Torch has no integer dot product on a GPU.
    return [part.to(int64).mul_(keys[: len(part)]).sum() for part in words.split(len(keys)) if len(part)]


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


@lru_cache
def _keys(device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(os.urandom(2**25), dtype=np.int64).copy()).to(device)


def digest(noisy: NoisyMean) -> bytes:
    """SHA-256 of the tensors that a step releases, names included."""
    found = hashlib.sha256()
    for name in sorted(noisy.gradients):
        found.update(name.encode() + b"\0")
        found.update(_content(noisy.gradients[name]))
    if noisy.extra_coordinates is not None:
        found.update(b"\0" + _content(noisy.extra_coordinates))
    return found.digest()


def is_part(value: Tensor) -> bool:
    """Whether a tensor is sharded over ranks (a DTensor)."""
    return hasattr(value, "device_mesh")


def local(value: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; other tensors unchanged."""
    return cast("Tensor", cast("Any", value).to_local()) if is_part(value) else value


def _in_line(value: Tensor) -> Tensor:
    """A flat tensor with stride 1 (torch allows any stride for a single entry)."""
    return value.contiguous().as_strided((value.numel(),), (1,))


def _parts(value: Tensor) -> list[Tensor]:
    """The plain tensors that one is made of; of a sparse one, places and numbers."""
    if value.layout in _SPARSE:
        found = value.detach().to_sparse_coo().coalesce()
        return [found.indices(), found.values()]
    return [part for _, part in pieces(value)]


def _content(value: Tensor) -> bytes:
    return _bytes_of(_in_line(local(value).detach().cpu()).view(uint8)).tobytes()


def _bytes_of(value: Tensor) -> Any:
    """The bytes as a NumPy array, without `numpy()`, by which torch would mark the memory as shared
    (`base.storages.is_shared`)."""
    return np.from_dlpack(value)
