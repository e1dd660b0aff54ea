"""Adds the noise to a clipped sum, and records the release in the ledger before anybody can see the result."""

from dataclasses import dataclass
from typing import final

from decrescendo.accounting.release import Release
from decrescendo.clipping.clipped import ClippedSum
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.loop.source import Source
from decrescendo.training.loop.step_order import StepOrder
from decrescendo.training.persistence.keeping import Keeper, Life
from decrescendo.training.processes.bits import digest
from decrescendo.training.store import Account


@final
@dataclass(frozen=True, slots=True)
class Releasing:
    """How the sums of one training are released.

    Args:
        source: of the sampling, and of a clip norm that follows the gradients.
        order: has the settings of the step.
        streams: of the noise.
        life: steps taken.
        keeper: where digests of releases are written; ``None`` without checkpoints.
        account: where releases are written; ``None`` without a store, and on other ranks than 0.
        digests: whether a digest of each release is recorded on rank 0.
    """

    source: Source
    order: StepOrder
    streams: RunStreams
    life: Life
    keeper: Keeper | None
    account: Account | None
    digests: bool

    def noised(self, clipped: ClippedSum) -> tuple[NoisyMean, bytes]:
        """What may be seen of a sum, once it is recorded, and its digest, where one is recorded."""
        settings, tracker = self.order.decided(), self.source.tracker
        if tracker is not None:
            clipped = tracker.with_count(clipped, settings.clip_norm)
        # The step's own declared B_t is the divisor.
        sampling = self.source.sampling.at(self.life.taken)
        noisy = privatise(clipped, settings.noise_multiplier, sampling, self.streams.noise)
        content = digest(noisy) if self.digests else b""
        return noisy if tracker is None else tracker.update(noisy, self.life.taken), content

    def record(self, release: Release, content: bytes) -> None:
        """On rank 0. A crash may waste a release, never hide one. One that was recorded before is compared: the same
        noise on another sum must not be seen."""
        if self.keeper is not None and self.keeper.releases is not None:
            self.keeper.releases.record(self.life.taken, content)
        if self.account is not None:
            self.account.record(self.life.taken, release, content)
