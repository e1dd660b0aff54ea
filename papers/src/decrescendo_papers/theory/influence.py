"""How much the noise of each step still weighs at the end: influences q_t, and the noise that minimises their sum.

An influence q_t is the coefficient of z_t^2 in an upper bound of the final excess risk, Hong, Wang and Zhou (FAccT
2022). All arrays have index 0 = step 1. Only ratios matter for a schedule, so the common factor (their alpha) is left
out. ``curves.influence(q)`` is the privacy curve, mu_t proportional to q_t^(1/4), for any accountant.

Two conventions. Here **q_t weights z_t^2**, with the sensitivity (their G) the same at every step. Where a solver
weights the noise variance s_t^2 = z_t^2 C_t^2 on the *sum*, its weights w_t and these are q_t = w_t C_t^2: with one
clip norm for all steps they agree up to a constant, with a clip curve they do not.

Stochastic gradients (Theorems 4.8, 4.9) have the same influences: the sampling noise adds a term that no schedule
changes. Their R' = R/p^2 is no privacy statement: hand the curve to `calibrate`, which asks a real accountant.

Longer than most files: the formulas share one set of conventions.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy.signal import lfilter

from decrescendo.errors import InvalidValue, check_array, check_integer, check_real

SMALLEST = float(np.finfo(np.float64).tiny)


def gradient_descent(steps: int, *, gamma: float) -> Float[np.ndarray, " steps"]:
    """q_t = gamma^(T-t): gradient descent with learning rate 1/M, Hong Theorem 4.1 (the factor alpha left out).

    Args:
        steps: T >= 1.
        gamma: 1 - m/M in (0, 1), with PL constant m and smoothness M.

    Returns:
        The coefficient of z_t^2, relative to that of the last step.

    Raises:
        InvalidValue: gamma outside its range, or so many steps that the first influence is no positive float64.

    >>> gradient_descent(3, gamma=0.5)
    array([0.25, 0.5 , 1.  ])
    """
    count, rate = check_integer("steps", steps, at_least=1), check_gamma(gamma)
    return _positive(rate ** np.arange(count - 1, -1, -1.0))


def step_sizes(learning_rate: object, *, pl: float, smoothness: float) -> Float[np.ndarray, " steps"]:
    """q_t = (M eta_t)^2 prod_{i>t} c_i, c_t = 1 - 2 m eta_t (1 - M eta_t/2): Theorem 4.1 for any learning rates.

    The best noise falls exactly where eta_{t+1}/eta_t > sqrt(c_{t+1}). A rate that falls faster wants rising noise.

    Args:
        learning_rate: eta_t, one a step, each in (0, 2/M).
        pl: m > 0, at most ``smoothness``: |grad f|^2 >= 2 m (f - f*).
        smoothness: M > 0.

    Returns:
        The coefficient of z_t^2 over alpha.

    Raises:
        InvalidValue: a constant or a rate outside its range (the step is named), or influences too small for float64.

    >>> step_sizes([0.5, 0.5, 0.5], pl=1.0, smoothness=2.0)
    array([0.25, 0.5 , 1.  ])
    """
    eta = check_array("learning_rate", learning_rate, above=0)
    c = contractions(eta, pl=pl, smoothness=smoothness)
    later = np.r_[np.cumprod(c[:0:-1])[::-1], 1.0] if eta.size else eta
    return _positive((check_real("smoothness", smoothness, above=0) * eta) ** 2 * later)


def contractions(
    learning_rate: Float[np.ndarray, " steps"], *, pl: float, smoothness: float
) -> Float[np.ndarray, " steps"]:
    """c_t = 1 - 2 m eta_t (1 - M eta_t/2): what a step without noise leaves of the excess risk, at most.

    Raises:
        InvalidValue: pl above smoothness, or a learning rate outside (0, 2/M).

    >>> contractions(np.array([0.5, 0.25]), pl=1.0, smoothness=2.0)
    array([0.5  , 0.625])
    """
    m, M = check_pl(pl, smoothness)
    eta = check_array("learning_rate", learning_rate, above=0)
    if np.any(eta >= 2 / M):
        first = int(np.argmax(eta >= 2 / M))
        raise InvalidValue(
            f"learning_rate must be below 2/smoothness = {2 / M:.6g} at every step, or a step without noise may "
            f"raise the loss; got learning_rate[{first}]={eta[first]:.6g}. Lower it"
        )
    return 1 - 2 * m * eta * (1 - M * eta / 2)


def momentum(steps: int, *, gamma: float, beta: float) -> Float[np.ndarray, " steps"]:
    """q_i = sum_{t>=i} a_t beta^(2(t-i)), a_t = gamma^(T-t) ((1-beta)/(1-beta^t))^2: exact for U_3 of Theorem 4.5.

    Bias-corrected momentum, Eq. (3): the noise of a step is also in all later ones. Computed by the recursion
    q_i = a_i + beta^2 q_{i+1}. The paper's bound of these (`momentum_bound`) can lose to uniform noise; these cannot.

    Args:
        steps: T >= 1.
        gamma: 1 - eta_0/kappa in (0, 1).
        beta: in [0, 1); 0 is `gradient_descent`. The *bound* that U_3 is a term of needs beta < gamma.

    Returns:
        The coefficient of z_i^2 in U_3.

    Raises:
        InvalidValue: gamma or beta outside its range, or so many steps that an influence is no positive float64.

    >>> momentum(3, gamma=0.5, beta=0.5).round(4)
    array([0.326 , 0.3039, 0.3265])
    """
    return _positive(momentum_weights(steps, gamma=gamma, beta=beta))


def momentum_weights(steps: int, *, gamma: float, beta: float) -> Float[np.ndarray, " steps"]:
    """`momentum` for any number of steps: what is below the smallest float64 is 0, which no schedule can be built on.

    >>> momentum_weights(3, gamma=0.5, beta=0.5).round(4)
    array([0.326 , 0.3039, 0.3265])
    """
    count, rate = check_integer("steps", steps, at_least=1), check_gamma(gamma)
    b = check_real("beta", beta, at_least=0, below=1)
    t = np.arange(1.0, count + 1)
    own = rate ** (count - t) * ((1 - b) / (1 - b**t)) ** 2
    # The recursion from the last step to the first, run as a filter.
    later: Float[np.ndarray, " steps"] = np.asarray(lfilter([1.0], [1.0, -b * b], own[::-1]))
    return later[::-1].copy()


def momentum_bound(steps: int, *, gamma: float, beta: float) -> Float[np.ndarray, " steps"]:
    """The paper's two-phase upper bound of `momentum`, from the proof of Theorem 4.7, its indicator put on t.

    With T^ = `turning_point`: for T <= T^, q_t = gamma^(T+t-2)/(1 - gamma beta^2). For T > T^,
    q_t = 2 gamma^(T+t-1)/(gamma - beta^2) at t <= T^ and
    gamma^(2(T^-1)) (gamma^(T+1-t) - beta^(2(T+1-t)))/(gamma - beta^2) after it.

    Args:
        steps: T >= 1.
        gamma: in (0, 1).
        beta: in [0, gamma), as Theorem 4.7 asks.

    Returns:
        Upper bounds of the coefficients of z_t^2 in U_3. For comparison: a schedule is better built on `momentum`.

    Raises:
        InvalidValue: beta not below gamma, a value outside its range, or influences too small for float64.

    >>> bool(np.all(momentum_bound(50, gamma=0.99, beta=0.9) >= momentum(50, gamma=0.99, beta=0.9)))
    True
    """
    count = check_integer("steps", steps, at_least=1)
    rate, b = check_gamma(gamma), check_beta(beta, gamma)
    t, turn = np.arange(1.0, count + 1), turning_point(gamma=rate, beta=b)
    if count <= turn:
        return _positive(rate ** (count + t - 2) / (1 - rate * b * b))
    left = count + 1 - t
    early = 2 * rate ** (count + t - 1)
    late = rate ** (2.0 * (turn - 1)) * (rate**left - b ** (2 * left))
    return _positive(np.where(t <= turn, early, late) / (rate - b * b))


def turning_point(*, gamma: float, beta: float) -> int:
    """T^ = max t with gamma^(t-1) >= (1-beta)/(1-beta^t): until then, momentum's influence falls (Theorem 4.6).

    Args:
        gamma: in (0, 1).
        beta: in [0, gamma).

    >>> turning_point(gamma=0.99, beta=0.9)
    230
    """
    rate, b = check_gamma(gamma), check_beta(beta, gamma)

    # The logarithm of gamma^(t-1) (1-beta^t)/(1-beta) is concave and 0 at t = 1: at least 0 on one stretch from there.
    def holds(t: int) -> bool:
        return (t - 1) * math.log(rate) + math.log1p(-(b**t)) >= math.log1p(-b)

    if not holds(2):
        return 1
    high = 4
    while holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def optimal_noise(influence: object, *, total: float) -> Float[np.ndarray, " steps"]:
    """z_t, z_t^2 = (1/R) sum_i sqrt(q_i/q_t): least sum q_t z_t^2 with sum 1/z_t^2 = R, Hong Lemma 4.3, Eq. (10).

    Args:
        influence: q_t > 0 on z_t^2, one a step.
        total: R = sum 1/z_t^2 > 0; for full-batch gradients twice the rho of zCDP. With sampling take
            ``curves.influence(q)`` and `calibrate` instead.

    Returns:
        Noise multipliers z_t.

    >>> optimal_noise([1.0, 16.0], total=5.0)
    array([1. , 0.5])
    """
    roots, budget = _roots(influence), check_real("total", total, above=0)
    return np.sqrt(roots.sum() / (budget * roots))


def minimum(influence: object) -> float:
    """(sum sqrt q_t)^2: the least R sum q_t z_t^2 with sum 1/z_t^2 = R, Hong Lemma 4.3.

    >>> minimum([1.0, 4.0])
    9.0
    """
    return float(_roots(influence).sum() ** 2)


def uniform_cost(influence: object) -> float:
    """T sum q_t: R sum q_t z_t^2 for uniform noise z_t^2 = T/R.

    >>> uniform_cost([1.0, 4.0])
    10.0
    """
    q = check_influence(influence)
    return float(q.size * q.sum())


def gain(influence: object) -> float:
    """T^2 Var[sqrt q_t]: what `optimal_noise` saves over uniform noise (population variance).

    Hong et al. print Var[q_t] below Lemma 4.3.

    >>> gain([1.0, 4.0])
    1.0
    """
    roots = _roots(influence)
    return float(roots.size**2 * np.var(roots))


def gradient_descent_noise(steps: int, *, gamma: float, total: float) -> Float[np.ndarray, " steps"]:
    """z_t, z_t^2 = (1/R) (gamma^(-T/2) - 1)/(1 - sqrt gamma) gamma^(t/2): the closed form of Hong Theorem 4.4.

    Args:
        steps: T >= 1.
        gamma: in (0, 1).
        total: R = sum 1/z_t^2 > 0.

    Returns:
        `optimal_noise` of `gradient_descent`, without summing.

    >>> gradient_descent_noise(2, gamma=0.25, total=3.0) ** 2
    array([1. , 0.5])
    """
    count, rate = check_integer("steps", steps, at_least=1), check_gamma(gamma)
    budget = check_real("total", total, above=0)
    # gamma^(-T/2) overflows first: multiply it into gamma^(t/2).
    with np.errstate(over="ignore"):
        left = rate ** ((np.arange(1.0, count + 1) - count) / 2)
        variance = left * -math.expm1(count / 2 * math.log(rate)) / (1 - math.sqrt(rate)) / budget
    if not np.all(np.isfinite(variance)):
        raise InvalidValue(_too_long(count))
    return np.sqrt(variance)


def check_gamma(gamma: float) -> float:
    """gamma in (0, 1), or an error that says where it comes from."""
    hint = "gamma is 1 - pl/smoothness (momentum: 1 - eta_0 pl/smoothness): at 0 one step does all, at 1 none does"
    return check_real("gamma", gamma, above=0, below=1, hint=hint)


def check_beta(beta: float, gamma: float) -> float:
    """beta in [0, gamma): the condition of Hong's momentum theorems."""
    b = check_real("beta", beta, at_least=0, below=1)
    if b >= gamma:
        raise InvalidValue(
            f"beta must be below gamma = {gamma:.6g} (Hong Theorem 4.5: momentum must forget faster than gradient "
            f"descent converges), got beta={b:.6g}. Lower beta or eta_0"
        )
    return b


