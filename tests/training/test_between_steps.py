"""What a loop does to weights, batches and gradients between steps, or decides by private diagnostics, and what the run
says of it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from decrescendo.base.batches import OneByOne
from decrescendo.clipping import EngineSettings
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.integrations.loggers import Log
from decrescendo.training import Checkpoints, Trainer, train
from decrescendo.training.loop.between import (
    ENDED_EARLY,
    ENDED_ON_A_BATCH,
    GRADIENTS_CHANGED,
    OPTIMIZER_STATE,
    READ_AND_ENDED,
    READ_AND_SET,
    ROWS_CHANGED,
    SCHEDULER_STEPS,
    SET,
    STEP_SKIPPED,
    TRAINED_SET,
    WRITTEN,
)
from decrescendo.training.steering import ClipController, Plateau

from .conftest import loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


def a_trainer(model: nn.Module | None = None, **settings: Any) -> Trainer:
    model = model or make_model()
    return Trainer(model, loss, make_plan(), sgd(model), seed=0, **settings)


def _first(model: nn.Module) -> Tensor:
    return next(model.parameters()).data


def _centred(batch: Data) -> Data:
    return batch[0] - batch[0].mean(0), batch[1]


def _centred_in_place(batch: Data) -> Data:
    batch[0].sub_(batch[0].mean(0))
    return batch


@pytest.mark.parametrize("change", [_centred, _centred_in_place])
def test_rows_that_a_loop_changes_are_said(data: Data, change: Callable[[Data], Data]) -> None:
    """What happens to a batch before `step` gets it no proof sees: here each row has the mean of all of them."""
    trainer = a_trainer()
    for batch in trainer.batches(data):
        trainer.step(None if batch is None else change(batch))
    run = trainer.finish()
    assert run.assumptions == (ROWS_CHANGED,)


def test_tensors_put_into_another_container_are_those_that_were_drawn(data: Data) -> None:
    trainer = a_trainer()
    for batch in trainer.batches({"x": data[0], "y": data[1]}):
        trainer.step(None if batch is None else (batch["x"], batch["y"]))
    assert not trainer.finish().assumptions


def test_an_end_on_a_batch_that_was_not_released_is_said(data: Data) -> None:
    """How many steps a run has may then follow from a raw batch: it is seen, and nothing pays for it."""
    trainer = a_trainer()
    batches = trainer.batches(data)
    trainer.step(next(batches))
    assert trainer.finish().assumptions == (ENDED_EARLY,)
    batch = next(batches)
    assert trainer.finish().assumptions == tuple(sorted((ENDED_EARLY, ENDED_ON_A_BATCH)))
    trainer.step(batch)
    assert trainer.finish().assumptions == (ENDED_EARLY,)
    for batch in batches:
        trainer.step(batch)
    assert not trainer.finish().assumptions


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
        assert not trainer.finish().assumptions

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

    def test_another_optimiser_that_steps_is_seen_by_the_weights(self, data: Data) -> None:
        model = make_model()
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
        other = sgd(model, 9.0)
        for batch in trainer.batches(data):
            trainer.fill_gradients(batch)
            other.step()
        assert trainer.finish().assumptions == (WRITTEN,)

    def test_a_part_frozen_in_the_midst_of_a_run_is_said(self, data: Data) -> None:
        model = make_model()
        trainer = a_trainer(model)
        for number, batch in enumerate(trainer.batches(data)):
            trainer.step(batch)
            if number == 0:
                model[0].requires_grad_(False)
        (said,) = trainer.finish().assumptions
        assert "during the run 0.weight, 0.bias were frozen" in said.sentence

    def test_a_module_with_parameters_put_in_between_steps_is_refused(self, data: Data) -> None:
        model: Any = make_model()
        trainer = a_trainer(model)
        batches = trainer.batches(data)
        trainer.step(next(batches))
        model[1] = nn.PReLU()
        with pytest.raises(InvalidValue, match="must hold"):
            trainer.step(next(batches))

    @pytest.mark.parametrize("written", [True, False])
    def test_what_is_written_before_a_resumed_run_draws_is_seen(
        self, data: Data, written: bool, tmp_path: Path
    ) -> None:
        checkpoints = Checkpoints(tmp_path, every=1, resume=True)
        first = a_trainer(checkpoints=checkpoints)
        for batch in first.batches(data):
            if first.ledger.steps == 2:  # kept, by then
                break
            first.step(batch)
        model = make_model()
        again = a_trainer(model, checkpoints=checkpoints)
        if written:
            _first(model).add_(1.0)
        for batch in again.batches(data):
            again.step(batch)
        assert again.finish().assumptions == ((WRITTEN,) if written else ())


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
        assert (sentence.code, "Mine" in sentence.sentence) == ("own-optimizer", True)


class TestLoopsOfTheirOwn:
    """`fill_gradients`: the loop steps its optimiser."""

    @staticmethod
    def run_of(data: Data, before: Callable[[nn.Module], object], after: Callable[[nn.Module], object]) -> Any:
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
        assert not self.run_of(data, lambda _: None, lambda _: None).assumptions

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

    @pytest.mark.parametrize("clears", [True, False])
    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
    def test_a_closure_that_computes_gradients_is_seen_and_an_idle_one_is_not(
        self, data: Data, kind: Any, clears: bool
    ) -> None:
        def run_with(closure: Callable[[nn.Module, Any], Any]) -> Any:
            model = make_model()
            optimizer = kind(model.parameters(), lr=0.1)
            trainer = Trainer(model, loss, make_plan(), optimizer, seed=0)
            for at, batch in enumerate(trainer.batches(data)):
                trainer.fill_gradients(batch)
                given = partial(closure, model, optimizer)
                _ = optimizer.step(given) if at % 2 else optimizer.step(closure=given)
                optimizer.zero_grad()
            return trainer.finish()

        def backward(model: nn.Module, optimizer: Any) -> Tensor:
            if clears:
                optimizer.zero_grad()
            with torch.enable_grad():
                whole = loss(model, data).sum()
            whole.backward()
            return whole

        def write(model: nn.Module, _: Any) -> None:
            _first(model).add_(1)

        def fast(_: nn.Module, optimizer: Any) -> None:
            optimizer.param_groups[0]["lr"] *= 1.5

        assert run_with(backward).assumptions == (GRADIENTS_CHANGED,)
        assert run_with(write).assumptions == (WRITTEN,)
        assert run_with(fast).assumptions == (SET,)
        assert not run_with(lambda model, _: float(_first(model).sum())).assumptions

    @pytest.mark.parametrize("left_out", [0, 1, 2])
    def test_a_step_that_is_left_out_is_said(self, data: Data, left_out: int) -> None:
        """Nothing else moves the weights then: that they stand still tells what decided it."""
        model = make_model()
        optimizer = sgd(model)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0)
        assert trainer.steps == 3
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the release is paid for, in vain
            for at, batch in enumerate(trainer.batches(data)):
                trainer.fill_gradients(batch)
                if at != left_out:
                    optimizer.step()
        assert trainer.finish().assumptions == (STEP_SKIPPED,)

    @pytest.mark.parametrize("taken", [0, 1, 2])
    def test_a_scheduler_steps_once_a_step(self, data: Data, taken: int) -> None:
        model = make_model()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)  # its numbers move, the rate does not
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, scheduler=scheduler)
        for at, batch in enumerate(trainer.batches(data)):
            trainer.fill_gradients(batch)
            optimizer.step()
            for _ in range(taken if at == 1 else 1):
                scheduler.step()
        assert trainer.finish().assumptions == (() if taken == 1 else (SCHEDULER_STEPS,))

    @pytest.mark.parametrize("name", ["gamma", "base_lrs"])
    def test_a_schedulers_numbers_are_its_own(self, data: Data, name: str) -> None:
        model = make_model()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, scheduler=scheduler)
        for at, batch in enumerate(trainer.batches(data)):
            trainer.fill_gradients(batch)
            optimizer.step()
            if at == 0:
                setattr(scheduler, name, 0.7 if name == "gamma" else [0.7])
            scheduler.step()
        assert trainer.finish().assumptions == (SET,)


@pytest.mark.parametrize("chained", [False, True])
def test_a_schedulers_numbers_that_a_callback_moves_are_said(data: Data, chained: bool) -> None:
    def run_with(callback: Callable[[Any, Any], None]) -> Any:
        model = make_model()
        optimizer = sgd(model)
        own = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        whole = torch.optim.lr_scheduler.ChainedScheduler([own]) if chained else own
        return train(
            model, loss, data, make_plan(), optimizer, seed=0, scheduler=whole,
            callback=lambda now: callback(own, now),
        )  # fmt: skip

    def steeper(scheduler: Any, now: Any) -> None:
        scheduler.gamma = 0.25 if now.step == 2 else scheduler.gamma

    def back(scheduler: Any, now: Any) -> None:
        scheduler.last_epoch = 0 if now.step == 2 else scheduler.last_epoch

    assert run_with(steeper).assumptions == (SET,)
    assert run_with(back).assumptions == (SET,)
    assert not run_with(lambda _, now: None).assumptions


def test_an_optimiser_that_has_seen_gradients_is_said_and_a_new_one_is_not(data: Data) -> None:
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad):
        for seen in (False, True):
            model = make_model()
            settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}
            optimizer = kind(model.parameters(), lr=0.1, **settings)  # type: ignore[arg-type]
            if seen:
                loss(model, data).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            run = train(model, loss, data, make_plan(), optimizer, seed=0)
            codes = [assumption.code for assumption in run.assumptions]
            assert codes == ([OPTIMIZER_STATE.code] if seen else []), (kind, run.assumptions)


def test_other_data_in_the_midst_of_a_run_are_said_and_the_same_are_not(data: Data) -> None:
    cases: list[tuple[Any, Any, list[str]]] = [
        (data, data, []), (data, (data[0], data[1]), []), (data, (data[0] * 2, data[1]), ["other-data"]),
        (TensorDataset(*data), TensorDataset(*data), []),
        (TensorDataset(*data), TensorDataset(data[0] * 2, data[1]), ["other-data"]),
    ]  # fmt: skip
    for first, other, codes in cases:
        trainer = a_trainer()
        for at, batch in enumerate(trainer.batches(first)):
            trainer.step(batch)
            if at == 1:
                break
        for batch in trainer.batches(other):
            trainer.step(batch)
        assert [assumption.code for assumption in trainer.finish().assumptions] == codes


def test_objects_passed_one_by_one_are_compared_too() -> None:
    @dataclass
    class Pair:
        x: Tensor
        y: Tensor

    def own(model: nn.Module, pair: Pair) -> Tensor:
        return loss(model, (pair.x[None], pair.y[None]))[0]

    made = torch.Generator().manual_seed(0)
    pairs = [
        Pair(torch.randn(3, generator=made), torch.ones((), dtype=torch.long))
        for _ in range(make_plan().sampling.dataset_size)
    ]

    def centred(examples: Any) -> OneByOne:
        return OneByOne(tuple(Pair(one.x - examples[0].x, one.y) for one in examples))

    def within(examples: Any) -> OneByOne:
        for one in examples:
            one.x = one.x - examples[0].x
        return OneByOne(examples)

    def repeated(examples: Any) -> OneByOne:
        return OneByOne(examples[:1] * len(examples))

    for change in (None, OneByOne, centred, within, repeated):
        model = make_model()
        settings = EngineSettings(one_example_a_pass=True)
        trainer = Trainer(model, own, make_plan(), sgd(model), seed=0, settings=settings)
        for batch in trainer.batches(pairs, collate_fn=lambda items: items[0]):
            examples: Any = () if batch is None else cast("Any", batch).examples
            trainer.step(change(examples) if change is not None and examples else batch)
        assert (ROWS_CHANGED in trainer.finish().assumptions) is (change not in (None, OneByOne)), change


def test_a_rule_of_ones_own_is_no_plateau(data: Data) -> None:
    """Its end, and its clip norms, would count as following from released values alone."""
    trainer = a_trainer()
    batches = trainer.batches(data)
    trainer.step(next(batches))
    with pytest.raises(InvalidType, match="rule must be a Plateau, got function"):
        trainer.ends(cast("Any", lambda now: now.read().loss > 1))
    with pytest.raises(InvalidType, match="Plateau must be used as it is, got the subclass Mine"):
        type("Mine", (Plateau,), {})


@pytest.mark.parametrize("own", [False, True])
def test_a_controller_of_ones_own_class_is_said(data: Data, own: bool) -> None:
    kind: Any = type("Mine", (ClipController,), {}) if own else ClipController
    model = make_model()
    run = train(model, loss, data, kind(make_plan()), sgd(model), seed=0)
    assert [one.code for one in run.assumptions] == ["own-policy"] * own


def test_rows_that_are_overwritten_between_two_calls_of_batches_are_refused(data: Data) -> None:
    own = data[0].clone(), data[1]
    trainer = a_trainer()
    trainer.step(next(trainer.batches(own)))
    own[0].sub_(own[0].mean(0))
    with pytest.raises(InvalidValue, match="got a tensor that was written"):
        list(trainer.batches((own[0], own[1])))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rate_that_is_set_before_the_first_draw_is_stated_and_one_set_at_a_resume_is_said(
    data: Data, tmp_path: Path, when: str
) -> None:
    for life in ("first", "second"):
        model = make_model()
        optimizer = sgd(model)
        kept = Checkpoints(tmp_path, every=1, resume=True)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, checkpoints=kept)
        if life == ("first" if when == "before" else "second"):
            optimizer.param_groups[0]["lr"] = 0.01
        for at, batch in enumerate(trainer.batches(data)):
            if life == "first" and at == 2:
                break
            trainer.step(batch)
    run = trainer.finish()
    assert "SGD(lr=0.01" in run.provenance.optimizer
    assert run.assumptions == (() if when == "before" else (SET,))


@pytest.mark.parametrize("every", [1, 100])
def test_what_was_read_before_a_crash_is_known_after_it_whatever_was_saved(
    data: Data, tmp_path: Path, every: int
) -> None:
    for life in ("first", "second"):
        trainer = a_trainer(checkpoints=Checkpoints(tmp_path, every=every, resume=True))
        for at, batch in enumerate(trainer.batches(data)):
            result = trainer.step(batch)
            if life == "first":
                assert result.diagnostics.examples >= 0
            if at == 1:
                break
    assert READ_AND_ENDED in trainer.finish().assumptions


@pytest.mark.parametrize("change", ["rate", "frozen", "again"])
def test_what_was_read_or_trained_before_a_crash_is_known_after_it(data: Data, tmp_path: Path, change: str) -> None:
    """Read at the last step of a process, of which no checkpoint knows; frozen for the second process, or by both."""
    for life in ("first", "second"):
        model = make_model()
        optimizer = sgd(model)
        kept = Checkpoints(tmp_path, every=1, resume=True)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, checkpoints=kept)
        if (life, change) == ("second", "rate"):
            optimizer.param_groups[0]["lr"] = 0.01
        model.get_parameter("2.bias").requires_grad_(change == "rate" or (life, change) == ("first", "frozen"))
        for at, batch in enumerate(trainer.batches(data)):
            if life == "first" and at == 2:  # after the second step's checkpoint
                break
            result = trainer.step(batch)
            if (life, change, at) == ("first", "rate", 1):
                assert result.diagnostics.examples >= 0
                break
    found = trainer.finish().assumptions
    assert (READ_AND_SET in found) is (change == "rate")
    assert (TRAINED_SET.format("2.bias was frozen") in found) is (change == "frozen")


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
        assert not run.assumptions
        assert len(seen) == run.steps

    def test_who_decides_is_assumed_to_have_looked_at_what_is_released(self, data: Data) -> None:
        model = make_model()
        run = train(model, loss, data, make_plan(), sgd(model), seed=0, callback=lambda progress: progress.step == 2)
        assert (run.assumptions, run.steps) == ((ENDED_EARLY,), 2)

    def test_private_losses_that_a_log_hands_out_were_read(self, data: Data) -> None:
        model, plan = make_model(), make_plan()
        optimizer = sgd(model)

        def write(values: Any, step: int) -> None:
            if "private/loss" in values:
                optimizer.param_groups[0]["lr"] *= 0.5

        log = Log(plan, write, private=True)
        run = train(model, loss, data, plan, optimizer, seed=1, callback=log)
        assert READ_AND_SET in run.assumptions
