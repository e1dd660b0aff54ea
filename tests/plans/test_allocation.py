"""Facts: every schedule found is the best there is, by closed forms, brute force, exact integrals, and rivals."""

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from often import some
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import logsumexp, ndtr

import decrescendo as dc
from decrescendo.accounting import Gaussian, GdpClt, Pld, Rdp, Zcdp, mu_of
from decrescendo.accounting.pld.marginal_costs import MarginalCosts
from decrescendo.errors import ImpossibleBudget, InvalidType, InvalidValue
from decrescendo.plans.allocation import allocate, noise_cost
from decrescendo.plans.lagrange import clt, disjoint_epochs, solve, squares

BUDGET = dc.Budget(1.0, 1e-5)
WEIGHTS = st.lists(st.floats(-6, 6), min_size=2, max_size=6).map(lambda logs: np.exp(np.array(logs)))


def brute(spend: Any, a: np.ndarray) -> float:
    """The smallest sum of a/x, x = ``spend``(share of the budget), over all ways to share it."""

    def log_sum(y: np.ndarray) -> float:
        free = np.r_[y, 0.0]
        return float(logsumexp(np.log(a) - np.log(spend(np.exp(free - logsumexp(free))))))

    return math.exp(minimize(log_sum, np.zeros(a.size - 1), method="BFGS", options={"gtol": 1e-8}).fun)


@pytest.mark.slow
@given(WEIGHTS)
def test_squares_are_the_brute_force_optimum(a: np.ndarray) -> None:
    mu = squares(a)
    mu /= math.sqrt(np.sum(mu**2))
    assert np.sum(a / mu**2) == pytest.approx(brute(lambda share: share, a), rel=1e-6)
    assert np.sum(a / mu**2) == pytest.approx(np.sum(np.sqrt(a)) ** 2, rel=1e-12)  # Hong Lemma 4.3


@given(WEIGHTS, st.floats(-6, 8))
def test_the_clt_solution_is_the_brute_force_optimum(a: np.ndarray, log_total: float) -> None:
    total = math.exp(log_total)
    mu = clt(a, total)
    assert np.expm1(mu**2).sum() == pytest.approx(total, rel=1e-9)
    assert np.sum(a / mu**2) == pytest.approx(brute(lambda share: np.log1p(share * total), a), rel=1e-6)


@given(WEIGHTS)
def test_the_clt_solution_is_the_closed_form_where_mu_is_small(a: np.ndarray) -> None:
    mu = clt(a, 1e-9)
    assert mu / mu[0] == pytest.approx(squares(a) / squares(a)[0], rel=1e-6)


@given(WEIGHTS, st.integers(1, 4))
def test_disjoint_epochs_are_the_brute_force_optimum(a: np.ndarray, batches: int) -> None:
    epoch = np.arange(a.size) // batches
    mu = disjoint_epochs(a, batches)
    mu /= math.sqrt(sum(np.max(mu[epoch == e] ** 2) for e in range(epoch[-1] + 1)))
    sums = np.bincount(epoch, weights=a)  # within an epoch all take the largest: less noise costs nothing more
    best = brute(lambda share: share, sums) if sums.size > 1 else sums[0]
    assert np.sum(a / mu**2) == pytest.approx(best, rel=1e-6)


def one_step(eps: np.ndarray, z: float, p: float, direction: str) -> np.ndarray:
    """delta(eps) of one step, MATH of a sampled Gaussian as it stands: x* and two normal probabilities."""
    sign = 1 if direction == "remove" else -1
    inner = np.expm1(sign * eps) + p
    x = 0.5 + z**2 * np.log(np.maximum(inner, 1e-300) / p)
    if direction == "remove":
        q_mass, n_mass = ndtr(-x / z), ndtr((1 - x) / z)
        h = (1 - p) * q_mass + p * n_mass - np.exp(eps) * q_mass
        return np.where(inner <= 0, 1 - np.exp(eps), h)
    h = ndtr(x / z) - np.exp(eps) * ((1 - p) * ndtr(x / z) + p * ndtr((x - 1) / z))
    return np.where(inner <= 0, 0.0, h)


