"""Optimisers, models, data, stores and checkpoints changed between steps, with which a run was called proven."""

import copy
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from torch import Tensor, nn

from decrescendo.accounting import Budget, Ledger
from decrescendo.base.rng import Secure
from decrescendo.errors import InvalidValue, PlanViolation
from decrescendo.optim import AdamBC, averaged
from decrescendo.plans import BatchSchedule, Schedule
from decrescendo.plans.plan import Plan
from decrescendo.training import Checkpoints, Store, Trainer
from decrescendo.training.loop import releasing
from decrescendo.training.loop.between import WRITTEN
from decrescendo.training.run import certify
from decrescendo.training.store import Account
from decrescendo.training.tasks.evaluate import accuracy

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def run_of(
    data: Data,
    between: Callable[[nn.Module, Any], object],
    make: Callable[[nn.Module], Any] = adam,
    **settings: Any,
) -> Any:
    """A run of three steps, with ``between`` after each; it may change the optimiser and the model."""
    model = make_model()
    optimizer = make(model)
    trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, **settings)
    for batch in trainer.batches(data):
        trainer.step(batch)
        between(model, optimizer)
    return trainer.finish()


class TestWhatAnOptimiserRemembers:
    """A moment moves the weights at the next step, by as much as is written into it: no noise is in that."""

    def test_another_optimiser_that_steps_is_seen_by_the_weights(self, data: Data) -> None:
        model = make_model()
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
        other = sgd(model, 9.0)
        for batch in trainer.batches(data):
            trainer.fill_gradients(batch)
            other.step()
        assert trainer.finish().assumptions == (WRITTEN,)

    @pytest.mark.parametrize(
        "make",
        [
            sgd, adam,
            lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
            lambda model: torch.optim.AdamW(model.parameters(), foreach=True, amsgrad=True),
            lambda model: torch.optim.AdamW(model.parameters(), fused=True),
            lambda model: torch.optim.Adafactor(model.parameters()),
            lambda model: torch.optim.ASGD(model.parameters()),
            lambda model: AdamBC(model.parameters(), lr=0.1),
        ],
    )  # fmt: skip
    def test_what_its_steps_write_is_nothing_to_say(
        self, data: Data, make: Callable[[nn.Module], Any]
    ) -> None:
        assert not run_of(data, lambda model, _: loss(model, data).sum().backward(), make).assumptions

    def test_what_was_loaded_before_the_first_draw_is_the_start(self, data: Data) -> None:
        first = make_model()
        before = adam(first)
        loss(first, data).sum().backward()
        before.step()

        def make(model: nn.Module) -> Any:
            optimizer = adam(model)
            optimizer.load_state_dict(before.state_dict())
            return optimizer

        assert not run_of(data, lambda *_: None, make).assumptions


class TestSettings:
    """The length of a step is in no noise either."""

    def test_averages_and_prints_are_nothing_to_say(self, data: Data) -> None:
        averages: list[Any] = []

        def between(model: nn.Module, optimizer: Any) -> None:
            if not averages:
                averages.append(averaged(model, decay=0.9))
            averages[0].update_parameters(model)
            print(
                loss(model, data).mean().item(),
                optimizer.param_groups[0]["lr"],
                optimizer.state_dict().keys(),
            )

        assert not run_of(data, between).assumptions


