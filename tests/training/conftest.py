"""A tiny problem, and plans made without calibration: here it matters what training does with a plan."""

from collections.abc import Callable
from functools import cache
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn

from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.accounting.ledger import Ledger
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.training import Trainer
from decrescendo.training.run import certify

ROWS = 40

# Judging costs much more than the tiny trainings here, and these share a few ledgers: each is judged once.
certify_once = cache(certify)


@pytest.fixture(autouse=True)
def _judge_each_ledger_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decrescendo.training.loop.source.certify", certify_once)


def make_plan(
    noise: object = (2.0, 1.5, 1.2),
    clip: object = (1.0, 0.8, 0.5),
    *,
    batch: float = 8,
    rows: int = ROWS,
    judge: bool = True,
) -> Plan:
    """A plan with exactly these arrays, not calibrated; without ``judge`` its guarantee is a stand-in."""
    sampling = PoissonSampling(rows, batch)
    schedule = Schedule(np.asarray(noise, dtype=float), np.asarray(clip, dtype=float))
    ledger = Ledger.of(schedule.noise_multiplier, sampling.sample_rate)
    stand_in = Guarantee(1.0, 1e-5, Unit.EXAMPLE, "nobody", "estimate")
    guarantee = certify_once(ledger, Budget(1.0, 1e-5)) if judge else stand_in
    return Plan(Budget(guarantee.epsilon, 1e-5), sampling, schedule, guarantee)


def make_model(activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def stepped(trainer: Trainer, data: object, steps: int) -> Trainer:
    """After so many more steps at most."""
    for batch in islice(trainer.batches(data), steps):
        trainer.step(batch)
    return trainer


def sgd(model: nn.Module, lr: float = 0.5) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()
