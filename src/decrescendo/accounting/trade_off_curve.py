"""What a ledger leaves to somebody who tests whether one record took part: the least errors of any test."""

import math
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.pld.accountant import upper_deltas
from decrescendo.accounting.truncated import Truncated, composes
from decrescendo.errors import InvalidValue, check_array, check_instance

# Lines under the curve, as shares of the epsilon at delta 1e-6.
_LARGEST = 700.0  # of which exp is a number
_SHARES = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.26, 0.33, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)


def trade_off(ledger: Ledger, false_positive_rates: object, *, group: int = 1) -> Float[np.ndarray, " n"]:
    """The trade-off curve: the least share of members that any test misses, at each rate of false alarms.

    f(a) = max over e of 0, 1 - delta(e) - e^e a, e^-e (1 - delta(e) - a), with delta(e) from `Pld` at 14 values of e.
    Source: Dong, Roth and Su 2022, Proposition 6 (the curve is the upper envelope of these lines).

    Args:
        ledger: releases of known noise.
        false_positive_rates: a, each in [0, 1].
        group: how many records come and go together; see `Pld`.

    Returns:
        Lower bounds on the false negative rate, one for each a. One minus it is the most power a test has.

    Guarantee: no test of one added or removed record has fewer errors, whatever it knows of the others: delta(e) is
        `Pld`'s upper end, and fewer lines only lower the envelope.

    Edge cases: an empty ledger leaves 1 - a; a release without noise that everybody takes part in leaves 0.

    Raises:
        InvalidValue: a rate outside [0, 1]. AccountingError: a ledger that `Pld` cannot judge.

    >>> run = Ledger.of(np.linspace(1.4, 1.1, 500), sample_rate=250 / 60_000)
    >>> (1 - trade_off(run, [0.001, 0.01, 0.1])).round(3)
    array([0.001, 0.013, 0.117])
    """
    check_instance("ledger", ledger, Ledger)
    rates = check_array("false_positive_rates", false_positive_rates, at_least=0)
    if (rates > 1).any():
        raise InvalidValue(
            f"false_positive_rates must be at most 1, got {float(rates.max()):g}. They are shares of all others"
        )
    least = np.zeros(rates.size)
    for epsilon, delta in curve_of(ledger, group):
        left = 1 - delta
        # Beyond the largest number any false alarm at all leaves nothing.
        near = left - math.exp(epsilon) * rates if epsilon < _LARGEST else np.where(rates > 0, -1.0, left)
        far = math.exp(-epsilon) * (left - rates)
        least = np.maximum(least, np.maximum(near, far))
    return least


@lru_cache(maxsize=128)
def curve_of(ledger: Ledger, group: int) -> tuple[tuple[float, float], ...]:
    """(epsilon, delta at most) of a ledger at the 14 points of `trade_off`, from 0 on. Kept: it takes up to a second.

    >>> curve_of(Ledger.of([2.0], 1.0), 1)[0]  # the total variation of a Gaussian of mu = 1/2
    (0.0, 0.19741...)
    """
    pld = Pld(rtol=1e-2, group=group)
    judge = Truncated(pld)
    scale = judge.estimate(ledger, 1e-6)
    if scale == 0 or math.isinf(scale):
        scale = 1.0
    epsilons = [share * scale for share in _SHARES]
    if not ledger.is_allocated and (not ledger.is_cut or composes(judge, ledger)):
        return tuple(zip(epsilons, upper_deltas(pld, ledger, epsilons), strict=True))
    return tuple((epsilon, judge.delta(ledger, epsilon).value) for epsilon in epsilons)
