"""Bounds for noisy gradient descent with bias-corrected momentum: Hong, Wang and Zhou, section 4.2, corrected.

Theorem 4.5 is false as printed: Eq. (28) loses a factor 1/2 (docs/errata.md has the counter-example). What their proof
gives when it is put back, for v_{t+1} = beta v_t + (1 - beta) g_t and theta_{t+1} = theta_t - eta v_{t+1}/(1 - beta^t):

    learning rate eta = eta_0/M, gamma = 1 - eta_0/kappa, beta < gamma,
    a = beta gamma/((gamma - beta)^2 (1 - beta)^3), zeta = 1 - eta_0 - 4 a eta_0^2 >= 0,
    ERUB = gamma^T + 2 R eta_0 alpha U_3,
    U_3 = sum_t gamma^(T-t) ((1-beta)/(1-beta^t))^2 sum_{i<=t} beta^(2(t-i)) z_i^2,

and zeta eta_0/(2 M f_1) sum_t gamma^(T-t) E|v_{t+1}|^2 may be taken off. gamma contains eta_0, so the largest eta_0 is
a root: `largest_eta_0`.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.signal import lfilter

from decrescendo.errors import InvalidValue, check_array, check_instance, check_integer, check_real
from decrescendo_papers.theory.bounds import Optimum
from decrescendo_papers.theory.influence import check_beta, momentum, momentum_weights, optimal_noise
from decrescendo_papers.theory.problem import Problem

LONGEST = 5_000_000


@dataclass(frozen=True, slots=True)
class Momentum:
    """Momentum with learning rate eta_0/M on a problem, its conditions checked: Theorem 4.5, corrected.

    Args:
        problem: the constants.
        beta: in [0, gamma).
        eta_0: learning rate times smoothness, > 0, at most `largest_eta_0`; left out: that.

    Raises:
        InvalidValue: beta not below gamma, or eta_0 above what makes zeta negative; the message has the largest.

    >>> problem = Problem(0.1, 1.0, 1.0, 1_000, 50, 1.0, total=0.5)
    >>> Momentum(problem, beta=0.5, eta_0=0.1).gamma
    0.99
    >>> Momentum(problem, beta=0.5, eta_0=0.5)
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: eta_0 must be at most 0.115512 for beta=0.5 and kappa=10 ...
    """

    problem: Problem
    beta: float
    eta_0: float

    def __init__(self, problem: Problem, *, beta: float, eta_0: float | None = None) -> None:
        check_instance("problem", problem, Problem)
        largest = largest_eta_0(problem.kappa, beta=beta)
        eta = largest if eta_0 is None else check_real("eta_0", eta_0, above=0)
        if eta > largest:
            raise InvalidValue(
                f"eta_0 must be at most {largest:.6g} for beta={beta:g} and kappa={problem.kappa:g} (learning rate "
                f"times smoothness; else zeta < 0 and Theorem 4.5 says nothing), got eta_0={eta:g}. Lower it, or beta"
            )
        object.__setattr__(self, "problem", problem)
        object.__setattr__(self, "beta", check_beta(beta, 1 - eta / problem.kappa))
        object.__setattr__(self, "eta_0", eta)

    @property
    def gamma(self) -> float:
        """1 - eta_0/kappa."""
        return 1 - self.eta_0 / self.problem.kappa

    @property
    def learning_rate(self) -> float:
        """eta_0/M, the same at every step."""
        return self.eta_0 / self.problem.smoothness

    @property
    def zeta(self) -> float:
        """1 - eta_0 - 4 a eta_0^2 >= 0: what may be taken off the bound, times eta_0/(2 M f_1) E sum ..|v|^2."""
        return _zeta(self.eta_0, self.problem.kappa, self.beta)

    @property
    def noise_weight(self) -> float:
        """2 R eta_0 alpha: the factor before U_3."""
        return 2 * self.eta_0 * self.problem.noise_weight

    def influence(self, steps: int) -> Float[np.ndarray, " steps"]:
        """`theory.influence.momentum` with this gamma and beta."""
        return momentum(steps, gamma=self.gamma, beta=self.beta)

    def noise(self, steps: int) -> Float[np.ndarray, " steps"]:
        """The z_t that minimise the bound for T steps: Lemma 4.3 with the exact influence."""
        return optimal_noise(self.influence(steps), total=self.problem.total)

    def bound(self, noise_multiplier: object) -> float:
        """ERUB = gamma^T + 2 R eta_0 alpha U_3 of any schedule z_t >= 0.

        >>> problem = Problem(0.1, 1.0, 1.0, 1_000, 50, 1.0, total=0.5)
        >>> momentum = Momentum(problem, beta=0.5)
        >>> round(momentum.bound(momentum.noise(100)) - momentum.dynamic(100), 12)
        0.0
        """
        z = check_array("noise_multiplier", noise_multiplier, at_least=0)
        b, u3, mixed = self.beta, 0.0, 0.0
        for t, square in enumerate((z**2).tolist(), start=1):
            mixed = b * b * mixed + square
            u3 = self.gamma * u3 + ((1 - b) / (1 - b**t)) ** 2 * mixed
        return self._left(z.size) + self.noise_weight * u3

    def uniform(self, steps: int) -> float:
        """ERUB of z_t^2 = T/R: U_3 = (T/R) sum_t gamma^(T-t) ((1-beta)/(1-beta^t)) (1+beta^t)/(1+beta), Theorem 4.6."""
        count = check_integer("steps", steps)
        return float(self._uniform(count)[count])

    def dynamic(self, steps: int) -> float:
        """ERUB of the best noise, gamma^T + 2 eta_0 alpha (sum sqrt q_t)^2: Theorem 4.7 with the exact influence."""
        count = check_integer("steps", steps)
        if not count:
            return 1.0
        roots = np.sqrt(momentum_weights(count, gamma=self.gamma, beta=self.beta))
        return self._left(count) + self.noise_weight / self.problem.total * float(roots.sum()) ** 2

    def best_uniform(self) -> Optimum:
        """The whole number of steps with the least `uniform`, 0 included: every T until gamma^T has gone."""
        bounds = self._uniform(self._longest())
        return Optimum(int(np.argmin(bounds)), float(bounds.min()))

    def best_dynamic(self) -> Optimum:
        """The whole number of steps with the least `dynamic`, 0 included.

        Searched on a geometric grid of T, then between the grid points around its best. That the bound falls, then
        rises is not proved here; tests compare with every T.

        >>> problem = Problem(0.1, 1.0, 1.0, 1_000, 50, 1.0, total=0.5)
        >>> momentum = Momentum(problem, beta=0.5)
        >>> momentum.best_dynamic().bound < momentum.best_uniform().bound < 1
        True
        """
        longest = self._longest()
        grid = sorted({0, longest, *(round(longest ** (i / 60)) for i in range(61))})
        best = min(range(len(grid)), key=lambda i: self.dynamic(grid[i]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        while high - low > 2:
            third = (high - low) // 3
            if self.dynamic(low + third) <= self.dynamic(high - third):
                high -= third
            else:
                low += third
        return min((Optimum(steps, self.dynamic(steps)) for steps in range(low, high + 1)), key=lambda o: o.bound)

    def _left(self, steps: int) -> float:
        return math.exp(steps * math.log1p(-self.eta_0 / self.problem.kappa))

    def _uniform(self, steps: int) -> Float[np.ndarray, " lengths"]:
        t = np.arange(1.0, steps + 1)
        b = self.beta
        own = (1 - b) / (1 - b**t) * (1 + b**t) / (1 + b)
        sums = np.r_[0.0, np.asarray(lfilter([1.0], [1.0, -self.gamma], own))] if steps else np.zeros(1)
        all_t = np.arange(steps + 1.0)
        left = np.exp(all_t * math.log1p(-self.eta_0 / self.problem.kappa))
        return left + self.noise_weight / self.problem.total * all_t * sums

    def _longest(self) -> int:
        # gamma^T below 1e-20: from there on more steps only add noise.
        longest = math.ceil(46 / -math.log1p(-self.eta_0 / self.problem.kappa))
        if longest > LONGEST:
            raise InvalidValue(
                f"kappa/eta_0 must be at most {LONGEST / 46:.3g} to search for the best number of steps, got "
                f"kappa={self.problem.kappa:g}, eta_0={self.eta_0:g}. Lower beta, or ask for numbers of steps"
            )
        return longest


def largest_eta_0(kappa: float, *, beta: float) -> float:
    """The largest eta_0 = eta M with zeta >= 0: the root of eta_0 = 2/(1 + sqrt(1 + 16 a)), a at gamma(eta_0).

    Args:
        kappa: M/m >= 1.
        beta: in [0, 1).

    Returns:
        The safe end of the root's bracket: zeta there is not negative. At most 1, and 1 for beta = 0 and kappa > 1.

    >>> round(largest_eta_0(100.0, beta=0.9), 6)  # Hong et al. say 0.98 is possible with beta = 0.9
    0.001665
    """
    ratio, b = check_real("kappa", kappa, at_least=1), check_real("beta", beta, at_least=0, below=1)
    # Above this beta is not below gamma. zeta falls on the way there, from 1 to minus infinity (beta > 0).
    end = min(1.0, ratio * (1 - b) * (1 - 1e-12))
    if b == 0:
        return end
    low, high = 0.0, end
    if _zeta(end, ratio, b) < 0:
        root = float(brentq(_zeta, 0.0, end, args=(ratio, b), xtol=1e-300, rtol=1e-14))
        low, high = root * (1 - 1e-12), root
    while _zeta(high, ratio, b) < 0:
        high = low
        low *= 1 - 1e-9
    return high


def _zeta(eta_0: float, kappa: float, beta: float) -> float:
    gamma = 1 - eta_0 / kappa
    a = beta * gamma / ((gamma - beta) ** 2 * (1 - beta) ** 3)
    return 1 - eta_0 - 4 * a * eta_0**2
