"""Comparisons over several columns, and many of them at once."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from decrescendo.report import LEVEL as LEVEL  # the pages take all that compares from here
from decrescendo.report import Paired, largest
from decrescendo.report import holm as holm
from decrescendo.report import p_in_words as p_in_words

# With fewer seeds no sentence compares anything.
ENOUGH = 3
Decided = Literal["holds", "fails", "undecided"]


def decide(effect: float, p_value: float | None) -> Decided:
    """Holds or fails where the corrected p value is below `LEVEL`; undecided otherwise, and without a test.

    >>> decide(1.0, 0.04), decide(-1.0, 0.04), decide(1.0, 0.05), decide(1.0, None)
    ('holds', 'fails', 'undecided', 'undecided')
    """
    if p_value is None or p_value >= LEVEL:
        return "undecided"
    return "holds" if effect > 0 else "fails"


def p_of(pair: Paired) -> float | None:
    """P value of a paired t-test, if there are enough seeds for one.

    >>> p_of(Paired((1.0, 2.0))), p_of(Paired((1.0, 2.0, 3.0))) is None
    (None, False)
    """
    return pair.p_value if pair.seeds >= ENOUGH else None


def p_phrase(value: float | None) -> str:
    """The same as "p = ..", "p < ..", or nothing.

    >>> p_phrase(0.0001), p_phrase(1e-9), p_phrase(None)
    ('p = 0.0001', 'p < 0.0001', '')
    """
    words = p_in_words(value)
    return "" if value is None else f"p {words if words.startswith('<') else f'= {words}'}"


def seeds_in_words(count: int) -> str:
    """A number of seeds.

    >>> seeds_in_words(1), seeds_in_words(3)
    ('1 seed', '3 seeds')
    """
    return "1 seed" if count == 1 else f"{count} seeds"


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
