"""Facts: what a progress bar shows is never below what was spent, and costs a few queries a run."""

import numpy as np
import pytest
import torch

from decrescendo.accounting import Pld
from decrescendo.accounting.epsilon_curve import EpsilonCurve
from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import InvalidValue
from decrescendo.training import train

from .conftest import loss, make_model, make_plan, sgd

LEDGER = Ledger.of(np.linspace(3, 1.5, 9), 0.02)


def test_shown_is_an_upper_bound_at_every_step_and_tight_at_the_end() -> None:
    curve = EpsilonCurve(LEDGER, 1e-5, checkpoints=4)
    shown = [curve.at_step(step) for step in range(10)]
    assert shown[0] == 0
    for step in (1, 5, 9):
        assert shown[step] >= Pld(rtol=1e-2).bracket(LEDGER.first(step), 1e-5)[0]
    assert shown == sorted(shown)
    assert shown[-1] == Pld().bracket(LEDGER, 1e-5)[1]
    assert len(set(shown[1:])) == 4


def test_each_checkpoint_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    curve, asked = EpsilonCurve(LEDGER, 1e-5, checkpoints=4), []
    original = Pld.bracket
    monkeypatch.setattr(Pld, "bracket", lambda self, *args: asked.append(1) or original(self, *args))
    for step in range(10):
        curve.at_step(step)
    assert len(asked) == 4
    assert np.array_equal(curve.curve(), [curve.at_step(int(s)) for s in curve.steps])


@pytest.mark.parametrize(("rows", "checkpoints"), [(1, 20), (20, 20), (21, 20), (4800, 20), (7, 1)])
def test_the_last_checkpoint_is_the_end(rows: int, checkpoints: int) -> None:
    steps = EpsilonCurve(Ledger.of([1.0] * rows, 0.01), 1e-5, checkpoints=checkpoints).steps
    assert steps[-1] == rows
    assert len(steps) <= checkpoints
    assert (np.diff(steps) > 0).all()


def test_delta_is_checked() -> None:
    with pytest.raises(InvalidValue, match="delta"):
        EpsilonCurve(LEDGER, 0.0)


def test_training_shows_it(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, shown = make_model(), []
    plan = make_plan()
    train(model, loss, data, plan, sgd(model), seed=0, callback=lambda p: shown.append(p.epsilon_spent))
    assert shown == sorted(shown)
    assert shown[-1] == plan.guarantee.epsilon
