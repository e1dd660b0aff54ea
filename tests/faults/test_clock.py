"""The machine's clock jumps, backwards too: it is shown to people, and decides nothing."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing.seeds import ROWS, plan
from often import some

from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.training import Trainer
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.run import Run
from decrescendo.training.store import Store
from decrescendo.training.store import store as stores

PROMISED = Guarantee(60.0, 1e-5, Unit.EXAMPLE, "Pld", "upper")
SMALL = Plan(Budget(60.0, 1e-5), PoissonSampling(40, 8), Schedule([2.0] * 4, [1.0] * 4), PROMISED)


class Backwards:
    """In place of ``datetime``: every reading is a year before the last."""

    read = 0

    @classmethod
    def now(cls, zone: Any) -> datetime:
        cls.read += 1
        return datetime(2030, 1, 1, tzinfo=UTC) - timedelta(days=365 * cls.read)


def test_runs_are_listed_in_the_order_they_were_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "datetime", Backwards)
    store = Store.create(tmp_path / "s.db", Budget(20.0, 1e-4), dataset="patients", rows=ROWS)
    for label in "abc":
        store.start(plan(), label=label)
    entries = store.entries()
    assert [entry.label for entry in entries] == ["a", "b", "c"]
    assert sorted(entry.started for entry in entries) == [entry.started for entry in entries][::-1]
    store.close()


def _train(folder: Path, stop: int | None) -> Run | None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = (torch.arange(80, dtype=torch.float32).view(40, 2) / 80, torch.arange(40) % 2)

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    trainer = Trainer(model, loss, SMALL, optimizer, seed=0, checkpoints=Checkpoints(folder, 1, resume=True))
    for step, batch in enumerate(trainer.batches(data)):
        if step == stop:
            return None
        trainer.step(batch)
    return trainer.finish()


def _jumping(original: Callable[[], float]) -> Callable[[], float]:
    """An hour back at each reading."""
    calls = [0]

    def read() -> float:
        calls[0] += 1
        return original() - 3600 * calls[0]

    return read


@pytest.mark.parametrize(
    "clocks", some([(("time", "monotonic"),), (("time",),)], 1), ids=["wall and monotonic", "wall"]
)
def test_a_training_through_jumps_is_the_same_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clocks: tuple[str, ...]
) -> None:
    """Wall clocks jump. A monotonic one does not within a process, but starts anew with the machine: also in a resumed
    run, nothing but the seconds shown may depend on it."""
    calm = _train(tmp_path / "calm", None)
    for clock in clocks:
        monkeypatch.setattr(time, clock, _jumping(getattr(time, clock)))
    assert _train(tmp_path / "rough", 2) is None
    rough = _train(tmp_path / "rough", None)
    assert calm is not None
    assert rough is not None
    assert rough.ledger == calm.ledger
    assert rough.guarantee == calm.guarantee
    assert all(torch.equal(rough.weights[name], value) for name, value in calm.weights.items())
