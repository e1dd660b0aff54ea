"""What an adversary of trainings in several processes found; those of the ranks are in `tests/distributed`."""

import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.training.world import Alone


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
    assert any(sentence.startswith("Own, which summed and released") for sentence in run.assumptions)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rows", "batch"),
    [(1e-6, 0.999999, 20, 10), pytest.param(1.0, 0.999, 20, 19, marks=pytest.mark.slow)],
)
def test_a_budget_that_hardly_needs_noise_is_met_or_refused(
    epsilon: float, delta: float, rows: int, batch: int
) -> None:
    """It ended in an OverflowError."""
    plan = dc.calibrate(
        dc.Budget(epsilon, delta), dc.PoissonSampling(rows, batch), steps=3, privacy=[1.0] * 3, clip=[1.0] * 3
    )
    assert plan.guarantee.epsilon <= epsilon
