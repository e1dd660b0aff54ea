"""A test is chosen on some trials and counted on others: never on its own."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from decrescendo.audit.error_rates import ErrorRates
from decrescendo.errors import InvalidValue

_CANDIDATES = 60
_LARGEST = np.finfo(np.float64).max


def rates_at(
    threshold: float, absent: Float[np.ndarray, " absent"], present: Float[np.ndarray, " present"]
) -> ErrorRates:
    """Errors of calling a record present where the evidence is above ``threshold``.

    Raises:
        InvalidValue: evidence, or a threshold, that is not a number: it would be no error on either side.

    >>> rates_at(0.5, np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    ErrorRates(false_positives=1, absent=2, false_negatives=0, present=2)
    """
    if np.isnan(threshold) or np.isnan(absent).any() or np.isnan(present).any():
        raise InvalidValue("errors must be counted on evidence that is a number, got NaN. What was released is broken")
    return ErrorRates(int(np.sum(absent > threshold)), absent.size, int(np.sum(present <= threshold)), present.size)


def choose_threshold(
    absent: Float[np.ndarray, " absent"],
    present: Float[np.ndarray, " present"],
    value: Callable[[ErrorRates], float],
) -> float:
    """The threshold whose errors on these trials are worth most by ``value``; count it on other trials.

    Raises:
        InvalidValue: no trials, or evidence that is not a number.

    >>> choose_threshold(np.array([0.0, 1.0]), np.array([2.0, 3.0]), lambda rates: -rates.false_positives)
    1.5
    """
    together = np.unique(np.concatenate([absent, present]))
    if not together.size or np.isnan(together).any():
        raise InvalidValue("a threshold must be chosen on trials whose evidence is a number, got none or NaN")
    ends = np.clip(together, -_LARGEST, _LARGEST) / 2  # the middle of -inf and inf would be no number
    cuts = ends[:-1] + ends[1:] if together.size > 1 else together
    # Tails count most: evenly spaced ranks, and every one of the first and last few.
    if cuts.size > _CANDIDATES:
        ranks = np.linspace(0, cuts.size - 1, _CANDIDATES // 2)
        edge = np.unique(np.geomspace(1, cuts.size, _CANDIDATES // 4).astype(np.int64)) - 1
        cuts = cuts[np.unique(np.r_[ranks.astype(np.int64), edge, cuts.size - 1 - edge])]
    worth = [value(rates_at(float(cut), absent, present)) for cut in cuts]
    return float(cuts[int(np.argmax(worth))])
