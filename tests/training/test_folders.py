"""Two processes write to one folder of checkpoints; folders that may not be read are refused."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.plans.plan import Plan
from decrescendo.training import cross_entropy
from decrescendo.training.persistence.checkpoint.checkpoints import read_state, states_in

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
    @pytest.mark.slow
    def test_write_one_after_the_other(self, tmp_path: Path) -> None:
        """One took for what a killed one had left what the other was writing, which ended in a FileNotFoundError."""
        code = """
import sys
from pathlib import Path
import torch
from decrescendo.training.persistence.checkpoint.checkpoints import write_state
for step in range(20):
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
