"""Plans of correlated noise for tests, made from a strategy by hand."""

import numpy as np

from decrescendo import Budget, Plan
from decrescendo.accounting import Guarantee, Unit
from decrescendo.plans import CyclicPoissonSampling, Schedule
from decrescendo.plans.sampling import planned
from decrescendo.plans.strategy import Strategy
from decrescendo.training.run import certify


def strategy_of(steps: int, bands: int, scale: float = 1.0) -> Strategy:
    """Coefficients of the square root of a sum over steps, with columns that move."""
    coefficients = np.cumprod(np.r_[1.0, 1 - 0.5 / np.arange(1, bands)])
    moving = 1 + 0.5 * np.sin(np.arange(steps))
    return Strategy.rounded(coefficients[:, None] * moving, scale)


def banded_plan(
    steps: int = 7, bands: int = 3, *, records: int = 40, batch: object = 8, clip: object = 1.0, scale: float = 0.8,
    unit: Unit = Unit.EXAMPLE, examples_per_person: int = 1, guarantee: Guarantee | None = None,
) -> Plan:  # fmt: skip
    """A plan of correlated noise, certified unless its ``guarantee`` is given."""
    strategy = strategy_of(steps, bands, scale)
    size = float(batch) if isinstance(batch, int | float) else np.array(batch, dtype=float)
    sampling = CyclicPoissonSampling(records, size, bands)
    budget = Budget(100.0, 1e-3 if guarantee is None else guarantee.delta, unit, examples_per_person)
    guarantee = guarantee or certify(planned(sampling, strategy.noise_multiplier), budget)
    schedule = Schedule(strategy.noise_multiplier, np.broadcast_to(clip, steps).astype(float))
    return Plan(budget, sampling, schedule, guarantee, strategy)


def inverse_of(strategy: Strategy) -> np.ndarray:
    """S^-1: row t has n_t as a sum of xi."""
    matrix = np.zeros((strategy.steps, strategy.steps))
    for k in range(strategy.bands):
        for t in range(strategy.steps - k):
            matrix[t + k, t] = strategy.matrix[k, t]
    return np.linalg.inv(matrix)
