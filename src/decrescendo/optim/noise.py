"""The gate: a private `ClippedSum` goes in, a noisy mean that may be published comes out.

Two functions make a `NoisyMean`, nothing else does: `privatise` adds all of the noise; `complete` adds what is missing
of the noise that the contributors of a `NoisedSum` have put into their parts themselves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from decrescendo.accounting.release import Release
from decrescendo.base.rng import Keystream, SecureStream
from decrescendo.clipping.clipped import ClippedSum, check_clip_norm, check_gradients, check_real_floats
from decrescendo.errors import InvalidType, InvalidValue, check_instance, check_integer, check_real
from decrescendo.optim.correlated import CorrelatedNoise
from decrescendo.optim.noise_drawing import NoiseStream, stream_of_extra, with_noise
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.sampling import PoissonSampling, RandomAllocation
from decrescendo.plans.sampling_refusals import uncut
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling


@final
@dataclass(frozen=True, slots=True, eq=False)
class NoisyMean:
    """(sum + N(0, (z C)^2)) / B with B the declared expected batch size, and its `Release`.

    Args:
        gradients: one tensor for each trainable parameter, by name, at least float32.
        release: what accountants must count for it.
        noise_std: z C / B >= 0, the standard deviation of the noise on each coordinate; as public as the plan.
            `privatise` sets it; ``None`` where a mean was put together by hand without it.
        extra_coordinates: more coordinates of the same release (`clipping.Telemetry`), with the same noise; ``None``
            for none.

    >>> import torch
    >>> NoisyMean({"w": torch.ones(2)}, Release(0.01, 1.0)).release
    Release(sample_rate=0.01, noise_multiplier=1.0, count=1, overflow=0.0, steps_per_epoch=0, bands=1, step=0)
    """

    gradients: Mapping[str, Tensor]
    release: Release
    noise_std: float | None = None
    extra_coordinates: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradients", check_gradients(self.gradients))
        check_instance("release", self.release, Release)
        if self.noise_std is not None:
            object.__setattr__(self, "noise_std", check_real("noise_std", self.noise_std, at_least=0))
        if self.extra_coordinates is not None:
            check_real_floats("extra_coordinates", self.extra_coordinates)

    def divided(self, divisor: float) -> "NoisyMean":
        """Gradients, and the noise on them, divided by ``divisor`` > 0, which must be public: post-processing. Other
        coordinates stay as they are.

        >>> import torch
        >>> NoisyMean({"w": torch.ones(2)}, Release(0.01, 1.0), 0.5).divided(4.0).noise_std
        0.125
        """
        check_real("divisor", divisor, above=0)
        gradients = {name: value / divisor for name, value in self.gradients.items()}
        noise_std = None if self.noise_std is None else self.noise_std / divisor
        return NoisyMean(gradients, self.release, noise_std, self.extra_coordinates)

    def __repr__(self) -> str:
        count = len(self.gradients)
        return f"NoisyMean({count} parameter{'' if count == 1 else 's'}, {self.release})"


def privatise(
    clipped: ClippedSum,
    noise_multiplier: float,
    sampling: PoissonSampling | RandomAllocation | CyclicPoissonSampling | StratifiedPoissonSampling,
    stream: NoiseStream,
    correlated: CorrelatedNoise | None = None,
) -> NoisyMean:
    """Add N(0, (z C)^2) to every coordinate of the sum, independent of all other noise unless ``correlated``; divide by
    the expected batch size B.

    Args:
        clipped: the sum and its sensitivity C.
        noise_multiplier: z >= 0. Zero adds nothing, draws nothing and protects nothing.
        sampling: how the batch was drawn; its declared ``expected_batch_size`` is the divisor.
        stream: the noise stream. A `base.rng.SecureStream` (which nobody can predict) or a `Keystream` (of a seed:
            `Streams.keyed`) gives an exact Gaussian, rounded once to a public grid: on CUDA where the sum is, else on
            the CPU; the parameters one after another in the order of the sorted names, those of float64 last. A
            ``torch.Generator`` draws once a parameter in that order, where it lives. Noise of the coordinates beside
            the gradients comes from a stream of its own, keyed by this one's key and position (of a generator, after
            the gradients): that of the gradients does not depend on them.
        correlated: the noise of a run in which records take turns, for `CyclicPoissonSampling` of several bands; z then
            is 1 over the norm of the strategy's column. ``None`` for independent noise.

    Guarantee:
        the result is one ``sampling.release(noise_multiplier)`` for neighbours that differ by
        adding or removing one example, provided the batch was drawn by ``sampling`` and the stream is
        secret.

    Edge cases:
        an empty batch gets the same noise; the divisor never is the realised batch size, which is private;
        noise is added in float64 whatever the gradients are (float32 draws never leave 5.8 standard deviations, and
        what lies beyond is worth more than a usual delta over a run); the result is at least float32; an infinite
        sensitivity is refused unless z is 0.

    Raises:
        InvalidType: ``clipped`` is no `ClippedSum`, or another argument of the wrong kind.
        InvalidValue: z below zero or not finite, noise for an unbounded sum, sampling in turns without the noise of its
            plan, or correlated noise below z.
        PlanViolation: correlated noise of another step than the next.

    >>> import torch
    >>> from decrescendo.clipping import Diagnostics
    >>> clipped = ClippedSum({"w": torch.tensor([3.0, 6.0])}, math.inf, Diagnostics(3, 0, 0, 0.0))
    >>> sampling = PoissonSampling(dataset_size=100, expected_batch_size=3)
    >>> privatise(clipped, 0.0, sampling, torch.Generator()).gradients["w"]
    tensor([1., 2.])
    """
    check_instance("clipped", clipped, ClippedSum, "Noise is added to what a Clipper returned")
    if not isinstance(sampling, RandomAllocation | CyclicPoissonSampling | StratifiedPoissonSampling):
        check_instance("sampling", sampling, PoissonSampling)
    _check_stream(stream)
    z = check_real("noise_multiplier", noise_multiplier, at_least=0)
    std = _noise_std(z, clipped.sensitivity)
    divisor = float(sampling.expected_batch_size)
    others = stream_of_extra(stream)  # before the gradients move it
    turns = sampling.bands if isinstance(sampling, CyclicPoissonSampling) else 1
    if turns != (1 if correlated is None else correlated.bands):
        raise InvalidValue(
            f"sampling in turns and correlated noise must be of one plan, got bands={turns} and "
            f"{'independent noise' if correlated is None else f'noise of {correlated.bands} bands'}. "
            "CorrelatedNoise(plan, ..) is the noise of plan.sampling"
        )
    if correlated is not None and isinstance(sampling, CyclicPoissonSampling):
        if z > (drawn := float(correlated.noise_multiplier[sampling.step])):
            raise InvalidValue(
                f"a release must not say more noise than is drawn, got noise_multiplier={z!r} where the column of step "
                f"{sampling.step + 1} has {drawn!r}. Give the plan's"
            )
        gradients, noise_std = correlated.add(clipped.gradients, clipped.sensitivity, divisor, stream, sampling.step)
        std *= correlated.wider
    else:
        gradients, noise_std = with_noise(clipped.gradients, std, divisor, stream), std / divisor
    # Telemetry's noise is independent, at correlated steps too: a record moves a column of the strategy there
    # and one number here, by vectors of one length: both together are the release that is counted. What rounding adds
    # to the first is paid for by noise that is larger for both: (|v| + e)^2 + |s|^2 <= (1 + e)^2.
    extra = None
    if clipped.extra_coordinates is not None:
        (extra,) = with_noise({"extra": clipped.extra_coordinates}, std, divisor, others).values()
    return NoisyMean(gradients, sampling.release(z), noise_std, extra)


def _check_stream(stream: object) -> None:
    if not isinstance(stream, (SecureStream, Keystream, torch.Generator)):
        raise InvalidType(
            f"stream must be a SecureStream, a Keystream or a torch.Generator, got {type(stream).__name__}. "
            "SecureStream.fresh() makes the one, Streams(seed).keyed('noise') the other"
        )


def _noise_std(z: float, sensitivity: float) -> float:
    """z C; raises unless it is finite, and above zero for z > 0."""
    if z > 0 and sensitivity == math.inf:
        raise InvalidValue(
            "a sum must have a finite sensitivity to be noised, got sensitivity=inf with "
            f"noise_multiplier={z}. "
            "Give a finite clip_norm, or noise_multiplier=0 for training without privacy"
        )
    std = 0.0 if z == 0 else z * sensitivity
    if not math.isfinite(std) or (z > 0 and std == 0):
        raise InvalidValue(f"noise_multiplier times clip_norm must be a normal number, got {z} x {sensitivity}")
    return std


@final
@dataclass(frozen=True, slots=True, eq=False)
class NoisedSum:
    """A clipped sum with noise that its contributors have added to their own parts; not to be published yet.

    Args:
        gradients: the sum of the parts that are present, one tensor a trainable parameter, by name.
        sensitivity: C > 0 and finite, of the clipped parts without their noise.
        noise_multiplier: z >= 0; the whole noise has standard deviation s = z C.
        present: how many parts are in the sum, >= 0.
        shares: how many shares make the whole noise, >= 1: each part brings N(0, s^2 / shares), independent of
            everything else, and ``present <= shares``. ``None``: each part brings all of it, N(0, s^2).

    Guarantee:
        none by itself; see `complete`.

    Raises:
        InvalidValue: more parts than shares, or a number outside its range.

    >>> import torch
    >>> NoisedSum({"w": torch.zeros(2)}, 1.0, 1.1, present=3, shares=4)
    NoisedSum(1 parameter, 3 of 4 shares of noise)
    """

    gradients: Mapping[str, Tensor]
    sensitivity: float
    noise_multiplier: float
    present: int
    shares: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradients", check_gradients(self.gradients))
        object.__setattr__(self, "sensitivity", check_clip_norm("sensitivity", self.sensitivity))
        z = check_real("noise_multiplier", self.noise_multiplier, at_least=0)
        object.__setattr__(self, "noise_multiplier", z)
        check_integer("present", self.present)
        if self.shares is not None:
            check_integer("shares", self.shares, at_least=1)
            if self.present > self.shares:
                raise InvalidValue(
                    f"a sum must hold at most as many parts as there are shares, got present={self.present} of "
                    f"shares={self.shares}. Noise beyond the planned one tells how many took part"
                )

    def __repr__(self) -> str:
        count = len(self.gradients)
        noise = "all noise each" if self.shares is None else f"{self.present} of {self.shares} shares of noise"
        return f"NoisedSum({count} parameter{'' if count == 1 else 's'}, {noise})"


def complete(noised: NoisedSum, sampling: PoissonSampling, stream: NoiseStream) -> NoisyMean:
    """Add exactly what is missing of the noise; divide by the expected batch size B.

    With m = shares - present missing shares that is N(0, (z C)^2 m / shares) on every coordinate, so that the total
    variance is (z C)^2 whoever is present. The accounting of a Poisson-sampled sum needs a noise whose law does not
    depend on who takes part: more noise for more parts would itself tell how many there are.

    Args:
        noised: the sum, and what noise is in it.
        sampling: how the contributors were drawn; its declared ``expected_batch_size`` is the divisor.
        stream: the noise stream of whoever completes, as in `privatise`; not drawn from where nothing is missing.

    Guarantee:
        with ``shares`` given, one ``Release(sampling.sample_rate, z)``, as `privatise` makes, provided the parts
        were clipped and noised as they say.
        with ``shares=None``, one ``Release(1, z)``: the noise that one contributor added hides what its part holds,
        not that it took part, and sampling amplifies nothing.

    Edge cases:
        nothing present (an empty batch, or everybody dropped out): all of the noise is added here.

    Raises:
        InvalidType: ``noised`` is no `NoisedSum`, or another argument of the wrong kind.
        InvalidValue: noise for an unbounded sum.

    >>> import torch
    >>> noised = NoisedSum({"w": torch.tensor([3.0, 6.0])}, 1.0, 2.0, present=2, shares=2)
    >>> complete(noised, PoissonSampling(dataset_size=100, expected_batch_size=3), torch.Generator()).gradients["w"]
    tensor([1., 2.])
    """
    check_instance("noised", noised, NoisedSum, "A ClippedSum, without noise, goes through privatise")
    check_instance("sampling", sampling, PoissonSampling)
    uncut(sampling, "a sum whose contributors add noise")
    _check_stream(stream)
    z, present, shares = noised.noise_multiplier, noised.present, noised.shares
    whole = _noise_std(z, noised.sensitivity)
    if shares is None:
        missing, total, rate = (0.0 if present else 1.0), max(present, 1), 1.0
    else:
        missing, total, rate = (shares - present) / shares, 1, sampling.sample_rate
    divisor = sampling.expected_batch_size
    gradients = with_noise(noised.gradients, whole * math.sqrt(missing), divisor, stream)
    return NoisyMean(gradients, Release(rate, z), whole * math.sqrt(total) / divisor)