def two_steps(eps: float, z: np.ndarray, p: float) -> float:
    """delta(eps) of two steps: the first integrated over its outcome, the second in closed form."""
    x = np.linspace(-12 * z[0], 1 + 12 * z[0], 8_001)
    q = np.exp(-((x / z[0]) ** 2) / 2)
    n = np.exp(-(((x - 1) / z[0]) ** 2) / 2)
    loss = np.log(1 - p + p * np.exp((2 * x - 1) / (2 * z[0] ** 2)))
    width = (x[1] - x[0]) / (z[0] * math.sqrt(2 * math.pi))
    remove = np.sum(((1 - p) * q + p * n) * one_step(eps - loss, z[1], p, "remove")) * width
    add = np.sum(q * one_step(eps + loss, z[1], p, "add")) * width
    return float(max(remove, add))


def best_of_two(eps: float, delta: float, p: float, q: np.ndarray) -> tuple[float, Any]:
    """The smallest sum of q z^2 for two steps, by exact integrals and a search over the ratio; and that search."""

    def cost(log_ratio: float) -> float:
        ratio = np.array([1.0, math.exp(log_ratio)])

        def gap(log_z: float) -> float:
            return math.log(max(two_steps(eps, math.exp(log_z) * ratio, p), 1e-300) / delta)

        z = math.exp(brentq(gap, math.log(0.2), math.log(200.0), xtol=1e-9)) * ratio
        return math.log(np.sum(q * z**2))

    found = minimize_scalar(cost, bounds=(-4, 1), method="bounded", options={"xatol": 1e-4})
    return found.fun, cost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("eps", "delta", "p", "q"),
    some(
        [
            (1.0, 1e-5, 0.001, (1.0, 50.0)),  # rare records: far from any small-mu regime
            (0.3, 1e-6, 0.5, (1.0, 20.0)),
            pytest.param(1.0, 1e-5, 0.1, (1.0, 50.0), marks=pytest.mark.slow),
            pytest.param(4.0, 1e-5, 0.02, (1.0, 9.0), marks=pytest.mark.slow),
            (8.0, 1e-4, 0.9, (1.0, 1000.0)),
        ],
        2,
    ),
)
def test_two_steps_reach_the_optimum_of_exact_integrals(
    eps: float, delta: float, p: float, q: tuple[float, float]
) -> None:
    influence = np.array(q)
    best, cost = best_of_two(eps, delta, p, influence)
    plan = allocate(
        dc.Budget(eps, delta),
        dc.PoissonSampling(10**6, 10**6 * p),
        steps=2,
        influence=influence,
        clip=dc.curves.constant(1.0),
    )
    z = plan.noise_multiplier
    assert two_steps(eps, z, p) <= delta  # the certificate, by another way
    assert cost(math.log(z[1] / z[0])) - best < 3e-5  # the shape: nothing is left to gain
    assert math.log(noise_cost(plan, influence)) - best < 2e-3  # the scale: what certifying costs


def table(run: np.ndarray, p: float, eps: float, delta: float) -> MarginalCosts:
    low, high = math.exp(run.min() - 0.5), math.exp(run.max() + 0.5)
    return MarginalCosts.of(dc.Ledger.of(np.exp(-run), p), eps, delta, mu_low=low, mu_high=high)


def test_prices_are_the_derivatives_of_the_exact_delta() -> None:
    eps, p = 1.0, 0.02
    x = np.log([1.0, 1.2])

    def log_delta(y: np.ndarray) -> float:
        return math.log(two_steps(eps, np.exp(-y), p))

    run = dc.Ledger.of(np.exp(-x), p)
    prices = MarginalCosts.of(run, eps, math.exp(log_delta(x)), mu_low=1.0, mu_high=1.2)  # both steps are nodes
    assert max(prices.log_deltas(x)) == pytest.approx(log_delta(x), abs=0.02)
    slopes = prices.slopes(x, 1.0)[[0, -1]]
    for t in range(2):
        step = 1e-3 * np.eye(2)[t]
        assert slopes[t] == pytest.approx((log_delta(x + step) - log_delta(x - step)) / 2e-3, rel=0.01)


