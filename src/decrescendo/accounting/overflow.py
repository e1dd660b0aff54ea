"""How likely truncated batches overflow, what that adds to a delta, and the smallest largest size for a share of it."""

import math

from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import check_instance, check_integer, check_real

_SLACK = 1 + 1e-8  # what a binomial tail may be off by, relatively, and its sum


def overflow_of(ledger: Ledger) -> float:
    """tau: the probability that a record is ever drawn into a batch that is full without it; an upper bound."""
    check_instance("ledger", ledger, Ledger)
    return min(1.0, float(ledger.count @ ledger.overflow) * _SLACK)


def price_of(ledger: Ledger, epsilon: float) -> float:
    """What truncated batches add to a delta at ``epsilon`` by accountants that do not compose them: see `Truncated`.

    >>> price_of(Ledger.of([1.0], 0.5), 2.0)  # no batch is truncated
    0.0
    """
    overflow = overflow_of(ledger)
    return overflow * math.exp(min(epsilon, 700.0)) if ledger.is_allocated else overflow


def left_of(ledger: Ledger, delta: float, epsilon: float) -> float:
    """What the cap leaves of ``delta`` at ``epsilon``, at least; below or at 0 where it may leave nothing.

    A promise of (epsilon, delta) is right by `Truncated` if the batches that are not cut keep (epsilon, what is left).

    >>> left_of(Ledger.of([1.0], 0.5), 1e-5, 2.0)
    1e-05
    """
    return delta - price_of(ledger, epsilon) * _SLACK


def smallest_cap(ledger: Ledger, dataset_size: int, epsilon: float, delta: float, *, share: float = 0.01) -> int:
    """The least ``max_batch_size`` that costs at most ``share`` of ``delta`` at ``epsilon``, whatever the noise.

    A smaller one may be had for more noise: `calibrate` finds how much.

    Args:
        ledger: the planned releases; of their noise nothing is asked.
        dataset_size: N.
        epsilon, delta: the budget, epsilon >= 0; for Poisson batches the result does not depend on it.
        share: in (0, 1).

    >>> smallest_cap(Ledger.of([1.0] * 500, sample_rate=250 / 60_000), 60_000, epsilon=1.2, delta=1e-6)
    347
    """
    limit = check_real("share", share, above=0, below=1) * check_real("delta", delta, above=0, below=1)
    near = check_real("epsilon", epsilon, at_least=0)
    low, high = 0, check_integer("dataset_size", dataset_size, at_least=1) + 1  # the latter costs nothing
    while high - low > 1:
        middle = (low + high) // 2
        enough = price_of(ledger.cut(dataset_size, middle), near) <= limit
        low, high = (low, middle) if enough else (middle, high)
    return high
