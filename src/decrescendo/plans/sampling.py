"""Who is in a batch: Poisson sampling, the only rule the accountants here are proved for."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from decrescendo.base.arrays import read_only
from decrescendo.base.rng import SecureStream
from decrescendo.errors import InvalidType, InvalidValue, check_array, check_integer, check_real

# Whole numbers up to here are exact in floating point.
LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class PoissonSampling:
    """Each record is in each batch independently with probability ``sample_rate``.

    Both numbers are public, declared constants. The noisy sum is divided by ``expected_batch_size``, never by the
    realised size of a batch, which is private.

    Args:
        dataset_size: number of records (clients, in federated training), >= 1.
        expected_batch_size: in (0, dataset_size]; need not be whole.

    Raises:
        InvalidValue: a number outside its range.

    >>> sampling = PoissonSampling(dataset_size=60_000, expected_batch_size=250)
    >>> sampling.sample_rate
    0.004166666666666667
    """

    dataset_size: int
    expected_batch_size: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_size", check_integer("dataset_size", self.dataset_size, at_least=1))
        if self.dataset_size > LARGEST:
            raise InvalidValue(
                f"dataset_size must be <= {LARGEST}, got dataset_size=a number of {len(str(self.dataset_size))} digits"
            )
        size = check_real("expected_batch_size", self.expected_batch_size, above=0)
        if size > self.dataset_size:
            raise InvalidValue(
                f"expected_batch_size must be <= dataset_size, got {size:g} > {self.dataset_size}. "
                "A batch cannot be expected to hold more than every record"
            )
        object.__setattr__(self, "expected_batch_size", size)

    @property
    def sample_rate(self) -> float:
        """Probability p that one record is in one batch, in (0, 1]."""
        return self.expected_batch_size / self.dataset_size

    def at(self, taken: int) -> "PoissonSampling":
        """How the batch of the step after ``taken`` steps is drawn: as every other."""
        del taken
        return self

    def sizes(self, steps: int) -> Float[np.ndarray, " steps"]:
        """B of each of ``steps`` steps."""
        return np.full(steps, self.expected_batch_size)

    def rates(self, steps: int) -> Float[np.ndarray, " steps"]:
        """p of each of ``steps`` steps."""
        return np.full(steps, self.sample_rate)

    def batches(
        self,
        steps: int,
        rng: np.random.Generator | SecureStream,
        *,
        max_batch_size: int | None = None,
    ) -> Iterator[Int[np.ndarray, " batch"]]:
        """Yield ``steps`` batches of record indices, ascending; a batch may be empty and must still be taken.

        A batch is drawn as a binomial size and then a uniform subset of that size, which is the same law as one
        coin a record and costs the size of the batch instead of the size of the data set. A `base.rng.SecureStream`
        throws a coin a record.

        Args:
            steps: how many.
            rng: secret.
            max_batch_size: rows over it are left out, by an even choice among those drawn. That costs delta: such runs
                are judged by `accounting.Truncated`, and `Trainer` makes none.

        >>> sampling = PoissonSampling(dataset_size=5, expected_batch_size=1)
        >>> [list(map(int, batch)) for batch in sampling.batches(4, np.random.default_rng(3))]
        [[], [], [2, 3], []]
        """
        if not isinstance(rng, (np.random.Generator, SecureStream)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidType(
                f"rng must be a numpy Generator or a SecureStream, got {type(rng).__name__}. "
                "Streams(seed).numpy('sampling') makes the one, SecureStream.fresh() the other"
            )
        cap = self.dataset_size
        if max_batch_size is not None:
            cap = check_integer("max_batch_size", max_batch_size, at_least=1)
        for _ in range(check_integer("steps", steps)):
            if isinstance(rng, SecureStream):
                drawn = rng.subset(self.dataset_size, self.sample_rate)
                yield drawn if drawn.size <= cap else np.sort(drawn[np.argsort(rng.words(drawn.size))[:cap]])
                continue
            size = min(int(rng.binomial(self.dataset_size, self.sample_rate)), cap)
            yield np.sort(rng.choice(self.dataset_size, size=size, replace=False, shuffle=False))


@dataclass(frozen=True, slots=True, eq=False)
class BatchSchedule:
    """Poisson sampling with an expected batch size B_t of its own at every step, all public, declared constants.

    `at` gives the sampling of one step: its noisy sum is divided by its own B_t. There is no rate of the whole run.

    Args:
        dataset_size: number of records N (clients, in federated training), >= 1.
        expected_batch_size: B_t in (0, N], one value a step.

    Raises:
        InvalidValue: a number outside its range (named by its index), or no step at all.

    >>> sampling = BatchSchedule(60_000, [250, 500])
    >>> sampling.at(1)
    PoissonSampling(dataset_size=60000, expected_batch_size=500.0)
    """

    dataset_size: int
    expected_batch_size: Float[np.ndarray, " steps"]

    def __init__(self, dataset_size: int, expected_batch_size: object) -> None:
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

    def at(self, taken: int) -> PoissonSampling:
        """How the batch of the step after ``taken`` steps is drawn."""
        if not 0 <= taken < self.expected_batch_size.size:
            raise InvalidValue(
                f"a step must be one of the {self.expected_batch_size.size} of its batch schedule, "
                f"got one after {taken}"
            )
        return PoissonSampling(self.dataset_size, float(self.expected_batch_size[taken]))

    def sizes(self, steps: int) -> Float[np.ndarray, " steps"]:
        """B_t of the first ``steps`` steps."""
        return self.expected_batch_size[:steps]

    def rates(self, steps: int) -> Float[np.ndarray, " steps"]:
        """p_t of the first ``steps`` steps."""
        return self.expected_batch_size[:steps] / self.dataset_size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchSchedule):
            return NotImplemented
        return self.dataset_size == other.dataset_size and np.array_equal(
            self.expected_batch_size, other.expected_batch_size
        )

    def __hash__(self) -> int:
        return hash((self.dataset_size, self.expected_batch_size.tobytes()))


Sampling = PoissonSampling | BatchSchedule


def check_sampling(value: object) -> None:
    """``value`` is one of the two forms of sampling, or an error."""
    if not isinstance(value, PoissonSampling | BatchSchedule):
        raise InvalidType(
            f"sampling must be a PoissonSampling or a BatchSchedule, got {type(value).__name__}. Make the former, and "
            "give calibrate a curve of batch sizes for the latter"
        )


def only_constant(sampling: Sampling, what: str) -> PoissonSampling:
    """``sampling`` if all its batches are drawn alike; else a refusal by ``what``, which needs one rate.

    >>> only_constant(BatchSchedule(100, [10, 20]), "a filter")
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a filter must have one expected batch size for all steps, got 10 to 20. ...
    """
    if isinstance(sampling, BatchSchedule):
        low, high = sampling.expected_batch_size.min(), sampling.expected_batch_size.max()
        raise InvalidValue(
            f"{what} must have one expected batch size for all steps, got {low:g} to {high:g}. Calibrate without batch="
        )
    return sampling
