"""Each trial of a private search starts from weights that follow from its seed, whatever an earlier trial left."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.accounting import Trials
from decrescendo.errors import InvalidValue
from decrescendo.training import Task, accuracy, cross_entropy
from decrescendo.training.search.private_search import PrivateSearch
from decrescendo.training.search.private_tuning import ATTEMPTED, Tried, search_privately
from decrescendo.training.search.space import Between, Space

from .conftest import ROWS

X, Y = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)), torch.arange(ROWS) % 2


class TestTrialsAreIndependent:
    """The price is that of independent trials. A thousand of them, each from where the last one ended: stated 1, true
    30."""

    def search(self, model: Any, score: Any = None, loss: Any = cross_entropy, trials: float = 4) -> Any:
        own = score or (lambda model: {"accuracy": accuracy(model, X[:20].clone(), Y[:20])})
        task = Task(model=model, loss=loss, data=(X, Y), score=own, batch=ROWS, epochs=2)
        space = Space({"learning_rate": Between(0.1, 1.0)}, {"schedule": "constant"})
        asked = PrivateSearch(task=task, epsilon=2.0, delta=1e-5, space=space, trials=Trials(trials, float("inf")))
        return search_privately(asked, 3)

    def test_weights_that_a_score_keeps_are_refused(self) -> None:
        best: dict[str, Any] = {}

        def warm(seed: int) -> nn.Module:
            model = nn.Linear(3, 2)
            if best:
                model.load_state_dict(best["state"])
            return model

        def keeping(model: nn.Module) -> dict[str, float]:
            best["state"] = copy.deepcopy(model.state_dict())
            return {"accuracy": accuracy(model, X[:20].clone(), Y[:20])}

        with pytest.raises(InvalidValue, match="a training of its own"):
            self.search(warm, keeping)

    def test_weights_that_a_file_keeps_are_refused(self, tmp_path: Any) -> None:
        path = tmp_path / "best.pt"

        def warm(seed: int) -> nn.Module:
            model = nn.Linear(3, 2)
            if path.exists():
                model.load_state_dict(torch.load(path))
            return model

        def keeping(model: nn.Module) -> dict[str, float]:
            torch.save(model.state_dict(), path)
            return {"accuracy": accuracy(model, X[:20].clone(), Y[:20])}

        with pytest.raises(InvalidValue, match="initial weights must follow from its seed"):
            self.search(warm, keeping)

    def test_a_module_that_trials_share_is_refused(self) -> None:
        encoder = nn.Linear(3, 3)
        with pytest.raises(InvalidValue, match="a training of its own"):
            self.search(lambda seed: nn.Sequential(encoder, nn.Linear(3, 2)))

    def test_a_model_that_ignores_its_seed_follows_from_it_all_the_same(self) -> None:
        held: dict[str, Tensor] = {}

        def lazy(model: nn.Module) -> dict[str, float]:
            held.setdefault("x", X[:20].clone())  # loaded when it is first asked for
            return {"accuracy": accuracy(model, held["x"], Y[:20])}

        winner = self.search(lambda seed: nn.Linear(3, 2), lazy)
        assert winner.assumptions == ()
        task = Task(model=lambda seed: nn.Linear(3, 2), loss=cross_entropy, data=(X, Y))
        before = torch.get_rng_state()
        one, same, other = (task.fresh(seed).weight for seed in (5, 5, 6))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_score_may_keep_what_it_saw(self) -> None:
        seen: list[int] = []

        def counting(model: nn.Module) -> dict[str, float]:
            seen.append(len(seen))
            return {"accuracy": accuracy(model, X[:20].clone(), Y[:20])}

        assert self.search(lambda seed: nn.Linear(3, 2), counting).assumptions == ()

    def test_trials_of_a_program_of_the_users_are_supposed_to_be_apart(self) -> None:
        task = Task(model=nn.Linear(3, 2), loss=cross_entropy, data=(X, Y), score=lambda model: {"a": 1.0}, batch=ROWS)
        space = Space({"learning_rate": Between(0.1, 1.0)}, {"schedule": "constant", "epochs": 1.0})
        asked = PrivateSearch(task=task, epsilon=2.0, delta=1e-5, space=space, trials=Trials(1, float("inf")))
        tried = Tried(0.5, {"w": torch.ones(1)}, ())
        winners = [search_privately(asked, seed, attempt=lambda spec, plan: tried) for seed in (0, 1)]
        assert {winner.score is None for winner in winners} == {True, False}  # no trial, and some
        assert {winner.assumptions for winner in winners} == {(ATTEMPTED,)}

    def test_a_score_cannot_write_to_what_is_released(self) -> None:
        def writing(model: nn.Module) -> dict[str, float]:
            model.load_state_dict({name: torch.full_like(p, 9.0) for name, p in model.state_dict().items()})
            return {"accuracy": 0.5}

        search = self.search
        winner = search(lambda seed: nn.Linear(3, 2), writing)
        assert all((weight != 9).all() for weight in winner.weights.values())

    def test_a_score_that_draws_draws_the_same_for_each(self) -> None:
        search = self.search
        assert search(lambda seed: nn.Linear(3, 2), lambda model: {"a": float(torch.rand(()))}).assumptions == ()
