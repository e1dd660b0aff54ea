"""What an adversary of checkpoints, stores, private searches and what comes after a run found."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import decrescendo as dc
from decrescendo.accounting import Trials
from decrescendo.errors import DecrescendoError, InvalidType, InvalidValue
from decrescendo.federated import Clients
from decrescendo.federated.clients import Records
from decrescendo.training import Between, Space, Task, cross_entropy
from decrescendo.training.between import ENDED_EARLY
from decrescendo.training.private_tuning import PrivateSearch, Winner, save_winner, search_privately

X, Y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def search(
    score: Callable[[Any], Any] = lambda _: {"accuracy": 0.5},
    model: Callable[[int], nn.Module] = build,
    seed: int | dc.Secure = 0,
    **more: Any,
) -> Winner:
    """Of three trials or so, at least one."""
    task = Task(model=model, loss=cross_entropy, data=(X, Y), score=score)
    space = Space({"clip": Between(0.5, 2.0)}, {"steps": 2, "schedule": "constant", "batch": 60})
    asked = PrivateSearch(task=task, epsilon=4.0, space=space, trials=Trials(mean=3, shape=1))
    return search_privately(asked, seed, **more)


def plan_of(rows: int = 60, steps: int = 4) -> dc.Plan:
    constant = dc.curves.constant(1.0)
    sampling = dc.PoissonSampling(rows, 10)
    return dc.calibrate(dc.Budget(4.0, 1e-3), sampling, steps=steps, privacy=constant, clip=constant)


def trained(model: nn.Module, **more: Any) -> dc.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dc.train(model, cross_entropy, (X, Y), plan_of(), optimizer, **{"seed": 0, **more})


class TestSeedsOfModels:
    def test_each_library_takes_them(self) -> None:
        def everywhere(seed: int) -> nn.Module:
            assert 0 <= seed < 2**32
            np.random.seed(seed)
            return build(seed)

        for seed in (0, dc.Secure()):
            search(model=everywhere, seed=seed)
        task = Task(model=everywhere, loss=cross_entropy, data=(X, Y))
        weights = [task.fresh(seed).state_dict()["weight"] for seed in (2**200, 2**200 + 1, 1, 2)]
        assert len({value.sum() for value in weights}) == len(weights)

    def test_a_model_that_fails_costs_nothing(self, tmp_path: Path) -> None:
        """It fails before the search is written down as spent."""
        store = dc.Store.create(tmp_path / "s.db", dc.Budget(9.0, 1e-2), dataset="d", rows=60)

        def failing(seed: int) -> nn.Module:
            if seed:
                raise OSError("no such file")
            return build(seed)

        with pytest.raises(OSError, match="no such file"):
            search(model=failing, seed=dc.Secure(), store=store)
        assert store.entries() == []


def test_that_a_run_ended_early_is_supposed_to_say_nothing() -> None:
    """A loop may end it by the private rows themselves."""
    model = nn.Linear(3, 2)
    run = trained(model, callback=lambda progress: progress.step == 2 and bool(X[0, 0] < 9))
    assert (run.steps, run.assumptions) == (2, (ENDED_EARLY,))
    assert trained(nn.Linear(3, 2)).assumptions == ()


class Held:
    best = 0

    def score(self, model: Any) -> dict[str, float]:
        type(self).best += is_trained(model)
        return {"accuracy": 0.5}


class Slotted:
    __slots__ = ("best",)

    def __init__(self) -> None:
        self.best = 0

    def score(self, model: Any) -> dict[str, float]:
        self.best += is_trained(model)
        return {"accuracy": 0.5}


def is_trained(model: Any) -> bool:
    """Before the search there was none."""
    return not torch.equal(model.weight, _START)


_START = Task(model=build, loss=cross_entropy, data=(X, Y)).fresh(0).state_dict()["weight"].clone()


@pytest.mark.parametrize("kind", ["class", "slots", "set", "keys", "long", "objects"])
def test_what_a_score_keeps_of_one_trial_is_found_before_the_next(kind: str) -> None:
    numbers, keys, long, objects = {0}, {0: None}, [0] * 2_000, np.array([0], dtype=object)

    def score(model: Any) -> dict[str, float]:
        step = int(is_trained(model))
        if kind == "set":
            numbers.add(numbers.pop() + step)
        elif kind == "keys":
            (at,) = keys
            keys.clear()
            keys[at + step] = None
        elif kind == "long":
            long[0] += step
        else:
            objects[0] += step
        return {"accuracy": 0.5}

    found = {"class": Held().score, "slots": Slotted().score}.get(kind, score)
    with pytest.raises(InvalidValue, match="as it is from trial to trial"):
        search(found, seed=0)


class TestScores:
    @pytest.mark.parametrize(
        ("score", "error", "match"),
        [
            ({}, InvalidValue, "must have a score"),
            ({"a": "good"}, InvalidType, "'a': 'good'"),
            ({"a": None}, InvalidType, "must be numbers"),
            ({"a": torch.ones(2)}, InvalidType, "one each"),
        ],
    )
    def test_what_is_none_is_refused_before_anything_is_spent(
        self, score: Any, error: type[Exception], match: str, tmp_path: Path
    ) -> None:
        store = dc.Store.create(tmp_path / "s.db", dc.Budget(9.0, 1e-2), dataset="d", rows=60)
        with pytest.raises(error, match=match):
            search(lambda _: score, seed=dc.Secure(), store=store)
        assert store.entries() == []

    @pytest.mark.parametrize("score", [math.nan, math.inf])
    def test_a_winner_whose_score_is_no_number_is_written_with_what_it_cost(
        self, score: float, tmp_path: Path
    ) -> None:
        winner = search(lambda _: {"a": score}, seed=1)
        weights = save_winner(tmp_path / "deep" / "w.json", winner)
        assert weights is not None
        assert weights.exists()
        assert '"score": null' in (tmp_path / "deep" / "w.json").read_text()


class TestClients:
    @pytest.mark.parametrize("offsets", [[0, 60], torch.tensor([0, 60]), np.array([0.0, 60.0]), None])
    def test_offsets_are_whole_numbers(self, offsets: Any) -> None:
        with pytest.raises(DecrescendoError, match="offsets"):
            unchecked(Clients.ranges)(Clients, (X, Y), offsets)

    def test_offsets_written_to_later_move_no_record(self) -> None:
        offsets = np.array([0, 20, 60])
        clients = Clients.ranges((X, Y), offsets)
        offsets[1] = 40
        assert clients.take(np.array([0])).counts.tolist() == [20]

    def test_what_take_gives_is_said(self) -> None:
        with pytest.raises(InvalidType, match="Records"):
            unchecked(Clients.records)(Clients(2, lambda _: None), np.array([0]))  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="counts"):
            unchecked(Records.__init__)(object.__new__(Records), X, [60])


def test_a_store_says_what_was_given_to_it_and_that_it_was_closed(tmp_path: Path) -> None:
    budget, path = dc.Budget(9.0, 1e-2), tmp_path / "s.db"
    create, about = unchecked(dc.Store.create), {"dataset": "d", "rows": 1}
    store = dc.Store.create(path, budget, **about)  # (after it nothing that it calls is checked in this test)
    store.close()
    with pytest.raises(InvalidType, match="path must be"):
        unchecked(dc.Store.__init__)(object.__new__(dc.Store), None)
    with pytest.raises(InvalidType, match="path must be"):
        create(dc.Store, None, budget, **about)
    with pytest.raises(InvalidType, match="composition must be"):
        create(dc.Store, tmp_path / "other.db", budget, **about, composition=None)
    with pytest.raises(InvalidValue, match=r"after close\(\)"):
        store.describe()
    with pytest.raises(InvalidType, match="resume must be"):
        unchecked(dc.Checkpoints.__init__)(object.__new__(dc.Checkpoints), tmp_path / "c", resume="yes")


def unchecked(function: Any) -> Callable[..., Any]:
    """Without the type checker of the test run, as users call it; of a class's method the function."""
    function = getattr(function, "__func__", function)
    return getattr(function, "__wrapped__", function)