class TestStoresPutBack:
    """A store that is an older copy has forgotten the runs registered since: who has a checkpoint can tell."""

    @staticmethod
    def life(
        folder: Path, store: Store, data: Data, until: int, *, seed: Any = 0, every: int = 100
    ) -> Trainer:
        model = make_model()
        kept = Checkpoints(folder, every=every, resume=True)
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=seed, store=store, checkpoints=kept)
        for batch in trainer.batches(data) if until else ():
            if trainer.step(batch).step == until:
                break
        return trainer

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store.create(tmp_path / "store", Budget(100.0, 1e-2), dataset="toy", rows=ROWS)

    @staticmethod
    def copied(store: Store, path: Path) -> None:
        with closing(sqlite3.connect(path)) as to:
            store._connection.backup(to)

    def put_back(self, path: Path) -> Store:
        (path / "store").unlink()
        shutil.copy(path / "copy", path / "store")
        return Store(path / "store")

    @pytest.mark.parametrize("seed", [0, Secure()], ids=["seed", "secure"])
    @pytest.mark.parametrize("every", [1, 100])
    def test_of_before_a_run_was_registered(
        self, data: Data, tmp_path: Path, store: Store, seed: Any, every: int
    ) -> None:
        """It was registered again; the other run, of which the restored store knows nothing, was forgotten."""
        self.copied(store, tmp_path / "copy")
        self.life(tmp_path / "kept", store, data, 2, seed=seed, every=every)
        store.start(make_plan(), label="other")
        store = self.put_back(tmp_path)
        with pytest.raises(PlanViolation, match="must list what its run has released, got 0 of 2 steps"):
            self.life(tmp_path / "kept", store, data, 3, seed=seed, every=every)
        assert not store.entries()

    def test_of_the_midst_of_a_run(self, data: Data, tmp_path: Path, store: Store) -> None:
        self.life(tmp_path / "kept", store, data, 1)
        self.copied(store, tmp_path / "copy")
        store.start(make_plan(), label="other")
        self.life(tmp_path / "kept", store, data, 3)
        store = self.put_back(tmp_path)
        with pytest.raises(PlanViolation, match="got 1 of 3 steps"):
            self.life(tmp_path / "kept", store, data, 3)

    def test_before_the_first_release_of_a_run_after_others(
        self, data: Data, tmp_path: Path, store: Store
    ) -> None:
        """Nothing of its own is missing, only the runs before it."""
        self.copied(store, tmp_path / "copy")
        store.start(make_plan(), label="other")
        self.life(tmp_path / "kept", store, data, 0, seed=Secure())
        store = self.put_back(tmp_path)
        with pytest.raises(PlanViolation, match="runs before this one"):
            self.life(tmp_path / "kept", store, data, 3, seed=Secure())

    def test_a_crash_between_the_two_lists_is_nothing_to_refuse(
        self, data: Data, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Account, "record", _killed)
            with pytest.raises(KeyboardInterrupt):
                self.life(tmp_path / "kept", store, data, 3)
        trainer = self.life(tmp_path / "kept", store, data, 3)
        (entry,) = store.entries()
        assert (trainer.finish().assumptions, entry.released) == ((), make_plan().ledger)

    def test_checkpoints_put_back_are_nothing_to_refuse(
        self, data: Data, tmp_path: Path, store: Store
    ) -> None:
        """The store has what was released since, and each step again is held against it."""
        self.life(tmp_path / "kept", store, data, 1, every=1)
        for name in ("older", "changed"):
            shutil.copytree(tmp_path / "kept", tmp_path / name)
        self.life(tmp_path / "kept", store, data, 3, every=1)
        with pytest.raises(PlanViolation, match="a repeated step must have its first result"):
            self.life(tmp_path / "changed", store, (data[0] + 1, data[1]), 3, every=1)
        trainer = self.life(tmp_path / "older", store, data, 3, every=1)
        (entry,) = store.entries()
        assert (trainer.finish().assumptions, entry.released) == ((), make_plan().ledger)


