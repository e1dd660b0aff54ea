"""What an adversary of what runs leave to each other, of folders with two processes, and of recurrent layers found."""

import copy
import gc
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.accounting import GdpClt, Trials
from decrescendo.accounting.budget import Unit
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import FileRefused, ImpossibleBudget, InvalidValue
from decrescendo.federated import Clients, Placement, simulate
from decrescendo.plans.plan import Plan
from decrescendo.training import Among, Space, Task, cross_entropy, fit, moved
from decrescendo.training.assumptions import PUBLIC_PARAMETERS
from decrescendo.training.checkpoint.checkpoints import read_state, states_in
from decrescendo.training.moved import BEGAN_TRAINED, BEGAN_WITHOUT_NOISE
from decrescendo.training.private_tuning import PrivateSearch, search_privately
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


def saved(model: nn.Module, run: dc.Run) -> nn.Module:
    file, other = io.BytesIO(), build(1)
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    return other


def loaded(model: nn.Module, run: dc.Run) -> nn.Module:
    other = build(1)
    other.load_state_dict(run.weights)
    return other


def in_a_buffer(model: Any, run: dc.Run) -> nn.Module:
    other = build(1)
    other.register_buffer("kept", model[0].weight.data)
    return other


def as_a_vector(model: nn.Module, run: dc.Run) -> nn.Module:
    other = build(1)
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector.detach(), other.parameters())
    return other


def cast_elsewhere(model: Any, run: dc.Run) -> nn.Module:
    other: Any = build(1)
    other[0].weight = model[0].weight
    del model
    gc.collect()
    return other.double().float()


class TestWhatARunTrainedIsKnown:
    @pytest.mark.parametrize(
        "taken",
        [lambda model, run: copy.deepcopy(model), saved, loaded, in_a_buffer, as_a_vector, cast_elsewhere],
    )
    def test_in_copies_and_buffers(self, taken: Callable[[nn.Module, dc.Run], nn.Module]) -> None:
        model = build()
        run = trained(model)
        assert BEGAN_TRAINED not in run.assumptions
        assert BEGAN_TRAINED in trained(taken(model, run)).assumptions

    def test_in_the_average_that_fit_returns(self) -> None:
        settings: dict[str, Any] = {"seed": 0, "optimizer": "sgd", "learning_rate": 0.1, "averaging": 0.9}
        run, average = fit(build(), cross_entropy, (X, Y), PLAN, **settings)
        assert run.proven
        assert BEGAN_TRAINED in fit(average, cross_entropy, (X, Y), PLAN, **settings)[0].assumptions

    def test_in_the_model_of_a_task(self) -> None:
        """A search's trials begin from copies that the task makes."""
        model = build()
        trained(model)
        task = Task(model=model, loss=cross_entropy, data=(X, Y), batch=60, score=lambda _: {"accuracy": 0.5})
        space = Space({"clip": Among((1.0,))}, {"steps": 2, "schedule": "constant"})
        search = PrivateSearch(task=task, epsilon=4.0, space=space, trials=Trials(1, 1))
        assert BEGAN_TRAINED in search_privately(search, 0).assumptions

    def test_in_what_an_optimiser_remembers(self) -> None:
        model, other = build(), build(1)
        adam, again = (torch.optim.Adam(one.parameters()) for one in (model, other))
        trained(model, optimizer=adam)
        again.load_state_dict(adam.state_dict())
        assert BEGAN_TRAINED in trained(other, optimizer=again).assumptions

    def test_of_a_run_that_nobody_called_to_its_end(self) -> None:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = dc.Trainer(model, cross_entropy, PLAN, optimizer, seed=0)
        for batch in trainer.batches((X, Y)):
            trainer.step(batch)
        assert BEGAN_TRAINED in trained(copy.deepcopy(model)).assumptions

    def test_without_noise_it_is_another_sentence(self) -> None:
        """Eighty of eighty such runs told by their weights whether a row was among the data, at a stated 2."""
        model = build()
        trained(model, Plan.without_privacy(SAMPLING, steps=2))
        assert trained(model).assumptions == (BEGAN_WITHOUT_NOISE,)
        assert trained(model).assumptions == (BEGAN_WITHOUT_NOISE,)  # a run in between does not mend it


class TestOverACrash:
    """What a life of a run knew of what it began from, the next must say."""

    def test_before_the_second_checkpoint(self, tmp_path: Path) -> None:
        model = build()
        trained(model, Plan.without_privacy(SAMPLING, steps=2))
        kept = dc.Checkpoints(tmp_path, every=100, resume=True)

        def stop(progress: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            resumed(model, kept, callback=stop)
        forget()
        assert BEGAN_WITHOUT_NOISE in resumed(build(), kept).assumptions

    def test_a_run_that_was_at_its_end(self, tmp_path: Path) -> None:
        """The usual second start of a script with two phases."""
        kept = dc.Checkpoints(tmp_path, every=1, resume=True)
        resumed(build(), kept, plan=Plan.without_privacy(SAMPLING, steps=2))
        forget()
        model = build()
        resumed(model, kept, plan=Plan.without_privacy(SAMPLING, steps=2))
        assert trained(model).assumptions == (BEGAN_WITHOUT_NOISE,)


def resumed(
    model: nn.Module, kept: dc.Checkpoints, *, plan: Plan = PLAN, loss: Any = cross_entropy, **more: Any
) -> dc.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dc.train(model, loss, (X, Y), plan, optimizer, seed=0, checkpoints=kept, **more)


def forget() -> None:
    """As another process would be."""
    moved._IN.clear()
    moved._ENDED.clear()


class TestWhatNoRunTrained:
    def test_a_run_that_goes_on_is_no_other(self, tmp_path: Path) -> None:
        model = build()
        settings: dict[str, Any] = {
            "seed": 0,
            "checkpoints": dc.Checkpoints(tmp_path / "kept", every=1, resume=True),
        }

        def stop(progress: Any) -> None:
            if progress.step == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            dc.train(model, cross_entropy, (X, Y), PLAN, torch.optim.SGD(model.parameters(), lr=0.1), callback=stop,
                     **settings)  # fmt: skip
        run = dc.train(
            model, cross_entropy, (X, Y), PLAN, torch.optim.SGD(model.parameters(), lr=0.1), **settings
        )
        assert (run.provenance.resumed, run.assumptions) == ((1,), ())

    def test_is_not_taken_for_it(self) -> None:
        """New parameters in an old module were so in ten of twenty, by the address of those before."""
        model: Any = build()
        for seed in range(20):
            del model[0].weight, model[0].bias
            torch.manual_seed(seed)
            model[0].weight, model[0].bias = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.zeros(2))
            gc.collect()
            assert trained(model).proven

    def test_weights_that_a_run_did_not_move_are_as_fresh_as_they_were(self) -> None:
        """Without noise, of parts that have no gradient."""
        plan = Plan.without_privacy(SAMPLING, steps=2)

        def partly() -> Any:
            model: Any = build()
            model.idle = nn.Linear(4, 4)
            return model

        def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(model[0](batch[0]), batch[1], reduction="none")

        trained(partly(), plan, loss)
        assert trained(partly(), loss=loss).assumptions == ()

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

    def test_fresh_models_of_one_seed_are_proven_each(self) -> None:
        for _ in range(3):
            assert trained(build()).proven


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
