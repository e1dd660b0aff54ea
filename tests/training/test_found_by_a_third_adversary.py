"""Loops that a run called proven, though it took something on trust, and what they get now."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from decrescendo.accounting import Budget
from decrescendo.clipping import Engine
from decrescendo.errors import PlanViolation
from decrescendo.training import Store, Trainer, train
from decrescendo.training.between import ENDED_EARLY, ENDED_ON_A_BATCH, ROWS_CHANGED

from .conftest import loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


def a_trainer(**settings: Any) -> Trainer:
    model = make_model()
    return Trainer(model, loss, make_plan(), sgd(model), seed=0, **settings)


def _centred(batch: Data) -> Data:
    return batch[0] - batch[0].mean(0), batch[1]


def _centred_in_place(batch: Data) -> Data:
    batch[0].sub_(batch[0].mean(0))
    return batch


@pytest.mark.parametrize("change", [_centred, _centred_in_place])
def test_rows_that_a_loop_changes_are_supposed_apart_and_said_so(
    data: Data, change: Callable[[Data], Data]
) -> None:
    """What happens to a batch before `step` gets it no proof sees: here each row has the mean of all of them."""
    trainer = a_trainer()
    for batch in trainer.batches(data):
        trainer.step(None if batch is None else change(batch))
    run = trainer.finish()
    assert (run.proven, run.assumptions) == (False, (ROWS_CHANGED,))


def test_tensors_put_into_another_container_are_those_that_were_drawn(data: Data) -> None:
    trainer = a_trainer()
    for batch in trainer.batches({"x": data[0], "y": data[1]}):
        trainer.step(None if batch is None else (batch["x"], batch["y"]))
    assert trainer.finish().proven


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
    assert trainer.finish().proven


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
