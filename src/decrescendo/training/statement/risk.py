"""What an (epsilon, delta) says of somebody who tries to find out whether a unit took part."""

import math

from decrescendo.errors import check_real


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
    second = 1 - math.exp(-epsilon) * (1 - delta - alarms)
    return min(1.0, first, second)


def most_advantage(epsilon: float, delta: float) -> float:
    """The largest difference between the shares of members and of others that a test can call members.

    (e^eps - 1 + 2 delta) / (e^eps + 1). Source: Kairouz, Oh and Viswanath 2015; Humphries et al. 2023.

    >>> round(most_advantage(1.0, 0.0), 4), most_advantage(math.inf, 0.0)
    (0.4621, 1.0)
    """
    tangent = math.tanh(epsilon / 2)
    return min(1.0, tangent + delta * (1 - tangent))
