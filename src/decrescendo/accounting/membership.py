"""What a test of membership finds at most: one set of numbers for statements, the studio and the command line."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import Guarantee
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.table import judges_releases
from decrescendo.accounting.trade_off_curve import curve_of, trade_off
from decrescendo.errors import AccountingError, check_array, check_instance, check_integer, check_real

CURVE = "the whole trade-off curve of the releases"
ALARMS = (0.001, 0.01, 0.1)  # those that are shown
PAIR = "epsilon and delta alone, of which the best test of the worst mechanism finds so much: "


def most_power(epsilon: float, delta: float, false_alarms: float) -> float:
    """The largest share of members that any test finds, if it is wrong about at most ``false_alarms`` of the others.

    min(e^eps a + delta, 1 - e^-eps (1 - delta - a)), at most 1. Source: Kairouz, Oh and Viswanath 2015, Theorem 2.1.

    Args:
        epsilon: >= 0, infinite too.
        delta: in [0, 1].
        false_alarms: a, in [0, 1].

    >>> round(most_power(1.0, 1e-5, 0.001), 5)
    0.00273
    >>> most_power(math.inf, 0.0, 0.5), most_power(0.0, 0.0, 0.25)
    (1.0, 0.25)
    """
    alarms = check_real("false_alarms", false_alarms, at_least=0, at_most=1)
    check_real("delta", delta, at_least=0, at_most=1)
    first = alarms * math.exp(min(epsilon, 700.0)) + delta
    second = math.exp(-epsilon) * (delta + alarms) - math.expm1(-epsilon)
    return min(1.0, first, second)


def most_advantage(epsilon: float, delta: float) -> float:
    """The largest difference between the shares of members and of others that a test can call members.

    (e^eps - 1 + 2 delta) / (e^eps + 1). Source: Kairouz, Oh and Viswanath 2015; Humphries et al. 2023.

    >>> round(most_advantage(1.0, 0.0), 4), most_advantage(math.inf, 0.0)
    (0.4621, 1.0)
    """
    tangent = math.tanh(epsilon / 2)
    return min(1.0, tangent + delta * (1 - tangent))


@dataclass(frozen=True, slots=True)
class Membership:
    """What any test of whether one unit took part finds at most.

    Args:
        false_alarms: a, shares of the others that the test takes for members, in [0, 1].
        power: for each of them the largest share of members that a test finds.
        advantage: the largest difference of the two shares.
        by: what the numbers follow from, in words.
    """

    false_alarms: Float[np.ndarray, " n"]
    power: Float[np.ndarray, " n"]
    advantage: float
    by: str


def membership(
    ledger: Ledger | None, guarantee: Guarantee | None, false_alarms: object, *, group: int = 1
) -> Membership:
    """What any test of membership finds at most: by the whole trade-off curve of the releases where there is one, and
    by the promised (epsilon, delta) where that is lower, or all that is known.

    Args:
        ledger: all planned releases, whose noise was fixed before the first of them; ``None`` where it was not.
        guarantee: what is promised of them. By an accountant of something else (a search of several trials, batches
            that are not Poisson, an accountant of one's own) it is all that is known, and the curve is not taken.
        false_alarms: a, each in [0, 1].
        group: how many records come and go together, where there is no guarantee that says it.

    Guarantee: no test finds more, if the guarantee is right: of an estimate alone nothing follows, and power is 1.

    Raises:
        InvalidValue: a rate outside [0, 1]. AccountingError: there is no guarantee, and no curve of the ledger either.

    >>> from decrescendo.accounting import Budget, Pld
    >>> run = Ledger.of(np.linspace(1.4, 1.1, 500), sample_rate=250 / 60_000)
    >>> found = membership(run, Pld().certify(run, Budget(2.0, 1e-6)), [0.001, 0.01, 0.1])
    >>> found.power.round(3), round(found.advantage, 3), found.by
    (array([0.001, 0.013, 0.117]), 0.036, 'the whole trade-off curve of the releases')
    """
    rates = check_array("false_alarms", false_alarms, at_least=0)
    check_integer("group", group, at_least=1)
    power, advantage, by = np.ones(rates.size), 1.0, CURVE
    why = _no_curve(ledger, guarantee)
    if ledger is not None and not why:
        size = group if guarantee is None else guarantee.examples_per_person
        try:
            # (No test is worse than to guess, though 1 less a number near 1 may round to that.)
            power = np.maximum(1 - trade_off(ledger, rates, group=size), np.minimum(rates, 1.0))
            advantage = curve_of(ledger, size)[0][1]
        except AccountingError:
            if guarantee is None:
                raise
            why = "no accountant has the curve of these releases"
    if guarantee is None:
        if why:
            raise AccountingError(f"a guarantee must be given where {why}, got none. Give what was promised")
        return Membership(rates, power, advantage, by)
    check_instance("guarantee", guarantee, Guarantee)
    if guarantee.kind != "estimate":
        epsilon, delta = guarantee.epsilon, guarantee.delta
        promised = [most_power(epsilon, delta, rate) for rate in rates.tolist()]
        power = np.minimum(power, np.array(promised, dtype=np.float64))
        advantage = min(advantage, most_advantage(epsilon, delta))
    elif why:
        why += ", and the promise is an estimate, from which nothing follows"
    return Membership(rates, power, advantage, f"{PAIR}{why}" if why else by)


def _no_curve(ledger: Ledger | None, guarantee: Guarantee | None) -> str:
    """Why the curve of the releases is not to be taken, in words; empty: it is."""
    if ledger is None:
        return "noise was decided during the run"
    if guarantee is not None and math.isinf(guarantee.epsilon):
        return "nothing is promised"
    if guarantee is not None and not judges_releases(guarantee.accountant):
        return f"{guarantee.accountant} accounts something else than these releases"
    return ""


def percent(share: float) -> str:
    """A share as a percentage of two decimals, never below it but for what floats lose.

    >>> percent(0.27331), percent(0.1), percent(1.0)
    ('27.34', '10.00', '100.00')
    """
    return f"{min(math.ceil(1e4 * share * (1 - 1e-12)) / 100, 100.0):.2f}"
