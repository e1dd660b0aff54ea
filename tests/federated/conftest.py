"""A tiny federated problem, and plans that are judged once."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.accounting.ledger import Ledger
from decrescendo.federated import server
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.training.run import certify

CLIENTS = 40

# An app for real processes, not tests.
collect_ignore = ["flower_app"]
NOISE, CLIP = (2.0, 1.5, 1.2), (1.0, 0.8, 0.5)

certify_once = cache(certify)


@pytest.fixture(autouse=True)
def _judge_each_ledger_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "certify", certify_once)


def make_plan(
    noise: object = NOISE,
    clip: object = CLIP,
    *,
    cohort: float = 8,
    clients: int = CLIENTS,
    unit: Unit = Unit.CLIENT,
) -> Plan:
    """A plan with exactly these arrays, not calibrated."""
    sampling = PoissonSampling(clients, cohort)
    schedule = Schedule(np.asarray(noise, dtype=float), np.asarray(clip, dtype=float))
    ledger = Ledger.of(schedule.noise_multiplier, sampling.sample_rate)
    found = certify_once(ledger, Budget(1.0, 1e-5, unit))
    guarantee = Guarantee(found.epsilon, 1e-5, unit, "Pld", "upper")
    return Plan(Budget(max(guarantee.epsilon, 1e-3), 1e-5, unit), sampling, schedule, guarantee)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def records(count: int = CLIENTS) -> tuple[torch.Tensor, torch.Tensor]:
    """So many rows; the first coordinates say the class."""
    generator = torch.Generator().manual_seed(1)
    inputs = 2 * torch.randn(count, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def sgd(model: nn.Module, lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
