"""Comparisons over several columns, and many of them at once."""

from collections.abc import Mapping, Sequence

import numpy as np

from decrescendo.report import Paired, largest


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
