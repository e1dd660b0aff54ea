"""A model or a score of a private search that fails does so before anything is spent."""

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
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.training import Between, Space, Task, cross_entropy
from decrescendo.training.search.private_search import PrivateSearch
from decrescendo.training.search.private_tuning import search_privately
from decrescendo.training.search.winner import Winner, save_winner

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
    def test_a_winner_whose_score_is_no_number_is_written_with_what_it_cost(self, score: float, tmp_path: Path) -> None:
        winner = search(lambda _: {"a": score}, seed=1)
        weights = save_winner(tmp_path / "deep" / "w.json", winner)
        assert weights is not None
        assert weights.exists()
        assert '"score": null' in (tmp_path / "deep" / "w.json").read_text()
