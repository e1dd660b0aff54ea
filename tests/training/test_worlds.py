"""A world of a user's own, which sums and releases: the run says that it is assumed to add the noise."""

import torch
from torch import nn

import decrescendo as dc
from decrescendo.training.processes.world import Alone


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