def test_a_schedule_that_stands_has_equal_rates_of_exchange() -> None:
    """The condition of Lagrange, seen from outside: by differences of the run's own log delta."""
    eps, delta, p = 1.0, 1e-5, 0.02
    a = np.array([1.0, 3.0, 30.0, 10.0, 0.2])
    start = np.log([0.6, 0.6, 0.8, 0.7, 0.5])
    eps = Pld().estimate(dc.Ledger.of(np.exp(-start), p), delta)
    prices = table(start, p, eps, delta)
    x = solve(a, start, prices, math.log(delta))
    assert max(prices.log_deltas(x)) == pytest.approx(math.log(delta), abs=1e-6)
    rates = []
    for t in range(a.size):
        step = 1e-4 * np.eye(a.size)[t]
        slope = (max(prices.log_deltas(x + step)) - max(prices.log_deltas(x - step))) / 2e-4
        rates.append(slope / (2 * a[t] * math.exp(-2 * x[t])))
    # Prices are read off a table of noise: what lies between its entries is off by up to 0.46 % here.
    assert rates == pytest.approx([rates[0]] * a.size, rel=6e-3)


def test_full_batches_are_in_closed_form_for_every_accountant_of_them() -> None:
    sampling = dc.PoissonSampling(100, 100)
    clip, influence = dc.curves.sensitivity_decay(2.0, rho_c=3.0), dc.curves.linear(1.0, 9.0)
    shape = dc.curves.curvature(clip, influence)(np.arange(1, 8) / 7)
    for judge in (Pld(), Gaussian(), Zcdp()):
        plan = allocate(BUDGET, sampling, steps=7, influence=influence, clip=clip, accountant=judge)
        z = plan.noise_multiplier
        assert z * shape == pytest.approx(np.full(7, z[0] * shape[0]), rel=1e-12)
        assert plan.guarantee.accountant == judge.name
        assert plan.guarantee.epsilon <= 1.0


def test_the_clt_is_asked_for_its_own_optimum_and_stays_an_estimate() -> None:
    sampling = dc.PoissonSampling(1000, 20)
    influence = np.array([1.0, 40.0, 7.0])
    plan = allocate(BUDGET, sampling, steps=3, influence=influence, clip=dc.curves.constant(1.0), accountant=GdpClt())
    mu = clt(influence, (mu_of(1.0, 1e-5) / 0.02) ** 2)
    assert 1 / plan.noise_multiplier == pytest.approx(mu, rel=1e-3)
    assert plan.guarantee.kind == "estimate"


