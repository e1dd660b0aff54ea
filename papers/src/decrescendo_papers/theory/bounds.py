"""How well noisy gradient descent does at worst: Hong, Wang and Zhou (FAccT 2022), section 4.1, corrected.

ERUB is their word: an upper bound of the expected excess risk E f(theta_{T+1}) - f* over f(theta_1) - f*; 1 is what not
training gives. Momentum is in `theory.momentum`, batches in `theory.stochastic`, unseen data in `theory.true_risk`.
What the paper prints differently is on docs/errata.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import wrightomega

from decrescendo.errors import InvalidValue, check_array, check_instance, check_integer
from decrescendo_papers.theory.influence import contractions, gradient_descent_noise
from decrescendo_papers.theory.problem import Problem


@dataclass(frozen=True, slots=True)
class Optimum:
    """The number of steps with the least bound, and that bound; 0 steps (bound 1) where any training may harm.

    >>> Optimum(steps=0, bound=1.0)
    Optimum(steps=0, bound=1.0)
    """

    steps: int
    bound: float


def gradient_descent(problem: Problem, noise_multiplier: object, *, learning_rate: object = None) -> float:
    """ERUB = prod c_t + R sum_t q_t z_t^2 of any schedule: Theorem 4.1, Eq. (7), for any learning rates.

    Args:
        problem: its ``total`` does not matter here: z_t says what is spent.
        noise_multiplier: z_t >= 0, one a step; none at all is a run of no steps.
        learning_rate: eta_t in (0, 2/M), one a step; left out: 1/M, with which c_t = gamma, q_t = alpha gamma^(T-t).

    Raises:
        InvalidValue: a value outside its range, or another number of learning rates than of noise multipliers.

    >>> problem = Problem(0.5, 1.0, 1.0, 10, 4, 1.0, total=0.5)
    >>> gradient_descent(problem, [2.0, 2.0])
    0.37
    """
    check_instance("problem", problem, Problem)
    z = check_array("noise_multiplier", noise_multiplier, at_least=0)
    eta = np.full(z.size, 1 / problem.smoothness)
    if learning_rate is not None:
        eta = check_array("learning_rate", learning_rate, above=0, length=z.size)
    c = contractions(eta, pl=problem.pl, smoothness=problem.smoothness)
    added = problem.noise_weight * (problem.smoothness * eta * z) ** 2
    bound = 1.0
    for shrink, more in zip(c.tolist(), added.tolist(), strict=True):
        bound = shrink * bound + more
    return bound


def uniform(problem: Problem, steps: int) -> float:
    """ERUB = gamma^T + alpha kappa T (1 - gamma^T) of uniform noise z_t^2 = T/R: Eq. (9).

    >>> problem = Problem(0.5, 1.0, 1.0, 10, 4, 1.0, total=0.5)
    >>> uniform(problem, 2)
    0.37
    """
    count = check_integer("steps", steps)
    left = _left(problem, count)
    return left + problem.alpha * problem.kappa * count * (1 - left)


def dynamic(problem: Problem, steps: int) -> float:
    """ERUB = gamma^T + alpha ((1 - gamma^(T/2))/(1 - sqrt gamma))^2 of the best noise, `dynamic_noise`: Theorem 4.4.

    >>> problem = Problem(0.5, 1.0, 1.0, 10, 4, 1.0, total=0.5)
    >>> round(dynamic(problem, 2), 4)
    0.3666
    """
    count = check_integer("steps", steps)
    root = math.sqrt(_left(problem, count))
    return root**2 + problem.alpha * ((1 - root) / _one_less_root(problem)) ** 2


def dynamic_noise(problem: Problem, steps: int) -> Float[np.ndarray, " steps"]:
    """z_t, z_t^2 = (1/R) (gamma^(-T/2) - 1)/(1 - sqrt gamma) gamma^(t/2): the best noise for T steps, Theorem 4.4.

    Raises:
        InvalidValue: kappa = 1 (one step forgets all noise before it), or more steps than float64 can hold.

    >>> problem = Problem(0.5, 1.0, 1.0, 10, 4, 1.0, total=0.5)
    >>> round(float((dynamic_noise(problem, 5) ** -2).sum()), 6)
    0.5
    """
    check_instance("problem", problem, Problem)
    return gradient_descent_noise(steps, gamma=problem.gamma, total=problem.total)


def best_uniform(problem: Problem) -> Optimum:
    """The whole number of steps with the least `uniform`, 0 included.

    Over real T the bound falls, then rises (`uniform_real_steps`), so only its two neighbours have to be compared.

    >>> problem = Problem(0.5, 1.0, 1.0, 10, 4, 1.0, total=0.5)
    >>> best_uniform(problem)
    Optimum(steps=3, bound=0.335)
    """
    return _better(uniform_real_steps(problem), lambda steps: uniform(problem, steps))


def best_dynamic(problem: Problem) -> Optimum:
    """The whole number of steps with the least `dynamic`, 0 included: a neighbour of `dynamic_real_steps`.

    >>> problem = Problem(0.5, 1.0, 1.0, 10, 4, 1.0, total=0.5)
    >>> best_dynamic(problem).steps
    3
    """
    return _better(dynamic_real_steps(problem), lambda steps: dynamic(problem, steps))


def uniform_real_steps(problem: Problem) -> float:
    """T over the reals that minimises `uniform`: ln omega(1 + ln(1/gamma)/(alpha kappa))/ln(1/gamma).

    omega is Wright's function, omega + ln omega = its argument. With x = T ln(1/gamma) and c = alpha kappa/ln(1/gamma)
    the derivative of e^-x + c x (1 - e^-x) has the sign of c (e^x - 1 + x) - 1, which grows with x: one minimum. Hong
    et al. call it intractable and use Eq. (24), `uniform_printed_steps`.

    >>> problem = Problem(0.01, 1.0, 1.0, 100, 1, 1.0, total=0.5)  # kappa = 100, alpha = 1e-4
    >>> round(uniform_real_steps(problem), 2)
    44.26
    """
    log_gamma = _checked(problem).log_gamma
    if math.isinf(log_gamma):
        return 1.0
    c = problem.alpha * problem.kappa / -log_gamma
    return math.log(float(wrightomega(1 + 1 / c))) / -log_gamma


def uniform_surrogate_steps(problem: Problem) -> float:
    """T = ln(ln(1/gamma)/(alpha kappa))/ln(1/gamma), Eq. (23): minimises gamma^T + alpha kappa T instead.

    Raises:
        InvalidValue: alpha kappa >= ln(1/gamma), where the surrogate only rises.

    >>> problem = Problem(0.1, 1.0, 1.0, 1_000, 50, 1.0, total=0.5)
    >>> round(uniform_surrogate_steps(problem), 2)
    50.78
    """
    rate, weight = -_checked(problem).log_gamma, problem.alpha * problem.kappa
    if not weight < rate:
        raise InvalidValue(
            f"alpha kappa must be below ln(1/gamma) = {rate:.6g} for Eq. (23), got alpha kappa = {weight:.6g}. "
            "Use best_uniform"
        )
    return math.log(rate / weight) / rate if math.isfinite(rate) else 0.0


def uniform_printed_steps(problem: Problem) -> float:
    """T = ln(1 + ln(1/gamma)/alpha)/ln(1/gamma), Eq. (24) as printed: of the right order in alpha only.

    At kappa = 100, alpha = 1e-4 the bound there is 4.56, worse than not training; the best is 0.80. And it tends to
    1/alpha as kappa grows, not to 0 as the paper says.

    >>> problem = Problem(0.01, 1.0, 1.0, 100, 1, 1.0, total=0.5)  # kappa = 100, alpha = 1e-4
    >>> steps = round(uniform_printed_steps(problem))
    >>> steps, round(uniform(problem, steps), 2), round(best_uniform(problem).bound, 2)
    (460, 4.56, 0.8)
    """
    rate = -_checked(problem).log_gamma
    return math.log1p(rate / problem.alpha) / rate if math.isfinite(rate) else 0.0


def dynamic_real_steps(problem: Problem) -> float:
    """T = 2 log_gamma(A/(1 + A)), A = alpha/(1 - sqrt gamma)^2: minimises `dynamic` over the reals, Eq. (27).

    >>> problem = Problem(0.01, 1.0, 1.0, 100, 1, 1.0, total=0.5)  # kappa = 100, alpha = 1e-4
    >>> round(dynamic_real_steps(problem), 1)
    44.6
    """
    log_gamma, a = _checked(problem).log_gamma, _a(problem)
    return 2 * math.log1p(1 / a) / -log_gamma if math.isfinite(log_gamma) else 1.0


def dynamic_real_minimum(problem: Problem) -> float:
    """A/(1 + A), A = alpha/(1 - sqrt gamma)^2: `dynamic` at `dynamic_real_steps`; no whole T gives less.

    >>> problem = Problem(0.01, 1.0, 1.0, 100, 1, 1.0, total=0.5)
    >>> round(dynamic_real_minimum(problem), 3), round(best_dynamic(problem).bound, 3)
    (0.799, 0.799)
    """
    a = _a(_checked(problem))
    return a / (1 + a)


def dynamic_printed_steps(problem: Problem) -> float:
    """T = 2 kappa ln(1 + 1/(kappa alpha)), as Theorem 4.4 prints it: 923 at kappa = 100, alpha = 1e-4, for 44.6.

    >>> problem = Problem(0.01, 1.0, 1.0, 100, 1, 1.0, total=0.5)
    >>> round(dynamic_printed_steps(problem))
    923
    """
    return 2 * _checked(problem).kappa * math.log1p(1 / (problem.kappa * problem.alpha))


def _checked(problem: Problem) -> Problem:
    check_instance("problem", problem, Problem)
    return problem


def _left(problem: Problem, steps: int) -> float:
    """gamma^T; 1 for no step, also where gamma = 0."""
    return math.exp(steps * _checked(problem).log_gamma) if steps else 1.0


def _one_less_root(problem: Problem) -> float:
    return -math.expm1(problem.log_gamma / 2)


def _a(problem: Problem) -> float:
    return problem.alpha / _one_less_root(problem) ** 2


def _better(real_steps: float, bound: Callable[[int], float]) -> Optimum:
    below = math.floor(real_steps)
    # 0 is compared too: for kappa = 1 the bound jumps there.
    return min((Optimum(steps, bound(steps)) for steps in (0, below, below + 1)), key=lambda found: found.bound)
