"""From guesses about the canaries of a single run to a lower bound on epsilon (Steinke, Nasr and Jagielski 2023).

Each of m canaries is put into the data, or not, by a fair coin of its own. After the run r of the coins are guessed, v
of them rightly. If the run is (epsilon, delta)-DP for adding or removing one canary, then, whatever the guesses are
made from and however the canaries act on each other,

    Pr[V >= v]  <=  Pr[W >= v] + 2 m delta max_{i >= 1} Pr[v - i <= W < v] / i,      W ~ Binomial(r, e^eps/(1 + e^eps)).

Without delta that is the law of randomised response: each guess is right with the odds e^eps, and no better. The second
term is what a total of 2 m delta expected failures can add at most (their Theorem 5.2, proved there with the factor 2;
for a single canary the exact largest addition is half of it, which a test finds by linear programming).
"""

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from decrescendo.errors import InvalidValue, check_integer, check_real

_STEP = 0.02
_LARGEST = 50.0


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest probability that an (epsilon, delta)-DP run lets so many guesses be right, or more; at most 1.

    Args:
        canaries: m >= 1, each included by a fair coin.
        guesses: r, 0 to m: how many of the coins are guessed; fixed before the run, or an upper bound of it.
        correct: v, 0 to r.
        epsilon: >= 0.
        delta: in [0, 1).

    Raises:
        InvalidValue: a number outside its range.

    >>> round(one_run_p_value(10, 10, 10, epsilon=0.0, delta=0.0) * 2**10, 6)
    1.0
    """
    m = check_integer("canaries", canaries, at_least=1)
    r, v = check_integer("guesses", guesses), check_integer("correct", correct)
    if not v <= r <= m:
        raise InvalidValue(
            f"correct <= guesses <= canaries must hold, got {v} right of {r} guesses for {m} canaries"
        )
    e, d = check_real("epsilon", epsilon, at_least=0), check_real("delta", delta, at_least=0, below=1)
    if v == 0:
        return 1.0
    chance = 1 / (1 + np.exp(-e))
    masses = binom.pmf(np.arange(v - 1, -1, -1), r, chance)
    dearest = float(np.max(np.cumsum(masses) / np.arange(1, v + 1)))
    return min(1.0, float(binom.sf(v - 1, r, chance)) + 2 * m * d * dearest)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The run is (epsilon, delta)-DP for no epsilon below this one, with ``confidence``; 0 where nothing follows.

    Args:
        canaries: m >= 1.
        guesses: r, 0 to m, fixed before the run.
        correct: v, 0 to r.
        delta: in [0, 1), of the claim that is audited.
        confidence: in (0, 1): a run that is (epsilon, delta)-DP gives a larger value with probability at most
            1 - confidence.

    >>> round(one_run_epsilon(1000, 100, 100, delta=1e-6, confidence=0.95), 2)
    3.49
    >>> one_run_epsilon(1000, 100, 55, delta=1e-6, confidence=0.95)
    0.0
    """
    level = 1 - check_real("confidence", confidence, above=0, below=1)

    def gap(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) - level

    if gap(0.0) > 0:
        return 0.0
    # The smallest epsilon that is not refuted: upwards in small steps, so that nothing rests on monotony.
    low = 0.0
    while low < _LARGEST:
        if gap(low + _STEP) > 0:
            return float(brentq(gap, low, low + _STEP, xtol=1e-9))
        low += _STEP
    return _LARGEST
