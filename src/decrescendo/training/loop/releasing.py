"""Adds the noise to a clipped sum, and records the release in the ledger before the result can be seen."""

from dataclasses import dataclass
from typing import final

import torch

from decrescendo.accounting.release import Release
from decrescendo.clipping.clipped import ClippedSum
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.loop.source import Source
from decrescendo.training.loop.step_order import StepOrder
from decrescendo.training.persistence.keeping import Keeper
from decrescendo.training.persistence.run_state import RunState
from decrescendo.training.processes.bits import digest, is_part
from decrescendo.training.steering.reading import Reading
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
        size = float(self.source.sampling.at(step - 1).expected_batch_size)
        return reading_of(noisy, telemetry, step, settings.clip_norm, settings.noise_multiplier, size)

    def record(self, release: Release, content: bytes) -> None:
        """Record a release, on rank 0. A crash may waste a release, never hide one. A repeated step's digest is
        compared with the recorded one: the same noise must not be added to another sum."""
        if self.keeper is not None and self.keeper.releases is not None:
            self.keeper.releases.record(self.run_state.taken, content)
        if self.account is not None:
            self.account.record(self.run_state.taken, release, content)


def reading_of(
    noisy: NoisyMean, telemetry: Telemetry, step: int, clip_norm: float, noise_multiplier: float, size: float
) -> Reading:
    """The telemetry of a noisy mean of ``size`` expected examples, released at ``step``, from 1 on."""
    assert noisy.extra_coordinates is not None
    share = noisy.release.sample_rate / noisy.release.bands  # of a turn's rate, that among all examples
    about = (clip_norm, noise_multiplier, share, size, *_energy(noisy))
    return Reading(telemetry, step, *about, tuple(noisy.extra_coordinates.tolist()))


def _energy(noisy: NoisyMean) -> tuple[int, float]:
    """The number of entries of a noisy mean, and their mean square over the noise variance; zeros if it is
    sharded or has no noise."""
    values = list(noisy.gradients.values())
    if any(map(is_part, values)) or not noisy.noise_std:
        return 0, 0.0
    norms = torch.stack([value.norm().to(values[0].device) for value in values])
    count = sum(value.numel() for value in values)
    return count, float((norms / noisy.noise_std).square().sum()) / count
