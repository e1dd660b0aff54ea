"""Who is in a batch: Poisson sampling, the only rule the accountants here are proved for."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real


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

    def batches(self, steps: int, rng: np.random.Generator) -> Iterator[Int[np.ndarray, " batch"]]:
        """Yield ``steps`` batches of record indices, ascending; a batch may be empty and must still be taken.

        A batch is drawn as a binomial size and then a uniform subset of that size, which is the same law as one
        coin a record and costs the size of the batch instead of the size of the data set.

        >>> sampling = PoissonSampling(dataset_size=5, expected_batch_size=1)
        >>> [list(map(int, batch)) for batch in sampling.batches(4, np.random.default_rng(3))]
        [[], [], [2, 3], []]
        """
        check_instance("rng", rng, np.random.Generator)
        for _ in range(check_integer("steps", steps)):
            size = int(rng.binomial(self.dataset_size, self.sample_rate))
            yield np.sort(rng.choice(self.dataset_size, size=size, replace=False, shuffle=False))
