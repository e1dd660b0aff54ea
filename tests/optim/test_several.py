"""Several optimisers over one model: each steps its own parameters, and the run is one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_tiny import plan_of
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.optim import AdamBC, Several
from decrescendo.training import Trainer

PLAN = plan_of((2.0, 1.5, 1.2, 1.0), (1.0, 0.8, 0.5, 0.5), batch=6)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def rows() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    count = PLAN.sampling.dataset_size
    return torch.randn(count, 4), torch.randint(3, (count,))


def two(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.01)]


def trained(model: nn.Module, optimizer: Any, **change: Any) -> dc.Run:
    return dc.train(model, loss, rows(), PLAN, optimizer, seed=3, **change)


def by_hand(*, stepped_apart: bool) -> dict[str, Tensor]:
    """The same noisy means, and each optimiser stepped by the loop itself."""
    model = network()
    optimizers = two(model)
    trainer = Trainer(model, loss, PLAN, optimizers, seed=3)
    for batch in trainer.batches(rows()):
        trainer.fill_gradients(batch)
        for optimizer in optimizers if stepped_apart else [Several(optimizers)]:
            optimizer.step()
        model.zero_grad()
    run = trainer.finish()
    assert run.assumptions == ()
    return run.weights


@pytest.mark.parametrize("stepped_apart", [True, False])
def test_a_list_of_optimisers_steps_each_on_its_own_parameters(stepped_apart: bool) -> None:
    model = network()
    run = trained(model, two(model))
    assert run.assumptions == ()
    theirs = by_hand(stepped_apart=stepped_apart)
    assert all(torch.equal(run.weights[name], value) for name, value in theirs.items())
    assert run.provenance.optimizer.startswith("Muon(lr=0.02")
    assert " + AdamW(lr=0.01" in run.provenance.optimizer


def test_matrices_are_moved_by_the_one_and_the_rest_by_the_other() -> None:
    model = network()
    optimizers = two(model)
    for group in optimizers[1].param_groups:
        group["lr"] = 0.0
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    after = trained(model, tuple(optimizers)).weights
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"0.weight", "2.weight"}


def test_a_run_of_two_optimisers_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    model = network()
    whole = trained(model, two(model)).weights
    checkpoints = dc.Checkpoints(tmp_path, every=1)
    model = network()
    trained(model, two(model), checkpoints=checkpoints, callback=lambda progress: progress.step == 2)
    model = network()
    run = trained(model, two(model), checkpoints=checkpoints)
    assert all(torch.equal(run.weights[name], whole[name]) for name in whole)


@pytest.mark.parametrize("whose", [0, 1, None])
def test_a_scheduler_on_one_of_them_or_on_all_is_the_runs(whose: int | None) -> None:
    model = network()
    optimizers = two(model)
    several = Several(optimizers)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(several if whose is None else optimizers[whose], 0.5)

    run = trained(model, several, scheduler=scheduler)
    assert run.assumptions == ()
    rates = [group["lr"] / start for group, start in zip(several.param_groups, (0.02, 0.01), strict=True)]
    assert rates == [0.0625 if whose in (None, at) else 1.0 for at in range(2)]


def test_a_rate_set_by_hand_on_one_of_them_is_an_assumption() -> None:
    model = network()
    optimizers = two(model)

    def sets(_: Any) -> bool:
        optimizers[1].param_groups[0]["lr"] = 0.5
        return False

    assert any("settings" in one.sentence for one in trained(model, optimizers, callback=sets).assumptions)


def test_those_that_use_the_noise_are_told_of_it() -> None:
    model = network()
    first, second = model[0].parameters(), model[2].parameters()
    aware = AdamBC(first, lr=0.01)
    told: list[float | None] = []
    aware.expect_noise = lambda std: told.append(std)  # type: ignore[method-assign]
    optimizers = [aware, torch.optim.SGD(second, lr=0.01)]
    several = Several(optimizers)
    several.expect_noise(0.5)
    several.expect_noise(None)
    assert told == [0.5, None]


def test_a_parameter_in_none_or_in_two_of_them_is_refused_in_one_sentence() -> None:
    model = network()
    with pytest.raises(InvalidValue, match=r"in one optimizer, got 2 in two of them \(Muon and AdamW\)"):
        trained(model, [two(model)[0], torch.optim.AdamW(model.parameters())])
    with pytest.raises(InvalidValue, match=r"missing=\['0.bias', '2.bias'\].*optimizer=\[muon, adamw\]"):
        trained(model, two(model)[:1])
    with pytest.raises(InvalidType, match="got str"):
        trained(model, [two(model)[0], "adamw"])
    with pytest.raises(InvalidValue, match="got none"):
        trained(model, [])
    with pytest.raises(InvalidValue, match="one of the optimizers"):
        Several(two(model)).add_param_group({"params": []})


def test_apply_takes_a_list() -> None:
    model = network()
    noisy = dc.NoisyMean(
        {name: torch.ones_like(value) for name, value in model.named_parameters()}, dc.Release(0.1, 1.0)
    )
    before = model[0].bias.detach().clone()
    dc.apply(noisy, model, two(model))
    assert not torch.equal(before, model[0].bias)
