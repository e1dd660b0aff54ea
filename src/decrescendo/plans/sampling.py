"""Forms of sampling: an independent coin per record and step (Poisson), or one random step of each epoch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int

from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.base.arrays import read_only
from decrescendo.base.rng import SecureStream
from decrescendo.errors import InvalidValue, check_array, check_integer, check_real, uninherited
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.sampling_arguments import LARGEST, at_most_of, check_rng, checked_cap, checked_count
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling

_THESE = (
    "The promise of a plan holds for these batches only: change their size by a curve (batch=), or truncate them by "
    "max_batch_size"
)


@final
@uninherited(_THESE)
@dataclass(frozen=True, slots=True)
class PoissonSampling:
    """Each record is in each batch independently with probability ``sample_rate``.

    All numbers are public, declared constants. The noisy sum is divided by ``expected_batch_size``, never by the
    realised size of a batch, which is private.

    Args:
        dataset_size: number of records (clients, in federated training), >= 1.
        expected_batch_size: in (0, dataset_size]; need not be whole.
        max_batch_size: >= 1: of a batch with more rows so many are kept, by an even choice among those drawn, and the
            others are left out of that step. That costs delta, which every release says (`Release.overflow`) and
            `accounting.Truncated` adds; `accounting.smallest_cap` finds a size that costs little. ``None``: batches of
            any size.

    Raises:
        InvalidValue: a number outside its range.

    >>> sampling = PoissonSampling(dataset_size=60_000, expected_batch_size=250)
    >>> sampling.sample_rate
    0.004166666666666667
    """

    dataset_size: int
    expected_batch_size: float
    max_batch_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_size", checked_count(self.dataset_size))
        size = check_real("expected_batch_size", self.expected_batch_size, above=0)
        if size > self.dataset_size:
            raise InvalidValue(
                f"expected_batch_size must be <= dataset_size, got {size:g} > {self.dataset_size}. "
                "A batch cannot be expected to hold more than every record"
            )
        object.__setattr__(self, "expected_batch_size", size)
        object.__setattr__(self, "max_batch_size", checked_cap(self.max_batch_size))

    @property
    def sample_rate(self) -> float:
        """Probability p that one record is in one batch, in (0, 1]."""
        return self.expected_batch_size / self.dataset_size

    def at(self, taken: int) -> "PoissonSampling":
        """How the batch of the step after ``taken`` steps is drawn: as every other."""
        del taken
        return self

    def release(self, noise_multiplier: float) -> Release:
        """What a noisy sum over one batch is."""
        if self.max_batch_size is None:  # as `planned` says, at once
            return Release(self.sample_rate, noise_multiplier)
        (release,) = planned(self, np.array([noise_multiplier]))
        return release

    def sizes(self, steps: int) -> Float[np.ndarray, " steps"]:
        """B of each of ``steps`` steps."""
        return np.full(steps, self.expected_batch_size)

    def rates(self, steps: int) -> Float[np.ndarray, " steps"]:
        """p of each of ``steps`` steps."""
        return np.full(steps, self.sample_rate)

    def batches(self, steps: int, rng: np.random.Generator | SecureStream) -> Iterator[Int[np.ndarray, " batch"]]:
        """Yield ``steps`` batches of record indices, ascending; a batch may be empty and must still be taken.

        A batch is drawn as a binomial size and then a uniform subset of that size, which is the same law as one
        coin a record and costs the size of the batch instead of the size of the data set. A `base.rng.SecureStream`
        throws a coin a record.

        Args:
            steps: how many.
            rng: secret.

        >>> sampling = PoissonSampling(dataset_size=5, expected_batch_size=1)
        >>> [list(map(int, batch)) for batch in sampling.batches(4, np.random.default_rng(3))]
        [[], [], [2, 3], []]
        """
        check_rng(rng)
        cap = self.dataset_size if self.max_batch_size is None else self.max_batch_size
        for _ in range(check_integer("steps", steps)):
            if isinstance(rng, SecureStream):
                drawn = rng.subset(self.dataset_size, self.sample_rate)
                yield at_most_of(cap, drawn, rng)
                continue
            size = min(int(rng.binomial(self.dataset_size, self.sample_rate)), cap)
            yield np.sort(rng.choice(self.dataset_size, size=size, replace=False, shuffle=False))


@final
@uninherited(_THESE)
@dataclass(frozen=True, slots=True, eq=False)
class BatchSchedule:
    """Poisson sampling with an expected batch size B_t of its own at every step, all public, declared constants.

    `at` gives the sampling of one step: its noisy sum is divided by its own B_t. There is no rate of the whole run.

    Args:
        dataset_size: number of records N (clients, in federated training), >= 1.
        expected_batch_size: B_t in (0, N], one value a step.
        max_batch_size: of all batches, as in `PoissonSampling`.

    Raises:
        InvalidValue: a number outside its range (named by its index), or no step at all.

    >>> sampling = BatchSchedule(60_000, [250, 500])
    >>> sampling.at(1)
    PoissonSampling(dataset_size=60000, expected_batch_size=500.0, max_batch_size=None)
    """

    dataset_size: int
    expected_batch_size: Float[np.ndarray, " steps"]
    max_batch_size: int | None

    def __init__(self, dataset_size: int, expected_batch_size: object, max_batch_size: int | None = None) -> None:
        sizes = check_array("batch", expected_batch_size, above=0)
        if not sizes.size:
            raise InvalidValue("a batch schedule must have at least one step, got batch of length 0")
        count = PoissonSampling(dataset_size, 1.0 if dataset_size == 1 else 0.5).dataset_size
        over = np.flatnonzero(sizes > count)
        if over.size:
            raise InvalidValue(
                f"batch must be <= dataset_size={count} at every step, got batch[{over[0]}]={sizes[over[0]]:g}. "
                "A batch cannot be expected to hold more than every record"
            )
        object.__setattr__(self, "dataset_size", count)
        object.__setattr__(self, "expected_batch_size", read_only(sizes))
        object.__setattr__(self, "max_batch_size", checked_cap(max_batch_size))

    def __reduce__(self) -> tuple[object, ...]:
        # A copy's array is as read-only as its own.
        return BatchSchedule, (self.dataset_size, self.expected_batch_size, self.max_batch_size)

    def at(self, taken: int) -> PoissonSampling:
        """How the batch of the step after ``taken`` steps is drawn."""
        if not 0 <= taken < self.expected_batch_size.size:
            raise InvalidValue(
                f"a step must be one of the {self.expected_batch_size.size} of its batch schedule, "
                f"got one after {taken}"
            )
        size = float(self.expected_batch_size[taken])
        return PoissonSampling(self.dataset_size, size, self.max_batch_size)

    def sizes(self, steps: int) -> Float[np.ndarray, " steps"]:
        """B_t of the first ``steps`` steps."""
        return self.expected_batch_size[:steps]

    def rates(self, steps: int) -> Float[np.ndarray, " steps"]:
        """p_t of the first ``steps`` steps."""
        return self.expected_batch_size[:steps] / self.dataset_size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchSchedule):
            return NotImplemented
        same = (self.dataset_size, self.max_batch_size) == (other.dataset_size, other.max_batch_size)
        return same and np.array_equal(self.expected_batch_size, other.expected_batch_size)

    def __hash__(self) -> int:
        return hash((self.dataset_size, self.max_batch_size, self.expected_batch_size.tobytes()))


@final
@uninherited(_THESE)
@dataclass(frozen=True, slots=True)
class RandomAllocation:
    """Each record is in exactly one batch of every epoch, in a uniformly random one, independently of the others.

    What people mean by an epoch, with a proof (`accounting.Allocated`): balls and bins, not a list that is shuffled and
    cut. So batches have no fixed size; the noisy sum is divided by the expected one, N/t.

    Args:
        dataset_size: number of records N, >= 1.
        steps_per_epoch: t >= 2; the noise of a plan moves between epochs only.
        max_batch_size: as of `PoissonSampling`.

    Raises:
        InvalidValue: a number outside its range.

    >>> sampling = RandomAllocation(dataset_size=60_000, steps_per_epoch=240)
    >>> sampling.expected_batch_size, sampling.whole(300)
    (250.0, 480)
    """

    dataset_size: int
    steps_per_epoch: int
    max_batch_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_size", checked_count(self.dataset_size))
        steps = check_integer("steps_per_epoch", self.steps_per_epoch, at_least=2)
        if steps > LARGEST:
            raise InvalidValue(f"steps_per_epoch must be <= {LARGEST}, got more")
        object.__setattr__(self, "steps_per_epoch", steps)
        object.__setattr__(self, "max_batch_size", checked_cap(self.max_batch_size))

    @property
    def expected_batch_size(self) -> float:
        """N/t."""
        return self.dataset_size / self.steps_per_epoch

    @property
    def sample_rate(self) -> float:
        """1/t, the probability that one record is in one batch."""
        return 1 / self.steps_per_epoch

    def at(self, taken: int) -> "RandomAllocation":
        """How the batch of the step after ``taken`` steps is drawn: with those of its epoch."""
        del taken
        return self

    def release(self, noise_multiplier: float) -> Release:
        """What a noisy sum over one batch is."""
        (release,) = planned(self, np.array([noise_multiplier]))
        return release

    def sizes(self, steps: int) -> Float[np.ndarray, " steps"]:
        """B of each of ``steps`` steps."""
        return np.full(steps, self.expected_batch_size)

    def rates(self, steps: int) -> Float[np.ndarray, " steps"]:
        """p of each of ``steps`` steps."""
        return np.full(steps, self.sample_rate)

    def whole(self, steps: int) -> int:
        """The steps of all epochs that the first ``steps`` are of: what they cost is what these do."""
        return -(-steps // self.steps_per_epoch) * self.steps_per_epoch

    def epoch(self, rng: np.random.Generator | SecureStream) -> list[Int[np.ndarray, " batch"]]:
        """The t batches of one epoch, record indices, ascending; some may be empty and must still be taken.

        Args:
            rng: secret.

        >>> sampling = RandomAllocation(dataset_size=5, steps_per_epoch=3)
        >>> [list(map(int, batch)) for batch in sampling.epoch(np.random.default_rng(3))]
        [[1, 2, 3, 4], [], [0]]
        """
        check_rng(rng)
        count, steps = self.dataset_size, self.steps_per_epoch
        bins = rng.integers(steps, size=count)
        order = np.argsort(bins, kind="stable")
        batches = np.split(order, np.cumsum(np.bincount(bins, minlength=steps))[:-1])
        cap = count if self.max_batch_size is None else self.max_batch_size
        return [at_most_of(cap, batch, rng) for batch in batches]


Sampling = PoissonSampling | BatchSchedule | RandomAllocation | CyclicPoissonSampling | StratifiedPoissonSampling


def planned(sampling: Sampling, noise_multiplier: Float[np.ndarray, " steps"]) -> Ledger:
    """What noisy sums over the first batches of ``sampling`` are, one for each noise multiplier.

    >>> planned(PoissonSampling(2, 1, max_batch_size=2), np.array([1.0])).overflow
    array([0.125])
    """
    return drawn_by(sampling, Ledger.of(noise_multiplier, sampling.rates(noise_multiplier.size)))


def drawn_by(sampling: Sampling, ledger: Ledger) -> Ledger:
    """``ledger``, with what ``sampling`` says of all its releases: their epochs or turns, and how large batches may be.

    >>> drawn_by(RandomAllocation(8, 4), Ledger.of([1.0], 1 / 4)).steps_per_epoch
    array([4])
    """
    if isinstance(sampling, CyclicPoissonSampling):
        return ledger.banded(sampling.bands)
    epoch = sampling.steps_per_epoch if isinstance(sampling, RandomAllocation) else 0
    return ledger.allocated(epoch).cut(sampling.dataset_size, sampling.max_batch_size)
