"""`CyclicPoissonSampling`: the sampling of correlated noise, where records take turns by a secret group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int

from decrescendo.accounting.release import Release
from decrescendo.base.arrays import read_only
from decrescendo.base.rng import SecureStream
from decrescendo.errors import InvalidValue, check_array, check_integer, check_real, uninherited
from decrescendo.plans.sampling_arguments import check_rng, checked_count, drawn_of


@final
@uninherited("The promise of a plan holds for these batches only: change their size by a curve (batch=)")
@dataclass(frozen=True, slots=True, eq=False)
class CyclicPoissonSampling:
    """Poisson sampling in turns: at step t, from 0, only records of group t mod ``bands`` may be drawn.

    Each record draws its group once, secretly and uniformly, by a coin of its own, so that adding or removing one
    record changes no other record's group. A record of the group whose turn it is is drawn with probability
    ``bands`` B_t / N, independently; the noisy sum is divided by the declared B_t. A group may be empty.

    Args:
        dataset_size: number of records N, >= 1.
        expected_batch_size: B_t > 0, a number, or one value a step; at most N / ``bands``.
        bands: b >= 1: steps between two turns of one group, and bands of the noise's strategy.
        step: of the first batch that is drawn, from 0; `at` sets it.

    Raises:
        InvalidValue: a number outside its range, or a sample rate above 1.

    >>> sampling = CyclicPoissonSampling(dataset_size=60_000, expected_batch_size=250, bands=4)
    >>> round(sampling.sample_rate * 60_000), sampling.at(6).group
    (1000, 2)
    """

    dataset_size: int
    expected_batch_size: float | Float[np.ndarray, " steps"]
    bands: int
    step: int = 0

    def __post_init__(self) -> None:
        count = checked_count(self.dataset_size)
        bands = check_integer("bands", self.bands, at_least=1)
        moving = isinstance(self.expected_batch_size, (np.ndarray, Sequence))
        if moving:
            sizes = read_only(check_array("batch", self.expected_batch_size, above=0))
            if not sizes.size:
                raise InvalidValue("batches must have at least one step, got batch of length 0")
        else:
            sizes = np.array([check_real("expected_batch_size", self.expected_batch_size, above=0)])
        if (over := np.flatnonzero(bands * sizes / count > 1)).size:
            raise InvalidValue(
                f"bands times the expected batch size must be <= dataset_size={count}, got {bands} x "
                f"{sizes[over[0]]:g}: only one record in {bands} takes part in a step. Take fewer bands or a smaller "
                "batch"
            )
        object.__setattr__(self, "dataset_size", count)
        object.__setattr__(self, "expected_batch_size", sizes if moving else float(sizes[0]))
        object.__setattr__(self, "bands", bands)
        object.__setattr__(self, "step", check_integer("step", self.step))

    def __reduce__(self) -> tuple[object, ...]:
        # A copy's array is as read-only as its own.
        return type(self), (self.dataset_size, self.expected_batch_size, self.bands, self.step)

    @property
    def max_batch_size(self) -> None:
        """``None``: batches of any size, since there is no proof here for truncated ones."""
        return

    @property
    def sample_rate(self) -> float:
        """The probability b B / N that a record of the current group is drawn, for the largest B_t."""
        return float(self.bands * np.max(self.expected_batch_size) / self.dataset_size)

    @property
    def group(self) -> int:
        """The group whose records may be drawn at `step`."""
        return self.step % self.bands

    def at(self, taken: int) -> "CyclicPoissonSampling":
        """The sampling of the step after ``taken`` steps: with its B_t and its group."""
        size = self.expected_batch_size
        if isinstance(size, np.ndarray):
            if not 0 <= taken < size.size:
                raise InvalidValue(
                    f"a step must be one of the {size.size} of its batch schedule, got one after {taken}"
                )
            size = float(size[taken])
        return CyclicPoissonSampling(self.dataset_size, size, self.bands, taken)

    def release(self, noise_multiplier: float) -> Release:
        """The release of a noisy sum over the batch of `step`; ``noise_multiplier``: 1 over the strategy's column
        norm."""
        return Release(self.sample_rate, noise_multiplier, bands=self.bands, step=self.step)

    def sizes(self, steps: int) -> Float[np.ndarray, " steps"]:
        """B_t of each of the first ``steps`` steps."""
        size = self.expected_batch_size
        return size[:steps] if isinstance(size, np.ndarray) else np.full(steps, size)

    def rates(self, steps: int) -> Float[np.ndarray, " steps"]:
        """b B_t / N of each of the first ``steps`` steps: what accountants must count."""
        return self.bands * self.sizes(steps) / self.dataset_size

    def groups(
        self, rng: np.random.Generator | SecureStream, whose: Int[np.ndarray, " records"] | None = None
    ) -> list[Int[np.ndarray, "_"]]:
        """The members of each group, record indices, ascending: drawn once for a run, and as secret as its batches.

        Args:
            rng: secret, of this purpose alone.
            whose: of each record its person's number, from 0: a person's records are all in one group. ``None``: each
                record by itself.

        >>> sampling = CyclicPoissonSampling(dataset_size=5, expected_batch_size=1, bands=2)
        >>> [list(map(int, members)) for members in sampling.groups(np.random.default_rng(3))]
        [[1, 2, 3, 4], [0]]
        """
        check_rng(rng)
        own = rng.integers(self.bands, size=self.dataset_size if whose is None else int(whose.max()) + 1)
        own = own if whose is None else own[whose]
        return [np.flatnonzero(own == group) for group in range(self.bands)]

    def batches(
        self, steps: int, rng: np.random.Generator | SecureStream, groups: Sequence[Int[np.ndarray, "_"]]
    ) -> Iterator[Int[np.ndarray, " batch"]]:
        """Yield the ``steps`` batches from `step` on, record indices, ascending; some may be empty and must still be
        taken.

        Args:
            steps: how many.
            rng: secret.
            groups: what `groups` drew for this run.
        """
        check_rng(rng)
        for taken in range(self.step, self.step + check_integer("steps", steps)):
            yield drawn_of(groups[taken % self.bands], self.at(taken).sample_rate, rng)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CyclicPoissonSampling):
            return NotImplemented
        same = (self.dataset_size, self.bands, self.step) == (other.dataset_size, other.bands, other.step)
        return same and np.array_equal(self.expected_batch_size, other.expected_batch_size)

    def __hash__(self) -> int:
        sizes = np.asarray(self.expected_batch_size).tobytes()
        return hash((self.dataset_size, self.bands, self.step, sizes))
