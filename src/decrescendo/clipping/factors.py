"""From a pass to its clipped sums: factors that do not depend on any host-side look at values, and the sums."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from decrescendo.clipping.clipped import (
    MARGINS,
    Diagnostics,
    clip_factors,
    count_clipped,
    norm_dtype,
    within_norm,
)
from decrescendo.clipping.passes import Pass


@dataclass(frozen=True, slots=True)
class Factors:
    """Norms, which of them count, and the factor of each example."""

    norms: Float[Tensor, " batch"]
    counted: Bool[Tensor, " batch"]
    factors: Float[Tensor, " batch"]


def joint_norms(done: Pass) -> Float[Tensor, " batch"]:
    """The norm over all parameters, in float64; never below the exact one."""
    squares = list(done.squares().values())
    total = squares[0].clone()
    for square in squares[1:]:
        total += square.to(total.device)
    # A sum of float64 squares and its root: far below what is added.
    return total.sqrt() * (1 + 2.0**-40)


def factors_of(
    norms: Float[Tensor, " batch"], rows: int, limit: float, gamma: float | None, *, narrow: bool, wide: bool
) -> Factors:
    """The clip factors of a pass; those after the first ``rows`` (padding) are zero.

    ``narrow``: whether anything in it has the rounding of float32; ``wide``: it is summed in float64.
    """
    counted = torch.isfinite(norms)
    if rows < len(norms):
        counted &= torch.arange(len(norms), device=norms.device) < rows
    dtype = torch.float32 if narrow and not wide else torch.float64
    if norms.dtype == torch.float32:
        dtype = torch.float32
    margin = MARGINS[torch.float32 if narrow or wide else torch.float64]
    factors = clip_factors(norms, limit, dtype, margin, gamma)
    return Factors(norms, counted, torch.where(counted, factors, torch.zeros_like(factors)))


def look_at(
    found: Factors, losses: Float[Tensor, " batch"], rows: int, limit: float
) -> tuple[Diagnostics, bool]:
    """What the holder of the data may see of the first ``rows``, and whether every norm was finite, that of padding
    too. The device is waited for once."""
    norms, dtype = found.norms, norm_dtype(losses.device)
    finite = torch.where(torch.isfinite(losses[:rows]), losses[:rows], torch.zeros_like(losses[:rows]))
    numbers = (
        torch.isfinite(norms).all(),
        found.counted.sum(),
        count_clipped(norms[:rows], limit),
        finite.sum(dtype=dtype),
        within_norm(norms[:rows], limit),
    )
    whole, counted, clipped, loss_sum, within = torch.stack([number.to(dtype) for number in numbers]).tolist()
    return Diagnostics(rows, rows - int(counted), int(clipped), loss_sum, within), bool(whole)
