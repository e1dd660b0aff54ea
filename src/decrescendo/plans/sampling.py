"""Who is in a batch: Poisson sampling, the only rule the accountants here are proved for."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from decrescendo.base.rng import SecureStream
from decrescendo.errors import InvalidType, InvalidValue, check_integer, check_real

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

    def batches(
        self, steps: int, rng: np.random.Generator | SecureStream
    ) -> Iterator[Int[np.ndarray, " batch"]]:
        """Yield ``steps`` batches of record indices, ascending; a batch may be empty and must still be taken.

        A batch is drawn as a binomial size and then a uniform subset of that size, which is the same law as one
        coin a record and costs the size of the batch instead of the size of the data set. A `base.rng.SecureStream`
        throws a coin a record.

        >>> sampling = PoissonSampling(dataset_size=5, expected_batch_size=1)
        >>> [list(map(int, batch)) for batch in sampling.batches(4, np.random.default_rng(3))]
        [[], [], [2, 3], []]
        """
        if not isinstance(rng, (np.random.Generator, SecureStream)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidType(
                f"rng must be a numpy Generator or a SecureStream, got {type(rng).__name__}. "
                "Streams(seed).numpy('sampling') makes the one, SecureStream.fresh() the other"
            )
        for _ in range(check_integer("steps", steps)):
            if isinstance(rng, SecureStream):
                yield rng.subset(self.dataset_size, self.sample_rate)
                continue
            size = int(rng.binomial(self.dataset_size, self.sample_rate))
            yield np.sort(rng.choice(self.dataset_size, size=size, replace=False, shuffle=False))
