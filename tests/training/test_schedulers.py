"""Learning-rate schedulers: what a run steps and keeps itself, and what is listed of rates that other code sets."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training import Checkpoints, Trainer, train
from decrescendo.training.loop.assumptions import READ_AND_SET, SET
from decrescendo.training.loop.schedulers import scheduler_of

from .conftest import loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]
STEPS = 6


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def plan_of(steps: int = STEPS) -> Any:
    return make_plan([2.0] * steps, [1.0] * steps)


KINDS: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle, with its momentum": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=STEPS),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, step_size_up=2),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.StepLR(o, 1)]
    ),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "partial": functools.partial(lr_scheduler.PolynomialLR, total_iters=STEPS),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("made", [True, False])
def test_it_is_stepped_once_a_step_and_is_nothing_to_list(data: Data, name: str, made: bool) -> None:
    """The rates are those of plain torch; a callback sees the next step's."""
    expected, seen = list[float](), list[float]()
    plain = adam(make_model())
    one = KINDS[name](plain)
    for _ in range(STEPS):
        plain.step()
        one.step()
        expected.append(plain.param_groups[0]["lr"])
    model = make_model()
    optimizer = adam(model)
    run = train(
        model, loss, data, plan_of(), optimizer, seed=0, scheduler=KINDS[name](optimizer) if made else KINDS[name],
        callback=lambda _: seen.append(optimizer.param_groups[0]["lr"]),
    )  # fmt: skip
    assert seen == expected
    assert run.assumptions == ()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("end", [1, 4])
def test_a_run_that_is_gone_on_with_has_the_same_rates_and_bits(
    data: Data, tmp_path: Path, name: str, end: int
) -> None:
    def life(folder: Path, stop: int) -> tuple[Any, list[float]]:
        model = make_model()
        optimizer, rates = adam(model), list[float]()
        trainer = Trainer(
            model, loss, plan_of(), optimizer, seed=0, scheduler=KINDS[name],
            checkpoints=Checkpoints(folder, every=2, resume=True),
        )  # fmt: skip
        for batch in trainer.batches(data):
            trainer.step(batch)
            rates.append(optimizer.param_groups[0]["lr"])
            if len(trainer.ledger) == stop:
                return None, rates
        return trainer.finish(), rates

    whole, expected = life(tmp_path / "whole", -1)
    life(tmp_path / "killed", end)
    again, rates = life(tmp_path / "killed", -1)
    assert rates == expected[-len(rates) :]
    assert all(torch.equal(whole.weights[key], again.weights[key]) for key in whole.weights)
    assert (whole.assumptions, again.assumptions) == ((), ())


def test_a_checkpoint_of_a_scheduler_that_the_loop_stepped_goes_on_with_the_argument(
    data: Data, tmp_path: Path
) -> None:
    model = make_model()
    optimizer = sgd(model)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    kept = Checkpoints(tmp_path, every=1, also={"scheduler": scheduler})
    trainer = Trainer(model, loss, plan_of(), optimizer, seed=0, checkpoints=kept)
    for batch in trainer.batches(data):
        if len(trainer.ledger) == 2:
            break
        trainer.step(batch)
        scheduler.step()
    model = make_model()
    optimizer = sgd(model)
    train(
        model, loss, data, plan_of(), optimizer, seed=0, scheduler=lambda o: lr_scheduler.ExponentialLR(o, 0.5),
        checkpoints=Checkpoints(tmp_path, resume=True),
    )  # fmt: skip
    assert optimizer.param_groups[0]["lr"] == 0.5 * 0.5**STEPS


def test_a_run_goes_on_with_a_scheduler_of_its_own_kind(data: Data, tmp_path: Path) -> None:
    def go_on(scheduler: Any, end: int) -> None:
        model = make_model()
        train(
            model, loss, data, plan_of(), sgd(model), seed=0, scheduler=scheduler, callback=lambda p: p.step == end,
            checkpoints=Checkpoints(tmp_path, every=1, resume=True),
        )  # fmt: skip

    go_on(lambda o: lr_scheduler.ExponentialLR(o, 0.5), 2)
    with pytest.raises(InvalidValue, match="began with, ExponentialLR, got LinearLR"):
        go_on(lr_scheduler.LinearLR, -1)


class ByLoss(lr_scheduler.ExponentialLR):
    """Of a user's, fed with a score."""

    def _initial_step(self) -> None:
        pass

    def step(self, score: float) -> None:  # type: ignore[override]
        super().step()


