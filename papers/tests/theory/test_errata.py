"""The papers' errors (docs/errata.md), each with a counter-example that what we use instead survives."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from decrescendo.accounting import Pld, mu_of, rho_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.plans import curves
from decrescendo_papers.theory import bounds, influence
from decrescendo_papers.theory.hong_bounds import page, stated
from decrescendo_papers.theory.hong_tables import best_by_stability, table_1, table_2
from decrescendo_papers.theory.momentum import Momentum, largest_eta_0
from decrescendo_papers.theory.problem import Problem
from decrescendo_papers.theory.stochastic import sampling_term, stochastic_momentum
from decrescendo_papers.theory.true_risk import high_probability, shalev_shwartz, stability
from decrescendo_papers.theory.utility import clt_noise_scale, theorem_1

ROOT = Path(__file__).resolve().parents[2]
KAPPA_100 = Problem(0.01, 1.0, 1.0, 100, 1, 1.0, total=0.5)


def test_every_erratum_names_its_test_or_says_why_not() -> None:
    lines = (ROOT / "docs/errata.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    rows = [row for row in rows if row[0] != "where" and not set(row[0]) <= {"-"}]
    assert len(rows) >= 25
    for row in rows:
        assert len(row) == 5, row[0]
        assert re.search(r"`(?:papers/)?tests/[\w/]+\.py::\w+`", row[4]) or row[4].startswith("no test: "), row[0]


def test_the_page_of_bounds_is_what_the_library_says() -> None:
    committed = (ROOT / "docs/hong-bounds.md").read_text(encoding="utf-8")
    assert committed == page(), "run python -m decrescendo_papers.theory.hong_bounds > docs/hong-bounds.md"


# Hong, Wang and Zhou: privacy.


def test_lemma_c_3_needs_a_minus() -> None:
    level = math.log(1e8)
    plus = 4 + 2 * level + 2 * math.sqrt(level * (4 + level))
    assert round(plus, 1) == 81.5
    assert round(rho_of(4, 1e-8), 6) == 0.196352
    for rho, holds in ((rho_of(4, 1e-8), True), (plus, False)):
        assert (rho + 2 * math.sqrt(rho * level) <= 4 + 1e-12) == holds


def test_the_zcdp_budget_is_not_above_the_moments_accountant_s() -> None:
    moments = 4**2 / math.log(1e8)
    assert (round(2 * rho_of(4, 1e-8), 3), round(moments, 3)) == (0.393, 0.869)


@pytest.mark.parametrize(("sample_rate", "at_least"), [(0.01, 100), (0.05, 8)])
def test_a_budget_of_r_over_p_squared_is_no_privacy_statement(sample_rate: float, at_least: float) -> None:
    """100 steps of uniform noise with sum 1/z^2 = R/p^2, R for (4, 1e-8): a certified *lower* end of what is spent."""
    z = math.sqrt(100 * sample_rate**2 / (2 * rho_of(4, 1e-8)))
    spent = Pld().bracket(Ledger.of([z] * 100, sample_rate), 1e-8)[0]
    assert spent > at_least > 4


def test_the_strict_sign_of_algorithm_1_refuses_the_last_step_of_an_exactly_spent_schedule() -> None:
    def steps_taken(costs: list[float], budget: float, strict: bool) -> int:
        taken = 0
        for cost in costs:
            if not (cost < budget if strict else cost <= budget):
                break
            budget, taken = budget - cost, taken + 1
        return taken

    costs = [0.25] * 4  # z^2 = 4, four steps, R = 1
    assert (steps_taken(costs, 1.0, strict=True), steps_taken(costs, 1.0, strict=False)) == (3, 4)


# Hong, Wang and Zhou: gradient descent.


def test_the_gain_of_lemma_4_3_is_the_variance_of_the_roots() -> None:
    q = np.array([1.0, 4.0])
    gained = influence.uniform_cost(q) - influence.minimum(q)
    assert gained == influence.gain(q) == 1.0
    assert 2**2 * np.var(q) == 9.0  # as printed


def test_the_printed_t_of_eq_24_is_worse_than_not_training() -> None:
    alpha, kappa, gamma = 1e-4, 100, 0.99
    assert pytest.approx(alpha) == KAPPA_100.alpha
    printed = bounds.uniform_printed_steps(KAPPA_100)
    bound = gamma**printed + alpha * kappa * printed * (1 - gamma**printed)
    assert (round(printed, 1), round(bound, 2)) == (459.7, 4.56)
    best = bounds.best_uniform(KAPPA_100)
    assert (best.steps, round(best.bound, 2)) == (44, 0.80)


def test_the_t_of_eq_24_does_not_vanish_for_sharp_losses() -> None:
    """It tends to 1/alpha = 10,000; the best T does tend to 0."""
    sharp = Problem(1e-8, 1.0, 1.0, 100, 1, 1.0, total=0.5)
    assert bounds.uniform_printed_steps(sharp) == pytest.approx(1e4, rel=1e-3)
    assert bounds.uniform_real_steps(sharp) < 1e-3
    assert bounds.best_uniform(sharp).steps == 0


def test_the_printed_t_of_theorem_4_4_is_an_order_only() -> None:
    assert round(bounds.dynamic_printed_steps(KAPPA_100)) == 923
    assert round(bounds.dynamic_real_steps(KAPPA_100), 1) == 44.6
    best = bounds.best_dynamic(KAPPA_100)
    assert best.bound < bounds.dynamic(KAPPA_100, 923) - 0.1


# Hong, Wang and Zhou: momentum.


def quadratic_after(steps: int, rate: float, beta: float) -> tuple[float, list[float]]:
    """f/f_1 and |v_{t+1}|^2/(2 f_1) after momentum on f = theta^2/2 (m = M = 1), no noise."""
    theta, v, squares = 1.0, 0.0, []
    for t in range(1, steps + 1):
        v = beta * v + (1 - beta) * theta
        theta -= rate * v / (1 - beta**t)
        squares.append(v * v)
    return theta**2, squares


@pytest.mark.parametrize("beta", [0.05, 0.3, 0.6, 0.9])
def test_theorem_4_5_fails_after_one_step_on_a_parabola(beta: float) -> None:
    """kappa = 1, T = 1, no noise: printed bound gamma - zeta eta_0 |v|^2/(2 M f_1), truth (1 - eta_0/2)^2."""
    eta_0 = largest_eta_0(1.0, beta=beta)  # smaller than what they allow
    gamma = 1 - eta_0
    a = beta * gamma / ((gamma - beta) ** 2 * (1 - beta) ** 3)
    assert eta_0 <= 8 / (math.sqrt(1 + 64 * a) + 1)
    left, squares = quadratic_after(1, eta_0 / 2, beta)
    assert left == pytest.approx((1 - eta_0 / 2) ** 2)
    zeta = 1 - eta_0 / 4 - a * eta_0**2
    assert zeta >= 0
    assert left > gamma > gamma - zeta * eta_0 * squares[0]
    # Corrected: learning rate eta_0/M.
    momentum = Momentum(Problem(1.0, 1.0, 1.0, 1, 1, 0.5, total=1.0), beta=beta)
    assert momentum.eta_0 == eta_0
    left, squares = quadratic_after(1, momentum.learning_rate, beta)
    assert left + momentum.zeta * eta_0 * squares[0] <= momentum.bound([0.0]) * (1 + 1e-12)


def test_theorem_4_5_needs_beta_below_gamma_not_only_another_beta() -> None:
    """Lemma C.6 sums (beta/gamma)^j: for beta = 0.9, gamma = 0.5 its left side is a million times its right side."""
    beta, gamma, T = 0.9, 0.5, 30
    left = sum(gamma ** (T - t) * (t - 1) * beta ** (t - 1) for t in range(2, T + 1))
    right = 2 * beta * gamma / ((gamma - beta) ** 2 * (1 - beta)) * gamma ** (T - 1)
    assert left > 1e6 * right
    beta, gamma = 0.5, 0.9
    left = sum(gamma ** (T - t) * (t - 1) * beta ** (t - 1) for t in range(2, T + 1))
    assert left <= 2 * beta * gamma / ((gamma - beta) ** 2 * (1 - beta)) * gamma ** (T - 1)


def test_the_example_below_theorem_4_5_does_not_meet_its_condition() -> None:
    beta, gamma = 0.9, 0.99
    a = beta * gamma / ((gamma - beta) ** 2 * (1 - beta) ** 3)
    printed, corrected = 8 / (math.sqrt(1 + 64 * a) + 1), 2 / (1 + math.sqrt(1 + 16 * a))
    assert (round(printed, 4), round(corrected, 4)) == (0.0030, 0.0015)  # they say 0.98
    assert printed / (1 - gamma) < 1  # this would be kappa = eta_0/(1 - gamma), which is at least 1


def test_zeta_in_the_statement_of_theorem_4_5_is_not_that_of_its_proof() -> None:
    beta, gamma = 0.5, 0.99
    assert 1 / (beta * (1 - beta) ** 3) == 16.0  # statement
    assert round(beta * gamma / ((gamma - beta) ** 2 * (1 - beta) ** 3), 2) == 16.49  # proof


def test_the_indicator_of_theorem_4_7_belongs_on_t() -> None:
    """For T > T^ the printed q_t applies the late form to early steps too, and is then no bound."""
    gamma, beta, T = 0.99, 0.9, 300
    turn = influence.turning_point(gamma=gamma, beta=beta)
    left = T + 1 - np.arange(1.0, T + 1)
    printed = gamma ** (2 * (turn - 1)) * (gamma**left - beta ** (2 * left)) / (gamma - beta**2)
    exact = influence.momentum(T, gamma=gamma, beta=beta)
    assert T > turn == 230
    assert exact[0] > 10 * printed[0]
    assert np.all(influence.momentum_bound(T, gamma=gamma, beta=beta) >= exact)


def test_the_two_phase_influence_loses_to_uniform_noise() -> None:
    q = influence.momentum(227, gamma=0.99, beta=0.9)
    theirs = influence.optimal_noise(influence.momentum_bound(227, gamma=0.99, beta=0.9), total=1.0)
    costs = influence.minimum(q), influence.uniform_cost(q), float(q @ theirs**2)
    assert [round(cost) for cost in costs] == [1047, 1143, 1451]


def test_table_1_s_momentum_schedule_moves_the_wrong_way_in_both_phases() -> None:
    gamma, t, T = 0.9, np.arange(1.0, 21), 20
    for q, printed in (
        (gamma ** (T + t), gamma ** (T + t)),
        (gamma ** (T - t), gamma ** ((T - t) / 2)),
    ):
        best = influence.optimal_noise(q, total=1.0) ** 2
        assert np.all(np.sign(np.diff(best)) == -np.sign(np.diff(printed)))
    # Plain gradient descent's row is right.
    best = influence.gradient_descent_noise(T, gamma=gamma, total=1.0) ** 2
    ratio = best / gamma ** ((t - T) / 2)
    assert ratio == pytest.approx(np.full(T, ratio[0]))


def test_theorem_4_9_s_bound_of_the_sampling_noise_fails() -> None:
    """alpha R' U_3^g <= alpha_g sigma_g^2 means sum <= kappa; the sum of gamma^(T-t) is up to kappa/eta_0."""
    momentum = Momentum(Problem(0.02, 1.0, 1.0, 100, 1, 1.0, total=1.0), beta=0.01)
    steps, n = 5_000, 10
    t = np.arange(1.0, steps + 1)
    own = 0.99 / (1 - 0.01**t) * (1 + 0.01**t) / 1.01
    summed = float(momentum.gamma ** (steps - t) @ own)
    assert summed > 1.02 * momentum.problem.kappa
    # With the factor 2 eta_0 of the bound it is at most twice Theorem 4.8's term.
    quiet = stochastic_momentum(momentum, np.zeros(steps), batch_size=n, sampling_std=1.0)
    term = sampling_term(momentum.problem, batch_size=n, sampling_std=1.0)
    assert term < quiet - momentum.gamma**steps <= 2 * term


