"""Two methods seed by seed: which was better, or that it was a tie."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from decrescendo.report.alike import SAME, largest

Verdict = Literal["better", "worse", "tie", "one seed", "none"]


@dataclass(frozen=True, slots=True)
class Paired:
    """Differences of one method to another over the seeds that both have.

    Args:
        differences: in points, one a seed. Equal seeds have equal initial weights and batches.
        size: of the numbers that were subtracted; what is smaller than `SAME` of it is rounding, and decides nothing:
            a mean that small is 0, differences that close together are equal.

    >>> Paired((1.0, 1.2, 0.8)).verdict, Paired((1.0, -1.2, 0.8)).verdict, Paired((3.0,)).verdict
    ('better', 'tie', 'one seed')
    >>> by_rounding = Paired((0.1 + 0.2 - 0.3,) * 3, size=0.3)
    >>> by_rounding.mean, by_rounding.verdict, by_rounding.p_value
    (0.0, 'tie', None)
    """

    differences: tuple[float, ...]
    size: float = 0.0

    @property
    def seeds(self) -> int:
        """How many pairs."""
        return len(self.differences)

    @property
    def mean(self) -> float:
        """In points; of no pairs it is not a number."""
        if not self.differences:
            return float("nan")
        found = math.fsum(self.differences) / self.seeds
        return 0.0 if abs(found) <= self._rounding else found

    @property
    def error(self) -> float:
        """Standard error of the mean; not a number for fewer than two pairs."""
        if self.seeds < 2:
            return float("nan")
        return 0.0 if self._equal else float(np.std(self.differences, ddof=1) / np.sqrt(self.seeds))

    @property
    def verdict(self) -> Verdict:
        """A mean within two standard errors of zero is a tie; one seed decides nothing."""
        if self.seeds < 2:
            return "one seed" if self.differences else "none"
        if abs(self.mean) <= 2 * self.error + self._rounding:
            return "tie"
        return "better" if self.mean > 0 else "worse"

    @property
    def p_value(self) -> float | None:
        """Of the two-sided paired t-test; ``None`` for fewer than two pairs, or pairs that all differ by the same."""
        if self.seeds < 2 or self._equal:
            return None
        return float(stats.ttest_1samp(self.differences, 0.0).pvalue)

    @property
    def _rounding(self) -> float:
        return SAME * max(self.size, *map(abs, self.differences), 0.0)

    @property
    def _equal(self) -> bool:
        return max(self.differences) - min(self.differences) <= self._rounding

    @property
    def shown(self) -> str:
        """In words.

        >>> Paired((1.0, 1.2, 0.8)).shown, Paired(()).shown
        ('+1.00 ± 0.12 better', '-')
        """
        if not self.differences:
            return "-"
        error = "" if self.seeds < 2 else f" ± {self.error:.2f}"
        return f"{self.mean:+.2f}{error} {self.verdict}"


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Paired:
    """``one`` minus ``other`` at the seeds that both have.

    >>> paired({0: 91.0, 1: 92.0}, {1: 90.5, 2: 90.0}).differences
    (1.5,)
    """
    # Accuracies are counts of test examples: what lies below the ninth digit is rounding, and would keep equal
    # differences from being equal.
    return Paired(
        tuple(round(one[seed] - other[seed], 9) for seed in sorted(one.keys() & other.keys())),
        largest(one, other),
    )


def pooled(pairs: Sequence[Mapping[int, float]], others: Sequence[Mapping[int, float]]) -> Paired:
    """Differences averaged over columns first, one a seed: columns with the same seed are not independent.

    Only the seeds that every column has are used.

    >>> pooled([{0: 91.0, 1: 92.0}, {0: 81.0}], [{0: 90.0, 1: 90.0}, {0: 78.0}]).differences
    (2.0,)
    """
    seeds = set[int].intersection(*(set(column) for column in (*pairs, *others))) if pairs else set[int]()
    return Paired(
        tuple(
            round(
                float(np.mean([one[seed] - other[seed] for one, other in zip(pairs, others, strict=True)])),
                9,
            )
            for seed in sorted(seeds)
        ),
        largest(*pairs, *others),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for their number: Holm 1979, which controls the chance of any false alarm.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return [float(value) for value in corrected]
