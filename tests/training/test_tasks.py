"""Facts: tasks train and are scored; optimisers and learning rates are what their names say."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import decrescendo as dc
from decrescendo.accounting import Trials
from decrescendo.errors import InvalidType, InvalidValue
from decrescendo.plans.named import SCHEDULES, schedule_curves
from decrescendo.training import (
    PrivateSearch,
    Run,
    Space,
    Task,
    accuracy,
    cross_entropy,
    decay_scheduler,
    digits,
    find_task,
    make_optimizer,
    rows,
    search_privately,
    train,
    train_task,
    tune,
)  # fmt: skip
from decrescendo.training.search.space import Among

from .conftest import ROWS, loss, make_model, make_plan, sgd


def test_the_example_is_what_scikit_learn_distributes() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = datasets.load_digits()
    (inputs, targets), (test, answers) = digits.digits()
    held = np.arange(1797) % 5 == 4
    assert (16 * inputs[:, 0].numpy() == bunch.images[~held]).all()
    assert (16 * test[:, 0].numpy() == bunch.images[held]).all()
    assert (targets.numpy() == bunch.target[~held]).all()
    assert (answers.numpy() == bunch.target[held]).all()


def test_the_declared_number_of_rows_is_that_of_the_data() -> None:
    # A plan can be made without loading the data: this number must be right.
    assert find_task("digits").rows == rows(find_task("digits").load()).count


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("none", [1.0] * 8),
        ("linear", [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("cosine", [1.0, 0.9619, 0.8536, 0.6913, 0.5, 0.3087, 0.1464, 0.0381]),
    ],
)
def test_learning_rates_fall_as_named(decay: str, expected: list[float]) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = decay_scheduler(optimizer, decay, 8)
    seen = []
    for _ in range(8):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sgd", 0.0, 0.0), "learning_rate must be > 0"),
        (("sgd", 0.1, 1.0), "momentum must be"),
        (("adam", 0.1, 0.5), "momentum must be 0 with adam"),
        (("lbfgs", 0.1, 0.0), "optimizer must be one of sgd, momentum-bc, adam"),
    ],
)
def test_wrong_optimizers_are_refused(arguments: tuple[str, float, float], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        make_optimizer(make_model(), *arguments)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match=r"module:function.*or one of digits"):
        find_task("imagenet")
    with pytest.raises(InvalidValue, match="constant, growing-mu"):
        schedule_curves("magic", clip=1, rho_mu=1, rho_c=1)
    with pytest.raises(InvalidValue, match="none, linear or cosine"):
        decay_scheduler(torch.optim.SGD(make_model().parameters(), lr=1), "warm", 3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_move_what_their_name_says(name: str) -> None:
    progress = torch.linspace(0.25, 1, 4, dtype=torch.float64).numpy()
    privacy, clip = schedule_curves(name, clip=1.5, rho_mu=1.25, rho_c=3.0, epochs=4)
    moves = (len(set(privacy(progress).tolist())) > 1, len(set(clip(progress).tolist())) > 1)
    assert (
        moves
        == {
            "constant": (False, False),
            "growing-mu": (True, False),
            "sensitivity-decay": (False, True),
            "dynamic": (True, True),
            "optimal": (True, True),
            **dict.fromkeys(DECAYS, (True, False)),
        }[name]
    )


DECAYS = ("exponential-decay", "time-decay", "step-decay", "polynomial-decay")


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize("epochs", [2, 3, 20])
def test_noise_decays_fall_by_rho_mu_from_the_first_epoch_to_the_last(name: str, epochs: int) -> None:
    progress = (torch.arange(1, 10 * epochs + 1, dtype=torch.float64) / (10 * epochs)).numpy()
    privacy, _ = schedule_curves(name, clip=1.5, rho_mu=1.25, rho_c=3.0, epochs=epochs)
    mu = privacy(progress)
    assert mu[-1] / mu[0] == pytest.approx(1.25)
    assert (mu[1:] >= mu[:-1] - 1e-12).all()
    with pytest.raises(InvalidValue, match="rho_mu must be"):
        schedule_curves(name, clip=1.5, rho_mu=1.0, rho_c=3.0, epochs=epochs)


def toy() -> Task:
    inputs = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))
    targets = (inputs[:, 0] > 0).long()

    def score(model: torch.nn.Module) -> dict[str, float]:
        return {"test_accuracy": accuracy(model, inputs[:4].clone(), 1 - targets[:4])}

    return Task(
        model=lambda seed: make_model(), loss=cross_entropy, data=lambda: (inputs, targets), rows=ROWS, score=score,
        batch=8, epochs=1, learning_rate=0.5,
    )  # fmt: skip


def test_a_task_trains_and_is_scored_on_its_test_half() -> None:
    task = toy()
    run = train_task(task, make_plan(), seed=0, lr_decay="linear")
    model = make_model()
    model.load_state_dict(dict(run.weights))
    assert run.metrics == task.scores(model)


def test_the_average_is_what_is_kept_where_there_is_one() -> None:
    task = toy()
    run = train_task(task, make_plan(), seed=0, averaging=0.5)
    plain = train_task(task, make_plan(), seed=0)
    model = make_model()
    model.load_state_dict(dict(run.weights))
    assert run.metrics == task.scores(model)
    assert any(not torch.equal(run.weights[name], plain.weights[name]) for name in run.weights)


def test_a_module_is_copied_for_each_training() -> None:
    task = replace(toy(), model=make_model())
    first, second = task.fresh(0), task.fresh(0)
    assert first is not second
    assert first is not task.model


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": None}, "rows must be given where data is a function"),
        ({"rows": 0}, "rows must be >= 1"),
        ({"batch": 0}, "batch must be > 0"),
        ({"epochs": -1}, "epochs must be > 0"),
        ({"learning_rate": 0}, "learning_rate must be > 0"),
    ],
)
def test_wrong_tasks_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        replace(toy(), **changes)


def test_scores_have_names_and_are_numbers(data: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    model = make_model()
    run = train(model, loss, data, make_plan(), sgd(model), seed=0)
    run.with_metrics({"accuracy": np.float64(0.5)}).save(tmp_path / "run")  # type: ignore[dict-item]
    assert Run.load(tmp_path / "run").metrics == {"accuracy": 0.5}
    with pytest.raises(InvalidType, match="scores by name"):
        Task(model=model, loss=loss, data=data, score=lambda m: 0.5).scores(model)  # type: ignore[arg-type,return-value]


def test_a_task_without_rows_is_refused_in_words() -> None:
    empty = Task(model=lambda seed: make_model(), loss=cross_entropy, data=(torch.zeros(0, 3), torch.zeros(0)))
    for name in ("count", "delta", "expected_batch"):
        with pytest.raises(InvalidValue, match="rows must be >= 1"):
            getattr(empty, name)


def test_a_score_on_the_private_rows_is_refused_before_the_budget_is_spent() -> None:
    private, targets = torch.randn(ROWS, 3), torch.zeros(ROWS).long()
    public = torch.randn(ROWS, 3)

    def scored_on(inputs: torch.Tensor) -> Task:
        return Task(
            model=lambda seed: make_model(), loss=cross_entropy, data=(private, targets), batch=8, epochs=1,
            score=lambda model: {"accuracy": accuracy(model, inputs, targets)},
        )  # fmt: skip

    space = Space({"learning_rate": Among((0.1, 0.2))})

    def searched(task: Task) -> object:
        return search_privately(
            PrivateSearch(task=task, epsilon=3.0, space=space, trials=Trials(mean=2, shape=1)), seed=0
        )

    def tuned(task: Task) -> object:  # on public rows, with the score of the task that it was made from
        return tune(task, replace(task, data=(public, targets.clone())), dc.Budget(3.0, 1e-2), space, trials=1)

    for use in (lambda task: train_task(task, make_plan(), seed=0), searched, tuned):
        for inputs in (private, private[:4]):
            with pytest.raises(InvalidValue, match="score must be on public data"):
                use(scored_on(inputs))
        assert use(scored_on(public.clone()))
    kept = []

    def saving(model: torch.nn.Module) -> dict[str, float]:
        kept.append(copy.deepcopy(model))
        pickle.dumps(model)
        return {"accuracy": accuracy(model, public, targets)}

    train_task(replace(scored_on(public), score=saving), make_plan(), seed=0)
    assert not any(model._forward_pre_hooks for model in kept)
    by_name = replace(scored_on(public), score=lambda model: {"loss": float(model(input=private[:4]).sum())})
    with pytest.raises(InvalidValue, match="score must be on public data"):
        train_task(by_name, make_plan(), seed=0)