@pytest.mark.parametrize(
    "scheduler",
    [
        lr_scheduler.ReduceLROnPlateau,
        lambda o: ByLoss(o, 0.9),
    ],
    ids=["plateau", "a class of a user's"],
)  # fmt: skip
def test_one_that_goes_by_scores_is_refused(data: Data, scheduler: Any) -> None:
    model = make_model()
    with pytest.raises(InvalidValue, match=r"by the number of steps, got \w+, which sets it by scores"):
        train(model, loss, data, plan_of(), sgd(model), seed=0, scheduler=scheduler)


def test_what_is_no_scheduler_or_one_of_another_optimiser_is_refused(data: Data, tmp_path: Path) -> None:
    model = make_model()
    given: Any
    for given in (0.5, "cosine", lambda _: None, [lr_scheduler.ConstantLR(sgd(model))]):
        with pytest.raises(InvalidType, match="scheduler must be a torch"):
            train(model, loss, data, plan_of(), sgd(model), seed=0, scheduler=given)
    with pytest.raises(InvalidValue, match="made for another optimizer"):
        train(model, loss, data, plan_of(), sgd(model), seed=0, scheduler=lr_scheduler.ConstantLR(sgd(model)))
    optimizer = sgd(model)
    one, other = lr_scheduler.ConstantLR(optimizer), lr_scheduler.ConstantLR(optimizer)
    kept = Checkpoints(tmp_path / "a", also={"scheduler": other})
    with pytest.raises(InvalidValue, match="also must name each thing once"):
        Trainer(model, loss, plan_of(), optimizer, seed=0, scheduler=one, checkpoints=kept)
    kept = Checkpoints(tmp_path / "b", also={"mine": one})
    Trainer(model, loss, plan_of(), optimizer, seed=0, scheduler=one, checkpoints=kept)


def test_one_that_no_checkpoint_would_keep_is_refused(data: Data, tmp_path: Path) -> None:
    model = make_model()
    optimizer = sgd(model)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    with pytest.raises(InvalidValue, match="scheduler="):
        Trainer(model, loss, plan_of(), optimizer, seed=0, checkpoints=Checkpoints(tmp_path / "a"))
    kept = Checkpoints(tmp_path / "b", also={"scheduler": scheduler})
    Trainer(model, loss, plan_of(), optimizer, seed=0, checkpoints=kept)


def test_a_scheduler_of_a_users_class_is_assumed_to_go_by_steps(data: Data) -> None:
    class Mine(lr_scheduler.ExponentialLR):
        pass

    model = make_model()
    run = train(model, loss, data, plan_of(), sgd(model), seed=0, scheduler=lambda o: Mine(o, 0.9))
    (said,) = run.assumptions
    assert (said.code, "Mine" in said.sentence) == ("own-scheduler", True)


def test_a_function_that_reads_a_score_is_not_seen(data: Data) -> None:
    """A limit: what a function computes a rate from is not looked at."""
    scores, model = [1.0], make_model()
    run = train(
        model, loss, data, plan_of(), sgd(model), seed=0,
        scheduler=lambda o: lr_scheduler.LambdaLR(o, lambda step: scores[0] / (step + 1)),
        callback=lambda _: scores.append(scores.pop() + loss(model, data).sum().item()),
    )  # fmt: skip
    assert run.assumptions == ()


