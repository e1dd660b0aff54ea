"""Two methods seed by seed: which was better, or that it was a tie."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

# Sums of the same numbers differ between processors by 1e-16 to 1e-13 of the largest of them; what is told apart on
# purpose differs by one test example of at most a million: 1e-6 and more.
SAME = 1e-9
LEVEL, POWER = 0.05, 0.8  # a difference is called significant where its p value is below the level
SMALLEST = 0.0001  # p values below are not told apart

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
        with np.errstate(divide="ignore", invalid="ignore"):  # of numbers whose squares are none
            t = np.mean(self.differences) / (np.std(self.differences, ddof=1) / math.sqrt(self.seeds))
        return float(2 * special.stdtr(self.seeds - 1, -abs(t)))

    @property
    def seeds_to_decide(self) -> int | None:
        """How many pairs a two-sided paired t-test at `LEVEL` needs to find a difference as large as this mean with
        probability `POWER`, if the differences scatter as these do; ``None`` where these do not say: fewer than two
        pairs, pairs that all differ by the same, or a mean of zero.

        >>> Paired((1.0, -0.5, 1.5, 0.0)).seeds_to_decide, Paired((1.0, -1.0)).seeds_to_decide
        (29, None)
        """
        if self.seeds < 2 or self._equal or self.mean == 0:
            return None
        with np.errstate(over="ignore"):
            effect = abs(self.mean) / float(np.std(self.differences, ddof=1))
        if not 0 < effect < math.inf:
            return None  # of numbers whose squares are none
        # With a known deviation fewer would do, by hardly more than two.
        known = ((special.ndtri(1 - LEVEL / 2) + special.ndtri(POWER)) / effect) ** 2
        pairs = max(2, math.floor(known))
        while _power(effect, pairs) < POWER:
            pairs += 1
        return pairs

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


def _power(effect: float, pairs: int) -> float:
    """Of a two-sided paired t-test at `LEVEL`; ``effect``: mean over standard deviation of the differences."""
    beyond = float(special.stdtrit(pairs - 1, 1 - LEVEL / 2))
    return 1.0 - float(special.nctdtr(pairs - 1, effect * math.sqrt(pairs), beyond))


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


def p_in_words(value: float | None) -> str:
    """To four digits behind the point; "-" where there is no test.

    >>> p_in_words(0.01), p_in_words(1e-9), p_in_words(None)
    ('0.0100', '< 0.0001', '-')
    """
    if value is None:
        return "-"
    return f"< {SMALLEST}" if value < SMALLEST else f"{value:.4f}"