# Hong, Wang and Zhou: unseen data.


def test_eq_15_with_its_extra_1_over_n_fails_on_one_point_data() -> None:
    """All data equal: f = F, so the true excess risk is the empirical one, however large N."""
    problem = Problem(1.0, 1.0, 1.0, 10_000, 1, 0.5, total=1.0)
    true = excess = 0.5  # f = theta^2/2 at theta = 1, the edge of where it is 1-Lipschitz
    printed = math.sqrt(2 / 10_000) * math.sqrt(excess) + 4 / (0.1 * 10_000)
    assert printed < 0.02 < true
    assert shalev_shwartz(problem, excess, failure=0.1, strongly_convex=True) >= true


def test_markov_gives_half_at_twice_the_mean_not_at_the_mean() -> None:
    """A risk of 1.01 with probability 0.98, else 0.51: k runs below the mean are rare, below twice the mean certain."""
    risk, chance = np.array([1.01, 0.51]), np.array([0.98, 0.02])
    mean = float(risk @ chance)
    assert mean == pytest.approx(1.0)
    assert float(chance[risk <= mean].sum()) == 0.02
    assert float(chance[risk <= 2 * mean].sum()) == 1
    problem = stated(10_000)
    found = high_probability(problem, lambda _: 0.01, failure=0.05, strongly_convex=True)
    assert found.bound == shalev_shwartz(problem, 2 * 0.01 * problem.initial_excess, failure=0.05, strongly_convex=True)


