"""The library, broken on purpose: what an audit must catch. Each is a context in which `Trainer` does something else.

Only for audits of the audit (tests, and `benchmarks/audit.py`): none of it is in the package.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch

from decrescendo.accounting.release import Release
from decrescendo.base.assumption import Assumption
from decrescendo.clipping import Batch, ClippedSum, Engine, Telemetry
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling, RandomAllocation
from decrescendo.plans.sampling_arguments import drawn_of
from decrescendo.training.data import data_set, loading
from decrescendo.training.data.examples import Examples
from decrescendo.training.data.rows import Rows, table_of
from decrescendo.training.loop import releasing, trainer

Build = Callable[[Plan], AbstractContextManager[object]]


def _with_privatise(change: Callable[..., NoisyMean]) -> AbstractContextManager[object]:
    return mock.patch.object(releasing, "privatise", change)


def no_noise(plan: Plan) -> AbstractContextManager[object]:
    """The release is recorded, the noise forgotten."""

    def change(clipped: ClippedSum, z: float, sampling: PoissonSampling, generator: Any) -> NoisyMean:
        bare = privatise(clipped, 0.0, sampling, generator)
        return NoisyMean(bare.gradients, Release(sampling.sample_rate, z), bare.noise_std)

    return _with_privatise(change)


def next_clip(plan: Plan) -> AbstractContextManager[object]:
    """Clipped at C_t, with noise for C_{t+1}: off by one in a schedule that falls."""
    norms = plan.clip_norm
    following = {float(now): float(then) for now, then in pairwise(norms)}

    def change(clipped: ClippedSum, z: float, sampling: PoissonSampling, generator: Any) -> NoisyMean:
        claimed = following.get(clipped.sensitivity, clipped.sensitivity)
        return privatise(ClippedSum(clipped.gradients, claimed, clipped.diagnostics), z, sampling, generator)

    return _with_privatise(change)


class _Loose:
    """Clips at 2 C and says C."""

    def __init__(
        self, model: Any, loss: Any, settings: Any, *, seeds: Callable[[], int], keep: Any, telemetry: Any
    ) -> None:
        self._engine = Engine(model, loss, settings, seeds=seeds, keep=keep, telemetry=telemetry)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return self._engine.assumptions

    def withhold(self, data: Any, others: Any = ()) -> None:
        self._engine.withhold(data, others)

    def clipped_sum(self, batch: Batch | None, clip_norm: float) -> ClippedSum:
        found = self._engine.clipped_sum(batch, 2 * clip_norm)
        return ClippedSum(found.gradients, clip_norm, found.diagnostics)


def clip_twice_too_large(plan: Plan) -> AbstractContextManager[object]:
    """A factor of two in the clipping."""
    return mock.patch.object(trainer, "Engine", _Loose)


def realised_divisor(plan: Plan) -> AbstractContextManager[object]:
    """Sum and noise over the number of rows that were drawn."""

    def change(clipped: ClippedSum, z: float, sampling: PoissonSampling, generator: Any) -> NoisyMean:
        right = privatise(clipped, z, sampling, generator)
        factor = sampling.expected_batch_size / max(clipped.diagnostics.examples, 1)
        gradients = {name: gradient * factor for name, gradient in right.gradients.items()}
        return NoisyMean(gradients, right.release, right.noise_std)

    return _with_privatise(change)


@contextmanager
def shuffled(plan: Plan) -> Iterator[None]:
    """Batches cut from a shuffled list, accounted as Poisson."""
    going: dict[int, Iterator[np.ndarray]] = {}

    def cut(sampling: PoissonSampling, rng: Any) -> Iterator[np.ndarray]:
        size = max(round(sampling.expected_batch_size), 1)
        while True:
            order = rng.permutation(sampling.dataset_size)
            for start in range(0, sampling.dataset_size, size):
                yield np.sort(order[start : start + size])

    def batches(self: PoissonSampling, steps: int, rng: Any) -> Iterator[np.ndarray]:
        for _ in range(steps):
            # Streams stay alive in `kept`: a number must not be used again for another.
            kept.append(rng)
            yield next(going.setdefault(id(rng), cut(self, rng)))

    kept: list[Any] = []
    with mock.patch.object(PoissonSampling, "batches", batches):
        yield


def shuffled_epochs(plan: Plan) -> AbstractContextManager[object]:
    """Epochs cut from a shuffled list, sold as random allocation."""

    def epoch(self: RandomAllocation, rng: Any) -> list[np.ndarray]:
        parts = np.array_split(rng.permutation(self.dataset_size), self.steps_per_epoch)
        # Full batches first: a shuffled loader's last batch is the one that is short.
        return [np.sort(part) for part in parts]

    return mock.patch.object(RandomAllocation, "epoch", epoch)


@contextmanager
def padded_to_the_longest(plan: Plan) -> Iterator[None]:
    """Batches of texts are cut to the longest text in them (padding is 0), and no row is compared with itself alone."""

    def cut(data: Any, collate_fn: Any) -> Rows | Examples:
        table = table_of(data, collate_fn)
        if not isinstance(table, Rows) or not isinstance(data, torch.Tensor):
            return table

        def take(indices: np.ndarray) -> Batch:
            tokens = table.take(indices)
            longest = int((tokens != 0).any(dim=0).nonzero().max()) + 1
            return tokens[:, :longest]

        return Rows(table.count, take)

    with mock.patch.object(data_set, "table_of", cut), mock.patch.object(loading, "check_apart"):
        yield


@contextmanager
def cut_to_a_buffer(plan: Plan) -> Iterator[None]:
    """A ring buffer, two deviations smaller than batches are expected, keeps the last rows, and nobody pays for it."""
    drawn, size, rate = PoissonSampling.batches, plan.batch_size.max(), plan.ledger.sample_rate.max()
    room = max(1, round(size - 2 * (size * (1 - rate)) ** 0.5))

    def batches(self: PoissonSampling, steps: int, rng: Any) -> Iterator[np.ndarray]:
        for batch in drawn(self, steps, rng):
            yield batch[-room:]

    with mock.patch.object(PoissonSampling, "batches", batches):
        yield


def bare_extra(plan: Plan) -> AbstractContextManager[object]:
    """The noise of the coordinates beside the gradients is left out."""

    def change(clipped: ClippedSum, z: float, sampling: PoissonSampling, generator: Any) -> NoisyMean:
        noisy = privatise(clipped, z, sampling, generator)
        assert clipped.extra_coordinates is not None
        bare = clipped.extra_coordinates / sampling.expected_batch_size
        return NoisyMean(noisy.gradients, noisy.release, noisy.noise_std, bare)

    return _with_privatise(change)


def bound_of_the_batch(plan: Plan) -> AbstractContextManager[object]:
    """Losses are measured by the largest of the batch."""
    right = Telemetry.coordinates

    def change(self: Telemetry, lengths: Any, losses: Any, *others: Any) -> torch.Tensor:
        low, high = self.loss_range
        return right(self, lengths, low + (high - low) * (losses - low) / (losses.max() - low), *others)

    return mock.patch.object(Telemetry, "coordinates", change)


def every_turn(plan: Plan) -> AbstractContextManager[object]:
    """Records of all groups are drawn at every turn."""

    def batches(self: CyclicPoissonSampling, steps: int, rng: Any, groups: Any) -> Iterator[np.ndarray]:
        everybody = np.arange(self.dataset_size)
        for taken in range(self.step, self.step + steps):
            yield drawn_of(everybody, self.at(taken).sample_rate, rng)

    return mock.patch.object(CyclicPoissonSampling, "batches", batches)


def group_less(plan: Plan) -> AbstractContextManager[object]:
    """The noise has one band more than there are groups: turns come one step early."""

    def batches(self: CyclicPoissonSampling, steps: int, rng: Any, groups: Any) -> Iterator[np.ndarray]:
        fewer = self.bands - 1
        merged = [np.concatenate(groups[group::fewer]) for group in range(fewer)]
        for taken in range(self.step, self.step + steps):
            yield drawn_of(np.sort(merged[taken % fewer]), self.at(taken).sample_rate, rng)

    return mock.patch.object(CyclicPoissonSampling, "batches", batches)


@contextmanager
def rate_of_everybody(plan: Plan | None = None) -> Iterator[None]:
    """Accounted at B/N, as if records of all groups took part in each step."""

    def release(self: CyclicPoissonSampling, z: float) -> Release:
        return Release(self.sample_rate / self.bands, z, bands=self.bands, step=self.step)

    def rates(self: CyclicPoissonSampling, steps: int) -> np.ndarray:
        return self.sizes(steps) / self.dataset_size

    with mock.patch.multiple(CyclicPoissonSampling, release=release, rates=rates):
        yield


@contextmanager
def healthy(plan: Plan) -> Iterator[None]:
    """Nothing broken."""
    yield


BROKEN: dict[str, Build] = {
    "no noise": no_noise,
    "noise for the next clip norm": next_clip,
    "clipped at twice the norm": clip_twice_too_large,
    "divided by the realised batch size": realised_divisor,
    "shuffled, accounted as Poisson": shuffled,
    "padded to the longest of the batch": padded_to_the_longest,
    "truncated to a buffer, accounted as whole": cut_to_a_buffer,
    "count without its noise": bare_extra,
}
# Of trainings with telemetry.
BROKEN_TELEMETRY: dict[str, Build] = {
    "telemetry without its noise": bare_extra,
    "loss bound from the batch": bound_of_the_batch,
}
# Of plans in which each example takes part once an epoch.
BROKEN_EPOCHS: dict[str, Build] = {"shuffled, sold as random allocation": shuffled_epochs}
# Of plans of correlated noise.
BROKEN_BANDS: dict[str, Build] = {
    "records of every group at every turn": every_turn,
    "one band more than groups": group_less,
    "rate not multiplied by the bands": rate_of_everybody,
}
