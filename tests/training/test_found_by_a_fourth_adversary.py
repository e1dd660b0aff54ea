"""Loops, optimisers, copies and restarts with which a run was called proven, and what they get now."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from decrescendo.accounting import Budget, Ledger, RenyiFilter
from decrescendo.errors import PlanViolation
from decrescendo.plans import BatchSchedule, PoissonSampling, RandomAllocation, Schedule
from decrescendo.plans.plan import Plan
from decrescendo.training import Adaptive, Checkpoints, Store, Trainer, train
from decrescendo.training.assumptions import PUBLIC_BUFFERS, STATE_SET
from decrescendo.training.between import (
    ENDED_EARLY,
    GRADIENTS_CHANGED,
    READ_AND_ENDED,
    ROWS_CHANGED,
    WRITTEN,
)
from decrescendo.training.run import certify
from decrescendo.training.steering import FromSchedule, PolicyContext, Settings
from decrescendo.training.steering.adaptive_run import DECIDED
from decrescendo.training.trainer import SAME_ORDER

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


def a_trainer(model: nn.Module | None = None, **settings: Any) -> Trainer:
    model = model or make_model()
    return Trainer(model, loss, make_plan(), sgd(model), seed=0, **settings)


def _first(model: nn.Module) -> Tensor:
    return next(model.parameters()).data


class TestWeights:
    def test_what_is_written_before_the_first_step_is_seen(self, data: Data) -> None:
        """The first batch is at hand then: it went into the weights, and the run was proven."""
        model = make_model()
        trainer = a_trainer(model)
        for number, batch in enumerate(trainer.batches(data)):
            if number == 0:
                _first(model).add_(data[0].mean())
            trainer.step(batch)
        assert trainer.finish().assumptions == (WRITTEN,)

    def test_what_was_written_before_the_first_draw_is_the_start(self, data: Data) -> None:
        model = make_model()
        trainer = a_trainer(model)
        _first(model).add_(1.0)
        for batch in trainer.batches(data):
            trainer.step(batch)
        assert trainer.finish().proven

    @pytest.mark.parametrize(
        "change",
        [
            lambda w: w.neg_(),
            lambda w: w.copy_(w.flip(0)),
            lambda w: w[:2].neg_(),
            lambda w: w.copy_(w.roll(1)),
        ],
        ids=["all signs", "rows exchanged", "two rows' signs", "numbers moved on"],
    )
    def test_a_change_that_leaves_all_bits_together_is_seen(
        self, data: Data, change: Callable[[Tensor], Tensor]
    ) -> None:
        """The fingerprint was the exclusive or of all numbers: what cancels in it, or only moves, did not show."""
        model = make_model()
        trainer = a_trainer(model)
        for batch in trainer.batches(data):
            trainer.step(batch)
            change(_first(model))
        assert trainer.finish().assumptions == (WRITTEN,)


class TestBatches:
    @pytest.mark.parametrize(
        "change",
        [
            lambda x: x.data.sub_(x.mean(0)),
            lambda x: np.subtract(x.numpy(), x.numpy().mean(0), out=x.numpy()),
        ],
    )
    def test_rows_changed_where_torch_counts_no_write_are_seen(
        self, data: Data, change: Callable[[Tensor], object]
    ) -> None:
        trainer = a_trainer()
        for batch in trainer.batches(data):
            if batch is not None:
                change(batch[0])
            trainer.step(batch)
        assert trainer.finish().assumptions == (ROWS_CHANGED,)


class TestOptimisers:
    def test_code_of_a_users_is_said(self, data: Data) -> None:
        class Mine(torch.optim.SGD):
            pass

        model = make_model()
        run = train(model, loss, data, make_plan(), Mine(model.parameters(), lr=0.1), seed=0)
        (sentence,) = run.assumptions
        assert sentence.startswith("Mine, code of neither torch nor decrescendo, moved")


class TestLoopsOfTheirOwn:
    """`fill_gradients`: the loop steps its optimiser."""

    @staticmethod
    def run_of(
        data: Data, before: Callable[[nn.Module], object], after: Callable[[nn.Module], object]
    ) -> Any:
        model = make_model()
        optimizer = sgd(model)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0)
        for batch in trainer.batches(data):
            trainer.fill_gradients(batch)
            before(model)
            optimizer.step()
            optimizer.zero_grad()
            after(model)
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
        return trainer.finish()

    def test_one_that_only_steps_is_proven(self, data: Data) -> None:
        assert self.run_of(data, lambda _: None, lambda _: None).proven

    def test_private_gradients_added_to_the_noisy_ones_are_seen(self, data: Data) -> None:
        run = self.run_of(data, lambda model: loss(model, data).sum().backward(), lambda _: None)
        assert run.assumptions == (GRADIENTS_CHANGED,)

    def test_writes_are_seen_before_the_step_and_after_it(self, data: Data) -> None:
        def write(model: nn.Module) -> None:
            _first(model).add_(data[0].mean())

        assert self.run_of(data, write, lambda _: None).assumptions == (WRITTEN,)
        assert self.run_of(data, lambda _: None, write).assumptions == (WRITTEN,)

    def test_a_second_step_on_one_gradient_is_seen(self, data: Data) -> None:
        model = make_model()
        optimizer = sgd(model)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0)
        for batch in trainer.batches(data):
            trainer.fill_gradients(batch)
            optimizer.step()
            optimizer.step()
        assert trainer.finish().assumptions == (WRITTEN,)


class TestDiagnostics:
    """Private and without noise: what is decided by them is in no guarantee."""

    def test_an_end_decided_by_the_private_loss_is_said(self, data: Data) -> None:
        model = make_model()
        run = train(
            model, loss, data, make_plan(), sgd(model), seed=0,
            callback=lambda progress: progress.diagnostics.loss_sum < 1e9,
        )  # fmt: skip
        assert run.assumptions == (READ_AND_ENDED,)
        trainer = a_trainer()
        for batch in trainer.batches(data):
            if trainer.step(batch).diagnostics.examples:
                break
        assert trainer.finish().assumptions == (READ_AND_ENDED,)

    def test_who_looks_and_decides_nothing_is_proven(self, data: Data) -> None:
        model, seen = make_model(), list[float]()
        run = train(
            model, loss, data, make_plan(), sgd(model), seed=0,
            callback=lambda progress: seen.append(progress.diagnostics.loss_sum),
        )  # fmt: skip
        assert run.proven
        assert len(seen) == run.steps

    def test_who_decides_is_supposed_to_have_looked_at_what_is_released(self, data: Data) -> None:
        model = make_model()
        run = train(
            model, loss, data, make_plan(), sgd(model), seed=0, callback=lambda progress: progress.step == 2
        )
        assert (run.assumptions, run.steps) == ((ENDED_EARLY,), 2)


class TestPolicies:
    @staticmethod
    def run_of(data: Data, policy: Any) -> Any:
        model = make_model()
        adaptive = Adaptive(PoissonSampling(ROWS, 8), RenyiFilter(Budget(8.0, 1e-3), order=8), policy, 2)
        return train(model, loss, data, adaptive, sgd(model), seed=0)

    def test_what_a_policy_of_a_users_looked_at_is_supposed(self, data: Data) -> None:
        def policy(_: PolicyContext) -> Settings:
            return Settings(4.0 + float(data[0][0, 0] > 0), 1.0)

        assert self.run_of(data, policy).assumptions == (DECIDED,)

    def test_a_schedule_is_proven(self, data: Data) -> None:
        assert self.run_of(data, FromSchedule(Schedule([4.0, 4.0], [1.0, 1.0]))).proven

    def test_settings_are_what_was_granted(self, data: Data) -> None:
        """One that answers otherwise when it is asked again."""

        class Changing(Settings):
            def __getattribute__(self, name: str) -> Any:
                if name == "noise_multiplier":
                    asked.append(name)
                    return 4.0 if len(asked) < 3 else 1e-3
                return super().__getattribute__(name)

        asked: list[str] = []

        def policy(_: PolicyContext) -> Settings:
            asked.clear()
            return Changing(4.0, 1.0)

        run = self.run_of(data, policy)
        assert run.ledger.noise_multiplier.tolist() == [4.0] * run.steps


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
)
def test_copies_are_as_frozen_as_what_they_are_of(duplicate: Callable[[Any], Any]) -> None:
    """A copy's arrays could be written to: under a training, whose noise then was not the plan's."""
    moving = BatchSchedule(ROWS, [4.0, 8.0, 8.0], 20)
    ledger = Ledger.of([2.0, 1.0], 0.5) + Ledger.of([1.0], 0.25)
    plan = make_plan()
    for value, arrays in (
        (plan, ("noise_multiplier", "clip_norm")),
        (plan.schedule, ("noise_multiplier", "clip_norm")),
        (ledger, ("noise_multiplier", "sample_rate", "count", "overflow", "steps_per_epoch")),
        (moving, ("expected_batch_size",)),
    ):
        same = duplicate(value)
        for name in arrays:
            assert np.array_equal(getattr(same, name), getattr(value, name))
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                getattr(same, name).setflags(write=True)
    assert duplicate(plan).sha256 == plan.sha256
    assert (duplicate(ledger), duplicate(moving)) == (ledger, moving)


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_what_was_written_to_a_buffer_does_not_pass_through_a_restart(data: Data, tmp_path: Path) -> None:
    """The second life took the row it found in the checkpoint for what was there at the start, and published it without
    a word. Whoever goes on from that checkpoint says so."""
    model = Buffered()
    trainer = a_trainer(model, checkpoints=Checkpoints(tmp_path, every=1))
    batches = trainer.batches(data)
    trainer.step(next(batches))
    model.get_buffer("scale").copy_(data[0][0])
    next(batches)
    again = Buffered()
    trainer = a_trainer(again, checkpoints=Checkpoints(tmp_path, every=1, resume=True))
    for batch in trainer.batches(data):
        trainer.step(batch)
    run = trainer.finish()
    assert torch.equal(run.weights["scale"], data[0][0])
    assert STATE_SET.format("scale") in run.assumptions
    assert PUBLIC_BUFFERS.format("scale") in run.assumptions


def test_a_run_killed_before_it_was_registered_does_not_share_its_noise(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint had the streams of its place in the store, which another run took meanwhile."""
    store = Store.create(tmp_path / "store", Budget(100.0, 1e-2), dataset="toy", rows=ROWS)

    def life(checkpoints: Checkpoints | None) -> Trainer:
        return a_trainer(store=store, checkpoints=checkpoints)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "start", _killed)
        with pytest.raises(KeyboardInterrupt):
            life(Checkpoints(tmp_path / "kept"))
    other = life(None)
    for batch in other.batches(data):
        other.step(batch)
    with pytest.raises(PlanViolation, match="must be registered one after another"):
        life(Checkpoints(tmp_path / "kept", resume=True))


