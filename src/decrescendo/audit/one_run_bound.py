"""From guesses about the canaries of a single run to a lower bound on epsilon (after Steinke, Nasr, Jagielski 2023).

Each of m canaries is put into the data, or not, by a fair coin of its own. After the run at most r of the coins are
guessed, V of them rightly. If the run is (epsilon, delta)-DP for adding or removing one canary, then, whatever the
guesses are made from and however the canaries act on each other, V = A + F with

    A stochastically at most W ~ Binomial(r, e^eps/(1 + e^eps)),    E[F] <= m delta.

*Proof.* Given the guesses t, look at the coins one after another. With the coins before it fixed and those after it
averaged out, the laws of the output for the i-th coin up or down are (epsilon, delta)-close. Where the guess is right,
call it *lucky* with probability x/M, M the probability of t under that side and x = (M - e^eps M')_+ what it has beyond
e^eps times that under the other. Summed over t with one guess at i, x is at most delta, so coin i is guessed and lucky
with probability at most (delta + delta)/2; F counts these. What is right and not lucky has at most e^eps times the
probability of what is wrong, whatever came before: A takes at most r steps that succeed with probability at most
e^eps/(1 + e^eps) given all earlier ones.

F may depend on A, so the worst is assumed: luck comes where it is just needed. A = v - i needs F = i, so the expected
m delta buys first the mass of W at v - 1, at a price of 1, then that at v - 2, at 2 each, and so on.

The paper's own second term, 2 m delta max_i Pr[v - i <= W < v]/i, assumes that luck does not depend on W. It can: for
m = r = 2, v = 1, epsilon = 1, delta = 0.01 it gives .93056, and a mechanism reaches .93108 (a test builds it).
"""

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from decrescendo.errors import InvalidValue, check_integer, check_real

_STEP = 0.1
_LARGEST = 50.0


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability that so many guesses or more are right in an (epsilon, delta)-DP run; at most 1.

    Exactly the largest such probability for delta = 0.

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
        raise InvalidValue(f"correct <= guesses <= canaries must hold, got {v} right of {r} guesses for {m} canaries")
    e, d = check_real("epsilon", epsilon, at_least=0), check_real("delta", delta, at_least=0, below=1)
    if v == 0:
        return 1.0
    chance = 1 / (1 + np.exp(-e))
    # Of W at v - 1, v - 2, .., 0, and what it costs to lift each to v.
    masses, costs = binom.pmf(np.arange(v - 1, -1, -1), r, chance), np.arange(1, v + 1)
    before = np.concatenate([[0.0], np.cumsum(masses * costs)[:-1]])
    bought = np.clip((m * d - before) / costs, 0.0, masses)
    return min(1.0, float(binom.sf(v - 1, r, chance)) + float(bought.sum()))


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """Lower bound on the epsilon of the run, with ``confidence``; 0 if nothing follows from the guesses.

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
