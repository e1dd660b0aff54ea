"""Adds the noise to a clipped sum, and records the release in the ledger before the result can be seen."""

import functools
from dataclasses import dataclass
from typing import final

import torch
from scipy.special import bdtr, bdtrc

from decrescendo.accounting.release import Release
from decrescendo.clipping.clipped import ClippedSum
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.plans.sampling import Sampling
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.loop.step_order import StepOrder
from decrescendo.training.persistence.keeping import Keeper
from decrescendo.training.persistence.run_state import RunState
from decrescendo.training.processes.bits import digest, is_part
from decrescendo.training.steering.reading import Reading
from decrescendo.training.steering.source import Source
from decrescendo.training.store import Account


@final
@dataclass(frozen=True, slots=True)
class Releasing:
    """Makes the noisy releases of one training.

    Args:
        keeper: where digests of releases are written; ``None`` without checkpoints.
        account: where releases are written; ``None`` without a store, and on other ranks than 0.
        digests: whether a digest of each release is recorded on rank 0.
    """

    source: Source
    order: StepOrder
    streams: RunStreams
    run_state: RunState
    keeper: Keeper | None
    account: Account | None
    digests: bool

    def noised(self, clipped: ClippedSum) -> tuple[NoisyMean, bytes]:
        """The noisy mean of a clipped sum, not recorded yet, and its digest (empty without ``digests``)."""
        settings = self.order.settings_of_drawn()
        # The sum is divided by the expected batch size of this step.
        sampling = self.source.sampling.at(self.run_state.taken)
        correlated = () if self.streams.correlated is None else (self.streams.correlated,)
        noisy = privatise(clipped, settings.noise_multiplier, sampling, self.streams.noise, *correlated)
        content = digest(noisy) if self.digests else b""
        return noisy, content

    def divided(self, noisy: NoisyMean) -> NoisyMean:
        """The noisy mean of the step just released as the optimiser gets it."""
        divisor = self.source.divisor(self.run_state.taken - 1)
        return noisy if divisor == 1 else noisy.divided(divisor)

    def reading(self, noisy: NoisyMean, telemetry: Telemetry) -> Reading:
        """The telemetry released with the gradients of the step just released."""
        settings, step = self.order.settings, self.run_state.taken
        assert settings is not None
        about = telemetry, step, settings.clip_norm, settings.noise_multiplier
        return reading_of(noisy, *about, self.source.sampling.at(step - 1))

    def record(self, release: Release, content: bytes) -> None:
        """Record a release, on rank 0. A crash may waste a release, never hide one. A repeated step's digest is
        compared with the recorded one: the same noise must not be added to another sum."""
        if self.keeper is not None and self.keeper.releases is not None:
            self.keeper.releases.record(self.run_state.taken, content)
        if self.account is not None:
            self.account.record(self.run_state.taken, release, content)


def reading_of(
    noisy: NoisyMean,
    telemetry: Telemetry,
    step: int,
    clip_norm: float,
    noise_multiplier: float,
    sampling: Sampling,
) -> Reading:
    """The telemetry of a noisy mean over a batch drawn by ``sampling``, released at ``step``, from 1 on."""
    assert noisy.extra_coordinates is not None
    size = float(sampling.expected_batch_size)
    rate = noisy.release.sample_rate / noisy.release.bands  # of a turn's rate, that among all examples
    if isinstance(sampling, StratifiedPoissonSampling):
        rate = sum(expected**2 / records for records, expected in sampling.strata.values()) / size
    kept = size
    if sampling.max_batch_size is not None:
        kept = _expected_below(sampling.dataset_size, size / sampling.dataset_size, sampling.max_batch_size)
    about = (clip_norm, noise_multiplier, rate, kept, *_energy(noisy))
    return Reading(telemetry, step, *about, tuple((noisy.extra_coordinates * (size / kept)).tolist()))


@functools.lru_cache(256)
def _expected_below(count: int, rate: float, most: int) -> float:
    """E[min(X, ``most``)] for a binomial X: how many rows of a batch are kept.

    >>> _expected_below(2, 0.5, 1), _expected_below(100, 0.1, 100)
    (0.75, 10.0)
    """
    if most >= count:
        return count * rate
    within = float(bdtr(most - 2, count - 1, rate)) if most >= 2 else 0.0
    return count * rate * within + most * float(bdtrc(most - 1, count, rate))


def _energy(noisy: NoisyMean) -> tuple[int, float]:
    """The number of entries of a noisy mean, and their mean square over the noise variance; zeros if it is
    sharded or has no noise."""
    values = list(noisy.gradients.values())
    if any(map(is_part, values)) or not noisy.noise_std:
        return 0, 0.0
    norms = torch.stack([value.norm().to(values[0].device) for value in values])
    count = sum(value.numel() for value in values)
    return count, float((norms / noisy.noise_std).square().sum()) / count