def test_a_linear_loss_attains_the_stability_that_theorem_4_12_halves() -> None:
    """f(theta; x) = x theta, |x| <= G; one example replaced, G by -G; T steps; loss compared at x = G."""
    G, N, T, eta = 2.0, 10, 7, 0.3
    ends = []
    for first in (G, -G):
        data, theta = np.r_[first, np.full(N - 1, 1.0)], 0.0
        for _ in range(T):
            theta -= eta * float(data.mean())
        ends.append(theta)
    apart = G * (ends[1] - ends[0])
    problem = Problem(0.01, 1.0, G, N, 1, 1.0, total=1.0)  # M bounds the curvature, which is 0
    assert apart == pytest.approx(stability(problem, steps=T, convex=True, learning_rate=np.full(T, eta)))
    assert apart == pytest.approx(2 * G**2 * eta * T / N)
    assert apart > G**2 * eta * T / N  # as printed


def test_the_additive_term_that_table_2_drops_is_the_larger_part() -> None:
    """And with it, at the T that the paper takes, the static schedule has the smaller bound."""
    problem = stated(1_000)
    static, dynamic = bounds.best_uniform(problem), bounds.best_dynamic(problem)
    added = [stability(problem, steps=best.steps, convex=True) for best in (static, dynamic)]
    assert added[1] > 5 * dynamic.bound
    assert static.bound + added[0] < dynamic.bound + added[1]
    # Only with T chosen for the sum the dynamic schedule is ahead again.
    sums = [
        best_by_stability(problem, bound, most=200, convex=True).bound for bound in (bounds.uniform, bounds.dynamic)
    ]
    assert sums[1] < sums[0] < static.bound + added[0]


