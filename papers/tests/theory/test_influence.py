"""Influences are what the bounds are linear in; the closed forms are what numerical optimisation finds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from decrescendo.errors import InvalidValue
from decrescendo.plans import curves
from decrescendo_papers.theory import influence
from decrescendo_papers.theory.bounds import gradient_descent
from decrescendo_papers.theory.momentum import Momentum
from decrescendo_papers.theory.problem import Problem

gammas = st.floats(0.05, 0.9999)
betas = st.floats(0.0, 0.98)
lengths = st.integers(1, 60)
weights = st.lists(st.floats(-8, 8), min_size=1, max_size=7).map(np.exp)
totals = st.floats(1e-3, 1e3)


def numerically(q: np.ndarray, total: float) -> tuple[float, np.ndarray]:
    """min sum q_t z_t^2 with sum 1/z_t^2 = R by a general optimiser; the budget is a softmax of free numbers."""

    def log_cost(free: np.ndarray) -> tuple[float, np.ndarray]:
        v = np.r_[0.0, free]
        v = v - v.max()
        left, right = q * np.exp(-v), np.exp(v)
        slope = -left / left.sum() + right / right.sum()
        return math.log(left.sum()) + math.log(right.sum()), slope[1:]

    if q.size == 1:
        return float(q[0] / total), np.array([1 / math.sqrt(total)])
    v = np.r_[0.0, minimize(log_cost, np.zeros(q.size - 1), jac=True, method="BFGS", options={"gtol": 1e-11}).x]
    share = np.exp(v - v.max())
    z_squared = share.sum() / (total * share)
    return float(q @ z_squared), np.sqrt(z_squared)


@settings(deadline=None)
@given(weights, totals)
def test_lemma_4_3_is_what_a_numerical_optimiser_finds(q: np.ndarray, total: float) -> None:
    cost, z = numerically(q, total)
    found = influence.optimal_noise(q, total=total)
    assert float(np.sum(found**-2.0)) == pytest.approx(total, rel=1e-12)
    assert total * float(q @ found**2) == pytest.approx(influence.minimum(q), rel=1e-12)
    assert influence.minimum(q) == pytest.approx(total * cost, rel=1e-6)
    assert found == pytest.approx(z, rel=1e-6)


@settings(deadline=None)
@given(weights, totals, st.integers(0, 2**32 - 1))
def test_no_other_noise_of_the_same_budget_costs_less(q: np.ndarray, total: float, seed: int) -> None:
    share = np.random.default_rng(seed).dirichlet(np.ones(q.size)) + 1e-9
    z_squared = share.sum() / (total * share)
    assert total * float(q @ z_squared) >= influence.minimum(q) * (1 - 1e-12)


@settings(deadline=None)
@given(weights)
def test_the_gain_over_uniform_noise_is_the_variance_of_the_roots(q: np.ndarray) -> None:
    uniform = float(np.sum(q * q.size / 2.5)) * 2.5
    assert influence.uniform_cost(q) == pytest.approx(uniform, rel=1e-12)
    gained = influence.uniform_cost(q) - influence.minimum(q)
    assert influence.gain(q) == pytest.approx(gained, rel=1e-9, abs=1e-9 * uniform)


@settings(deadline=None)
@given(lengths, gammas, totals)
def test_theorem_4_4_closed_form(steps: int, gamma: float, total: float) -> None:
    q = influence.gradient_descent(steps, gamma=gamma)
    closed = influence.gradient_descent_noise(steps, gamma=gamma, total=total)
    assert closed == pytest.approx(influence.optimal_noise(q, total=total), rel=1e-9)


def test_theorem_4_4_against_the_optimiser() -> None:
    for steps, gamma, total in ((2, 0.5, 1.0), (5, 0.9, 0.392704), (8, 0.3, 7.0)):
        q = influence.gradient_descent(steps, gamma=gamma)
        closed = influence.gradient_descent_noise(steps, gamma=gamma, total=total)
        assert closed == pytest.approx(numerically(q, total)[1], rel=1e-6)


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 1.99), min_size=1, max_size=30),
    st.floats(0.01, 1.0),
    st.floats(0.1, 10.0),
    st.integers(0, 29),
)
def test_the_influence_of_any_learning_rates_is_the_coefficient_in_the_bound(
    scaled: list[float], ratio: float, smoothness: float, step: int
) -> None:
    eta, m = np.array(scaled) / smoothness, ratio * smoothness
    t = step % eta.size
    problem = Problem(m, smoothness, 10 * math.sqrt(m), 10, 3, 1.0, total=1.0)
    if np.any(1 - 2 * m * eta * (1 - smoothness * eta / 2) < 1e-9):
        return
    q = influence.step_sizes(eta, pl=m, smoothness=smoothness)
    with_noise, without = np.zeros(eta.size), np.zeros(eta.size)
    with_noise[t] = 1.0
    added = gradient_descent(problem, with_noise, learning_rate=eta) - gradient_descent(
        problem, without, learning_rate=eta
    )
    assert added == pytest.approx(problem.noise_weight * q[t], rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(lengths, gammas)
def test_learning_rate_one_over_smoothness_is_theorem_4_1(steps: int, gamma: float) -> None:
    q = influence.step_sizes(np.full(steps, 0.25), pl=4 * (1 - gamma), smoothness=4.0)
    assert q == pytest.approx(influence.gradient_descent(steps, gamma=gamma), rel=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(0.05, 1.9), min_size=2, max_size=20), st.floats(0.05, 0.9))
def test_noise_falls_exactly_where_the_learning_rate_outruns_the_root_of_the_contraction(
    scaled: list[float], m: float
) -> None:
    eta = np.array(scaled)
    z = influence.optimal_noise(influence.step_sizes(eta, pl=m, smoothness=1.0), total=1.0)
    c = influence.contractions(eta, pl=m, smoothness=1.0)
    margin = np.log(eta[1:] / eta[:-1]) - np.log(c[1:]) / 2
    clear = np.abs(margin) > 1e-9
    assert np.array_equal(z[1:][clear] < z[:-1][clear], margin[clear] > 0)


def test_a_rate_of_one_over_m_t_wants_uniform_noise() -> None:
    q = influence.step_sizes(1 / (2.0 * np.arange(2, 52)), pl=2.0, smoothness=2.0)
    assert q == pytest.approx(np.full(50, q[0]), rel=1e-9)


def directly(steps: int, gamma: float, beta: float) -> np.ndarray:
    """The double sum U_3, read off coefficient by coefficient."""
    q = np.zeros(steps)
    for t in range(1, steps + 1):
        for i in range(1, t + 1):
            q[i - 1] += gamma ** (steps - t) * ((1 - beta) / (1 - beta**t)) ** 2 * beta ** (2 * (t - i))
    return q


@settings(deadline=None)
@given(lengths, gammas, betas)
def test_the_recursion_is_the_double_sum(steps: int, gamma: float, beta: float) -> None:
    q = influence.momentum(steps, gamma=gamma, beta=beta)
    assert q == pytest.approx(directly(steps, gamma, beta), rel=1e-9)


@settings(deadline=None)
@given(lengths, gammas)
def test_no_momentum_is_gradient_descent(steps: int, gamma: float) -> None:
    plain = influence.gradient_descent(steps, gamma=gamma)
    assert influence.momentum(steps, gamma=gamma, beta=0.0) == pytest.approx(plain, rel=1e-12)


@settings(deadline=None)
@given(st.integers(1, 400), st.floats(0.5, 0.999), st.floats(0, 1, exclude_max=True))
def test_the_two_phase_bound_is_a_bound(steps: int, gamma: float, share: float) -> None:
    beta = share * gamma * (1 - 1e-9)
    exact = influence.momentum(steps, gamma=gamma, beta=beta)
    assert np.all(influence.momentum_bound(steps, gamma=gamma, beta=beta) >= exact * (1 - 1e-9))


@settings(deadline=None)
@given(st.floats(0.1, 0.995), st.floats(0, 0.99))
def test_the_turning_point_is_the_largest_t(gamma: float, share: float) -> None:
    beta = share * gamma
    found = influence.turning_point(gamma=gamma, beta=beta)
    t = np.arange(1, found + 20_000)
    over = (t - 1) * math.log(gamma) + np.log1p(-(beta**t)) - math.log1p(-beta)
    assert np.all(over[:found] >= -1e-12)
    assert np.all(over[found:] < 1e-12)


@given(st.integers(1, 400), st.floats(0.5, 0.9999), st.floats(0, 1, exclude_max=True))
def test_exact_influence_is_never_worse_than_the_papers_or_uniform(steps: int, gamma: float, share: float) -> None:
    beta = share * gamma * (1 - 1e-9)
    exact = influence.momentum(steps, gamma=gamma, beta=beta)
    theirs = influence.optimal_noise(influence.momentum_bound(steps, gamma=gamma, beta=beta), total=1.0)
    best = influence.minimum(exact)
    assert best <= float(exact @ theirs**2) * (1 + 1e-12)
    assert best <= influence.uniform_cost(exact) * (1 + 1e-12)


def test_u_3_of_the_bound_is_the_influence_times_the_noise() -> None:
    momentum = Momentum(Problem(0.1, 1.0, 1.0, 30, 3, 1.0, total=1.0), beta=0.6)
    z = np.linspace(3, 1, 40)
    u_3 = float(directly(40, momentum.gamma, 0.6) @ z**2)
    assert momentum.bound(z) == pytest.approx(momentum.gamma**40 + momentum.noise_weight * u_3, rel=1e-12)


def test_an_influence_is_a_privacy_curve() -> None:
    """mu_t of `curves.influence` is proportional to 1/z_t of Lemma 4.3."""
    q = influence.momentum(50, gamma=0.95, beta=0.7)
    mu = curves.influence(q)(curves.progress(50))
    z = influence.optimal_noise(q, total=2.0)
    assert mu * z == pytest.approx(np.full(50, (mu * z)[0]), rel=1e-12)


@pytest.mark.parametrize(
    "too_long",
    [
        lambda: influence.gradient_descent(10_000, gamma=0.9),
        lambda: influence.step_sizes(np.full(10_000, 0.5), pl=0.1, smoothness=1.0),
        lambda: influence.momentum(10_000, gamma=0.9, beta=0.5),
        lambda: influence.momentum_bound(10_000, gamma=0.9, beta=0.5),
        lambda: influence.gradient_descent_noise(20_000, gamma=0.9, total=1.0),
    ],
)
def test_influences_that_float64_cannot_hold_are_refused(too_long: object) -> None:
    with pytest.raises(InvalidValue, match="Take fewer steps"):
        too_long()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: influence.gradient_descent(3, gamma=1.0), "gamma is 1 - pl/smoothness"),
        (lambda: influence.gradient_descent(0, gamma=0.5), "steps must be >= 1"),
        (
            lambda: influence.step_sizes([0.1], pl=2.0, smoothness=1.0),
            "PL constant must be at most the smoothness",
        ),
        (lambda: influence.step_sizes([0.1, 2.0], pl=1.0, smoothness=1.0), r"learning_rate\[1\]=2"),
        (lambda: influence.step_sizes([], pl=1.0, smoothness=1.0), "at least one step"),
        (lambda: influence.momentum(3, gamma=0.5, beta=1.0), "beta"),
        (lambda: influence.momentum_bound(3, gamma=0.5, beta=0.5), "beta must be below gamma"),
        (lambda: influence.optimal_noise([1.0, 0.0], total=1.0), r"influence\[1\]=0"),
        (lambda: influence.minimum([]), "at least one step"),
    ],
)
def test_what_does_not_hold_is_named(call: object, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        call()  # type: ignore[operator]
