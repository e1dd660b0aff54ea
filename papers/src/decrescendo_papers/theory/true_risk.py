"""From the risk on the data at hand to the risk on unseen data: Hong, Wang and Zhou, section 4.4, corrected.

Two ways, each with assumptions of its own that the caller must declare. Neither is a statement about accuracy.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from decrescendo.errors import InvalidValue, check_array, check_integer, check_real
from decrescendo_papers.theory.problem import Problem


@dataclass(frozen=True, slots=True)
class HighProbability:
    """A bound of the true excess risk that holds with probability at least 1 - ``failure``.

    Args:
        bound: of F(theta) - min F, F the expected loss on fresh data.
        failure: probability, over the draw of the data and the noise, that it does not hold, at most.
        repetitions: how often the algorithm is run, each with ``total``/repetitions.

    >>> HighProbability(0.5, failure=0.1, repetitions=5).repetitions
    5
    """

    bound: float
    failure: float
    repetitions: int


def shalev_shwartz(problem: Problem, excess: float, *, failure: float, strongly_convex: bool) -> float:
    """F(theta) - min F <= sqrt(2 G^2/m) sqrt(f - f*) + 4 G^2/(p' m N), with probability 1 - p': Theorem 4.10.

    Eq. (15) prints the first root with a further 1/N, which data of one point contradict: there F = f for every N.

    Args:
        problem: ``pl`` is read as the strong convexity m of every f(.; x).
        excess: f(theta) - f* >= 0, on the data at hand.
        failure: p' in (0, 1), over the draw of the data.
        strongly_convex: that every f(.; x) is m-strongly convex must be declared; PL is not enough.

    >>> problem = Problem(1.0, 1.0, 1.0, 1_000, 4, 0.5, total=0.5)
    >>> round(shalev_shwartz(problem, 0.5, failure=0.1, strongly_convex=True), 6)
    1.04
    """
    if strongly_convex is not True:
        raise InvalidValue(
            "Theorem 4.10 needs every f(.; x) to be strongly convex with constant pl (PL is not enough), "
            f"got strongly_convex={strongly_convex}. Add an L2 penalty, or read the bound on the data at hand"
        )
    m, G = problem.pl, problem.lipschitz
    p = check_real("failure", failure, above=0, below=1)
    found = check_real("excess", excess, at_least=0)
    return math.sqrt(2 * G**2 / m * found) + 4 * G**2 / (p * m * problem.examples)


def high_probability(
    problem: Problem, erub: Callable[[Problem], float], *, failure: float, strongly_convex: bool
) -> HighProbability:
    """The true risk of the best of k = ceil(log2(1/p')) runs with R/k each: Eq. (16), (17) with their constants.

    By Markov a run exceeds twice its expected excess risk with probability at most 1/2, all k with at most p'. With
    Eq. (15)'s own p', the bound fails with probability at most 2 p'. Hong et al. drop the factor 2 of Markov. *Which*
    run is the good one must be found out privately, and that costs extra: no budget here covers it.

    Args:
        problem: R is shared by all runs.
        erub: a bound as a function of the problem, for example ``lambda p: best_dynamic(p).bound``.
        failure: p' in (0, 1/2].
        strongly_convex: declared, see `shalev_shwartz`.

    >>> from decrescendo_papers.theory.bounds import best_dynamic
    >>> problem = Problem(0.5, 1.0, 1.0, 10_000, 50, 0.5, total=0.4)
    >>> risk = high_probability(problem, lambda p: best_dynamic(p).bound, failure=0.05, strongly_convex=True)
    >>> risk.repetitions, risk.failure, round(risk.bound, 3)
    (5, 0.1, 0.033)
    """
    p = check_real("failure", failure, above=0, at_most=0.5)
    runs = math.ceil(-math.log2(p) - 1e-12)
    share = dataclasses.replace(problem, total=problem.total / runs)
    excess = 2 * problem.initial_excess * check_real("erub", erub(share), at_least=0)
    return HighProbability(shalev_shwartz(problem, excess, failure=p, strongly_convex=strongly_convex), 2 * p, runs)


def stability(problem: Problem, *, steps: int, convex: bool, learning_rate: object = None) -> float:
    """s = 2 G^2 sum_t eta_t/N: uniform stability of (noisy) full-batch gradient descent, Theorem 4.12.

    Neighbours *replace* an example: one gradient step then moves the two runs apart by 2 G eta/N at most. The paper
    prints G^2 eta T/N; a linear loss attains twice that.

    Args:
        problem: ``smoothness`` is read as that of every f(.; x).
        steps: T >= 0.
        convex: that every f(.; x) is convex must be declared.
        learning_rate: eta_t in (0, 2/M], one a step; left out: 1/M. Momentum is not covered by the theorem.

    >>> problem = Problem(1.0, 1.0, 1.0, 1_000, 4, 0.5, total=0.5)
    >>> stability(problem, steps=10, convex=True)
    0.02
    """
    if convex is not True:
        raise InvalidValue(
            "Theorem 4.12 needs every f(.; x) to be convex (steps on other losses may drive two runs apart), "
            f"got convex={convex}. Without convexity use none of the bounds on unseen data"
        )
    count = check_integer("steps", steps)
    eta = np.full(count, 1 / problem.smoothness)
    if learning_rate is not None:
        eta = check_array("learning_rate", learning_rate, above=0, length=count)
    if np.any(eta > 2 / problem.smoothness):
        first = int(np.argmax(eta > 2 / problem.smoothness))
        raise InvalidValue(
            f"learning_rate must be at most 2/smoothness = {2 / problem.smoothness:.6g} at every step for Theorem "
            f"4.12, got learning_rate[{first}]={eta[first]:.6g}. Lower it"
        )
    return 2 * problem.lipschitz**2 * float(eta.sum()) / problem.examples


def by_stability(problem: Problem, erub: float, *, steps: int, convex: bool, learning_rate: object = None) -> float:
    """E F(theta) - min F <= f_1 ERUB + s, s = `stability`: Theorems 4.11 and 4.12. Table 2 drops the s.

    >>> from decrescendo_papers.theory.bounds import best_dynamic
    >>> problem = Problem(0.5, 1.0, 1.0, 10_000, 50, 0.5, total=0.4)
    >>> best = best_dynamic(problem)
    >>> round(by_stability(problem, best.bound, steps=best.steps, convex=True), 6)
    0.006407
    """
    s = stability(problem, steps=steps, convex=convex, learning_rate=learning_rate)
    return problem.initial_excess * check_real("erub", erub, at_least=0) + s
