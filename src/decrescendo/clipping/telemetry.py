"""`Telemetry`: noisy numbers about a batch, released as further coordinates of its clipped sum."""

import math
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from decrescendo.errors import InvalidType, InvalidValue, check_instance, check_integer, check_real

# Coordinates are scaled by 1 - _ROOM, and norms by 1 + _ROOM: a relative margin for the rounding
# of a stored gradient (docs/explanation/rounding.md) and of these few operations.
_ROOM = 2.0**-20
# With more bins noise dominates: each count has noise std z sqrt(K).
_MOST = 1_000


@final
@dataclass(frozen=True, slots=True)
class Telemetry:
    """Gradient-norm histogram, loss and accuracy, released in one Gaussian mechanism with the sum.

    A clipped gradient v of length n <= C leaves room for any vector s with |s|^2 <= C^2 - n^2: the pair (v, s) still
    has norm at most C: sensitivity, z and epsilon stay the same. ``norms`` fills it with K coordinates,
    C / sqrt(K) in the first K (1 - n / C) of them (the last of these in part): then |s|^2 <= C^2 - n C. The sum of a
    coordinate is the number of examples whose norm is below its threshold. It costs nothing: gradients, their noise and
    epsilon are those of a run without.

    ``loss`` and ``accuracy`` are a coordinate each, 2 a C (x - 1/2) for a value x in [0, 1], and cost ``share``: with m
    of them, gradients are clipped to C sqrt(1 - m a^2) = C (1 - share).

    Args:
        norms: K, how many bins the distribution of gradient norms between 0 and C has; 0 for none.
        loss: the mean loss.
        accuracy: the mean of a score in [0, 1] an example, such as 1 where a class was right. The loss function returns
            it beside the losses: ``return losses, correct``.
        loss_range: losses count as clipped to this range, which must be public: known without the data.
        share: of C, in (0, 0.5], for loss and accuracy together.

    Raises:
        InvalidValue: nothing is asked for, or a number outside its range.

    >>> Telemetry(norms=10).gradient_limit(2.0)
    2.0
    >>> Telemetry(norms=10, loss=True, accuracy=True).gradient_limit(2.0)
    1.99
    """

    norms: int = 10
    loss: bool = False
    accuracy: bool = False
    loss_range: tuple[float, float] = (0.0, 10.0)
    share: float = 0.005

    def __post_init__(self) -> None:
        check_integer("norms", self.norms, at_least=0)
        for name in ("loss", "accuracy"):
            check_instance(name, getattr(self, name), bool)
        if not self.size:
            raise InvalidValue("telemetry must have something to release, got none of norms, loss and accuracy")
        if self.norms > _MOST:
            raise InvalidValue(f"norms must be at most {_MOST}, got norms={self.norms}")
        object.__setattr__(self, "share", check_real("share", self.share, above=0, at_most=0.5))
        ends: Any = self.loss_range
        if not isinstance(ends, (tuple, list)) or len(cast("tuple[object, ...]", ends)) != 2:
            raise InvalidType(f"loss_range must be two numbers, the lowest and the highest loss, got {ends!r}")
        low = check_real("loss_range[0]", ends[0])
        high = check_real("loss_range[1]", ends[1], above=low)
        check_real("the width of loss_range", high - low)
        object.__setattr__(self, "loss_range", (low, high))

    def __str__(self) -> str:
        """In words, for `Statement`.

        >>> print(Telemetry(norms=0, loss=True, loss_range=(0, 4)))
        the mean loss within 0 and 4; gradients are clipped to 0.995 C_t
        """
        asked = [f"the distribution of gradient norms in {self.norms} bins"] if self.norms else []
        if self.loss:
            asked.append(f"the mean loss within {self.loss_range[0]:g} and {self.loss_range[1]:g}")
        if self.accuracy:
            asked.append("the mean accuracy")
        text = ", ".join(asked[:-1]) + (" and " if asked[1:] else "") + asked[-1]
        return f"{text}; gradients are clipped to {1 - self.share:g} C_t" if self.scalars else text

    @property
    def scalars(self) -> int:
        """m: how many of loss and accuracy are asked for."""
        return self.loss + self.accuracy

    @property
    def size(self) -> int:
        """How many coordinates there are: norms, loss, accuracy, in this order."""
        return self.norms + self.scalars

    @property
    def part(self) -> float:
        """a: loss and accuracy entries are at most a C each; 0 without."""
        return math.sqrt((1 - (1 - self.share) ** 2) / self.scalars) if self.scalars else 0.0

    def gradient_limit(self, clip_norm: float) -> float:
        """The gradients' clip norm that leaves room for loss and accuracy within ``clip_norm``."""
        return clip_norm * (1 - self.share) if self.scalars else clip_norm

    def units(self, clip_norm: float) -> tuple[float, float]:
        """The scales of the coordinates: the largest entry of a norm bin; the range (from value 0 to 1) of loss and
        accuracy."""
        norm = self.gradient_limit(clip_norm) / math.sqrt(max(self.norms, 1)) * (1 - _ROOM)
        return norm, 2 * self.part * clip_norm * (1 - _ROOM)

    def coordinates(
        self,
        lengths: Float[Tensor, " batch"],
        losses: Float[Tensor, " batch"],
        scores: Tensor | None,
        counted: Bool[Tensor, " batch"],
        clip_norm: float | Float64[Tensor, ""],
        real: Bool[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch size"]:
        """Telemetry coordinates s per example, |s|^2 <= C^2 - n^2; zero for padding.

        Args:
            lengths: n, norms of the clipped gradients: upper bounds up to rounding.
            losses: one per example; NaN counts as the upper end of the range.
            scores: one per example, with ``accuracy``; clipped to [0, 1], NaN as 0.
            counted: which examples have a finite gradient. Of the others, whose gradients count as 0, no norm is known,
                and loss and score are the worst: a model that diverged must not look better than one that did not.
            clip_norm: C.
            real: which rows are examples, and not padding; ``None`` for all.
        """
        limit: float | Tensor = clip_norm * (1 - self.share) if self.scalars else clip_norm
        parts: list[Tensor] = []
        if self.norms:
            left = (1 - lengths * (1 + _ROOM) / limit).clamp(0, 1) * self.norms
            bins = torch.arange(self.norms, dtype=left.dtype, device=left.device)
            unit = limit * ((1 - _ROOM) / math.sqrt(self.norms))
            filled = (left[:, None] - bins).clamp(0, 1) * unit
            parts.append(torch.where(counted[:, None], filled, torch.zeros_like(filled)))
        weight = 2 * self.part * (1 - _ROOM) * clip_norm
        if self.loss:
            low, high = self.loss_range
            parts.append(_centred((losses.to(lengths.dtype) - low) / (high - low), counted, 1.0) * weight)
        if self.accuracy and scores is not None:
            parts.append(_centred(scores.to(lengths.dtype), counted, 0.0) * weight)
        rows = torch.cat(parts, dim=1)
        return rows if real is None else torch.where(real[:, None], rows, torch.zeros_like(rows))


def _centred(
    values: Float[Tensor, " batch"], counted: Bool[Tensor, " batch"], worst: float
) -> Float[Tensor, "batch 1"]:
    """Values clipped to [0, 1], minus 1/2: the ``worst`` where they are NaN or do not count. The magnitude is at most
    1/2."""
    return (torch.where(counted & ~torch.isnan(values), values.clamp(0, 1), worst) - 0.5)[:, None]
