"""From a pass to its clipped sums: factors that do not depend on any host-side look at values, and the sums."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from decrescendo.clipping.clipped import MARGINS, clip_factors, norm_dtype
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
    done: Pass, limit: float, present: Bool[Tensor, " batch"] | None, gamma: float | None
) -> Factors:
    """The clip factors of a pass; rows that are not ``present`` (padding) get zero."""
    measured = done.measured
    norms = joint_norms(done)
    counted = torch.isfinite(norms)
    if present is not None:
        counted &= present
    narrow = measured.narrow
    dtype = torch.float32 if narrow and not measured.wide else torch.float64
    if norms.dtype == torch.float32:
        dtype = torch.float32
    margin = MARGINS[torch.float32 if narrow or measured.wide else torch.float64]
    factors = clip_factors(norms, limit, dtype, margin, gamma)
    return Factors(norms, counted, torch.where(counted, factors, torch.zeros_like(factors)))


def loss_sum(losses: Float[Tensor, " batch"]) -> float:
    """The sum of the finite losses."""
    finite = torch.where(torch.isfinite(losses), losses, torch.zeros_like(losses))
    return float(finite.sum(dtype=norm_dtype(losses.device)))
