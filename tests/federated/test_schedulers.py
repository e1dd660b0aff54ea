"""The learning-rate scheduler of a federated run: stepped after each release, and gone on with from the journal."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.federated import Clients, Outcome, Placement, simulate

from .conftest import loss, make_model, make_plan, records


class Halves(LRScheduler):
    def get_lr(self) -> Any:
        return [base * 0.5**self.last_epoch for base in self.base_lrs]


def simulated(
    make: Any, journal: Path | None = None, until: int = 0
) -> tuple[dict[str, torch.Tensor], list[float], Outcome]:
    model, rates = make_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)

    def after(state: Any) -> bool:
        rates.append(optimizer.param_groups[0]["lr"])
        return state.step == until

    outcome = simulate(
        model, loss, Clients.equal(records(40), records=1), make_plan(), optimizer, seed=3,
        placement=Placement.CENTRAL, scheduler=make, journal=journal, callback=after,
    )  # fmt: skip
    return {name: value.detach() for name, value in model.named_parameters()}, rates, outcome


def test_it_sets_the_rates_and_nothing_is_assumed_of_them(tmp_path: Path) -> None:
    whole, rates, outcome = simulated(lambda optimizer: ExponentialLR(optimizer, 0.5))
    assert rates == [0.5 ** (at + 1) for at in range(len(rates))]
    assert not {"optimizer-settings-changed", "own-scheduler"} & {one.code for one in outcome.assumptions}
    _, first, _ = simulated(lambda optimizer: ExponentialLR(optimizer, 0.5), tmp_path / "run", until=2)
    with pytest.raises(FileRefused, match="with a scheduler, got none"):
        simulated(None, tmp_path / "run")
    again, left, _ = simulated(lambda optimizer: ExponentialLR(optimizer, 0.5), tmp_path / "run")
    assert first + left == rates
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_a_class_of_the_users_is_named_and_one_that_goes_by_scores_refused() -> None:
    _, rates, outcome = simulated(Halves)
    assert rates[:2] == [0.5, 0.25]
    assert "own-scheduler" in {one.code for one in outcome.assumptions}
    with pytest.raises(InvalidValue, match="by scores"):
        simulated(torch.optim.lr_scheduler.ReduceLROnPlateau)
