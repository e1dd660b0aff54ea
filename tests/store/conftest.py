"""Plans of known cost, and a store for them."""

from functools import cache
from pathlib import Path

import pytest

from decrescendo.accounting.budget import Budget
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import constant, exponential
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training.store import Store

ROWS = 500


@cache
def plan(epsilon: float = 1.0, steps: int = 4, delta: float = 1e-6) -> Plan:
    """Certified close to ``epsilon``; noise that moves."""
    return calibrate(
        Budget(epsilon, delta),
        PoissonSampling(ROWS, 10),
        steps=steps,
        privacy=exponential(1.0, 2.0),
        clip=constant(1.0),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def make(path: Path, epsilon: float = 3.5, delta: float = 1e-5, composition: str = "sum") -> Store:
    return Store.create(path, Budget(epsilon, delta), dataset="patients", rows=ROWS, composition=composition)
