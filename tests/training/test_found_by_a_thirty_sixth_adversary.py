"""What an adversary of what runs leave to each other, of folders with two processes, and of recurrent layers found."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.accounting import GdpClt
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import FileRefused, ImpossibleBudget, InvalidValue
from decrescendo.plans.plan import Plan
from decrescendo.training import Among, Space, Task, cross_entropy
from decrescendo.training.checkpoint.checkpoints import read_state, states_in
from decrescendo.training.tuning import Recipe, tune

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


class TestTwoProcessesInOneFolder:
    def test_write_one_after_the_other(self, tmp_path: Path) -> None:
        """One took for what a killed one had left what the other was writing, which ended in a FileNotFoundError."""
        code = """
import sys
from pathlib import Path
import torch
from decrescendo.training.checkpoint.checkpoints import write_state
for step in range(60):
    write_state(Path(sys.argv[1]), step % 3, {"x": torch.ones(9)}, kept=2)
"""
        lives = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
        assert [life.wait(timeout=100) for life in lives] == [0, 0, 0]
        assert len(states_in(tmp_path)) == 2
        assert all(read_state(path).state["x"].sum() == 9 for path in states_in(tmp_path))
        assert not list(tmp_path.glob(".*"))

    def test_a_folder_that_may_not_be_looked_into_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def denied(path: object) -> Any:
            raise PermissionError(13, "Permission denied", str(path))

        run = trained(build())
        checkpoints = dc.Checkpoints(tmp_path, resume=True)
        monkeypatch.setattr(os, "listdir", denied)
        monkeypatch.setattr(Path, "iterdir", denied)
        with pytest.raises(FileRefused, match="can be read, got Permission denied"):
            checkpoints.newest()
        with pytest.raises(FileRefused, match="can be read, got Permission denied"):
            dc.Checkpoints(tmp_path)
        with pytest.raises(InvalidValue, match="can be read, got folder"):
            run.save(tmp_path)
        monkeypatch.setattr(Path, "exists", denied)
        with pytest.raises(FileRefused, match="can be read, got Permission denied"):
            dc.Checkpoints(tmp_path / "in" / "it")


class TestRecurrentLayers:
    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    @pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
    def test_without_gradients_they_are_constants(self, kind: Any, off: Any) -> None:
        """As a target from the model itself."""
        torch.manual_seed(0)
        model, x = kind(2, 3, batch_first=True), torch.randn(4, 3, 2)

        def loss(model: Any, batch: Tensor) -> Tensor:
            with off():
                target = model(batch)[0]
            return (model(batch * 0.5)[0] - target.clone()).square().sum((1, 2))

        found, expected = (kind_of(model, loss).clipped_sum(x, 0.5) for kind_of in (Engine, Reference))
        for name, total in expected.gradients.items():
            torch.testing.assert_close(found.gradients[name], total, rtol=1e-5, atol=1e-6)

    def test_in_half_precision_without_gradients(self) -> None:
        """Copies made in inference mode have no count of writes."""
        torch.manual_seed(0)
        model, x = nn.GRU(2, 3, batch_first=True).bfloat16(), torch.randn(4, 3, 2).bfloat16()

        def loss(model: Any, batch: Tensor) -> Tensor:
            with torch.inference_mode():
                model(batch)
            return model(batch)[0].float().square().sum((1, 2))

        assert Engine(model, loss).clipped_sum(x, 0.5).diagnostics.examples == 4


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
            Task(model=build, loss=cross_entropy, data=data, batch=60, score=score)
            for data in ((X, Y), public)
        )
        space = Space({"clip": Among((1.0,))}, {"steps": 2, "schedule": "constant"})
        for accountant, said in ((GdpClt(), True), (None, False)):
            recipe = tune(own, other, dc.Budget(2.0, 1e-3), space, trials=1, accountant=accountant)
            recipe.save(tmp_path / "r.json")
            again = Recipe.load(tmp_path / "r.json")
            assert ("by GdpClt; a run's is by its own" in again.describe()) is said
            assert again == recipe
