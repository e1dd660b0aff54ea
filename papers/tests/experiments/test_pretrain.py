"""A start: public rows only, the same weights for a seed, refused where it would make a score dishonest."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from decrescendo.base.rng import Streams
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.training.tasks.evaluate import accuracy
from decrescendo_papers.data import Dataset
from decrescendo_papers.experiments import pretrain, stand_ins, tasks
from decrescendo_papers.experiments.perform import data_of, perform
from decrescendo_papers.experiments.pretrain import check_start, pretrained, start_accuracy
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.stand_ins import (
    STAND_INS,
    StandIn,
    find_stand_in,
    load_stand_in,
    public_rows,
)
from decrescendo_papers.experiments.table import base_spec
from decrescendo_papers.experiments.tasks import TASKS, find_task

ROWS = 1438


def own() -> Dataset:
    return find_task("digits").load()


def flipped(data: Dataset) -> Dataset:
    """Other rows of the same kind."""
    return dataclasses.replace(data, train_inputs=1 - data.train_inputs, test_inputs=1 - data.test_inputs)


@pytest.fixture(autouse=True)
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two stand-ins for the digits: some of their own images, and the same in white."""
    for name, data in (("same", own()), ("white", flipped(own()))):
        part = dataclasses.replace(data, train_inputs=data.train_inputs[:500], train_targets=data.train_targets[:500])
        monkeypatch.setitem(STAND_INS, name, StandIn(name, lambda part=part: part, ("digits",), "toy"))
    for cache in (data_of, pretrain.pretrained, pretrain._rows):
        cache.cache_clear()
    yield
    for cache in (data_of, pretrain.pretrained, pretrain._rows):
        cache.cache_clear()


def spec(**changes: object) -> Spec:
    private = changes.get("method", "constant") != "none"
    settings = {"steps": 3, **changes}
    return base_spec(
        "digits", epsilon=2.0 if private else 0.0, accountant="pld" if private else "none", settings=settings
    )


def test_pretraining_opens_no_private_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed() -> Dataset:
        raise AssertionError("the private data were opened")

    monkeypatch.setitem(tasks.TASKS, "digits", dataclasses.replace(find_task("digits"), load=closed))
    with pytest.raises(AssertionError):
        perform(spec())
    assert pretrained("digits", "paper", "same", 0)
    assert 0 <= start_accuracy("digits", "paper", "same", 0) <= 1
    perform(spec(start="same", stand_in="white"))  # a search opens no private row either


def test_weights_follow_from_the_arguments() -> None:
    def weights(model: str = "paper", start: str = "same", seed: int = 0) -> torch.Tensor:
        return torch.cat([value.flatten() for value in pretrained("digits", model, start, seed).values()])

    first = weights()
    pretrained.cache_clear()
    assert torch.equal(weights(), first)
    for other in (weights(model="tanh"), weights(start="white"), weights(seed=1)):
        assert not torch.equal(other, first)


def test_pretraining_is_a_plain_loop_of_adam_over_rows_that_are_not_scored() -> None:
    task, data = find_task("digits"), STAND_INS["same"].load()
    model = task.build("paper", 3)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = Streams(3).torch("pretraining")
    for _ in range(5):
        shuffled = torch.randperm(400, generator=order)  # 100 of the 500 are scored
        for rows in (shuffled[:250], shuffled[250:]):
            adam.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(data.train_inputs[rows]), data.train_targets[rows])
            loss.backward()
            adam.step()
    for name, value in pretrained("digits", "paper", "same", 3).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=1e-5)
    score = accuracy(model, data.train_inputs[400:], data.train_targets[400:])
    assert start_accuracy("digits", "paper", "same", 3) == pytest.approx(score, abs=0.011)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["constant", pytest.param("none", marks=pytest.mark.slow)])
