"""`QuantileClip`: a clip norm that follows a quantile of the gradient norms, at no privacy cost beyond the plan's."""

import math
from dataclasses import dataclass
from typing import final

import torch

from decrescendo.base.limits import SMALLEST_CLIP_NORM
from decrescendo.clipping.clipped import ClippedSum
from decrescendo.errors import InvalidValue, check_instance, check_real
from decrescendo.optim.noise import NoisyMean
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import Sampling

# The count's key in the dict of gradients; has spaces, so it equals no parameter's name.
COUNT_KEY = "share of gradients that were not clipped"
# C_t stays within this factor of C_0: a sum of noise alone must not carry it away.
_MAX_FACTOR = 1e6
# Relative margin on the count's weight: rounding to float64 must not raise the sensitivity above C_t.
_ROUNDING = 2.0**-30


@final
@dataclass(frozen=True, slots=True)
class QuantileClip:
    """A plan whose clip norm is only the first C_t: later ones follow a quantile of the gradients' norms.

    Each step releases, in one vector and under one noise, the clipped sum and how many gradients were not clipped:
    sum_i (g_i min(1, a C_t / |g_i|), 2 s C_t (b_i - 1/2)), with b_i 1 where |g_i| is below 0.95 a C_t, 0 where it is
    above 1.05 a C_t, a straight line between (`clipping.clipped.within_norm`), and a = sqrt(1 - s^2). One example moves
    the vector by at most sqrt(a^2 + s^2) C_t = C_t, so noise z_t C_t makes it the plan's own release: the certificate
    of the plan stays as it is, to the last digit. With b the noisy share, C_{t+1} = C_t exp(-rate (b - quantile)),
    which is post-processing (Andrew et al. 2021, who pay for the count by noise of its own).

    Args:
        plan: from `calibrate`, with one clip norm, C_0; its noise may move.
        quantile: the share in (0, 1) of gradients that are not to be clipped.
        rate: > 0, at most 1: how fast C_t follows.
        share: s in (0, 0.5]: the noisy share has standard deviation z_t / (2 s B_t); gradients are clipped at a C_t.

    Raises:
        InvalidValue: a plan whose clip norm moves, or that has no noise or no finite clip norm.

    >>> from decrescendo import Budget, PoissonSampling, calibrate, curves
    >>> one = curves.constant(1.0)
    >>> plan = calibrate(Budget(2.0, 1e-3), PoissonSampling(500, 50), steps=9, privacy=curves.growing_mu(2), clip=one)
    >>> follow = QuantileClip(plan, quantile=0.5)
    >>> follow.gradient_part
    0.994...
    """

    plan: Plan
    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.1

    def __post_init__(self) -> None:
        check_instance("plan", self.plan, Plan, "calibrate makes one")
        check_real("quantile", self.quantile, above=0, below=1)
        check_real("rate", self.rate, above=0, at_most=1)
        check_real("share", self.share, above=0, at_most=0.5)
        clip = self.plan.clip_norm
        if clip.min() != clip.max():
            raise InvalidValue(
                f"a plan for QuantileClip must have one clip norm, where C_t begins, got {clip[0]:g} to "
                f"{clip[-1]:g}. Calibrate with clip=constant(C_0)"
            )
        if not math.isfinite(clip[0]) or not self.plan.noise_multiplier.min() > 0:
            raise InvalidValue(
                f"a plan for QuantileClip must have noise at every step and a finite clip norm, got {self.plan}. "
                "Without noise the count of each batch would be published"
            )

    @property
    def sampling(self) -> Sampling:
        """How the plan draws batches."""
        return self.plan.sampling

    @property
    def steps(self) -> int:
        """The number of the plan's steps."""
        return self.plan.steps

    @property
    def gradient_part(self) -> float:
        """a: gradients are clipped at a C_t."""
        return math.sqrt(1 - self.share**2)


@final
class ClipNormTracker:
    """Adapts the clip norm C_t during one training.

    Each step, `with_count` puts the count of unclipped gradients beside the clipped sum before noise is added, and
    `update` reads the noisy count and sets C_{t+1}.

    Attributes:
        norms: C_0 and the clip norms that followed, one a step.
    """

    def __init__(self, settings: QuantileClip) -> None:
        self._settings = settings
        self.norms = [float(settings.plan.clip_norm[0])]

    @property
    def gradient_part(self) -> float:
        """a: gradients are clipped at a C_t."""
        return self._settings.gradient_part

    def with_count(self, clipped: ClippedSum, clip_norm: float) -> ClippedSum:
        """The clipped sum and the weighted count of unclipped gradients: together of sensitivity C_t."""
        seen = clipped.diagnostics
        weight = 2 * self._settings.share * clip_norm * (1 - _ROUNDING)
        device = next(iter(clipped.gradients.values())).device
        count = torch.tensor([weight * (seen.within - seen.examples / 2)], dtype=torch.float64, device=device)
        return ClippedSum({**clipped.gradients, COUNT_KEY: count}, clip_norm, seen, clipped.beside)

    def set_from_rank_0(self, clip_norm: float, taken: int) -> None:
        """On other ranks: take over rank 0's clip norm for the step after ``taken`` steps."""
        self.norms[taken:] = [clip_norm]

    def update(self, noisy: NoisyMean, taken: int) -> NoisyMean:
        """Take the noisy count out of the noisy mean of step ``taken`` + 1, and set the next step's clip norm by it."""
        clip_norm = self.norms[taken]
        weight = 2 * self._settings.share * clip_norm * (1 - _ROUNDING)
        share = 0.5 + float(noisy.gradients[COUNT_KEY][0]) / weight
        moved = math.exp(-self._settings.rate * (min(max(share, 0.0), 1.0) - self._settings.quantile))
        # Gradients are clipped at a C_t, which the engine refuses below SMALLEST_CLIP_NORM.
        smallest = SMALLEST_CLIP_NORM / self.gradient_part * (1 + _ROUNDING)
        least, most = max(self.norms[0] / _MAX_FACTOR, smallest), self.norms[0] * _MAX_FACTOR
        self.norms[taken + 1 :] = [min(max(clip_norm * moved, least), most)]
        gradients = {name: gradient for name, gradient in noisy.gradients.items() if name != COUNT_KEY}
        return NoisyMean(gradients, noisy.release, noisy.noise_std, noisy.beside)
