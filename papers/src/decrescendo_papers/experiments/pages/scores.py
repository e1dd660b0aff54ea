"""One cell of a table in numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from decrescendo.accounting import rounded
from decrescendo_papers.experiments.results import Result

METRIC = "test_accuracy"


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy of one method at one epsilon over its seeds, and what it spent.

    Args:
        by_seed: test accuracy in %.
        claimed: epsilon by the accountant that set the noise.
        certified: lower and upper end of the true epsilon, over all seeds.
        clt: epsilon that the central limit theorem claims for the same steps.
        refused: why there was no run.
    """

    by_seed: Mapping[int, float] = field(default_factory=dict[int, float])
    claimed: float | None = None
    certified: tuple[float, float] | None = None
    clt: float | None = None
    refused: str = ""

    @property
    def seeds(self) -> int:
        """How many runs there are."""
        return len(self.by_seed)

    @property
    def mean(self) -> float:
        """Over the seeds; of no seeds it is not a number."""
        return math.fsum(self.by_seed.values()) / self.seeds if self.by_seed else float("nan")

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds; ``None`` for fewer than two."""
        return float(np.std(list(self.by_seed.values()), ddof=1)) if self.seeds > 1 else None

    @property
    def shown(self) -> str:
        """Mean and deviation.

        >>> Score({0: 90.0, 1: 91.0}).shown, Score({0: 90.0}).shown, Score().shown, Score(refused="no").shown
        ('90.50 ± 0.71', '90.00', '-', 'refused')
        """
        if self.refused:
            return "refused"
        if not self.by_seed:
            return "-"
        spread = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.mean:.2f}{spread}"

    @property
    def bracket(self) -> str:
        """The certified epsilon, its lower end rounded down and its upper end up.

        >>> Score({0: 90.0}, certified=(0.404238, 0.404350)).bracket
        '0.4042 .. 0.4044'
        """
        if self.certified is None:
            return "-"
        low, high = self.certified
        return f"{rounded(low, 'down', 4)} .. {rounded(high, 'up', 4)}"


def score_of(results: Mapping[int, Result]) -> Score:
    """The score of a cell's results, by seed."""
    runs = [result for result in results.values() if not result.refused]
    refused = "" if runs else next((result.refused for result in results.values()), "")
    ends = [result.certified for result in runs if result.certified is not None]
    claimed = [result.claimed for result in runs if result.claimed is not None]
    clt = [result.clt for result in runs if result.clt is not None]
    return Score(
        {result.spec.seed: 100 * result.metrics[METRIC] for result in runs},
        claimed=max(claimed, default=None),
        certified=(min(low for low, _ in ends), max(high for _, high in ends)) if ends else None,
        clt=max(clt, default=None),
        refused=refused,
    )
