"""Which plans an audit in one run takes, and what a store keeps of one that fails."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import decrescendo as dc

ROWS = 60


def audit(plan: Any, loss: Any = lambda model, batch: model(batch)[:, 0], **more: Any) -> Any:
    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    return dc.audit.one_run(nn.Linear(2, 1), loss, torch.ones(ROWS, 2), plan, sgd, canaries=20, **more)


def test_strata_are_refused_and_people_of_one_row_are_rows() -> None:
    strata = dc.StratifiedPoissonSampling({"a": (30, 3), "b": (30, 9)})
    with pytest.raises(dc.errors.InvalidValue, match="draws all rows at one rate, got strata"):
        audit(dc.calibrate(dc.Budget(4.0, 1e-4), strata, steps=2, clip=1.0), seed=0)
    person = dc.Budget(4.0, 1e-4, dc.Unit.PERSON)
    found = audit(dc.calibrate(person, dc.PoissonSampling(ROWS, 6), steps=2, clip=1.0), seed=0)
    assert found.lower <= 4.0


def test_one_that_fails_before_a_release_gives_its_reservation_back(tmp_path: Path) -> None:
    def fails(model: nn.Module, batch: Tensor) -> Tensor:
        raise RuntimeError("no loss")

    store = dc.Store.create(tmp_path / "s.db", dc.Budget(9.0, 1e-3), dataset="d", rows=ROWS)
    plan = dc.calibrate(dc.Budget(4.0, 1e-4), dc.PoissonSampling(ROWS, 6), steps=2, clip=1.0)
    with pytest.raises(RuntimeError, match="no loss"):
        audit(plan, fails, seed=dc.Secure(), store=store)
    assert [entry.state for entry in store.entries()] == ["finished"]
    assert "reserved (0, 0)" in store.describe()
    store.close()