def check_pl(pl: float, smoothness: float) -> tuple[float, float]:
    """(m, M) with 0 < m <= M: no M-smooth function has a larger PL constant than M."""
    m, M = check_real("pl", pl, above=0), check_real("smoothness", smoothness, above=0)
    if m > M:
        raise InvalidValue(
            f"the PL constant must be at most the smoothness (|grad f|^2 <= 2 M (f - f*) for every M-smooth f), "
            f"got pl={m:g}, smoothness={M:g}. Are they swapped?"
        )
    return m, M


def check_influence(influence: object) -> Float[np.ndarray, " steps"]:
    """Positive, finite, at least one step."""
    q = check_array("influence", influence, above=0)
    if not q.size:
        raise InvalidValue("influence must have at least one step, got none")
    return q


def _roots(influence: object) -> Float[np.ndarray, " steps"]:
    return np.sqrt(check_influence(influence))


def _too_long(steps: int) -> str:
    return (
        f"every influence must be a positive float64, got steps={steps}, of which the first weigh less than "
        f"{SMALLEST:.1e}: their noise is forgotten long before the end. Take fewer steps"
    )


def _positive(q: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
    # Below the smallest normal number digits get lost, and 0 would ask for infinite noise.
    if not q.size:
        raise InvalidValue("an influence must have at least one step, got none")
    if not (np.all(np.isfinite(q)) and np.all(q >= SMALLEST)):
        raise InvalidValue(_too_long(q.size))
    return q
