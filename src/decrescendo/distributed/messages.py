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

# Numbers sent at once: a copy of so many is what a sum takes beyond the gradients.
BUCKET = 2**24


def raising(error: Exception) -> Callable[[], bytes]:
    """What raises ``error`` when a message is asked for."""

    def message() -> bytes:
        raise error

    return message


def described(error: BaseException) -> bytes:
    """An error as bytes: its kind and its words."""
    try:
        said = str(error)
    except Exception:  # an error whose words are an error: its kind must be heard all the same
        said = ""
    return json.dumps([type(error).__name__, said]).encode()


def raised(rank: int, text: bytes) -> Exception:
    """The error of another rank: of its kind where it is one of ours."""
    name, said = json.loads(text)
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.DecrescendoError):
        return kind(f"{said} (on rank {rank})")
    return RankLost(f"every rank must go on, got {name} on rank {rank}: {said}")


def differs(rank: int, value: str | None, another: int, other: str | None) -> str:
    """Two values of a fact, in words; of digests, which may be of private rows, only that they differ."""
    values = [value or "nothing", other or "nothing"]
    if any(len(text) == 64 and set(text) <= set("0123456789abcdef") for text in values):
        return f"others on rank {another} than on rank {rank}"
    return f"{values[0]} on rank {rank} and {values[1]} on rank {another}"


def first_line(error: Exception) -> str:
    """Of an error's words."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def buckets(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Sorted names of tensors of one dtype, at most `BUCKET` numbers together."""
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
    """What `packed` made it of."""
    (length,) = struct.unpack_from("<q", content)
    text, rest = content[8 : 8 + length], content[8 + length :]
    return unpack(json.loads(text), load_tensors(rest) if rest else {})


def flat_of(parts: list[Tensor], *, on_device: bool) -> Tensor:
    """The numbers of several tensors in one, on their device or in the processor's memory."""
    flat = torch.cat([part.reshape(-1) for part in parts])
    return flat if on_device else flat.cpu()


def empty_like(parts: list[Tensor], *, on_device: bool) -> Tensor:
    """What `flat_of` would give, of any numbers."""
    count = sum(part.numel() for part in parts)
    return parts[0].new_empty(count, device=parts[0].device if on_device else "cpu")


def unflatten(flat: Tensor, into: dict[str, Tensor], names: list[str]) -> None:
    """Put the numbers of `flat_of` where those of ``names`` were."""
    sizes = [into[name].numel() for name in names]
    for name, part in zip(names, flat.split(sizes), strict=True):
        into[name] = part.reshape(into[name].shape).to(into[name].device)


def bytes_of(beside: Tensor | None) -> bytes:
    """The numbers beside a sum or mean; nothing where there are none.

    >>> tensor_of(bytes_of(torch.tensor([1.0, 2.0])))
    tensor([1., 2.], dtype=torch.float64)
    """
    return b"" if beside is None else struct.pack(f"<{len(beside)}d", *beside.tolist())


def tensor_of(content: bytes) -> Tensor:
    """What `bytes_of` was given, on the CPU."""
    return torch.tensor(struct.unpack(f"<{len(content) // 8}d", content), dtype=torch.float64, device="cpu")


def kinds(clipped: ClippedSum) -> bytes:
    """A digest of names, shapes, dtypes, of which lie in parts, of the sensitivity, and of how much is beside them."""
    sums = sorted(clipped.gradients.items())
    listed = [(name, str(v.dtype), list(v.shape), is_part(v)) for name, v in sums]
    return hashlib.sha256(
        json.dumps([clipped.sensitivity, listed, len(bytes_of(clipped.beside))]).encode()
    ).digest()
