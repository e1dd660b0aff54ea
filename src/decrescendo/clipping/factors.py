"""Computes clip factors without waiting for the device, and the clipped sums of a pass."""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from decrescendo.base.batches import count_rows, leaves_of
from decrescendo.clipping.clipped import MARGINS, Batch, Diagnostics, clip_factors, count_clipped, norm_dtype
from decrescendo.clipping.passes import Pass
from decrescendo.clipping.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Factors:
    """Which examples count, their clip factors, and sums over the batch for `seen_of`: four private diagnostics, and
    the telemetry coordinates."""

    counted: Bool[Tensor, " batch"]
    factors: Float[Tensor, " batch"]
    numbers: Float[Tensor, " numbers"]


def joint_norms(done: Pass) -> Float[Tensor, " batch"]:
    """Each example's gradient norm over all parameters, in float64; never below the exact one."""
    squares = list(done.squares().values())
    total = squares[0].clone()
    for square in squares[1:]:
        total += square.to(total.device)
    # The rounding of the float64 sum and of its root is far below the 2^-40 that is added.
    return total.sqrt() * (1 + 2.0**-40)


def warn_of_lost(batch: Batch, lost: int) -> None:
    """Warn that ``lost`` of these rows would count as zero, and say whether missing values may be the cause."""
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


@dataclass(frozen=True, slots=True)
class OnePass:
    """A pass of one example by plain autograd: loss and score in rows of one, and the gradients by parameter."""

    losses: Float[Tensor, " 1"]
    scores: Tensor | None
    gradients: dict[str, Tensor]

    @property
    def narrow(self) -> bool:
        """Whether a gradient has the rounding of float32."""
        return any(gradient.dtype != torch.float64 for gradient in self.gradients.values())


def factors_of(
    done: Pass | OnePass, norms: Float[Tensor, " batch"], rows: int | Int[Tensor, ""],
    clip_norm: float | Float64[Tensor, ""], gamma: float | None, telemetry: Telemetry | None, *, wide: bool,
) -> Factors:  # fmt: skip
    """The clip factors of a pass; those after the first ``rows`` (padding) are zero.

    ``wide``: gradients are summed in float64. ``rows`` and ``clip_norm`` given as tensors may change between replays.
    """
    losses = done.losses.to(norms.device)  # of a model on several devices
    narrow = (
        done.narrow if isinstance(done, OnePass) else done.measured.narrow
    )  # whether anything in it has the rounding of float32
    limit = clip_norm
    if telemetry is not None and telemetry.scalars:
        limit = clip_norm * (1 - telemetry.share)
    own, finite, first = norms, torch.isfinite(losses), None
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
    )
    stacked = torch.stack([number.to(added) for number in numbers])
    if telemetry is not None:
        scores = None if done.scores is None else done.scores.to(norms.device)
        lengths = factors.to(norms.dtype) * norms
        extra = telemetry.coordinates(lengths, losses, scores, counted, clip_norm, first)
        stacked = torch.cat([stacked, extra.sum(0, dtype=added)])
    return Factors(counted, torch.where(counted, factors, torch.zeros_like(factors)), stacked)


@dataclass(frozen=True, slots=True)
class PassNumbers:
    """Private diagnostics of a micro-batch, and the sums of the telemetry coordinates beside its
    gradients."""

    diagnostics: Diagnostics
    extra_coordinates: tuple[float, ...]


def seen_of(numbers: Float[Tensor, " numbers"], rows: int) -> tuple[PassNumbers, bool]:
    """Diagnostics and telemetry sums of ``rows``, and whether every norm was finite, that of padding too. The device
    is waited for once."""
    whole, counted, clipped, loss_sum, *extra = numbers.tolist()
    seen = Diagnostics(rows, rows - int(counted), int(clipped), loss_sum)
    return PassNumbers(seen, tuple(extra)), bool(whole)
