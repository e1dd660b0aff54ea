"""From a pass to its clipped sums: factors that do not depend on any host-side look at values, and the sums."""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from decrescendo.base.batches import count_rows, leaves_of
from decrescendo.clipping.clipped import (
    MARGINS,
    Batch,
    Diagnostics,
    clip_factors,
    count_clipped,
    norm_dtype,
    within_norm,
)
from decrescendo.clipping.passes import Pass


@dataclass(frozen=True, slots=True)
class Factors:
    """Which examples count, the factor of each, and five numbers about all of them, for `seen_of`."""

    counted: Bool[Tensor, " batch"]
    factors: Float[Tensor, " batch"]
    numbers: Float[Tensor, " 5"]


def joint_norms(done: Pass) -> Float[Tensor, " batch"]:
    """The norm over all parameters, in float64; never below the exact one."""
    squares = list(done.squares().values())
    total = squares[0].clone()
    for square in squares[1:]:
        total += square.to(total.device)
    # A sum of float64 squares and its root: far below what is added.
    return total.sqrt() * (1 + 2.0**-40)


def warn_of_lost(batch: Batch, lost: int) -> None:
    """Tell whoever gave these rows that some of them would count as zero, and whether it may be by missing values."""
    if not lost:
        return
    floats = [value for value in leaves_of(batch) if value.is_floating_point()]
    given = all(bool(torch.isfinite(value).all()) for value in floats)
    why = (
        "all numbers in them are finite: look for a loss that overflows, or a logarithm or root of zero"
        if given
        else "there is NaN or infinity in them: fill missing values in before the training"
    )
    warnings.warn(
        f"{lost} of {count_rows(batch)} rows given have a gradient that is not finite, and would count as zero in "
        f"every step; {why}",
        UserWarning,
        stacklevel=3,
    )


def factors_of(
    losses: Float[Tensor, " batch"], norms: Float[Tensor, " batch"], rows: int | Int[Tensor, ""],
    limit: float | Float64[Tensor, ""], gamma: float | None, *, narrow: bool, wide: bool,
) -> Factors:  # fmt: skip
    """The clip factors of a pass; those after the first ``rows`` (padding) are zero.

    ``narrow``: whether anything in it has the rounding of float32; ``wide``: it is summed in float64. As tensors, rows
    and limit may be others when the same operations are replayed.
    """
    losses = losses.to(norms.device)  # of a model that lies on several
    own, finite = norms, torch.isfinite(losses)
    if isinstance(rows, Tensor) or rows < len(norms):
        first = torch.arange(len(norms), device=norms.device) < rows
        own, finite = torch.where(first, norms, torch.inf), finite & first
    counted = torch.isfinite(own)
    dtype = torch.float32 if narrow and not wide else torch.float64
    if norms.dtype == torch.float32:
        dtype = torch.float32
    margin = MARGINS[torch.float32 if narrow or wide else torch.float64]
    factors = clip_factors(norms, limit, dtype, margin, gamma)
    added = norm_dtype(losses.device)
    numbers = (
        torch.isfinite(norms).all(),
        counted.sum(),
        count_clipped(own, limit),
        torch.where(finite, losses, torch.zeros_like(losses)).sum(dtype=added),
        within_norm(own, limit),
    )
    stacked = torch.stack([number.to(added) for number in numbers])
    return Factors(counted, torch.where(counted, factors, torch.zeros_like(factors)), stacked)


def seen_of(numbers: Float[Tensor, " 5"], rows: int) -> tuple[Diagnostics, bool]:
    """What the holder of the data may see of ``rows``, and whether every norm was finite, that of padding too. The
    device is waited for once."""
    whole, counted, clipped, loss_sum, within = numbers.tolist()
    return Diagnostics(rows, rows - int(counted), int(clipped), loss_sum, within), bool(whole)
