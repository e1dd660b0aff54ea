"""What a run begins from: parameters that an earlier run of this process trained are among its assumptions."""

import copy
import gc
import io
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.accounting.budget import Unit
from decrescendo.federated import Clients, Placement, simulate
from decrescendo.plans.plan import Plan
from decrescendo.training import cross_entropy, fit
from decrescendo.training.loop import earlier_runs
from decrescendo.training.loop.assumptions import PUBLIC_PARAMETERS
from decrescendo.training.loop.earlier_runs import (
    BEGAN_TRAINED,
    BEGAN_WITH_THE_SEED,
    BEGAN_WITHOUT_NOISE,
    EarlierRuns,
)

X, Y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
SAMPLING = dc.PoissonSampling(60, 60)
ONE = dc.curves.constant(1.0)
PLAN = dc.calibrate(dc.Budget(4.0, 1e-3), SAMPLING, steps=2, privacy=ONE, clip=ONE)
WITHOUT_NOISE = Plan.without_privacy(SAMPLING, steps=2)


def build(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2))


def trained(model: nn.Module, plan: Plan = PLAN, loss: Any = cross_entropy, **more: Any) -> dc.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dc.train(model, loss, (X, Y), plan, optimizer, **{"seed": 0} | more)


def forget() -> None:
    """As another process would be."""
    earlier_runs._TRAINED.clear()


def with_its_layer(model: Any) -> nn.Module:
    other = build(1)
    other[0].weight = model[0].weight
    return other


def in_a_buffer(model: Any) -> nn.Module:
    other = build(1)
    other.register_buffer("kept", model[0].weight.data)
    return other


def frozen(model: Any) -> nn.Module:
    return nn.Sequential(model.requires_grad_(requires_grad=False), nn.Linear(2, 2))


class TestWhatARunTrainedIsKnown:
    @pytest.mark.parametrize("taken", [lambda model: model, with_its_layer, in_a_buffer, frozen])
    def test_where_it_lies(self, taken: Callable[[nn.Module], nn.Module]) -> None:
        model = build()
        assert trained(model).assumptions == ()
        assert BEGAN_TRAINED in trained(taken(model)).assumptions

    def test_without_the_module_it_was_trained_in(self) -> None:
        model = build()
        trained(model)
        other, gone = with_its_layer(model), weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
        assert BEGAN_TRAINED in trained(other).assumptions

    def test_of_two_trainers_of_one_model_that_are_run_one_after_another(self) -> None:
        model = build()
        trainers = [
            dc.Trainer(model, cross_entropy, PLAN, torch.optim.SGD(model.parameters(), lr=0.1), seed=seed)
            for seed in (0, 1)
        ]
        found = []
        for trainer in trainers:
            for batch in trainer.batches((X, Y)):
                trainer.step(batch)
            found.append(BEGAN_TRAINED in trainer.finish().assumptions)
        assert found == [False, True]

    def test_in_the_average_that_fit_returns(self) -> None:
        settings: dict[str, Any] = {"seed": 0, "optimizer": "sgd", "learning_rate": 0.1, "averaging": 0.9}
        run, average = fit(build(), cross_entropy, (X, Y), PLAN, **settings)
        assert not run.assumptions
        assert BEGAN_TRAINED in fit(average, cross_entropy, (X, Y), PLAN, **settings)[0].assumptions

    def test_of_a_simulation_and_a_training_of_one_model(self) -> None:
        model, clients = build(), Clients.equal((X, Y), records=2)
        plan = dc.calibrate(
            dc.Budget(4.0, 1e-3, Unit.CLIENT), dc.PoissonSampling(30, 30), steps=2, privacy=ONE, clip=ONE
        )

        def simulated() -> tuple[str, ...]:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return simulate(
                model, cross_entropy, clients, plan, optimizer, seed=1, placement=Placement.CENTRAL
            ).assumptions

        assert BEGAN_TRAINED not in simulated()
        assert BEGAN_TRAINED in trained(model).assumptions
        assert BEGAN_TRAINED in simulated()

    def test_noise_of_the_same_seed_is_said(self) -> None:
        for seeds, said in (
            ((0, 0), True), ((0, 1), False), ((0, 1, 0), True), ((0, np.int64(0)), True),
            ((dc.Secure(), dc.Secure()), False),
        ):  # fmt: skip
            model = build()
            *_, last = [trained(model, seed=seed) for seed in seeds]
            assert (BEGAN_WITH_THE_SEED in last.assumptions) is said, seeds

    def test_without_noise_it_is_another_sentence(self) -> None:
        """Eighty of eighty such runs told by their weights whether a row was among the data, at a stated 2."""
        model = build()
        trained(model, WITHOUT_NOISE)
        assert trained(model).assumptions == (BEGAN_WITHOUT_NOISE,)
        assert trained(model, seed=1).assumptions == (BEGAN_WITHOUT_NOISE,)  # a run in between mends nothing


