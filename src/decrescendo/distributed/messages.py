"""What ranks send each other, as bytes: trees of numbers and tensors, errors; and which tensors travel together."""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from decrescendo import errors
from decrescendo.clipping.clipped import ClippedSum
from decrescendo.errors import RankLost
from decrescendo.training.persistence.checkpoint.tree import pack, unpack
from decrescendo.training.processes.bits import is_part
from decrescendo.training.processes.world import Tree

# The most numbers sent at once: a sum over ranks needs memory for a copy of so many.
BUCKET = 2**24


def raising(error: Exception) -> Callable[[], bytes]:
    """A function that raises ``error`` where a message should be made."""

    def message() -> bytes:
        raise error

    return message


def described(error: BaseException) -> bytes:
    """An error as bytes: its class name and its text."""
    try:
        said = str(error)
    except Exception:  # ``str`` of the error fails: its class must be sent all the same
        said = ""
    return json.dumps([type(error).__name__, said]).encode()


def raised(rank: int, text: bytes) -> Exception:
    """The error of another rank from `described`, of its class if that is this library's."""
    name, said = json.loads(text)
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.DecrescendoError):
        return kind(f"{said} (on rank {rank})")
    return RankLost(f"every rank must go on, got {name} on rank {rank}: {said}")


def differs(rank: int, value: str | None, another: int, other: str | None) -> str:
    """The message that two ranks' values of a fact differ; without digests, which may be of private rows."""
    values = [value or "nothing", other or "nothing"]
    if any(len(text) == 64 and set(text) <= set("0123456789abcdef") for text in values):
        return f"others on rank {another} than on rank {rank}"
    return f"{values[0]} on rank {rank} and {values[1]} on rank {another}"


def first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def buckets(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Groups of tensors to send together: sorted names, of one dtype, at most `BUCKET` numbers per group."""
    names: list[str] = []
    count = 0
    for name in sorted(tensors, key=lambda name: (str(tensors[name].dtype), name)):
        value = tensors[name]
        if names and (count + value.numel() > BUCKET or tensors[names[0]].dtype != value.dtype):
            yield names
            names, count = list[str](), 0
        names.append(name)
        count += value.numel()
    if names:
        yield names


def packed(tree: Tree) -> bytes:
    """A tree as bytes: JSON, and safetensors for the tensors in it."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(pack(tree, tensors), separators=(",", ":")).encode()
    return struct.pack("<q", len(text)) + text + (save_tensors(tensors) if tensors else b"")


def unpacked(content: bytes) -> Any:
    """The tree that `packed` made ``content`` from."""
    (length,) = struct.unpack_from("<q", content)
    text, rest = content[8 : 8 + length], content[8 + length :]
    return unpack(json.loads(text), load_tensors(rest) if rest else {})


def flat_of(parts: list[Tensor], *, on_device: bool) -> Tensor:
    """The entries of several tensors in one vector, on their device or on the CPU."""
    flat = torch.cat([part.reshape(-1) for part in parts])
    return flat if on_device else flat.cpu()


def empty_like(parts: list[Tensor], *, on_device: bool) -> Tensor:
    """An uninitialised vector of the size, dtype and device that `flat_of` would return."""
    count = sum(part.numel() for part in parts)
    return parts[0].new_empty(count, device=parts[0].device if on_device else "cpu")


def unflatten(flat: Tensor, into: dict[str, Tensor], names: list[str]) -> None:
    """Put the entries of a vector made by `flat_of` into the tensors ``names`` of ``into``."""
    sizes = [into[name].numel() for name in names]
    for name, part in zip(names, flat.split(sizes), strict=True):
        into[name] = part.reshape(into[name].shape).to(into[name].device)


def bytes_of(extra: Tensor | None) -> bytes:
    """The numbers released beside a sum or mean (telemetry), as bytes; empty if there are none.

    >>> tensor_of(bytes_of(torch.tensor([1.0, 2.0])))
    tensor([1., 2.], dtype=torch.float64)
    """
    return b"" if extra is None else struct.pack(f"<{len(extra)}d", *extra.tolist())


def tensor_of(content: bytes) -> Tensor:
    """The tensor that `bytes_of` was given, on the CPU."""
    return torch.tensor(struct.unpack(f"<{len(content) // 8}d", content), dtype=torch.float64, device="cpu")


def kinds(clipped: ClippedSum) -> bytes:
    """A digest to compare between ranks: names, shapes, dtypes, which tensors are sharded, sensitivity, size of the
    numbers beside the sum."""
    sums = sorted(clipped.gradients.items())
    listed = [(name, str(v.dtype), list(v.shape), is_part(v)) for name, v in sums]
    return hashlib.sha256(
        json.dumps([clipped.sensitivity, listed, len(bytes_of(clipped.extra_coordinates))]).encode()
    ).digest()
