"""Runs that a policy decides, that are killed and go on, share a store, or draw the same rows in another order."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from torch import Tensor, nn

from decrescendo.accounting import Budget, Ledger, RenyiFilter
from decrescendo.clipping import Engine
from decrescendo.errors import InvalidValue, PlanViolation
from decrescendo.plans import BatchSchedule, PoissonSampling, RandomAllocation, Schedule
from decrescendo.plans.plan import Plan
from decrescendo.training import Adaptive, Checkpoints, Store, Trainer, train
from decrescendo.training.loop import releasing
from decrescendo.training.loop.assumptions import OTHER_DATA, PUBLIC_BUFFERS, STATE_SET
from decrescendo.training.loop.beginning import SAME_ORDER
from decrescendo.training.run import certify
from decrescendo.training.steering import FromSchedule, PolicyContext, Settings
from decrescendo.training.steering.adaptive_run import OWN_POLICY

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


def a_trainer(model: nn.Module | None = None, **settings: Any) -> Trainer:
    model = model or make_model()
    return Trainer(model, loss, make_plan(), sgd(model), seed=0, **settings)


class TestPolicies:
    @staticmethod
    def run_of(data: Data, policy: Any) -> Any:
        model = make_model()
        adaptive = Adaptive(PoissonSampling(ROWS, 8), RenyiFilter(Budget(8.0, 1e-3), order=8), policy, 2)
        return train(model, loss, data, adaptive, sgd(model), seed=0)

    def test_what_a_policy_of_a_users_looked_at_is_assumed(self, data: Data) -> None:
        def policy(_: PolicyContext) -> Settings:
            return Settings(4.0 + float(data[0][0, 0] > 0), 1.0)

        assert self.run_of(data, policy).assumptions == (OWN_POLICY,)

    def test_a_schedule_is_proven(self, data: Data) -> None:
        assert not self.run_of(data, FromSchedule(Schedule([4.0, 4.0], [1.0, 1.0]))).assumptions


def test_a_step_within_a_step_is_refused(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another thread or from the loss: the batch was released twice, and counted as two draws."""
    trainer, errors = a_trainer(), list[str]()
    batch = next(batch for batch in trainer.batches(data))
    clipped_sum = Engine.clipped_sum

    def again() -> None:
        try:
            trainer.step(batch)
        except PlanViolation as error:
            errors.append(str(error))

    def clip(engine: Engine, *given: Any) -> Any:
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
        again()
        return clipped_sum(engine, *given)

    monkeypatch.setattr(Engine, "clipped_sum", clip)
    trainer.step(batch)
    assert len(errors) == 2
    assert all("one after another" in error for error in errors)
    assert trainer.ledger.steps == 1


def test_equal_seeds_draw_other_noise_for_each_run_of_a_store(data: Data, tmp_path: Path) -> None:
    """The store adds up what is independent; with one noise, the difference of two runs has none of it."""
    plan = make_plan()
    store = Store.create(tmp_path / "ledger.db", Budget(1e3, 1e-2), dataset="digits", rows=len(data[0]))

    def weights(**settings: Any) -> Tensor:
        model = make_model()
        return train(model, loss, data, plan, sgd(model), seed=0, **settings).weights["0.weight"]

    alone, first, second, third = weights(), *(weights(store=store) for _ in range(3))
    assert alone.equal(first)
    assert not any(one.equal(other) for one, other in ((first, second), (first, third), (second, third)))
    again = Store.create(tmp_path / "again.db", Budget(1e3, 1e-2), dataset="digits", rows=len(data[0]))
    assert [weights(store=again).equal(one) for one in (first, second)] == [True, True]


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
    assert not trainer.finish().assumptions


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
        assert trainer.finish().assumptions == (OTHER_DATA, SAME_ORDER)

    def test_a_list_that_is_reordered_in_the_midst_of_an_epoch_is_refused(self, data: Data) -> None:
        listed = list(zip(*data, strict=True))
        trainer = self.trainer(make_model())
        trainer.step(next(trainer.batches(listed)))
        listed.reverse()
        with pytest.raises(InvalidValue, match="do not shuffle"):
            list(trainer.batches(listed))

    def test_the_same_rows_are_nothing_to_say_and_rows_of_another_epoch_are_other_data(self, data: Data) -> None:
        trainer = self.trainer(make_model())
        batches = trainer.batches(data)
        for _ in range(2):
            trainer.step(next(batches))
        batches = trainer.batches(data)
        for _ in range(2):
            trainer.step(next(batches))
        for batch in trainer.batches((data[0].flip(0), data[1].flip(0))):
            trainer.step(batch)
        assert trainer.finish().assumptions == (OTHER_DATA,)

    def test_a_restart_in_the_midst_of_an_epoch_assumes_the_same_order(self, data: Data, tmp_path: Path) -> None:
        def life(until: int) -> Trainer:
            kept = Checkpoints(tmp_path, every=1, resume=True)
            trainer = self.trainer(make_model(), checkpoints=kept)
            for batch in trainer.batches(data):
                if trainer.step(batch).step == until:
                    break
            return trainer

        life(3)
        assert life(8).finish().assumptions == (SAME_ORDER,)


@pytest.mark.slow
def test_curves_stay_in_step_over_restarts(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