class TestRatesThatOtherCodeSets:
    """The length of a step is in no noise: who sets it is one assumption, and nothing is refused."""

    @staticmethod
    def said(data: Data, between: Callable[[Any, Any, float], object], scheduler: Any = None) -> Any:
        model = make_model()
        optimizer = adam(model)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, scheduler=scheduler)
        own = lr_scheduler.ExponentialLR(optimizer, 0.9)
        for batch in trainer.batches(data):
            trainer.step(batch)
            between(optimizer, own, loss(model, data).sum().item())
        return trainer.finish().assumptions

    def test_a_scheduler_that_the_loop_steps(self, data: Data) -> None:
        assert self.said(data, lambda o, own, score: own.step()) == (SET,)

    @pytest.mark.parametrize("name", ["lr", "weight_decay", "eps", "betas", "maximize"])
    @pytest.mark.parametrize("scheduler", [None, lambda o: lr_scheduler.ExponentialLR(o, 0.9)])
    def test_by_hand(self, data: Data, name: str, scheduler: Any) -> None:
        def change(optimizer: Any, own: Any, score: float) -> None:
            optimizer.param_groups[0][name] = {"betas": (0.5, 0.5), "maximize": True}.get(name, abs(score))

        assert self.said(data, change, scheduler) == (SET,)

    def test_in_tensors_where_they_lie(self, data: Data) -> None:
        model = make_model()
        betas: Any = torch.tensor(0.9), torch.tensor(0.99)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=betas, foreach=False)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=1)
        for batch in trainer.batches(data):
            trainer.step(batch)
            betas[0].fill_(0.1)
        assert trainer.finish().assumptions == (SET,)

    def test_by_a_score(self, data: Data) -> None:
        plateau: list[Any] = []

        def follow(optimizer: Any, own: Any, score: float) -> None:
            plateau[:] = plateau or [lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9)]
            plateau[0].step(score)

        assert self.said(data, follow) == (SET,)

    def test_by_private_diagnostics_is_another_sentence(self, data: Data) -> None:
        model = make_model()
        optimizer = sgd(model)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9)
        run = train(
            model, loss, data, make_plan(), optimizer, seed=0,
            callback=lambda progress: plateau.step(progress.diagnostics.loss_sum),
        )  # fmt: skip
        assert run.assumptions == (READ_AND_SET,)

    def test_who_looks_at_diagnostics_beside_a_scheduler_sets_nothing(self, data: Data) -> None:
        model, seen = make_model(), list[float]()
        run = train(
            model, loss, data, make_plan(), sgd(model), seed=0, scheduler=lambda o: lr_scheduler.StepLR(o, 1),
            callback=lambda progress: seen.append(progress.diagnostics.loss_sum),
        )  # fmt: skip
        assert run.assumptions == ()


class TestLoopsThatStepTheirOptimiser:
    """With `fill_gradients` the loop steps its scheduler itself; the run knows it by its argument."""

    @staticmethod
    def said(data: Data, kind: str, *, given: bool, after: Callable[[Any], object] = lambda _: None) -> Any:
        model = make_model()
        optimizer = adam(model)
        scheduler = KINDS[kind](optimizer)
        trainer = Trainer(model, loss, plan_of(), optimizer, seed=0, scheduler=scheduler if given else None)
        for batch in trainer.batches(data):
            trainer.fill_gradients(batch)
            optimizer.step()
            scheduler.step()
            after(optimizer.param_groups[0])
            optimizer.zero_grad()
        return trainer.finish().assumptions

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_runs_own_is_nothing_to_list(self, data: Data, kind: str) -> None:
        assert self.said(data, kind, given=True) == ()
        assert self.said(data, kind, given=False) == (SET,)

    def test_a_rate_set_after_it_is_listed(self, data: Data) -> None:
        def rate(group: Any) -> None:
            group["lr"] = float(data[0].abs().mean())

        def decay(group: Any) -> None:
            group["weight_decay"] = 0.5

        for change in (rate, decay):
            assert self.said(data, "cosine", given=True, after=change) == (SET,)


def test_the_statement_says_the_rates_that_were_used(data: Data, tmp_path: Path) -> None:
    model = make_model()
    groups = [{"params": [p], "lr": 0.1 + at % 2} for at, p in enumerate(model.parameters())]
    run = train(model, loss, data, make_plan(), torch.optim.SGD(groups, lr=9.0), seed=0)
    assert run.provenance.optimizer == "SGD(lr=0.1/1.1)"
    for rate, until in ((0.25, 2), (0.75, 3)):  # the optimiser's settings are those of the checkpoint
        model = make_model()
        kept = Checkpoints(tmp_path / "run", every=1, resume=until == 3)
        trainer = Trainer(model, loss, make_plan(), sgd(model, rate), seed=0, checkpoints=kept)
        for taken, batch in enumerate(trainer.batches(data), start=until - 1):
            trainer.step(batch)
            if taken == until:
                break
        assert "lr=0.25" in trainer.finish().provenance.optimizer


def test_numbers_of_epochs_are_not_taken_for_numbers_of_steps() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with pytest.warns(UserWarning, match="once a step, not once an epoch"):
        scheduler_of(lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 1), optimizer, STEPS)
    with pytest.raises(InvalidValue, match=f"Give total_steps={STEPS}"):
        scheduler_of(lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=STEPS - 1), optimizer, STEPS)
    for fits in (
        lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
        lr_scheduler.OneCycleLR(optimizer, 1.0, STEPS),
    ):
        assert scheduler_of(fits, optimizer, STEPS) is fits
        optimizer.step()
        fits.step()
        assert scheduler_of(fits, optimizer, STEPS) is fits  # a run that goes on
