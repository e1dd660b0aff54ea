"""Optimisers, models, data, stores and checkpoints changed between steps, with which a run was called proven."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.optim import AdamBC, averaged
from decrescendo.training import Checkpoints, Trainer
from decrescendo.training.between import REMEMBERED, SET, WRITTEN
from decrescendo.training.bits import fingerprint

from .conftest import loss, make_model, make_plan, sgd

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


def _moments(optimizer: Any, name: str = "exp_avg") -> list[Tensor]:
    return [held[name] for held in optimizer.state.values()]


class TestWhatAnOptimiserRemembers:
    """A moment moves the weights at the next step, by as much as is written into it: no noise is in that."""

    @pytest.mark.parametrize(
        "change",
        [
            lambda o, x: _moments(o)[0].add_(x.mean()),
            lambda o, x: _moments(o)[0].data.add_(x.mean()),
            lambda o, x: _moments(o)[0].numpy().__imul__(-1.0),
            lambda o, x: o.state[o.param_groups[0]["params"][0]].update(exp_avg=torch.ones(4, 3) * x.mean()),
            lambda o, x: _moments(o, "step")[0].add_(float(x.mean() > 0) + 1),
            lambda o, x: o.state.clear(),
            lambda o, x: o.load_state_dict(_with(o.state_dict(), x.mean())),
        ],
        ids=["in place", "past the counters", "by numpy", "another tensor", "steps", "forgotten", "loaded"],
    )
    def test_what_is_written_to_it_is_said(
        self, data: Data, change: Callable[[Any, Tensor], object]
    ) -> None:
        run = run_of(data, lambda _, optimizer: change(optimizer, data[0]))
        assert run.assumptions == (REMEMBERED,)

    def test_of_momentum_and_of_one_number(self, data: Data) -> None:
        def write(_: nn.Module, optimizer: Any) -> None:
            _moments(optimizer, "momentum_buffer")[0].view(-1)[3] = data[0][0, 0]

        make = lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        assert run_of(data, write, make).assumptions == (REMEMBERED,)

    def test_of_a_loop_that_steps_its_optimiser(self, data: Data) -> None:
        model = make_model()
        optimizer = adam(model)
        trainer = Trainer(model, loss, make_plan(), optimizer, seed=0)
        for batch in trainer.batches(data):
            trainer.fill_gradients(batch)
            if optimizer.state:
                _moments(optimizer)[0].add_(data[0].mean())
            optimizer.step()
            optimizer.zero_grad()
        assert trainer.finish().assumptions == (REMEMBERED,)

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
    def test_what_its_steps_write_is_nothing_to_say(self, data: Data, make: Callable[[nn.Module], Any]) -> None:
        assert run_of(data, lambda model, _: loss(model, data).sum().backward(), make).proven

    def test_what_was_loaded_before_the_first_draw_is_the_start(self, data: Data) -> None:
        first = make_model()
        before = adam(first)
        loss(first, data).sum().backward()
        before.step()

        def make(model: nn.Module) -> Any:
            optimizer = adam(model)
            optimizer.load_state_dict(before.state_dict())
            return optimizer

        assert run_of(data, lambda *_: None, make).proven

    def test_a_restart_is_nothing_to_say_and_passes_on_what_is_supposed(self, data: Data, tmp_path: Path) -> None:
        for write, said in ((False, ()), (True, (REMEMBERED,))):
            folder = tmp_path / str(write)
            for until in (2, 3):
                model = make_model()
                optimizer = adam(model)
                kept = Checkpoints(folder, every=1, resume=True)
                trainer = Trainer(model, loss, make_plan(), optimizer, seed=0, checkpoints=kept)
                for batch in trainer.batches(data):
                    step = trainer.step(batch).step
                    if write and step == 1:
                        _moments(optimizer)[0].add_(data[0].mean())
                    if step == until:
                        break
            assert trainer.finish().assumptions == said


class TestSettings:
    """The length of a step is in no noise either."""

    @pytest.mark.parametrize("name", ["lr", "weight_decay", "eps", "betas", "maximize"])
    def test_what_code_of_a_users_sets_is_said(self, data: Data, name: str) -> None:
        def change(_: nn.Module, optimizer: Any) -> None:
            seen = float(data[0].mean())
            (group,) = optimizer.param_groups
            group[name] = {"betas": (0.5, 0.5), "maximize": True}.get(name, abs(seen))

        assert run_of(data, change).assumptions == (SET,)

    def test_a_rate_that_follows_a_score_is_said(self, data: Data) -> None:
        def make(model: nn.Module) -> Any:
            optimizer = adam(model)
            plateau.append(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9))
            return optimizer

        plateau: list[Any] = []
        run = run_of(data, lambda model, _: plateau[0].step(loss(model, data).sum().item()), make)
        assert run.assumptions == (SET,)

    @pytest.mark.parametrize(
        "schedule",
        [
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 3),
            lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=9),
            lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.1, 1.0, step_size_up=2),
            lambda o: torch.optim.lr_scheduler.SequentialLR(
                o,
                [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
                milestones=[2],
            ),
        ],
    )
    def test_schedulers_of_torch_are_nothing_to_say(self, data: Data, schedule: Callable[[Any], Any]) -> None:
        def make(model: nn.Module) -> Any:
            optimizer = adam(model)
            schedulers.append(schedule(optimizer))
            return optimizer

        schedulers: list[Any] = []
        assert run_of(data, lambda *_: schedulers[0].step(), make).proven

    def test_averages_and_prints_are_nothing_to_say(self, data: Data) -> None:
        averages: list[Any] = []

        def between(model: nn.Module, optimizer: Any) -> None:
            if not averages:
                averages.append(averaged(model, decay=0.9))
            averages[0].update_parameters(model)
            print(loss(model, data).mean().item(), optimizer.param_groups[0]["lr"], optimizer.state_dict().keys())

        assert run_of(data, between).proven


def _with(state: dict[str, Any], value: Tensor) -> dict[str, Any]:
    state["state"][0]["exp_avg"] = torch.zeros(4, 3) + value
    return state


class TestFingerprints:
    @pytest.mark.parametrize(
        "dtype",
        [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool],
        ids=str,
    )
    @pytest.mark.parametrize("place", ["cpu", "elsewhere"])
    def test_they_tell_places_and_signs_apart(
        self, dtype: torch.dtype, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if place == "elsewhere":  # the form of other devices, on this one
            monkeypatch.setattr("decrescendo.training.bits._HASHED", "nowhere")
        for count in (2, 300_000):
            values = (torch.arange(count) % 7 + 1).to(dtype)
            values[0] = 0
            others = [values.flip(0), values.roll(1)] + ([-values] if dtype != torch.bool else [])
            for other in others:
                assert fingerprint(values) != fingerprint(other)
            last = values.clone()
            last[-1] = 0
            assert fingerprint(values) != fingerprint(last)
            assert fingerprint(values) == fingerprint(values.clone())
            assert fingerprint(values[::2]) == fingerprint(values[::2].clone())

    def test_several_are_told_apart_by_where_one_ends(self) -> None:
        values = torch.arange(6.0)
        assert fingerprint(values[:2], values[2:]) != fingerprint(values[:3], values[3:])
        assert fingerprint(values) != fingerprint(values, torch.empty(0))
        assert fingerprint() == fingerprint()
        assert fingerprint(torch.tensor(1.0)) != fingerprint(torch.tensor(2.0))
