"""What was, or will be, released: the only thing accountants look at."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int

from decrescendo.base.arrays import read_only
from decrescendo.errors import InvalidValue, check_array, check_instance, check_integer, check_real

# Counts add up exactly, as whole numbers and as floats, up to here.
LARGEST_COUNT = 2**53


@dataclass(frozen=True, slots=True)
class Release:
    """``count`` noisy sums, each over a Poisson sample and each with Gaussian noise of ``noise_multiplier``
    times its sensitivity.

    Args:
        sample_rate: in (0, 1]; 1 means every record takes part.
        noise_multiplier: z >= 0: standard deviation of the noise over the sensitivity of the sum. Zero is a
            release without noise: its epsilon is infinite.
        count: how often, 1 to 2^53.

    >>> Release(sample_rate=0.01, noise_multiplier=1.1, count=3)
    Release(sample_rate=0.01, noise_multiplier=1.1, count=3)
    """

    sample_rate: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "sample_rate", check_real("sample_rate", self.sample_rate, above=0, at_most=1)
        )
        object.__setattr__(
            self, "noise_multiplier", check_real("noise_multiplier", self.noise_multiplier, at_least=0)
        )
        object.__setattr__(self, "count", check_integer("count", self.count, at_least=1))
        if self.count > LARGEST_COUNT:
            raise InvalidValue(
                f"count must be <= {LARGEST_COUNT}, got count={self.count}. Is it a number of releases?"
            )


@final
class Ledger:
    """An ordered list of releases, planned or done: the two have the same type.

    Immutable; ``ledger + other`` appends. Kept as three columns, so that a million steps are small.

    >>> ledger = Ledger([Release(0.01, 1.0, count=2), Release(0.01, 0.9)])
    >>> ledger
    Ledger(3 releases, sample_rate 0.01, noise_multiplier 0.9..1)
    >>> ledger == Ledger([Release(0.01, 1.0, count=2)]) + Ledger([Release(0.01, 0.9)])
    True
    """

    __slots__ = ("_count", "_noise_multiplier", "_sample_rate")

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        items = tuple(releases)
        for release in items:
            check_instance("each release", release, Release)
        self._fill(
            np.array([r.sample_rate for r in items], dtype=np.float64),
            np.array([r.noise_multiplier for r in items], dtype=np.float64),
            np.array([r.count for r in items], dtype=np.int64),
        )

    @classmethod
    def of(cls, noise_multipliers: object, sample_rate: float | np.ndarray | Sequence[float]) -> "Ledger":
        """One release a step: z_t from ``noise_multipliers`` (any one-dimensional array), all at one rate or each at
        its own.

        >>> Ledger.of([1.0, 0.9, 0.8], sample_rate=0.01)
        Ledger(3 releases, sample_rate 0.01, noise_multiplier 0.8..1)
        >>> Ledger.of([1.0, 0.9], sample_rate=[0.01, 0.02])
        Ledger(2 releases, sample_rate 0.01..0.02, noise_multiplier 0.9..1)
        """
        noise = check_array("noise_multipliers", noise_multipliers, at_least=0)
        if isinstance(sample_rate, np.ndarray | Sequence):
            rates = check_array("sample_rate", sample_rate, above=0, length=noise.size)
            if rates.size:
                check_real("sample_rate", float(rates.max()), above=0, at_most=1)
        else:
            rates = np.full(noise.size, check_real("sample_rate", sample_rate, above=0, at_most=1))
        ledger = cls()
        ledger._fill(rates, noise, np.ones(noise.size, dtype=np.int64))
        return ledger

    def _fill(
        self, rate: Float[np.ndarray, " n"], noise: Float[np.ndarray, " n"], count: Int[np.ndarray, " n"]
    ) -> None:
        if float(count.sum(dtype=np.float64)) > LARGEST_COUNT:
            raise InvalidValue(
                f"a ledger must hold at most {LARGEST_COUNT} releases, got {count.sum(dtype=np.float64):.3g}. "
                "Is a count wrong?"
            )
        self._sample_rate, self._noise_multiplier, self._count = (
            read_only(rate),
            read_only(noise),
            read_only(count),
        )

    @property
    def sample_rate(self) -> Float[np.ndarray, " n"]:
        """p of each release, read-only."""
        return self._sample_rate

    @property
    def noise_multiplier(self) -> Float[np.ndarray, " n"]:
        """z of each release, read-only."""
        return self._noise_multiplier

    @property
    def count(self) -> Int[np.ndarray, " n"]:
        """How often each release happened, read-only."""
        return self._count

    @property
    def steps(self) -> int:
        """Number of releases, counted with their multiplicity."""
        return int(self._count.sum())

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases as values, in order."""
        return tuple(self)

    def distinct(self) -> "Ledger":
        """The same multiset of releases, sorted, each distinct one once: what composition depends on.

        >>> Ledger.of([1.0, 0.9, 1.0], 0.1).distinct().count
        array([1, 2])
        """
        if not len(self):
            return self
        if np.all(self._sample_rate == self._sample_rate[0]):
            order = np.argsort(self._noise_multiplier, kind="stable")  # linear for monotone schedules
        else:
            order = np.lexsort((self._noise_multiplier, self._sample_rate))
        rate, noise = self._sample_rate[order], self._noise_multiplier[order]
        starts = np.flatnonzero(np.r_[True, (np.diff(rate) != 0) | (np.diff(noise) != 0)])
        merged = Ledger()
        merged._fill(rate[starts], noise[starts], np.add.reduceat(self._count[order], starts))
        return merged

    def __add__(self, other: "Ledger") -> "Ledger":
        check_instance("a ledger's other half", other, Ledger)
        joined = Ledger()
        joined._fill(
            np.concatenate([self._sample_rate, other._sample_rate]),
            np.concatenate([self._noise_multiplier, other._noise_multiplier]),
            np.concatenate([self._count, other._count]),
        )
        return joined

    def first(self, steps: int) -> "Ledger":
        """The first ``steps`` rows of the ledger.

        >>> Ledger.of([1.0, 0.9, 0.8], 0.1).first(2).noise_multiplier
        array([1. , 0.9])
        """
        rows = check_integer("steps", steps)
        if rows > len(self):
            raise InvalidValue(f"steps must be <= {len(self)}, the rows of the ledger, got steps={rows}")
        head = Ledger()
        head._fill(self._sample_rate[:rows], self._noise_multiplier[:rows], self._count[:rows])
        return head

    def where(self, rows: Bool[np.ndarray, " n"]) -> "Ledger":
        """The rows for which ``rows`` is true, in order."""
        kept = Ledger()
        kept._fill(self._sample_rate[rows], self._noise_multiplier[rows], self._count[rows])
        return kept

    def with_noise(self, change: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]) -> "Ledger":
        """The same releases with other noise multipliers: ``change`` of the column.

        >>> Ledger.of([1.0, 2.0], 0.1).with_noise(lambda z: 2 * z).noise_multiplier
        array([2., 4.])
        """
        changed = Ledger()
        noise = check_array("noise_multiplier", change(self._noise_multiplier), at_least=0, length=len(self))
        changed._fill(self._sample_rate, noise, self._count)
        return changed

    def with_rates(self, change: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]) -> "Ledger":
        """The same releases with other sample rates: ``change`` of the column.

        >>> Ledger.of([1.0, 2.0], 0.1).with_rates(lambda p: p / 2).sample_rate
        array([0.05, 0.05])
        """
        changed = Ledger.of(self._noise_multiplier, change(self._sample_rate))
        changed._fill(changed._sample_rate, self._noise_multiplier, self._count)
        return changed

    def __len__(self) -> int:
        return int(self._count.size)

    def __iter__(self) -> Iterator[Release]:
        columns = zip(self._sample_rate, self._noise_multiplier, self._count, strict=True)
        return (Release(float(rate), float(noise), int(count)) for rate, noise, count in columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return bool(
            np.array_equal(self._sample_rate, other._sample_rate)
            and np.array_equal(self._noise_multiplier, other._noise_multiplier)
            and np.array_equal(self._count, other._count)
        )

    def __hash__(self) -> int:
        return hash((self._sample_rate.tobytes(), self._noise_multiplier.tobytes(), self._count.tobytes()))

    def __repr__(self) -> str:
        if not len(self):
            return "Ledger(empty)"

        def span(column: Float[np.ndarray, " n"]) -> str:
            low, high = float(column.min()), float(column.max())
            return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"

        return (
            f"Ledger({self.steps} releases, sample_rate {span(self._sample_rate)}, "
            f"noise_multiplier {span(self._noise_multiplier)})"
        )
