"""The recipe for Lightning on the page is the plain `Trainer`'s run."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_tiny import plan_of
from torch import Tensor, nn

import decrescendo as dc

PAGE = Path(__file__).parents[2] / "docs/how-to/hugging-face.md"


@pytest.mark.filterwarnings("ignore")
def test_the_recipe_on_the_page_is_the_plain_trainers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = pytest.importorskip("lightning", exc_type=ImportError)
    plan = plan_of((2.0, 1.5, 1.2), (1.0, 0.8, 0.5), batch=6)
    monkeypatch.setattr("decrescendo.training.loop.source.certify", lambda ledger, budget: plan.guarantee)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = inputs, (inputs[:, 0] > 0).long()
    (code,) = re.findall(r"## Lightning.*?```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {
        "lightning": lightning, "torch": torch, "dc": dc, "loss": loss, "model": model(), "data": data, "plan": plan,
    }  # fmt: skip
    exec(code, names)
    other = model()
    run = dc.train(other, loss, data, plan, torch.optim.SGD(other.parameters(), lr=0.1), seed=0)
    assert names["run"].ledger == run.ledger == plan.ledger
    assert all(torch.equal(a, b) for a, b in zip(names["model"].parameters(), other.parameters(), strict=True))
