"""What was, or will be, released: the only thing accountants look at."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int

from decrescendo.accounting.ledger_columns import Columns, columns_of, text_of
from decrescendo.accounting.release import LARGEST_COUNT, Release, check_epoch
from decrescendo.base.arrays import read_only
from decrescendo.errors import InvalidValue, check_array, check_instance, check_integer, check_real


@final
class Ledger:
    """An ordered list of releases, planned or done: the two have the same type.

    Immutable; ``ledger + other`` appends. Kept as columns, so that a million steps are small.

    >>> ledger = Ledger([Release(0.01, 1.0, count=2), Release(0.01, 0.9)])
    >>> ledger
    Ledger(3 releases, sample_rate 0.01, noise_multiplier 0.9..1)
    >>> ledger == Ledger([Release(0.01, 1.0, count=2)]) + Ledger([Release(0.01, 0.9)])
    True
    """

    __slots__ = ("_columns",)

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        items = tuple(releases)
        for release in items:
            check_instance("each release", release, Release)
        self._fill(columns_of(items))

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
        if isinstance(sample_rate, (np.ndarray, Sequence)):
            rates = check_array("sample_rate", sample_rate, above=0, length=noise.size)
            if rates.size:
                check_real("sample_rate", float(rates.max()), above=0, at_most=1)
        else:
            rates = np.full(noise.size, check_real("sample_rate", sample_rate, above=0, at_most=1))
        once, none = np.ones(noise.size, dtype=np.int64), np.zeros(noise.size, dtype=np.int64)
        return cls._made(Columns(rates, noise, once, np.zeros(noise.size), none, once, none))

    @classmethod
    def _made(cls, columns: Iterable[np.ndarray]) -> "Ledger":
        ledger = cls.__new__(cls)
        ledger._fill(Columns(*columns))
        return ledger

    def __reduce__(self) -> tuple[object, ...]:
        return Ledger._made, (tuple(self._columns),)  # a copy's columns are as read-only as its own

    def _fill(self, columns: Columns) -> None:
        total = float(columns.counts.sum(dtype=np.float64))
        if total > LARGEST_COUNT:
            raise InvalidValue(
                f"a ledger must hold at most {LARGEST_COUNT} releases, got {total:.3g}. Is a count wrong?"
            )
        self._columns = Columns(*map(read_only, columns))

    @property
    def sample_rate(self) -> Float[np.ndarray, " n"]:
        """p of each release, read-only."""
        return self._columns.sample_rate

    @property
    def noise_multiplier(self) -> Float[np.ndarray, " n"]:
        """z of each release, read-only."""
        return self._columns.noise_multiplier

    @property
    def count(self) -> Int[np.ndarray, " n"]:
        """How often each release happened, read-only."""
        return self._columns.counts

    @property
    def overflow(self) -> Float[np.ndarray, " n"]:
        """For each release the probability that a record is drawn into a batch that is full without it, read-only."""
        return self._columns.overflow

    @property
    def is_cut(self) -> bool:
        """Whether batches of some release were truncated; `accounting.Truncated` adds the cost."""
        return bool(self.overflow.any())

    @property
    def steps_per_epoch(self) -> Int[np.ndarray, " n"]:
        """For each release t, where records are allocated to the steps of an epoch; 0 of Poisson batches; read-only."""
        return self._columns.steps_per_epoch

    @property
    def is_allocated(self) -> bool:
        """Whether some release is a step of an epoch, which `accounting.Allocated` accounts."""
        return bool(self.steps_per_epoch.any())

    @property
    def bands(self) -> Int[np.ndarray, " n"]:
        """For each release b, where records take turns and noise is correlated; 1 where not; read-only."""
        return self._columns.bands

    @property
    def is_banded(self) -> bool:
        """Whether records take turns at some release: noise is correlated, and `accounting.Pld` accounts it."""
        return bool((self.bands > 1).any())

    @property
    def groups(self) -> int:
        """How many groups of records take turns; 1: none do."""
        return int(self.bands.max(initial=1))

    @property
    def steps(self) -> int:
        """Number of releases, counted with their multiplicity."""
        return int(self.count.sum())

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases as values, in order."""
        return tuple(self)

    def distinct(self) -> "Ledger":
        """The distinct releases, sorted, with counts: composition depends on nothing else. Groups stand for steps.

        >>> Ledger.of([1.0, 0.9, 1.0], 0.1).distinct().count
        array([1, 2])
        """
        if not len(self):
            return self
        alike = np.all(self.sample_rate == self.sample_rate[0]) and not self.is_cut and not self.is_banded
        if alike and np.all(self.steps_per_epoch == self.steps_per_epoch[0]):
            order = np.argsort(self.noise_multiplier, kind="stable")  # linear for monotone schedules
        else:
            keys = self._group, self.bands, self.overflow, self.noise_multiplier, self.sample_rate
            order = np.lexsort((*keys, self.steps_per_epoch))
        found = Columns(*(column[order] for column in self._columns._replace(step=self._group)))
        kinds = found._replace(counts=np.zeros(len(self)))
        starts = np.flatnonzero(np.r_[True, np.any([np.diff(column) != 0 for column in kinds], axis=0)])
        counts = np.add.reduceat(found.counts, starts)
        return Ledger._made(Columns(*(column[starts] for column in found))._replace(counts=counts))

    def __add__(self, other: "Ledger") -> "Ledger":
        check_instance("a ledger's other half", other, Ledger)
        return Ledger._made(map(np.concatenate, zip(self._columns, other._columns, strict=True)))

    def first(self, steps: int) -> "Ledger":
        """The first ``steps`` rows of the ledger.

        >>> Ledger.of([1.0, 0.9, 0.8], 0.1).first(2).noise_multiplier
        array([1. , 0.9])
        """
        rows = check_integer("steps", steps)
        if rows > len(self):
            raise InvalidValue(f"steps must be <= {len(self)}, the rows of the ledger, got steps={rows}")
        return Ledger._made(column[:rows] for column in self._columns)

    def where(self, rows: Bool[np.ndarray, " n"]) -> "Ledger":
        """The rows for which ``rows`` is true, in order."""
        return Ledger._made(column[rows] for column in self._columns)

    def with_noise(self, change: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]) -> "Ledger":
        """The same releases with other noise multipliers: ``change`` of the column.

        >>> Ledger.of([1.0, 2.0], 0.1).with_noise(lambda z: 2 * z).noise_multiplier
        array([2., 4.])
        """
        noise = check_array("noise_multiplier", change(self.noise_multiplier), at_least=0, length=len(self))
        return Ledger._made(self._columns._replace(noise_multiplier=noise))

    def with_rates(self, change: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]) -> "Ledger":
        """The same releases with other sample rates: ``change`` of the column. No epochs, whose rates are fixed;
        batches are full as often as before.

        >>> Ledger.of([1.0, 2.0], 0.1).with_rates(lambda p: p / 2).sample_rate
        array([0.05, 0.05])
        """
        rates = Ledger.of(self.noise_multiplier, change(self.sample_rate)).sample_rate
        check_epoch(int(self.steps_per_epoch.max(initial=0)), rates)
        return Ledger._made(self._columns._replace(sample_rate=rates, overflow=self.full * rates))

    @property
    def full(self) -> Float[np.ndarray, " n"]:
        """For each release the probability that a batch is full without a record, in [0, 1]; 0 where none is cut."""
        return np.minimum(self.overflow / self.sample_rate, 1.0)

    def with_full(self, change: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]) -> "Ledger":
        """The same releases of batches that are full with another probability: ``change`` of `full`.

        >>> Ledger.of([1.0], 0.5).cut(2, 2).with_full(lambda full: 2 * full).overflow
        array([0.25])
        """
        full = check_array("full", change(self.full), at_least=0, length=len(self))
        check_real("full", float(full.max(initial=0.0)), at_most=1)
        return Ledger._made(self._columns._replace(overflow=full * self.sample_rate))

    def cut(self, dataset_size: int, max_batch_size: int | None) -> "Ledger":
        """The same releases, of batches truncated to at most ``max_batch_size`` rows; ``None``: not truncated.

        The overflow of each is p P[binomial(N, p) >= b], of Poisson batches and of steps of an epoch;
        `accounting.truncated` has the proof.

        Args:
            dataset_size: N >= 1: the most records that the smaller of two neighbouring data sets has.
            max_batch_size: b >= 1.

        >>> Ledger.of([1.0], 0.5).cut(2, 2).overflow
        array([0.125])
        >>> Ledger.of([1.0], 0.5).cut(2, 2).cut(2, None).is_cut
        False
        """
        count = check_integer("dataset_size", dataset_size, at_least=1)
        overflow = np.zeros(len(self))
        if max_batch_size is not None:
            cap = check_integer("max_batch_size", max_batch_size, at_least=1)
            from scipy.stats import binom  # slow to load

            rates, place = np.unique(self.sample_rate, return_inverse=True)
            overflow = (rates * binom.sf(cap - 1, count, rates))[place]
        return Ledger._made(self._columns._replace(overflow=overflow))

    def allocated(self, steps_per_epoch: int) -> "Ledger":
        """The same releases, of records that are each in one of t ``steps_per_epoch`` in a row; 0: of Poisson batches.

        Raises:
            InvalidValue: t = 1, or a sample rate that is not 1/t.

        >>> Ledger.of([1.0] * 8, 1 / 4).allocated(4)
        Ledger(8 releases, sample_rate 0.25, noise_multiplier 1, each record once in 4 steps)
        """
        check_epoch(steps_per_epoch, self.sample_rate)
        return Ledger._made(self._columns._replace(steps_per_epoch=np.full(len(self), steps_per_epoch)))

    def banded(self, bands: int) -> "Ledger":
        """The same releases as a whole run of correlated noise: release t is of group t mod ``bands`` of the records.

        >>> Ledger.of([1.0, 1.0, 2.0], 0.5).banded(2)
        Ledger(3 releases, sample_rate 0.5, noise_multiplier 1..2, records in 2 groups that take turns)
        """
        count = check_integer("bands", bands, at_least=1)
        if count > 1 and (self.is_cut or self.is_allocated or (self.count > 1).any()):
            raise InvalidValue(
                f"a run of correlated noise must have one Poisson release a step, not truncated, got {self}"
            )
        step = np.arange(len(self)) if count > 1 else np.zeros(len(self), dtype=np.int64)
        return Ledger._made(self._columns._replace(bands=np.full(len(self), count), step=step))

    def in_turn(self, bands: int, group: int) -> "Ledger":
        """The same releases, all of one ``group`` of records."""
        rows = np.ones(len(self), dtype=np.int64)
        return Ledger._made(self._columns._replace(bands=bands * rows, step=group * rows))

    @property
    def _group(self) -> Int[np.ndarray, " n"]:
        return self._columns.step % self.bands

    def takes_part(self, group: int) -> Bool[np.ndarray, " n"]:
        """The releases in which records of ``group`` may take part: those of their turns, and those of everybody."""
        return (self.bands == 1) | (self._group == group)

    def turn(self, group: int) -> "Ledger":
        """What the records of ``group`` take part in, as a run of independent noise, which is what it is to them.

        >>> Ledger.of([1.0, 1.5, 2.0], 0.5).banded(2).turn(0).noise_multiplier
        array([1., 2.])
        """
        return self.where(self.takes_part(group)).banded(1)

    def __len__(self) -> int:
        return int(self.count.size)

    def __iter__(self) -> Iterator[Release]:
        columns = zip(*(column.tolist() for column in self._columns), strict=True)
        return (Release(*release) for release in columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return all(map(np.array_equal, self._columns, other._columns))

    def __hash__(self) -> int:
        return hash(tuple(column.tobytes() for column in self._columns))

    def __repr__(self) -> str:
        return text_of(self._columns)
