"""Draws noise, adds it to a sum, tensor by tensor or small ones side by side, and divides."""

import hmac
import math
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from decrescendo.base.rng import Keystream, SecureStream, on_device
from decrescendo.base.rng.keystream import ReservedWords
from decrescendo.base.rng.rounded import add_gaussian
from decrescendo.clipping.clipped import accumulator
from decrescendo.errors import InvalidValue

# Where noise is drawn from: unpredictable, repeatable, or on a device of its own.
NoiseStream: TypeAlias = SecureStream | Keystream | torch.Generator

# In the order of draws.
DTYPES = torch.float32, torch.float64
# The most numbers of small tensors that are laid side by side. On a CPU larger blocks come fresh from the operating
# system each time, which takes as long as the noise; on a GPU each block is waited for, as long as ten million
# numbers take.
_TOGETHER = {"cpu": 2**20, "cuda": 2**24}


def with_noise(gradients: Mapping[str, Tensor], std: float, divisor: float, stream: NoiseStream) -> dict[str, Tensor]:
    """(gradient + N(0, std^2)) / divisor, drawn in the order of the sorted names, those of float64 last (of a
    ``torch.Generator`` in their order); nothing is drawn for std 0."""
    noisy: dict[str, Tensor] = {}
    if std > 0 and not isinstance(stream, torch.Generator):
        for dtype in DTYPES:
            names = [name for name in sorted(gradients) if accumulator(gradients[name].dtype) == dtype]
            if names:
                noisy |= _drawn_at_once({n: gradients[n] for n in names}, dtype, stream, std, divisor)
        return {name: noisy[name] for name in gradients}
    for name in sorted(gradients):
        gradient = gradients[name].detach()
        dtype = accumulator(gradient.dtype)
        if std == 0:
            noisy[name] = gradient.to(dtype) / divisor
            continue
        assert isinstance(stream, torch.Generator)
        # A float32 draw is made of 24 random bits: it ends at sqrt(48 ln 2) = 5.77 deviations, and an output that one
        # neighbour can make and the other cannot is an infinite loss. In float64 the end is at 8.57 deviations.
        noise = torch.randn(gradient.shape, dtype=torch.float64, device=stream.device, generator=stream)
        place = stream.device if gradient.device.type == "mps" else gradient.device  # mps has no float64
        total = noise.mul_(std).to(place).add_(gradient.to(place)).div_(divisor)
        noisy[name] = total.to(dtype).to(gradient.device)
    return {name: noisy[name] for name in gradients}


def stream_of_extra(stream: NoiseStream) -> NoiseStream:
    """The stream of telemetry's noise, keyed by the key and position of ``stream``, which is not moved.

    No position is drawn from twice, so no two sums share a stream. A ``torch.Generator``, which has no key, is its
    own.
    """
    if isinstance(stream, torch.Generator):
        return stream
    return Keystream(hmac.digest(stream.key, f"decrescendo:beside:{stream.position}".encode(), "sha256"))


def _add_independent(values: Tensor, words: ReservedWords, std: float, divisor: float, *, fresh: bool) -> Tensor:
    """(values + N(0, std^2)) / divisor: exact, rounded once to a grid; ``fresh``: values may be overwritten."""
    if values.device.type == "cuda":
        return on_device.add_gaussian(values, std, words, divisor=divisor)
    found = values if fresh else torch.empty_like(values)
    add_gaussian(values.numpy(), std, words, divisor=divisor, out=found.numpy())
    return found


def _drawn_at_once(
    gradients: Mapping[str, Tensor],
    dtype: torch.dtype,
    stream: SecureStream | Keystream,
    std: float,
    divisor: float,
) -> dict[str, Tensor]:
    """`with_noise` for tensors of one dtype, small ones laid side by side.

    This rank's part of a sharded tensor (DTensor) gets the noise that these entries have in the whole tensor.
    """
    words = stream.reserve(sum(gradient.numel() for gradient in gradients.values()))
    noisy: dict[str, Tensor] = {}
    runs: list[tuple[int, list[tuple[str, Tensor]]]] = []  # the index of a run's first number, and its tensors
    count = end = filled = 0
    for name, gradient in gradients.items():
        own, before = own_part(gradient)
        apart = not runs or end != count + before or runs[-1][1][-1][1].device != own.device
        if apart or filled + own.numel() > _TOGETHER.get(own.device.type, 2**20):
            runs.append((count + before, []))
            filled = 0
        runs[-1][1].append((name, own))
        count, end = count + gradient.numel(), count + before + own.numel()
        filled += own.numel()
    for first, run in runs:
        flat = torch.cat([own for _, own in run]) if len(run) > 1 else run[0][1].contiguous().resolve_neg()
        flat = flat.to(dtype)
        flat = flat if flat.device.type == "cuda" else flat.cpu()
        fresh = len(run) > 1  # one alone may be the sum's own memory
        flat = _add_independent(flat, words.after(first), std, divisor, fresh=fresh)
        parts = flat.split([own.numel() for _, own in run])
        noisy |= {name: like(gradients[name], part) for (name, _), part in zip(run, parts, strict=True)}
    return noisy


def own_part(gradient: Tensor) -> tuple[Tensor, int]:
    """This rank's numbers of a tensor, flattened, and how many numbers of the tensor come before them."""
    if not hasattr(gradient, "device_mesh"):
        return gradient.detach().reshape(-1), 0
    part = cast("Any", gradient.detach())
    mesh, last = part.device_mesh, part.device_mesh.ndim - 1
    if not part.placements[last].is_shard(0) or not all(p.is_replicate() for p in part.placements[:last]):
        raise InvalidValue(
            f"gradients in parts must be cut along their first dimension, got placements={part.placements}"
        )
    rows = -(-gradient.shape[0] // mesh.size(last))  # of each part but the last ones, as torch.chunk cuts
    before = min(gradient.shape[0], rows * mesh.get_local_rank(last))
    return part.to_local().reshape(-1), before * math.prod(gradient.shape[1:])


def like(gradient: Tensor, numbers: Tensor) -> Tensor:
    """``numbers`` in the shape, device and sharding of ``gradient``."""
    if not hasattr(gradient, "device_mesh"):
        return numbers.view(gradient.shape).to(gradient.device)
    part = cast("Any", gradient)
    local = numbers.view(part.to_local().shape)
    return part.from_local(
        local.to(part.device), part.device_mesh, part.placements, shape=part.shape, stride=part.stride()
    )