@pytest.mark.slow
def test_a_search_gone_wrong_costs_utility_and_never_privacy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever mu the estimates lead to, the plan is what the ordinary calibration certifies."""
    wild = [np.array([2.0, 1.0, 0.7]), np.array([0.3, 0.3, 1.0])]
    monkeypatch.setattr("decrescendo.plans.allocation._contenders", lambda *_: wild)
    sampling = dc.PoissonSampling(1000, 50)
    plan = allocate(BUDGET, sampling, steps=3, influence=[1.0, 2.0, 3.0], clip=dc.curves.constant(1.0))
    lower, upper = Pld().bracket(plan.ledger, BUDGET.delta)
    assert (plan.guarantee.epsilon_lower, plan.guarantee.epsilon) == (lower, upper)
    assert 0.999 < upper <= 1.0
    mu = 1 / plan.noise_multiplier
    assert any(mu / mu[0] == pytest.approx(shape / shape[0]) for shape in wild)


def test_influences_that_cancel_the_clip_curve_give_even_noise() -> None:
    clip = dc.curves.sensitivity_decay(1.0, rho_c=4.0)
    influence = lambda u: 1 / clip(u) ** 2  # noqa: E731
    plan = allocate(BUDGET, dc.PoissonSampling(1000, 50), steps=12, influence=influence, clip=clip)
    assert np.ptp(plan.noise_multiplier) == 0


@pytest.mark.slow
def test_nearly_even_influences_give_nearly_even_noise() -> None:
    influence = 1 + 1e-3 * np.linspace(0, 1, 12)
    plan = allocate(BUDGET, dc.PoissonSampling(1000, 50), steps=12, influence=influence, clip=dc.curves.constant(1.0))
    assert np.ptp(np.log(plan.noise_multiplier)) < 5e-4


def test_a_budget_beyond_what_can_be_judged_is_refused_in_words() -> None:
    """On the way there the noise is too little to be judged, which ended in an error of the logarithm."""
    with pytest.raises(ImpossibleBudget, match="the nearest is epsilon="):
        allocate(
            dc.Budget(300.0, 1e-5), dc.PoissonSampling(1000, 10), steps=4, influence=[8.0, 4.0, 2.0, 1.0],
            clip=dc.curves.constant(1.0),
        )  # fmt: skip


def test_one_step_has_nothing_to_divide() -> None:
    sampling = dc.PoissonSampling(1000, 50)
    plan = allocate(BUDGET, sampling, steps=1, influence=[3.0], clip=[2.0])
    assert plan == dc.calibrate(BUDGET, sampling, steps=1, privacy=[1.0], clip=[2.0])


@pytest.mark.slow
def test_only_ratios_of_influences_matter() -> None:
    sampling, influence = dc.PoissonSampling(1000, 50), np.array([1.0, 5.0, 2.0])
    plans = [
        allocate(BUDGET, sampling, steps=3, influence=factor * influence, clip=dc.curves.constant(1.0))
        for factor in (1.0, 1e200)
    ]
    for plan in plans[1:]:
        assert plan.noise_multiplier == pytest.approx(plans[0].noise_multiplier, rel=1e-9)


@pytest.mark.slow
def test_influences_twelve_orders_apart() -> None:
    sampling = dc.PoissonSampling(1000, 50)
    influence = np.geomspace(1e-12, 1.0, 5)
    plan = allocate(BUDGET, sampling, steps=5, influence=influence, clip=dc.curves.constant(1.0))
    assert np.all(np.diff(plan.noise_multiplier) <= 0)
    even = dc.calibrate(BUDGET, sampling, steps=5, privacy=dc.curves.constant(1.0), clip=dc.curves.constant(1.0))
    assert noise_cost(plan, influence) < 0.8 * noise_cost(even, influence)


def rivals(plan: dc.Plan, influence: np.ndarray, rho: float, *, without: str | None = None) -> dict[str, float]:
    """Their sums over the plan's, each calibrated to the plan's own budget."""
    clip = plan.clip_norm
    shapes = {
        "uniform": dc.curves.constant(1.0),
        "growing mu": dc.curves.growing_mu(rho),
        "sqrt(C)": dc.curves.from_clip(clip),
    }
    return {
        name: noise_cost(
            dc.calibrate(plan.budget, plan.sampling, steps=plan.steps, privacy=shape, clip=clip), influence
        )
        / noise_cost(plan, influence)
        for name, shape in shapes.items()
        if name != without
    }


def drawn(seed: int, most: int, rarest: float = 1e-3) -> tuple[dc.Plan, np.ndarray, float]:
    """A problem of the kinds people have (learning rates, influences, clip curves) or random; its plan; a rho_mu.

    Half of the rho_mu are those of the growing mu that fits the plan best, the hardest of that kind to beat.
    """
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(2, most))
    u = np.arange(1, steps + 1) / steps
    before = u - 1 / steps
    rate = [np.ones(steps), 1 - before, (1 + np.cos(math.pi * before)) / 2][rng.integers(3)]
    influence = rate**2 * np.exp(rng.uniform(-6, 6) * u)
    if rng.random() < 0.3:
        influence = np.exp(rng.uniform(-4, 4, steps))
    clip = np.exp(-rng.uniform(-1, 2) * u)
    p = math.exp(rng.uniform(math.log(rarest), math.log(0.9)))
    budget = dc.Budget(math.exp(rng.uniform(math.log(0.2), math.log(8.0))), 10 ** rng.uniform(-8, -4))
    plan = allocate(budget, dc.PoissonSampling(10**6, 10**6 * p), steps=steps, influence=influence, clip=clip)
    rho = math.exp(rng.uniform(-1.5, 1.5))
    if seed % 2:
        rho = math.exp(-np.polyfit(u, np.log(plan.noise_multiplier), 1)[0])
    return plan, influence, rho


# Certified epsilons end within 1e-4 of the budget: equal epsilon means equal up to this, as noise variance.
TOLERANCE = 5e-4


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "epsilon"), some([(1e-3, 0.2), (0.1, 0.2), (0.5, 1.0)], 1))
def test_prices_far_beyond_a_budget_do_not_overflow(rate: float, epsilon: float) -> None:
    """Tables may reach up to mu = 12 for runs whose mu is a hundredth of that; a warning would be an error here."""
    plan = dc.calibrate(
        dc.Budget(epsilon, 1e-8), dc.PoissonSampling(10**6, 10**6 * rate), steps=20, privacy=dc.curves.constant(1.0),
        clip=dc.curves.constant(1.0),
    )  # fmt: skip
    mu = 1 / plan.noise_multiplier
    prices = MarginalCosts.of(plan.ledger, epsilon, 1e-8, mu_low=0.9 * float(mu.min()), mu_high=12.0)
    for direction in prices.directions:
        assert np.isfinite(direction.log_phi).all()
        assert np.isfinite(direction.change).all()
        assert np.isfinite(direction.slopes(np.log(mu))).all()
    # What is far away changes nothing near the run.
    assert max(prices.log_deltas(np.log(mu))) == pytest.approx(math.log(1e-8), abs=0.02)
    assert max(prices.log_deltas(np.full(20, math.log(11.0)))) == 0.0  # all is lost, and the table says so


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(2), 1))  # two hundred more: below, slow
def test_never_worse_than_the_usual_schedules(seed: int) -> None:
    plan, influence, rho = drawn(seed, most=8, rarest=0.02)  # accounting of rare records is slow
    assert 0.999 * plan.budget.epsilon < plan.guarantee.epsilon <= plan.budget.epsilon
    left_out = "sqrt(C)" if seed % 2 else "growing mu"  # odd seeds have the growing mu that is hardest to beat
    for name, ratio in rivals(plan, influence, rho, without=left_out).items():
        assert ratio > 1 - TOLERANCE, name


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_never_worse_than_the_usual_schedules_at_length(seed: int) -> None:
    plan, influence, rho = drawn(seed, most=400)
    for name, ratio in rivals(plan, influence, rho).items():
        assert ratio > 1 - TOLERANCE, name


@pytest.mark.slow
def test_five_thousand_steps_in_half_a_minute() -> None:
    steps = 5000
    rate = (1 + np.cos(math.pi * np.arange(steps) / steps)) / 2
    started = time.process_time()
    budget, sampling = dc.Budget(1.2, 1e-6), dc.PoissonSampling(60_000, 250)
    plan = allocate(budget, sampling, steps=steps, influence=rate**2, clip=dc.curves.constant(1.0))
    assert time.process_time() - started < 30
    even = dc.calibrate(budget, sampling, steps=steps, privacy=dc.curves.constant(1.0), clip=dc.curves.constant(1.0))
    assert noise_cost(plan, rate**2) < 0.8 * noise_cost(even, rate**2)


@given(WEIGHTS)
def test_noise_cost_is_the_sum_it_says(influence: np.ndarray) -> None:
    plan = dc.calibrate(
        BUDGET,
        dc.PoissonSampling(10, 10),
        steps=influence.size,
        privacy=influence,
        clip=1 / influence,
        accountant=Gaussian(),
    )
    by_hand = sum(q * c**2 * z**2 for q, c, z in zip(influence, plan.clip_norm, plan.noise_multiplier, strict=True))
    assert noise_cost(plan, influence) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"accountant": Rdp()}, InvalidType, "Take the shape from Pld"),
        ({"influence": [1.0, 0.0]}, InvalidValue, r"must be > 0 at every step, got influence\[1\]=0.0"),
        ({"influence": [1.0, math.inf]}, InvalidValue, "must be > 0"),
        ({"influence": [1.0]}, InvalidValue, "one value a step"),
        ({"clip": [1.0, -1.0]}, InvalidValue, "must be > 0"),
        ({"steps": 0}, InvalidValue, "steps must be >= 1"),
        (
            {"budget": dc.Budget(3.0, 1e-3), "sampling": dc.PoissonSampling(10_000, 1)},
            ImpossibleBudget,
            "delta allows",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(changes: dict[str, Any], error: type, words: str) -> None:
    given_: dict[str, Any] = {
        "budget": BUDGET, "sampling": dc.PoissonSampling(1000, 50), "steps": 2, "influence": [1.0, 2.0],
        "clip": [1.0, 1.0],
    }  # fmt: skip
    with pytest.raises(error, match=words):
        allocate(**(given_ | changes))