def test_rows_without_constants_have_no_value_and_the_others_do() -> None:
    problem = stated(1_000)
    first = table_1(problem, beta=0.5)
    assert len(first) == 10
    assert [row.bound is not None for row in first] == [False] * 5 + [True] * 5
    second = table_2(problem, beta=0.5, failure=0.05, strongly_convex=True, convex=True)
    assert len(second) == 13
    assert [row.bound is not None for row in second] == [False] * 4 + [True] * 7 + [False] * 2


# Du et al.


def test_theorem_1_of_du_needs_the_dimension() -> None:
    """L = |theta|^2/2 in d = 100 from its minimum, eta = 0.1, 50 steps, s_t/(p N) = 1: an equality with d."""
    eta, steps, d = 0.1, 50, 100
    squared = [0.0]  # E|theta_t|^2 = E|grad L|^2
    for _ in range(steps):
        squared.append((1 - eta) ** 2 * squared[-1] + eta**2 * d)
    left = float(np.mean(squared[:-1]))
    terms = theorem_1(
        np.full(steps, 10.0),
        learning_rate=eta,
        smoothness=1.0,
        loss_drop=(squared[0] - squared[-1]) / 2,
        squared_gradient=np.array(squared[:-1]),
        clipped=np.zeros(steps),
        largest_gradient=1.0,
        dimension=d,
        sample_rate=1.0,
        examples=10,
    )
    printed = terms.total - terms.noise + terms.noise / d
    assert (round(left, 3), round(printed, 2)) == (4.709, -0.24)
    assert terms.total == pytest.approx(left, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.4, 1.373), (1.2, 1.186)])
def test_corollary_2_asks_for_up_to_root_two_times_too_much_noise(epsilon: float, ratio: float) -> None:
    p, steps, mu = 250 / 60_000, 5_000, mu_of(epsilon, 1 / 600_000)
    exact = 1 / math.sqrt(math.log1p(mu**2 / (p**2 * steps)))  # Eq. (13)
    scale = clt_noise_scale(np.ones(steps), np.ones(steps), sample_rate=p, total_mu=mu)
    assert scale.kind == "estimate"
    assert scale.value / exact == pytest.approx(ratio, abs=6e-4)
    assert scale.value / exact < math.sqrt(2)


def test_section_5_of_du_multiplies_by_what_eq_61_divides_by() -> None:
    """sum Q s^2 at a budget sum C^2/s^2: noise sqrt(C)/Q^(1/4) beats sqrt(C) Q^(1/4), and constant noise, by far."""
    clip, q = np.array([1.0, 1.0, 2.0]), np.array([1.0, 16.0, 81.0])

    def cost(s: np.ndarray) -> float:
        return float(np.sum(q * s**2) * np.sum(clip**2 / s**2))

    right, printed = np.sqrt(clip) / q**0.25, np.sqrt(clip) * q**0.25
    assert cost(right) < cost(np.ones(3)) < cost(printed)
    mu = curves.curvature(curves.from_array(clip), curves.from_array(q))(curves.progress(3))
    assert clip / mu == pytest.approx(right)
