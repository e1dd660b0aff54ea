"""A world of a user's own, which sums and releases: the run says that it is assumed to add the noise."""

import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.errors import InvalidValue
from decrescendo.training.processes.world import Alone, world_of


class Own:
    """A world of a user's own, of one process that says that it is two."""

    rank, size = 0, 2

    def training(self, number: int) -> "Own":
        return self

    agree = Alone.agree
    together = Alone.together
    draw = Alone.draw
    share = Alone.share
    hold = Alone.hold
    release = Alone.release
    watched = Alone.watched


def test_a_world_of_ones_own_is_said() -> None:
    """It may release sums without noise: nobody sees."""
    plan = dc.calibrate(dc.Budget(2.0, 1e-3), dc.PoissonSampling(20, 10), steps=1, privacy=[1.0], clip=[1.0])
    model = nn.Linear(2, 1)
    run = dc.train(
        model, lambda m, x: m(x)[:, 0].square(), torch.ones(20, 2), plan,
        torch.optim.SGD(model.parameters(), lr=0.1), seed=0, world=Own(),  # type: ignore[arg-type]
    )  # fmt: skip
    assert any(sentence.startswith("Assumed: Own (your World)") for sentence in map(str, run.assumptions))


def test_one_of_several_processes_that_torchrun_started_must_be_given_its_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without `join` each would train by itself, with noise of its own, and state the epsilon of one."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidValue, match="one of 2 processes must be given its world"):
        world_of(None)
    assert world_of(Alone()).size == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert world_of(None).size == 1
