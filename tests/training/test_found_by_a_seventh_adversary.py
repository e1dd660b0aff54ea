"""What lies round the passes: batches lost on their way, ids of people, schedulers, rows, optimisers, restarts."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn

from decrescendo.accounting import Budget, RenyiFilter, Unit
from decrescendo.base.rng import Secure
from decrescendo.clipping import Engine
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.plans import PoissonSampling, RandomAllocation, calibrate
from decrescendo.training import Trainer
from decrescendo.training.data.people import check_people
from decrescendo.training.loop.drawing import Drawing
from decrescendo.training.steering import Adaptive, QuantileClip, Settings

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]


class Lost(RuntimeError):
    """A batch that did not come to its device."""


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches, by their number from 0, that are lost on their way once."""
    lost, seen = list[int](), list[int]()
    move = Drawing._to_device

    def moved(self: Drawing, tensor: Tensor) -> Tensor:
        seen.append(0)
        if lost and len(seen) - 1 == lost[0]:
            seen.pop()
            lost.pop(0)
            raise Lost
        return move(self, tensor)

    monkeypatch.setattr(Drawing, "_to_device", moved)
    return lost


def all_batches(trainer: Trainer, data: Any) -> Iterator[Any]:
    """Of a loop that goes on after what was lost."""
    left = True
    while left:
        try:
            for batch in trainer.batches(data):
                trainer.step(batch)
                yield batch
            left = False
        except Lost:
            pass


class TestLostBatches:
    """Drawn, and never seen by the loop: no memory on the device, an interruption."""

    @pytest.mark.slow
    @pytest.mark.parametrize("number", some([0, 1, 2, 3], 1))
    def test_each_record_is_still_in_one_batch_of_an_epoch(self, losing: list[int], number: int) -> None:
        """The last batch of an epoch came from another epoch: of 40 records 9 took part twice, under a guarantee for
        those that take part once."""
        plan = calibrate(
            Budget(8.0, 1e-5), RandomAllocation(ROWS, 2), steps=4, privacy=[1.0] * 4, clip=[1.0] * 4
        )
        losing.append(number)
        model = nn.Linear(1, 1)
        trainer = Trainer(model, lambda model, x: model(x).sum(1), plan, sgd(model), seed=Secure())
        drawn = [
            batch.flatten().tolist() for batch in all_batches(trainer, torch.arange(float(ROWS))[:, None])
        ]
        assert not losing
        for epoch in (drawn[:2], drawn[2:]):
            assert sorted(epoch[0] + epoch[1]) == list(range(ROWS))

    def test_what_is_drawn_again_is_the_same(self, data: Data, losing: list[int]) -> None:
        weights: list[Tensor] = []
        for lost in ([], [2]):
            losing[:] = lost
            model = make_model()
            assert len(list(all_batches(Trainer(model, loss, make_plan(), sgd(model), seed=0), data))) == 3
            weights.append(nn.utils.parameters_to_vector(model.parameters()))
        assert torch.equal(*weights)

    def test_a_granted_step_is_paid_for_once(self, data: Data, losing: list[int]) -> None:
        """The policy was asked again, its next answer was taken, and the run at its end had "no guarantee"."""
        losing.append(1)
        guard = RenyiFilter(Budget(8.0, 1e-3), order=8)
        adaptive = Adaptive(PoissonSampling(ROWS, 8), guard, lambda past: Settings(9.0 - past.step, 1.0), 3)
        model = make_model()
        trainer = Trainer(model, loss, adaptive, sgd(model), seed=0)
        assert len(list(all_batches(trainer, data))) == 3
        assert trainer.finish().ledger.noise_multiplier.tolist() == [9.0, 8.0, 7.0]


class TestPeople:
    budget = Budget(1.0, 1e-5, Unit.PERSON, examples_per_person=1)

    @pytest.mark.parametrize("one", [torch.tensor(1), ["ann"], object()], ids=["tensors", "lists", "objects"])
    def test_ids_that_do_not_equal_each_other_are_refused(self, one: Any) -> None:
        """Two tensors of one number are two keys of a dict: one person was counted as three."""
        ids = np.empty(3, dtype=object)
        ids[:] = [one.clone() if isinstance(one, Tensor) else one for _ in range(3)]
        with pytest.raises(
            InvalidType, match=r"each id in people must be a text or a number, got \w+ for row 0"
        ):
            check_people(ids, self.budget, 3)

    @pytest.mark.parametrize("ids", [["7", 7, 8], [b"7", "7", "8"], np.array(["7", 7, 8], dtype=object)])
    def test_texts_and_numbers_together_are_refused(self, ids: Any) -> None:
        with pytest.raises(InvalidType, match="all texts or all numbers"):
            check_people(ids, self.budget, 3)

    @pytest.mark.parametrize("missing", [None, float("nan"), "pandas"])
    def test_a_row_without_an_id_is_named(self, missing: Any) -> None:
        pandas = pytest.importorskip("pandas")
        ids = pandas.Series(["a", pandas.NA if missing == "pandas" else missing, "b"])
        with pytest.raises(InvalidValue, match=r"every row must have an id in people, got \w+ for row 1"):
            check_people(ids, self.budget, 3)

    @pytest.mark.parametrize(
        "ids", [[True, 2, 3.0], np.arange(3), [np.str_("a"), "b", "c"], [1, np.int64(2), 3]]
    )
    def test_numbers_of_any_kind_and_texts_are_taken(self, ids: Any) -> None:
        assert check_people(ids, self.budget, 3)


class TestNorms:
    def test_an_example_that_counts_for_nothing_is_not_compared(self, data: Data) -> None:
        """Inputs of 1e20, whose squares overflow: the engine was said to misread the bias behind them."""
        with pytest.warns(UserWarning, match="rows given have a gradient that is not finite"):
            Engine(make_model(), loss).check((data[0] * 1e20, data[1]))

    def test_the_smallest_clip_norm_is_where_it_ends(self, data: Data) -> None:
        plan = make_plan((1.0,) * 9, (1.2e-12,) * 9, batch=38)
        model = make_model()
        follow = QuantileClip(plan, quantile=0.01, rate=1.0, share=0.5)
        trainer = Trainer(model, lambda model, batch: 0 * loss(model, batch), follow, sgd(model), seed=0)
        for batch in trainer.batches(data):
            trainer.step(batch)
        assert min(trainer.finish().clip_norm) < 1.16e-12


class TestRows:
    @pytest.mark.parametrize("change", [list[Any].pop, lambda items: items.append(items[0])])
    def test_data_of_another_length_are_refused_in_words(
        self, data: Data, change: Callable[[list[Any]], object]
    ) -> None:
        items = list(zip(*data, strict=True))
        model = make_model()
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
        batches = trainer.batches(items)
        trainer.step(next(batches))
        change(items)
        with pytest.raises(InvalidValue, match=r"keep their number of examples .*, 40, got (39|41)"):
            next(batches)
