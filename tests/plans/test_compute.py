"""Facts: batch sizes and noise that are best together, against brute force; more compute or budget never hurts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from often import some
from scipy.optimize import minimize

import decrescendo as dc
from decrescendo.accounting import GdpClt
from decrescendo.errors import InvalidValue
from decrescendo.plans.allocation import allocate
from decrescendo.plans.compute import allocate_compute, best_by_clt, mean_noise_cost
from decrescendo.plans.lagrange import clt


def by_force(a: np.ndarray, price: float, total: float) -> float:
    """The least sum a / (p mu)^2 that a general optimiser finds from twenty starts."""
    size, rng, best = a.size, np.random.default_rng(0), np.inf

    def unpacked(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.exp(v[:size]), np.exp(v[size:])

    def utility(v: np.ndarray) -> float:
        p, x = unpacked(v)
        return float(np.log(np.sum(a / (p**2 * x))))

    def compute_left(v: np.ndarray) -> float:
        return float(np.log(total / unpacked(v)[0].sum()))

    def privacy_left(v: np.ndarray) -> float:
        p, x = unpacked(v)
        return float(np.log(price / np.sum(p**2 * np.expm1(x))))

    for _ in range(20):
        start = np.r_[np.log(total / size) + 0.3 * rng.normal(size=size), rng.normal(size=size)]
        found = minimize(
            utility, start, method="SLSQP", options={"maxiter": 500, "ftol": 1e-13},
            bounds=[(-20, 0)] * size + [(-20, 4)] * size,
            constraints=[{"type": "ineq", "fun": one} for one in (compute_left, privacy_left)],
        )  # fmt: skip
        if found.success and min(compute_left(found.x), privacy_left(found.x)) > -1e-6:
            best = min(best, float(np.exp(found.fun)))
    return best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "price", "total"),
    some([(2, 0.5, 0.3), (3, 2.0, 1.2), (4, 8.0, 0.2), (5, 0.01, 3.0), (3, 30.0, 2.9), (4, 0.5, 3.9)], 2),
)
def test_no_optimiser_finds_better_batches_and_noise(steps: int, price: float, total: float) -> None:
    a = np.exp(np.random.default_rng(steps).normal(size=steps) * 1.5)
    p, mu = best_by_clt(a, price, total)
    assert p.sum() == pytest.approx(total)
    assert np.sum(p**2 * np.expm1(mu**2)) == pytest.approx(price, rel=1e-6)
    assert p.max() <= 1
    force = by_force(a, price, total)
    assert force * (1 - 1e-5) <= np.sum(a / (p * mu) ** 2) <= force * (1 + 1e-6)


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8), st.floats(1e-4, 50), st.floats(1e-4, 0.99),
    st.floats(1.01, 2.0),
)  # fmt: skip
def test_more_compute_and_more_budget_never_hurt(values: list[float], price: float, share: float, more: float) -> None:
    a = np.array(values)
    total = share * a.size

    def utility(price: float, total: float) -> float:
        p, mu = best_by_clt(a, price, total)
        assert p.sum() == pytest.approx(total)
        return float(np.sum(a / (p * mu) ** 2))

    least = utility(price, total)
    assert utility(price * more, total) < least
    assert utility(price, min(total * more, float(a.size))) <= least * (1 + 1e-6)


def test_a_step_that_matters_more_has_the_larger_batch_and_the_less_noisy_mean() -> None:
    p, mu = best_by_clt(np.array([1.0, 3.0, 10.0]), 0.5, 0.3)
    assert p[0] < p[1] < p[2]
    assert mu[0] > mu[1] > mu[2]
    assert np.all(np.diff(1 / (p * mu)) < 0)


def test_every_example_at_every_step_leaves_the_noise_to_choose() -> None:
    a = np.array([1.0, 3.0, 10.0])
    p, mu = best_by_clt(a, 0.5, 3.0)
    assert p.tolist() == [1, 1, 1]
    np.testing.assert_allclose(mu, clt(a, 0.5))


@pytest.mark.slow
def test_a_plan_keeps_to_budget_and_compute_and_beats_noise_alone() -> None:
    budget, influence = dc.Budget(1.2, 1e-6), (1 - np.arange(12) / 12) ** 2
    plan = allocate_compute(budget, 60_000, steps=12, compute=6_000, influence=influence, clip=dc.curves.constant(1.0))
    assert plan.guarantee.epsilon <= 1.2
    assert (plan.guarantee.epsilon_lower or 0) > 1.19
    assert plan.batch_size.sum() == pytest.approx(6_000)
    noise_alone = allocate(
        budget, dc.PoissonSampling(60_000, 500), steps=12, influence=influence, clip=dc.curves.constant(1.0)
    )
    assert mean_noise_cost(plan, influence) < 0.85 * mean_noise_cost(noise_alone, influence)


def test_where_all_steps_matter_alike_all_are_alike() -> None:
    plan = allocate_compute(
        dc.Budget(1.0, 1e-5), 1_000, steps=5, compute=500, influence=[1.0] * 5, clip=[1.0] * 5, accountant=GdpClt()
    )  # fmt: skip
    assert np.ptp(plan.batch_size) < 1e-6
    assert np.ptp(plan.noise_multiplier) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.67, *(pytest.param(p, marks=pytest.mark.slow) for p in (0.85, 1.15, 1.33))])
def test_a_neighbourhood_of_the_plan_holds_nothing_much_better_for_the_real_accountant(power: float) -> None:
    """The shape is the theorem's; by the certified accountant, batches moved a third less or more gain under 1 %."""
    budget, influence = dc.Budget(1.0, 1e-5), np.array([1.0, 2.0, 4.0, 8.0])
    plan = allocate_compute(budget, 1_000, steps=4, compute=400, influence=influence, clip=[1.0] * 4)
    found = mean_noise_cost(plan, influence)
    sizes = plan.batch_size**power
    sizes = sizes * 400 / sizes.sum()
    for shape in (0.9, 1.0, 1.1):
        other = dc.calibrate(
            budget, dc.PoissonSampling(1_000, 100), steps=4, privacy=plan.noise_multiplier**-shape,
            clip=[1.0] * 4, batch=sizes,
        )  # fmt: skip
        assert mean_noise_cost(other, influence) > 0.99 * found


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidValue, match="compute must be > 0 and <= 500"):
        allocate_compute(dc.Budget(1.0, 1e-5), 100, steps=5, compute=501, influence=[1.0] * 5, clip=[1.0] * 5)
