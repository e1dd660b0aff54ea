"""What a run cost, by the accountant that certifies."""

import functools

from decrescendo.accounting import Budget, Guarantee, Ledger, Truncated


@functools.lru_cache(maxsize=64)
def certify(ledger: Ledger, budget: Budget) -> Guarantee:
    """What `accounting.Pld` says of ``ledger`` at the budget's delta: its upper end, and the lower end beside it; where
    batches were cut, with what that costs (`accounting.Truncated`).

    Kept for as many ledgers as a table has cells: an audit trains a thousand times by one plan.

    >>> from decrescendo.accounting.ledger import Release
    >>> round(certify(Ledger([Release(1.0, 2.0)]), Budget(3.0, 1e-5)).epsilon, 2)
    1.99
    """
    return Truncated().certify(ledger, budget)
