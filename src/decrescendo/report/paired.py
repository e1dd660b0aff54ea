"""Two methods seed by seed: which was better, or that it was a tie."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

# Sums of the same numbers differ between processors by 1e-16 to 1e-13 of the largest of them; what is told apart on
# purpose differs by one test example of at most a million: 1e-6 and more.
SAME = 1e-9

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


def largest(*series: Mapping[int, float]) -> float:
    """Largest absolute value of the numbers that are compared seed by seed.

    >>> largest({0: -3.0}, {}, {0: 2.0, 1: 1.0})
    3.0
    """
    return max((abs(value) for of in series for value in of.values()), default=0.0)


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