def test_a_run_killed_before_it_was_registered_goes_on_where_nobody_came_between(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path / "store", Budget(100.0, 1e-2), dataset="toy", rows=ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "start", _killed)
        with pytest.raises(KeyboardInterrupt):
            a_trainer(store=store, checkpoints=Checkpoints(tmp_path / "kept"))
    trainer = a_trainer(store=store, checkpoints=Checkpoints(tmp_path / "kept", resume=True))
    for batch in trainer.batches(data):
        trainer.step(batch)
    assert trainer.finish().proven


def _killed(*_: object, **__: object) -> object:
    raise KeyboardInterrupt


class TestAllocation:
    @staticmethod
    def trainer(model: nn.Module, **settings: Any) -> Trainer:
        sampling = RandomAllocation(ROWS, 4)
        schedule = Schedule([3.0] * 8, [1.0] * 8)
        ledger = Ledger([sampling.release(3.0)] * 8)
        guarantee = certify(ledger, Budget(1.0, 1e-5))
        plan = Plan(Budget(guarantee.epsilon, 1e-5), sampling, schedule, guarantee)
        return Trainer(model, loss, plan, sgd(model), seed=0, **settings)

    def test_rows_put_elsewhere_in_the_midst_of_an_epoch_are_said(self, data: Data) -> None:
        """A record may take part twice then, in an epoch that is paid for as if it took part once."""
        trainer = self.trainer(make_model())
        batches = trainer.batches(data)
        for _ in range(2):
            trainer.step(next(batches))
        for batch in trainer.batches((data[0].flip(0), data[1].flip(0))):
            trainer.step(batch)
        assert trainer.finish().assumptions == (SAME_ORDER,)

    def test_the_same_rows_and_rows_of_another_epoch_are_nothing_to_say(self, data: Data) -> None:
        trainer = self.trainer(make_model())
        batches = trainer.batches(data)
        for _ in range(2):
            trainer.step(next(batches))
        batches = trainer.batches(data)
        for _ in range(2):
            trainer.step(next(batches))
        for batch in trainer.batches((data[0].flip(0), data[1].flip(0))):
            trainer.step(batch)
        assert trainer.finish().proven

    def test_a_restart_in_the_midst_of_an_epoch_supposes_the_same_order(
        self, data: Data, tmp_path: Path
    ) -> None:
        def life(until: int) -> Trainer:
            kept = Checkpoints(tmp_path, every=1, resume=True)
            trainer = self.trainer(make_model(), checkpoints=kept)
            for batch in trainer.batches(data):
                if trainer.step(batch).step == until:
                    break
            return trainer

        life(3)
        assert life(8).finish().assumptions == (SAME_ORDER,)