class TestOverACrash:
    """What a life of a run knew of what it began from, the next must say."""

    def test_before_the_second_checkpoint(self, tmp_path: Path) -> None:
        model = build()
        trained(model, WITHOUT_NOISE)
        kept = dc.Checkpoints(tmp_path, every=100, resume=True)

        def stop(progress: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trained(model, checkpoints=kept, callback=stop)
        forget()
        assert BEGAN_WITHOUT_NOISE in trained(build(), checkpoints=kept).assumptions

    def test_a_run_that_was_at_its_end(self, tmp_path: Path) -> None:
        """The usual second start of a script with two phases."""
        kept = dc.Checkpoints(tmp_path, every=1, resume=True)
        trained(build(), WITHOUT_NOISE, checkpoints=kept)
        forget()
        model = build()
        with pytest.warns(UserWarning, match=r"is finished: its model is returned, without a step on these data"):
            trained(model, WITHOUT_NOISE, checkpoints=kept)
        assert trained(model).assumptions == (BEGAN_WITHOUT_NOISE,)

    def test_a_run_that_goes_on_is_no_other(self, tmp_path: Path) -> None:
        model, kept = build(), dc.Checkpoints(tmp_path, every=1, resume=True)

        def stop(progress: Any) -> None:
            if progress.step == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trained(model, checkpoints=kept, callback=stop)
        run = trained(model, checkpoints=kept)
        assert (run.provenance.resumed, run.assumptions) == ((1,), ())

    def test_a_simulation_that_goes_on_is_no_other(self, tmp_path: Path) -> None:
        model, clients = build(), Clients.equal((X, Y), records=2)
        sampling, budget = dc.PoissonSampling(30, 30), dc.Budget(4.0, 1e-3, Unit.CLIENT)
        plan = dc.calibrate(budget, sampling, steps=2, privacy=ONE, clip=ONE)

        def killed(progress: Any) -> None:
            raise KeyboardInterrupt

        def begin(**more: Any) -> Any:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            kept: dict[str, Any] = {"placement": Placement.CENTRAL, "journal": tmp_path / "j"}
            return simulate(model, cross_entropy, clients, plan, optimizer, seed=0, **kept, **more)

        with pytest.raises(KeyboardInterrupt):
            begin(callback=killed)
        assert BEGAN_TRAINED not in begin().assumptions


class TestWhatNoRunTrained:
    @pytest.mark.slow
    def test_is_not_taken_for_it(self) -> None:
        """New parameters in an old module were so in half of the cases, by the address of those before."""
        model = build()
        for seed in range(8):
            del model[0].weight, model[0].bias
            torch.manual_seed(seed)
            model[0].weight, model[0].bias = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.zeros(2))
            gc.collect()
            assert not trained(model).assumptions

    def test_memory_of_gone_parameters_is_nobodys_and_nothing_is_kept_of_it(self) -> None:
        forget()
        for _ in range(200):
            run, model = EarlierRuns(), nn.Linear(3, 2)
            assert not run.before(model.parameters())
            run.trains(model.parameters(), noisy=True)
            del model
        gc.collect()
        assert len(earlier_runs._TRAINED) == 0

    def test_parameters_of_a_run_can_be_swapped(self) -> None:
        """As torch does where it casts or loads models in parts."""
        model = build()
        trained(model)
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.zeros(2, 3)))
        assert not model[0].weight.any()

    def test_fresh_models_of_one_seed_are_proven_each(self) -> None:
        for _ in range(3):
            assert not trained(build()).assumptions

    def test_a_frozen_base_that_they_share_is_nobodys(self) -> None:
        """With averages of the weights trials of a private search were told apart by it, after they were paid for."""

        def on_a_base(seed: int) -> nn.Module:
            torch.manual_seed(0)
            base = nn.Linear(3, 3).requires_grad_(requires_grad=False)
            torch.manual_seed(seed)
            return nn.Sequential(base, nn.Linear(3, 2))

        settings: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1, "averaging": 0.9}
        for seed in (1, 2):
            run, _ = fit(on_a_base(seed), cross_entropy, (X, Y), PLAN, seed=0, **settings)
            assert run.assumptions == (PUBLIC_PARAMETERS.format("0.weight, 0.bias"),)


def saved(model: nn.Module) -> Tensor:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = build(1)
    other.load_state_dict(torch.load(file))
    return other


@pytest.mark.parametrize("taken", [copy.deepcopy, saved, lambda model: model.double().float()])
def test_copies_are_not_seen(taken: Callable[[nn.Module], nn.Module]) -> None:
    """A limit: they are told by memory alone, as those of another process or of a file are anyway."""
    model = build()
    trained(model, WITHOUT_NOISE)
    assert trained(taken(model)).assumptions == ()
