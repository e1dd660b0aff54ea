"""Errors of a distinguisher over independent trials, and what they say of epsilon by themselves."""

import math
from dataclasses import dataclass

from scipy.stats import beta

from decrescendo.errors import InvalidValue, check_integer, check_real


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Error counts of a test that was fixed beforehand.

    Args:
        false_positives: trials without the record in which it was called present.
        absent: trials without the record, >= 1.
        false_negatives: trials with the record in which it was called absent.
        present: trials with the record, >= 1.

    Raises:
        InvalidValue: more errors than trials.

    >>> rates = ErrorRates(0, 100, 20, 100)
    >>> [round(end, 3) for end in rates.upper(0.95)]
    [0.036, 0.292]
    """

    false_positives: int
    absent: int
    false_negatives: int
    present: int

    def __post_init__(self) -> None:
        for wrong, trials in (("false_positives", "absent"), ("false_negatives", "present")):
            count = check_integer(trials, getattr(self, trials), at_least=1)
            if check_integer(wrong, getattr(self, wrong)) > count:
                raise InvalidValue(f"{wrong} must be at most {trials}, got {getattr(self, wrong)} of {count}")

    def upper(self, confidence: float) -> tuple[float, float]:
        """Upper ends (Clopper and Pearson) of the two error rates, both true at once with ``confidence``."""
        level = (1 - check_real("confidence", confidence, above=0, below=1)) / 2
        return (
            _upper(self.false_positives, self.absent, level),
            _upper(self.false_negatives, self.present, level),
        )


def _upper(wrong: int, trials: int, level: float) -> float:
    return 1.0 if wrong == trials else float(beta.ppf(1 - level, wrong + 1, trials - wrong))


def errors_epsilon(rates: ErrorRates, delta: float, confidence: float) -> float:
    """Lower bound on epsilon from the error rates of a test, with ``confidence``.

    (epsilon, delta)-DP means 1 - FNR <= e^epsilon FPR + delta, and the same with the two errors exchanged: the larger
    of the two bounds, at the upper ends of both rates. With n trials nothing above about log(n/4) can be shown.

    Args:
        rates: over independent trials of a test fixed beforehand.
        delta: in [0, 1).
        confidence: in (0, 1).

    >>> round(errors_epsilon(ErrorRates(0, 1000, 100, 1000), delta=1e-5, confidence=0.95), 2)
    5.48
    >>> errors_epsilon(ErrorRates(50, 100, 50, 100), delta=1e-5, confidence=0.95)
    0.0
    """
    d = check_real("delta", delta, at_least=0, below=1)
    positive, negative = rates.upper(confidence)
    found = 0.0
    for seen, error in ((1 - d - negative, positive), (1 - d - positive, negative)):
        if seen > error > 0:
            found = max(found, math.log(seen / error))
    return found