class Net(nn.Module):
    """With settings of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.drop = nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5)
        self.last = nn.Linear(4, 2)
        self.scale, self.table, self.kind = 1.0, {"scale": [1.0]}, "plain"
        self.offset, self.large = torch.zeros(3), torch.zeros(70_000)
        self.register_buffer("fixed", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.act(self.first(x + self.offset + self.fixed + self.large[:3])))
        return self.last(hidden) * self.scale * self.table["scale"][0] * (2 if self.kind == "other" else 1)


class TestPrograms:
    """What one row decides of the model moves the gradients of all rows: by as much as they are clipped at."""

    @staticmethod
    def run_of(
        data: Data, change: Callable[[Any, Tensor], object], the_loss: Any = loss
    ) -> tuple[Any, list[Any]]:
        model = Net()
        trainer = Trainer(model, the_loss, make_plan(), sgd(model), seed=0)
        for number, batch in enumerate(trainer.batches(data)):
            trainer.step(batch)
            if number == 0:
                change(model, data[0])
        return trainer.finish(), list(model.parameters())

    def test_a_frozen_part_is_said(self, data: Data) -> None:
        run, _ = self.run_of(data, lambda m, x: m.first.requires_grad_(False))
        (said,) = run.assumptions
        assert "during the run first.weight, first.bias were frozen" in said.sentence

    def test_modules_with_parameters_are_refused(self, data: Data) -> None:
        with pytest.raises(InvalidValue, match="must hold"):
            self.run_of(data, lambda m, x: setattr(m, "act", nn.PReLU()))

    @pytest.mark.parametrize(
        "change",
        [
            lambda m, x: (m.eval(), m(x), m.train()),
            lambda m, x: setattr(m, "scale", 1.0 * 1),
            lambda m, x: accuracy(m, x, torch.zeros(ROWS).long()),
            lambda m, x: copy.deepcopy(m).requires_grad_(False),
            lambda m, x: m.state_dict(),
            lambda m, x: m.register_forward_hook(lambda module, given, made: None).remove(),
            lambda m, x: m.zero_grad(),
        ],
    )
    def test_what_is_as_it_was_is_nothing_to_say(
        self, data: Data, change: Callable[[Any, Tensor], object]
    ) -> None:
        assert not self.run_of(data, change)[0].assumptions

    def test_what_a_pass_keeps_itself_is_the_proofs_to_judge(self, data: Data) -> None:
        class Keeps(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.calls = make_model(), 0

            def forward(self, x: Tensor) -> Tensor:
                self.calls += 1
                self.seen = self.inner(x)
                return self.seen

        model = Keeps()
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
        for batch in trainer.batches(data):
            trainer.step(batch)
        assert not trainer.finish().assumptions
        # And so is what is done after the last pass.
        model.eval()


@pytest.mark.slow
def test_curves_stay_in_step_over_restarts(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Size, noise and clip norm of each step are those of its place, killed anywhere; judged by another library."""
    sizes, noise, clip = [4.0, 30.0, 12.0, 40.0, 8.0], [2.0, 5.0, 3.0, 6.0, 2.5], [1.0, 0.3, 2.0, 0.7, 0.1]
    schedule, sampling = Schedule(noise, clip), BatchSchedule(ROWS, sizes)
    ledger = Ledger.of(noise, np.array(sizes) / ROWS)
    guarantee = certify(ledger, Budget(9.0, 1e-5))
    plan = Plan(Budget(guarantee.epsilon, 1e-5), sampling, schedule, guarantee)
    made, seen = releasing.privatise, list[tuple[float, ...]]()

    def spied(clipped: Any, z: float, drawn: Any, stream: Any) -> Any:
        seen.append((drawn.expected_batch_size, z, clipped.sensitivity))
        return made(clipped, z, drawn, stream)

    def life(folder: Path, until: int, *, drawn: bool) -> Trainer:
        kept = Checkpoints(folder, every=2, resume=True)
        trainer = Trainer(model := make_model(), loss, plan, sgd(model), seed=0, checkpoints=kept)
        for batch in trainer.batches(data):
            if drawn and trainer.ledger.steps == until:
                break
            if trainer.step(batch).step == until and not drawn:
                break
        return trainer

    monkeypatch.setattr(releasing, "privatise", spied)
    whole = life(tmp_path / "whole", 5, drawn=False).finish()
    expected = list(zip(sizes, noise, clip, strict=True))
    assert np.allclose(seen, expected)
    for until in range(5):
        for drawn in (False, True):
            folder = tmp_path / f"{until} {drawn}"
            life(folder, max(until, not drawn), drawn=drawn)
            seen.clear()
            run = life(folder, 5, drawn=False).finish()
            assert np.allclose(seen, expected[5 - len(seen) :])
            assert all(torch.equal(run.weights[name], value) for name, value in whole.weights.items())
            assert (run.ledger, run.assumptions) == (ledger, ())
    both = pld.from_gaussian_mechanism(noise[0], sampling_prob=sizes[0] / ROWS)
    for size, z in zip(sizes[1:], noise[1:], strict=True):
        both = both.compose(pld.from_gaussian_mechanism(z, sampling_prob=size / ROWS))
    assert both.get_epsilon_for_delta(1e-5) == pytest.approx(whole.guarantee.epsilon, rel=2e-3)


def _killed(*_: object, **__: object) -> object:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["<stdin>", "<string>", "<ipython-input-1-0>"])
def test_a_number_kept_by_code_typed_into_a_shell_is_said(where: str, data: Data) -> None:
    """Code without a file was taken for torch's own, and what it keeps was not looked at."""
    text = """
seen = [0]
def keeps(model, batch):
    seen[0] += len(batch[0])
    return loss(model, batch)
"""
    names: dict[str, Any] = {"loss": loss}
    exec(compile(text, where, "exec"), names)
    trainer = Trainer(model := make_model(), names["keeps"], make_plan(), sgd(model), seed=0)
    for batch in trainer.batches(data):
        trainer.step(batch)
    (sentence,) = trainer.finish().assumptions
    assert sentence == "the number of examples, kept in loss.seen.0, steers no later pass"
