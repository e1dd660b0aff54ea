"""The gate: a private `ClippedSum` goes in, a noisy mean that may be published comes out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from decrescendo.clipping.clipped import ClippedSum, accumulator, check_gradients
from decrescendo.errors import InvalidValue, check_instance, check_real
from decrescendo.ledger import Release
from decrescendo.sampling import PoissonSampling


@final
@dataclass(frozen=True, slots=True, eq=False)
class NoisyMean:
    """(sum + N(0, (z C)^2)) / B with B the declared expected batch size, and the release it is.

    Args:
        gradients: one tensor for each trainable parameter, by name, at least float32.
        release: what accountants must count for it.
        noise_std: z C / B >= 0, the standard deviation of the noise on each coordinate; as public as the plan.
            `privatise` sets it; ``None`` where a mean was put together by hand and nobody said.

    >>> import torch
    >>> NoisyMean({"w": torch.ones(2)}, Release(0.01, 1.0)).release
    Release(sample_rate=0.01, noise_multiplier=1.0, count=1)
    """

    gradients: Mapping[str, Tensor]
    release: Release
    noise_std: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradients", check_gradients(self.gradients))
        check_instance("release", self.release, Release)
        if self.noise_std is not None:
            object.__setattr__(self, "noise_std", check_real("noise_std", self.noise_std, at_least=0))

    def __repr__(self) -> str:
        count = len(self.gradients)
        return f"NoisyMean({count} parameter{'' if count == 1 else 's'}, {self.release})"


def privatise(
    clipped: ClippedSum, noise_multiplier: float, sampling: PoissonSampling, generator: torch.Generator
) -> NoisyMean:
    """Add independent N(0, (z C)^2) to every coordinate of the sum; divide by the expected batch size B.

    Args:
        clipped: the sum and its sensitivity C.
        noise_multiplier: z >= 0. Zero adds nothing, draws nothing and protects nothing.
        sampling: how the batch was drawn; its declared ``expected_batch_size`` is the divisor.
        generator: the noise stream, drawn from once a parameter in the order of the sorted names. The draw
            is made where the generator lives and is moved to the gradient, so a stream does not depend on
            the model's device.

    Guarantee:
        the result is one ``Release(sampling.sample_rate, noise_multiplier)`` for neighbours that differ by
        adding or removing one example, provided the batch was drawn by ``sampling`` and the generator is
        secret.

    Edge cases:
        an empty batch gets the same noise; the divisor never is the realised batch size, which is private;
        noise is drawn and added in float64 whatever the gradients are (float32 generators never leave 5.8
        standard deviations, and what lies beyond is worth more than a usual delta over a run); the result is
        at least float32; an infinite sensitivity is refused unless z is 0.

    Raises:
        InvalidType: ``clipped`` is no `ClippedSum`, or another argument of the wrong kind.
        InvalidValue: z below zero or not finite, or noise for an unbounded sum.

    >>> import torch
    >>> from decrescendo.clipping import Diagnostics
    >>> clipped = ClippedSum({"w": torch.tensor([3.0, 6.0])}, math.inf, Diagnostics(3, 0, 0, 0.0))
    >>> sampling = PoissonSampling(dataset_size=100, expected_batch_size=3)
    >>> privatise(clipped, 0.0, sampling, torch.Generator()).gradients["w"]
    tensor([1., 2.])
    """
    check_instance("clipped", clipped, ClippedSum, "Noise is added to what a Clipper returned")
    check_instance("sampling", sampling, PoissonSampling)
    check_instance("generator", generator, torch.Generator)
    z = check_real("noise_multiplier", noise_multiplier, at_least=0)
    if z > 0 and clipped.sensitivity == math.inf:
        raise InvalidValue(
            "a sum must have a finite sensitivity to be noised, got sensitivity=inf with "
            f"noise_multiplier={z}. "
            "Give a finite clip_norm, or noise_multiplier=0 for training without privacy"
        )
    std = 0.0 if z == 0 else z * clipped.sensitivity
    if not math.isfinite(std) or (z > 0 and std == 0):
        raise InvalidValue(
            f"noise_multiplier times clip_norm must be a normal number, got {z} x {clipped.sensitivity}"
        )
    divisor = sampling.expected_batch_size
    noisy: dict[str, Tensor] = {}
    for name in sorted(clipped.gradients):
        gradient = clipped.gradients[name].detach()
        dtype = accumulator(gradient.dtype)
        if std == 0:
            noisy[name] = gradient.to(dtype) / divisor
            continue
        # A float32 draw is made of 24 random bits: it ends at sqrt(48 ln 2) = 5.77 deviations, and an output that one
        # neighbour can make and the other cannot is an infinite loss. In float64 the end is at 8.57 deviations.
        noise = torch.randn(gradient.shape, dtype=torch.float64, device=generator.device, generator=generator)
        place = generator.device if gradient.device.type == "mps" else gradient.device  # mps has no float64
        total = noise.mul_(std).to(place).add_(gradient.to(place)).div_(divisor)
        noisy[name] = total.to(dtype).to(gradient.device)
    release = Release(sample_rate=sampling.sample_rate, noise_multiplier=z)
    return NoisyMean({name: noisy[name] for name in clipped.gradients}, release, std / divisor)
