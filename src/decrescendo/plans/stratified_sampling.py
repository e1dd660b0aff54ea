"""`StratifiedPoissonSampling`: each stratum of records at a public rate of its own, accounted for at the largest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

import numpy as np
from jaxtyping import Float, Int

from decrescendo.accounting.release import Release
from decrescendo.base.rng import SecureStream
from decrescendo.errors import InvalidType, InvalidValue, check_integer, check_real, uninherited
from decrescendo.plans.sampling_arguments import LARGEST, check_rng, checked_count, drawn_of


@final
@uninherited("The promise of a plan holds for these batches only: make other strata")
@dataclass(frozen=True, slots=True)
class StratifiedPoissonSampling:
    """Each record is in each batch independently, with the probability of its stratum (a class, a source).

    A record's stratum must be a function of that record alone. A record at a smaller rate than the largest is
    protected at least as well, so all are accounted for at the largest; the statement has each stratum's own rate. The
    noisy sum is divided by the declared sum of the expected sizes, whatever was drawn.

    Args:
        strata: by the name of each stratum its number of records, and how many of them a batch is expected to hold:
            public, declared constants. Which row is in which stratum is given to `train` as ``strata``.

    Raises:
        InvalidValue: no stratum, or a number outside its range.

    >>> sampling = StratifiedPoissonSampling({"common": (900, 9), "rare": (100, 10)})
    >>> sampling.dataset_size, sampling.expected_batch_size, sampling.sample_rate
    (1000, 19.0, 0.1)
    """

    strata: Mapping[str, tuple[int, float]]

    def __post_init__(self) -> None:
        if not isinstance(self.strata, Mapping) or not self.strata:
            raise InvalidValue("strata must be a mapping with at least one stratum, got none. Name each one")
        checked: dict[str, tuple[int, float]] = {}
        for name, (records, expected) in self.strata.items():
            if not isinstance(name, str):
                raise InvalidType(f"the name of a stratum must be a text, got {name!r}. Give str(label)")
            count, size = checked_count(records), check_real(f"strata[{name!r}]", expected, above=0)
            if size > count:
                raise InvalidValue(
                    "a batch must not be expected to hold more than all records of a stratum, got "
                    f"{size:g} of {count} in {name!r}. Expect fewer"
                )
            checked[name] = count, size
        object.__setattr__(self, "strata", MappingProxyType(checked))
        if self.dataset_size > LARGEST:
            raise InvalidValue(f"strata must have at most {LARGEST} records together, got more")

    def __reduce__(self) -> tuple[object, ...]:
        return StratifiedPoissonSampling, (dict(self.strata),)

    def __hash__(self) -> int:
        return hash(tuple(self.strata.items()))

    @property
    def dataset_size(self) -> int:
        """Records of all strata."""
        return sum(records for records, _ in self.strata.values())

    @property
    def expected_batch_size(self) -> float:
        """B, of all strata together: what the noisy sum is divided by."""
        return float(sum(expected for _, expected in self.strata.values()))

    @property
    def sample_rate(self) -> float:
        """The largest rate: what accountants must count."""
        return max(self.stratum_rates.values())

    @property
    def stratum_rates(self) -> dict[str, float]:
        """The rate of each stratum."""
        return {name: expected / records for name, (records, expected) in self.strata.items()}

    @property
    def max_batch_size(self) -> None:
        """``None``: batches of any size."""
        return

    def at(self, taken: int) -> "StratifiedPoissonSampling":
        """How the batch of the step after ``taken`` steps is drawn: as every other."""
        del taken
        return self

    def release(self, noise_multiplier: float) -> Release:
        """What a noisy sum over one batch is, for a record of the largest rate."""
        return Release(self.sample_rate, noise_multiplier)

    def sizes(self, steps: int) -> Float[np.ndarray, " steps"]:
        """B of each of ``steps`` steps."""
        return np.full(steps, self.expected_batch_size)

    def rates(self, steps: int) -> Float[np.ndarray, " steps"]:
        """The largest rate, for each of ``steps`` steps."""
        return np.full(steps, self.sample_rate)

    def members(self, strata: object) -> list[Int[np.ndarray, "_"]]:
        """The rows of each stratum, ascending.

        Args:
            strata: of each row the name of its stratum (an array, a list, a column; numbers by their text).

        Raises:
            InvalidValue: none, another number of rows, a name that is none, or other numbers of rows than declared.

        >>> sampling = StratifiedPoissonSampling({"0": (2, 1), "1": (1, 1)})
        >>> [rows.tolist() for rows in sampling.members([0, 1, 0])]
        [[0, 2], [1]]
        """
        if strata is None:
            raise InvalidValue(
                "a plan with strata must be told which row is in which, got strata=None. Give train, or the Task, "
                "a name for each row: strata=names"
            )
        given = np.asarray(strata, dtype=object).tolist()
        names = np.array([str(name.item() if getattr(name, "ndim", None) == 0 else name) for name in given])
        unknown = sorted(set(names.tolist()) - set(self.strata))
        if unknown:
            raise InvalidValue(
                f"each row must be in one of {sorted(self.strata)}, got {unknown[0]!r}. Declare a stratum of that name"
            )
        if len(names) != self.dataset_size:
            raise InvalidValue(f"strata must have a name for each of {self.dataset_size} rows, got {len(names)}")
        found = [np.flatnonzero(names == name) for name in self.strata]
        for (name, (records, _)), rows in zip(self.strata.items(), found, strict=True):
            if rows.size != records:
                raise InvalidValue(
                    f"strata must have the rows that were declared, got {rows.size} of {records} in {name!r}. "
                    "The sample rates were calibrated for these numbers: make a plan for this data"
                )
        return found

    def batches(
        self, steps: int, rng: np.random.Generator | SecureStream, members: Sequence[Int[np.ndarray, "_"]]
    ) -> Iterator[Int[np.ndarray, " batch"]]:
        """Yield ``steps`` batches of row indices, ascending; a batch may be empty and must still be taken.

        Args:
            steps: how many.
            rng: secret.
            members: of `members`.
        """
        check_rng(rng)
        for _ in range(check_integer("steps", steps)):
            rates = self.stratum_rates.values()
            parts = [drawn_of(rows, rate, rng) for rows, rate in zip(members, rates, strict=True)]
            yield np.sort(np.concatenate(parts))
