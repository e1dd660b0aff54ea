"""Budgets that hardly need noise are met or refused."""

import pytest

import decrescendo as dc


@pytest.mark.parametrize(
    ("epsilon", "delta", "rows", "batch"),
    [(1e-6, 0.999999, 20, 10), pytest.param(1.0, 0.999, 20, 19, marks=pytest.mark.slow)],
)
def test_a_budget_that_hardly_needs_noise_is_met_or_refused(
    epsilon: float, delta: float, rows: int, batch: int
) -> None:
    """It ended in an OverflowError."""
    plan = dc.calibrate(
        dc.Budget(epsilon, delta), dc.PoissonSampling(rows, batch), steps=3, privacy=[1.0] * 3, clip=[1.0] * 3
    )
    assert plan.guarantee.epsilon <= epsilon
