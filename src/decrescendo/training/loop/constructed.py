"""Tells buffers that a constructor fills without data (zeros, position tables) from those that may hold data
statistics."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm

from decrescendo.base.torch_private import SpectralNorm as SpectralNormParametrization
from decrescendo.training.processes.bits import local

# Whose modules make what they do not save from their settings: frequencies, scales, masks.
_LIBRARIES = "transformers", "timm", "diffusers", "peft", "open_clip"
# The fewest rows by which a table of sines is recognised, and the tolerance for its rounding.
_ROWS, _OFF = 8, 2e-3


def not_as_constructed(model: nn.Module) -> Iterator[str]:
    """Names of the buffers, saved or not, that may hold data: their values are not as a constructor fills them.

    A buffer is as constructed if it holds 0, 1 or infinity in every entry (running statistics before the first pass),
    0, 1, 2, .. (positions), one number on and below a diagonal and one above it (a causal
    mask) or sines of the position. The vectors of spectral normalisation are skipped: they follow from the weights.
    All else (statistics, priors, code books, tables, constants) may be computed from data, and gradients depend on it;
    of modules of Transformers and the like only what is saved is looked at.

    >>> list(not_as_constructed(nn.BatchNorm1d(2)))
    []
    >>> seen = nn.BatchNorm1d(2)
    >>> _ = seen(torch.randn(3, 2))
    >>> list(not_as_constructed(seen))
    ['running_mean', 'running_var']
    """
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, SpectralNormParametrization):
            continue
        normed = [hook.name for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
        follows = {f"{name}_{vector}" for name in normed for vector in "uv"}
        for name, buffer in module._buffers.items():
            if buffer is None or id(buffer) in seen or name in follows:
                continue
            unsaved = name in module._non_persistent_buffers_set
            if unsaved and type(module).__module__.split(".")[0] in _LIBRARIES:
                continue
            seen.add(id(buffer))
            if not is_as_constructed(buffer):
                yield f"{path}.{name}" if path else name


def is_as_constructed(buffer: Tensor) -> bool:
    """Whether a tensor has values that a constructor makes without data; see `not_as_constructed`.

    >>> mask = torch.full((4, 4), -torch.inf).triu(1)
    >>> [is_as_constructed(value) for value in (torch.arange(5), mask, torch.tensor([0.2, 0.8]))]
    [True, True, False]
    """
    own = local(buffer.detach())
    if own.layout is not torch.strided or own.is_meta or own.is_nested or own.is_quantized:
        return False
    if own.numel() == 0:
        return True
    if own.is_complex():
        return False
    own = own.squeeze()
    first = own.flatten()[0]
    if bool((own == first).all()):
        return first.item() in (0, 1, torch.inf, -torch.inf)
    if own.dim() == 1:
        return torch.equal(own, torch.arange(len(own), device=own.device).to(own.dtype))
    return own.dim() == 2 and (_is_triangular(own) or _is_of_sines(own))


def _is_triangular(square: Tensor) -> bool:
    """Whether a matrix has one value on and below its diagonal and another one above it."""
    size = len(square)
    if square.shape != (size, size) or size < 3:
        return False
    above = torch.ones(size, size, dtype=torch.bool, device=square.device).triu(1)
    return bool((square[~above] == square[0, 0]).all() and (square[above] == square[0, 1]).all())


def _is_of_sines(table: Tensor) -> bool:
    """Whether columns are sines or cosines of the row number t: x[t + 1] + x[t - 1] = c x[t], x[0] = 0 or 1."""
    if not table.is_floating_point() or len(table) < _ROWS:
        return False
    table = table.double()
    if not bool(((table[0] == 0) | (table[0] == 1)).all() and (table.abs() <= 1 + _OFF).all()):
        return False
    middle, around = table[1:-1], table[2:] + table[:-2]
    rate = (middle * around).sum(0) / middle.square().sum(0).clamp_min(torch.finfo(table.dtype).tiny)
    return bool(((around - rate * middle).abs() <= _OFF * table.abs().amax(0)).all())