def test_a_run_begins_with_the_weights_and_is_repeatable(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps too small to move anything, what is tested is what was pre-trained."""
    monkeypatch.setattr(pretrain, "EPOCHS_IMAGES", 80)  # of two steps each: enough to learn something
    still = spec(method=method, start="same", learning_rate=1e-9, steps=1)
    model = find_task("digits").build("paper", 0)
    model.load_state_dict(pretrained("digits", "paper", "same", 0))
    result = perform(still)
    assert result.metrics["test_accuracy"] == accuracy(model, *own().test) > 0.5
    assert result.metrics["start_accuracy"] == result.metrics["test_accuracy"]
    moved = spec(method=method, start="same", steps=5)
    kept = {name: value.clone() for name, value in pretrained("digits", "paper", "same", 0).items()}
    first = perform(moved)
    assert first.metrics["start_accuracy"] == result.metrics["start_accuracy"] != first.metrics["test_accuracy"]
    for name, value in pretrained("digits", "paper", "same", 0).items():
        assert torch.equal(value, kept[name])  # training changes the model, not what is kept for the next run
    pretrained.cache_clear()
    assert perform(moved).metrics == first.metrics


@pytest.mark.slow
def test_the_guarantee_and_the_noise_are_those_without_a_start() -> None:
    plain, started = perform(spec()), perform(spec(start="same"))
    for name in ("certified", "claimed", "clt", "noise_multiplier", "clip_norm"):
        assert getattr(started, name) == getattr(plain, name)


def test_a_start_on_the_data_that_is_searched_on_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"start must be other public data than stand_in.*pre-training.*'same'"):
        spec(start="same", stand_in="same")
    with pytest.raises(FileRefused, match="start must be other"):
        Spec.of({**spec(start="same").settings(), "stand_in": "same"})


@pytest.mark.parametrize("name", ["nowhere", "mnist"])
def test_an_unknown_start_is_refused_before_anything_is_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", dataclasses.replace(find_task("digits"), load=pytest.fail))
    with pytest.raises(InvalidValue, match=f"start for digits must be one of same, white, got start='{name}'"):
        perform(spec(start=name))


def test_a_start_that_has_seen_the_test_rows_is_refused() -> None:
    settings = {"start": "imdb-public"}
    with pytest.raises(InvalidValue, match=r"start must have no rows that imdb is tested on.*imdb-half"):
        check_start(base_spec("imdb", epsilon=1.0, accountant="pld", settings=settings))
    check_start(base_spec("imdb-half", epsilon=1.0, accountant="pld", settings=settings))


def test_every_stand_in_is_for_known_tasks() -> None:
    for name, stand_in in STAND_INS.items():
        assert stand_in.name == name
        assert {*stand_in.as_bytes, *stand_in.tested_by} <= set(stand_in.tasks) <= set(TASKS)
    with pytest.raises(InvalidValue, match="stand_in for xray must be one of t-shirts, got stand_in='mnist'"):
        find_stand_in("mnist", find_task("xray"))


def test_scored_rows_are_the_last_and_are_not_trained_on() -> None:
    data = STAND_INS["same"].load()
    kept, repeated = public_rows("same", find_task("digits")), load_stand_in("same", find_task("digits"))
    assert torch.equal(kept.train_inputs, data.train_inputs[:400])
    assert torch.equal(kept.test_inputs, data.train_inputs[400:])
    assert len(repeated) == ROWS
    assert torch.equal(repeated.train_inputs, data.train_inputs[torch.arange(ROWS) % 400])
    assert torch.equal(repeated.test_inputs, kept.test_inputs)


def test_bytes_are_those_that_were_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(5, 1)[:, None]
    inputs = (pixels.float() / 255 - 0.1307) / 0.3081
    classes = torch.zeros(5, dtype=torch.int64)
    grey = Dataset("grey", inputs, classes, inputs, classes, 1, scale=255.0, mean=0.1307, std=0.3081)
    stand_in = StandIn("grey", lambda: grey, ("digits",), "toy", as_bytes=("digits",))
    monkeypatch.setitem(stand_ins.STAND_INS, "grey", stand_in)
    found = public_rows("grey", find_task("digits"))
    assert torch.equal(found.train_inputs, pixels[:4])
    assert torch.equal(found.test_inputs, pixels[4:])
    assert torch.equal(grey.train_inputs, inputs)  # the loaded rows are left as they were
