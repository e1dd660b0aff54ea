"""What a plan or a recipe only estimates is called so, and a store reserves what is certified."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.accounting import GdpClt
from decrescendo.errors import ImpossibleBudget
from decrescendo.plans.plan import Plan
from decrescendo.training import Among, Space, Task, cross_entropy
from decrescendo.training.search.recipe import Recipe
from decrescendo.training.search.tuning import tune

X, Y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
SAMPLING = dc.PoissonSampling(60, 60)
ONE = dc.curves.constant(1.0)
PLAN = dc.calibrate(dc.Budget(4.0, 1e-3), SAMPLING, steps=2, privacy=ONE, clip=ONE)


def build(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2))


def trained(model: nn.Module, plan: Plan = PLAN, loss: Any = cross_entropy, optimizer: Any = None) -> dc.Run:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return dc.train(model, loss, (X, Y), plan, optimizer, seed=0)


class TestOfEstimates:
    def test_a_store_says_what_it_would_reserve(self, tmp_path: Path) -> None:
        """It said that 2 did not fit into 2.1; certified it is 2.406."""
        plan = dc.calibrate(
            dc.Budget(2.0, 1e-3),
            dc.PoissonSampling(60, 20),
            steps=5,
            privacy=ONE,
            clip=ONE,
            accountant=GdpClt(),
        )
        store = dc.Store.create(tmp_path / "s.db", dc.Budget(2.1, 1e-2), dataset="d", rows=60)
        with pytest.raises(ImpossibleBudget, match=r"got one more of \(2\.4\d+, 0\.001\)"):
            store.start(plan)

    def test_a_recipe_says_whose_noise_its_trials_had(self, tmp_path: Path) -> None:
        def score(model: Any) -> dict[str, float]:
            return {"accuracy": 0.5}

        public = -X, Y.clone()
        own, other = (
            Task(model=build, loss=cross_entropy, data=data, batch=60, score=score) for data in ((X, Y), public)
        )
        space = Space({"clip": Among((1.0,))}, {"steps": 2, "schedule": "constant"})
        for accountant, said in ((GdpClt(), True), (None, False)):
            recipe = tune(own, other, dc.Budget(2.0, 1e-3), space, trials=1, accountant=accountant)
            recipe.save(tmp_path / "r.json")
            again = Recipe.load(tmp_path / "r.json")
            assert ("by GdpClt; a run's is by its own" in again.describe()) is said
            assert again == recipe
