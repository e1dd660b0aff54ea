"""`EngineSettings(capture="auto")`: which passes are replayed is measured, and no number depends on it."""

import argparse
import io
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from often import some
from torch import Tensor, nn
from torch.nn import functional

import decrescendo as dc
from decrescendo.base.assumptions import assumed
from decrescendo.clipping import Engine, EngineSettings, capture, capture_choice
from decrescendo.clipping.capture_choice import Choice
from decrescendo.clipping.checker import Checker
from decrescendo.clipping.tape import Operations
from decrescendo.errors import InvalidValue
from decrescendo.row_independence.tracing import changed_places, numbers_of

PYTHON = EngineSettings(capture=False)
REPLAYED = assumed("replayed-passes")


class Clock:
    """Seconds that pass where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, patch: pytest.MonkeyPatch, owner: type, name: str, seconds: float) -> None:
        made = getattr(owner, name)

        def run(*args: Any, **named: Any) -> Any:
            self.now += seconds
            return made(*args, **named)

        patch.setattr(owner, name, run)


@pytest.fixture(autouse=True)
def _python_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's type checker draws random numbers of Python's."""
    monkeypatch.setattr("decrescendo.clipping.checker.drawn_by_python", lambda held: ())


@pytest.fixture
def replays_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decrescendo.clipping.engine.clock_on", lambda device: lambda: 0.0)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.LayerNorm(8), nn.Linear(8, 3))


def loss(model: Callable[[Tensor], Tensor], batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=dice), torch.randint(3, (count,), generator=dice)


def engine_of(model: nn.Module, loss: Any, chosen: EngineSettings | None = None) -> Engine:
    seeds = itertools.count()
    return Engine(model, loss, chosen or EngineSettings(), seeds=lambda: next(seeds))


def compared(engine: Engine, plain: Engine, batches: Iterator[Any], clip: float = 1.0) -> None:
    """Both give the same numbers, to the bit."""
    for batch in batches:
        found, expected = engine.clipped_sum(batch, clip), plain.clipped_sum(batch, clip)
        for name, total in expected.gradients.items():
            assert torch.equal(found.gradients[name], total), name
        assert found.diagnostics == expected.diagnostics


def test_it_is_the_default() -> None:
    assert EngineSettings().capture == "auto"
    for wrong in ("on", 1, None):
        with pytest.raises(InvalidValue, match="capture must be True, False or 'auto'"):
            EngineSettings(capture=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("replay", "why"), [(1.0, capture_choice.PAYS), (3.0, capture_choice.SLOWER)])
def test_the_faster_way_is_kept(replay: float, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of either are set; a capture takes five."""
    clock = Clock()
    monkeypatch.setattr("decrescendo.clipping.engine.clock_on", lambda device: clock)
    clock.takes(monkeypatch, Operations, "run", replay)
    clock.takes(monkeypatch, Checker, "run", 2.0)
    clock.takes(monkeypatch, Checker, "capture", 5.0)
    engine, plain = engine_of(network(), loss), engine_of(network(), loss, PYTHON)
    assert engine.passes == capture_choice.FEW
    compared(engine, plain, (rows(8, step) for step in range(8)))
    assert engine.passes == why
    done = engine._captures._done
    assert done >= 3
    compared(engine, plain, (rows(8, step) for step in range(8, 20)))
    assert (engine._captures._done > done) == (why == capture_choice.PAYS)
    assert bool(engine._captures._captured) == (why == capture_choice.PAYS)
    assert engine.assumptions == (REPLAYED,)
    assert plain.assumptions == ()


def test_a_capture_must_pay_for_itself_by_the_uses_that_are_to_be_expected() -> None:
    """It takes twelve seconds, a pass in Python two, a replay one: one that came twelve times is captured."""
    clock = Clock()
    choice = Choice("auto", clock)
    assert not choice.pays("a", 1)
    assert choice.pays("a", 2)
    choice.begin()
    clock.now += 12
    choice.captured("a", "all")
    for replayed in (False, True) * 3:
        assert choice.measures
        choice.begin()
        choice.note_way("all", replayed=replayed)
        clock.now += 1 if replayed else 2
        choice.end()
    assert choice.why == capture_choice.PAYS
    assert next(uses for uses in range(30) if choice.pays("b", uses)) == 12
    # Of a thousand steps 900 are left: 2 of 100 came, 18 come. Of two hundred only two more.
    choice.done, choice.steps = 100, 1000
    assert choice.pays("b", 2)
    choice.steps = 200
    assert not choice.pays("b", 2)


def test_passes_that_were_done_twice_are_not_measured() -> None:
    clock = Clock()
    choice = Choice("auto", clock)
    choice.captured("a", "all")
    for _ in range(9):
        choice.begin()
        choice.note_way("all", replayed=True)
        choice.note_repeat()
        choice.end()
    assert choice.measures


def test_no_more_sizes_are_captured_than_pay(replays_win: None) -> None:
    """Each size comes once: nothing is captured, and a step is one pass."""
    del replays_win
    engine = engine_of(network(), loss)
    for count in (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36):
        engine.clipped_sum(rows(count), 1.0)
    assert not engine._captures._captured
    assert engine.passes == capture_choice.FEW
    assert engine.assumptions == ()


@settings(max_examples=4, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 7, 8, 33, 34, 35, 37, 61, 62]), min_size=8, max_size=16), st.booleans())
def test_sums_are_the_same_for_any_sizes(sizes: list[int], wins: bool) -> None:
    """Filled up, captured or not, whatever the clock says."""
    engine, plain = engine_of(network(), loss), engine_of(network(), loss, PYTHON)
    engine._captures.choice.clock = (lambda: 0.0) if wins else itertools.count(0.0, 1.0).__next__
    compared(engine, plain, (rows(count, step) for step, count in enumerate(sizes)), 0.5)


# What changes between steps, where a loss may keep it: a loss, and what sets its weight.
Changing = tuple[Any, Callable[[float], object]]
_SETTINGS = {"loss": {"weight": [1.0]}}
_WEIGHT = 1.0


def in_a_global_name() -> Changing:
    def change(value: float) -> None:
        global _WEIGHT
        _WEIGHT = value

    change(1.0)
    return lambda m, b: _WEIGHT * loss(m, b), change


def in_nested_settings() -> Changing:
    def change(value: float) -> None:
        _SETTINGS["loss"]["weight"][0] = value

    change(1.0)
    return lambda m, b: _SETTINGS["loss"]["weight"][0] * loss(m, b), change


def in_an_attribute_of_the_function() -> Changing:
    def weighed(model: Any, batch: Any) -> Tensor:
        return weighed.weight * loss(model, batch)  # type: ignore[attr-defined]

    weighed.weight = 1.0  # type: ignore[attr-defined]
    return weighed, lambda value: setattr(weighed, "weight", value)


class Slotted:
    __slots__ = ("__weight",)

    def __init__(self) -> None:
        self.set(1.0)

    def set(self, value: float) -> None:
        self.__weight = value

    def __call__(self, model: Any, batch: Any) -> Tensor:
        return self.__weight * loss(model, batch)


def in_a_slot() -> Changing:
    slotted = Slotted()
    return slotted, slotted.set


class ByProperty:
    @property
    def weight(self) -> float:
        return _WEIGHT

    def __call__(self, model: Any, batch: Any) -> Tensor:
        return self.weight * loss(model, batch)


def in_what_a_property_reads() -> Changing:
    _, change = in_a_global_name()
    return ByProperty(), change


def in_options() -> Changing:
    options = argparse.Namespace(weight=1.0)
    return lambda m, b: options.weight * loss(m, b), lambda value: setattr(options, "weight", value)


def in_an_optimizer() -> Changing:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return (
        lambda m, b: optimizer.param_groups[0]["lr"] * loss(m, b),
        lambda value: optimizer.param_groups[0].__setitem__("lr", value),
    )


def in_a_long_list() -> Changing:
    held = [1.0] * 3000
    return lambda m, b: held[2000] * loss(m, b), lambda value: held.__setitem__(2000, value)


def in_a_large_array() -> Changing:
    held = np.ones(3000)
    return lambda m, b: float(held[2000]) * loss(m, b), lambda value: held.__setitem__(2000, value)


def in_a_number_with_attributes() -> Changing:
    class Number(float):
        weight = 1.0

    number = Number()
    number.weight = 1.0
    return lambda m, b: number.weight * loss(m, b), lambda value: setattr(number, "weight", value)


def in_a_module_that_the_function_imports() -> Changing:
    import clipping_cases as module

    def weighed(model: Any, batch: Any) -> Tensor:
        import clipping_cases

        return clipping_cases.WEIGHT * loss(model, batch)  # type: ignore[attr-defined]

    def change(value: float) -> None:
        module.WEIGHT = value  # type: ignore[attr-defined]

    change(1.0)
    return weighed, change


def in_a_tensor_in_its_place() -> Changing:
    weight = torch.ones(1)
    return lambda m, b: weight * loss(m, b), weight.fill_


def in_a_new_tensor() -> Changing:
    held = SimpleNamespace(weight=torch.ones(1))
    return lambda m, b: held.weight * loss(m, b), lambda value: setattr(held, "weight", torch.full((1,), value))


def in_another_model_s_parameter() -> Changing:
    other = nn.Linear(1, 1, bias=False).requires_grad_(False)

    def change(value: float) -> None:
        other.weight = nn.Parameter(torch.full((1, 1), value), requires_grad=False)

    change(1.0)
    return lambda m, b: other.weight.sum() * loss(m, b), change


def in_the_mode_of_another_model() -> Changing:
    other = nn.Dropout(0.5)
    return (
        lambda m, b: (2.0 if other.training else 1.0) * loss(m, b),
        lambda value: other.train(value > 1),
    )


def in_the_generator_of_a_schedule() -> Changing:
    """Its position is what changes: `send` moves it on."""

    def weights() -> Iterator[float]:
        value = 1.0
        while True:
            value = (yield value) or value  # type: ignore[misc]

    schedule: Any = weights()
    next(schedule)
    return lambda m, b: schedule.gi_frame.f_locals["value"] * loss(m, b), schedule.send


PLACES = [
    in_nested_settings, in_a_global_name, in_an_attribute_of_the_function, in_a_slot, in_what_a_property_reads,
    in_options, in_an_optimizer, in_a_long_list, in_a_large_array, in_a_number_with_attributes,
    in_a_module_that_the_function_imports, in_a_tensor_in_its_place, in_a_new_tensor, in_another_model_s_parameter,
    in_the_mode_of_another_model, in_the_generator_of_a_schedule,
]  # fmt: skip


@pytest.mark.parametrize("where", PLACES)
def test_what_changes_once_is_followed(where: Callable[[], Changing], replays_win: None) -> None:
    """After it was replayed, in the midst of replays."""
    del replays_win
    weighed, change = where()
    engine, plain = engine_of(network(), weighed), engine_of(network(), weighed, PYTHON)
    compared(engine, plain, (rows(8, step) for step in range(8)), 1e6)
    done = engine._captures._done
    assert done
    change(3.0)
    compared(engine, plain, (rows(8, step) for step in range(8, 14)), 1e6)


@pytest.mark.parametrize("where", some(PLACES, 5))
def test_what_changes_in_each_step_is_followed_quietly(where: Callable[[], Changing], replays_win: None) -> None:
    del replays_win
    weighed, change = where()
    engine, plain = engine_of(network(), weighed), engine_of(network(), weighed, PYTHON)
    for step in range(10):
        change(1 + 0.5 * step)
        compared(engine, plain, iter([rows(8, step)]), 1e6)
    if where not in (in_a_tensor_in_its_place, in_the_mode_of_another_model):
        assert engine._captures._done == 0
        assert engine.passes == capture_choice.CHANGES
        assert engine.assumptions == plain.assumptions


def _generated() -> Iterator[float]:
    while True:
        yield from [1.0] * 9 + [2.0] * 5


def _looped() -> Iterator[float]:
    for weight in [1.0] * 9 + [2.0] * 40:
        yield float(weight)


def _lines() -> Iterator[float]:
    return map(float, io.StringIO("1.0\n" * 9 + "2.0\n" * 40))


ITERATORS: list[Callable[[], Iterator[Any]]] = [
    lambda: itertools.cycle([1.0] * 9 + [2.0] * 5), _generated, _looped, _lines, lambda: iter([1.0] * 9 + [2.0] * 40),
    lambda: zip(itertools.cycle([1.0] * 9 + [2.0] * 5)), lambda: filter(None, [1.0] * 9 + [2.0] * 40),
    lambda: itertools.chain([1.0] * 9, [2.0] * 40),
]  # fmt: skip


@pytest.mark.parametrize("make", ITERATORS)
@pytest.mark.parametrize("asked", ["auto", True])
def test_an_iterator_that_passes_move_on_is_where_it_is_in_python(
    make: Callable[[], Iterator[Any]], asked: Any, replays_win: None
) -> None:
    """No pass is replayed, and none done once more."""
    del replays_win

    def by(values: Iterator[Any]) -> Any:
        return lambda m, b: float(np.sum(next(values))) * loss(m, b)

    engine = engine_of(network(), by(make()), EngineSettings(capture=asked))
    plain = engine_of(network(), by(make()), PYTHON)
    told = pytest.warns(UserWarning, match="keeps something else") if asked is True else nullcontext()
    with told:
        compared(engine, plain, (rows(8, step) for step in range(20)))
    assert engine._captures._done == 0
    assert engine.passes == capture_choice.CHANGES


def test_a_look_at_a_generator_differs_once_it_has_drawn_and_at_what_cannot_be_seen_always() -> None:
    """Whatever address the second look's own objects have."""
    dice, turns, model = random.Random(0), itertools.cycle([1.0]), nn.Tanh()

    def held() -> object:
        return dice, turns

    def changes(move: Callable[[], object]) -> list[str]:
        before = numbers_of(model, held, identities=True)
        move()
        return [name.split(".")[1] for name in changed_places(before, numbers_of(model, held, identities=True))]

    for _ in range(20):
        assert changes(int) == ["turns"]
        assert changes(dice.random) == ["dice", "turns"]


class Counting(nn.Module):
    """Counts its passes, and does something with it or not."""

    def __init__(self, weight: Callable[[int], float]) -> None:
        super().__init__()
        self.inside, self.passes, self.weight = network(), 0, weight

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.inside(x) * self.weight(self.passes)


@pytest.mark.parametrize(
    "weight",
    [lambda n: 1.0, lambda n: 1.0 if n < 12 else 2.0],
    ids=["for nothing", "from its twelfth pass on"],
)
def test_a_count_of_passes_is_what_it_is_in_python(weight: Callable[[int], float], replays_win: None) -> None:
    """Nothing is passed once more to find out that it cannot be captured."""
    del replays_win
    models = [Counting(weight), Counting(weight)]
    engine, plain = engine_of(models[0], loss), engine_of(models[1], loss, PYTHON)
    compared(engine, plain, (rows(8, step) for step in range(16)))
    assert models[0].passes == models[1].passes
    assert engine.passes == capture_choice.CHANGES


def of_python(model: Any, batch: Any) -> Tensor:
    return loss(model, batch) * (1.0 if random.random() < 2 else 2.0)


def of_its_own(model: Any, batch: Any, dice: random.Random = random.Random(0)) -> Tensor:  # noqa: B008
    return loss(model, batch) * (1.0 if dice.random() < 2 else 2.0)


def of_constants(model: Any, batch: Any, table: Tensor = torch.ones(2)) -> Tensor:  # noqa: B008
    return loss(model, batch) * table.tolist()[0]


def remembered(model: Any, batch: Any) -> Tensor:
    model.last = loss(model, batch)
    return model.last


def selected(model: Any, batch: Any) -> Tensor:
    """How many rows the data select decides a shape."""
    features = batch[0]
    return loss(model, batch) + features.masked_select(features > math.inf).sum()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (of_python, None),
        (of_its_own, capture_choice.CHANGES),
        (of_constants, capture_choice.CANNOT),
        (remembered, capture_choice.CHANGES),
        (selected, None),
    ],
)
def test_what_cannot_be_captured_runs_in_python_without_a_word(
    program: Any, why: str | None, replays_win: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del replays_win
    if program is of_python:
        monkeypatch.undo()
        monkeypatch.setattr("decrescendo.clipping.engine.clock_on", lambda device: lambda: 0.0)
    engine, plain = engine_of(network(), program), engine_of(network(), program, PYTHON)
    try:
        plain.clipped_sum(rows(8), 1.0)
    except dc.errors.UnsupportedModel:
        pytest.skip("refused in any case")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compared(engine, engine_of(network(), program, PYTHON), (rows(8, step) for step in range(9)))
    assert not engine._captures._done
    assert engine.passes == (why or capture_choice.CANNOT)
    assert engine.assumptions == ()


def test_what_no_replay_can_see_is_assumed_and_found_out(monkeypatch: pytest.MonkeyPatch, replays_win: None) -> None:
    import os

    del replays_win
    monkeypatch.setenv("WEIGHT", "1")
    engine = engine_of(network(), lambda m, b: float(os.environ["WEIGHT"]) * loss(m, b))
    for step in range(8):
        engine.clipped_sum(rows(8, step), 1.0)
    assert engine.assumptions == (REPLAYED,)
    assert REPLAYED.sentence.startswith("Assumed: ")
    monkeypatch.setenv("WEIGHT", "2")
    with pytest.warns(UserWarning, match="something else than in an earlier pass"):  # noqa: PT031
        for step in range(12):
            engine.clipped_sum(rows(8, step), 1.0)
    assert engine.passes == capture_choice.CHANGES


def test_where_no_memory_is_left_passes_run_in_python(monkeypatch: pytest.MonkeyPatch, replays_win: None) -> None:
    def full(self: object, found: object, allowed: object) -> None:
        raise torch.cuda.OutOfMemoryError("none left")

    del replays_win
    monkeypatch.setattr(Operations, "finish", full)
    engine, plain = engine_of(network(), loss), engine_of(network(), loss, PYTHON)
    compared(engine, plain, (rows(8, step) for step in range(6)))
    assert engine.passes == capture_choice.MEMORY


def test_sums_that_are_kept_one_by_one_are_not_made_at_once(replays_win: None) -> None:
    """A model in parts is one whose whole gradient may not fit."""
    del replays_win
    engine = Engine(network().eval(), loss, keep=lambda name, total: total[:1])
    for step in range(8):
        engine.clipped_sum(rows(8, step), 1.0)
    assert not engine._captures._done
    assert engine.passes == capture_choice.PARTS


def test_few_passes_are_checked_in_python_whatever_the_number_of_sizes(replays_win: None) -> None:
    del replays_win
    engine, counted = engine_of(network(), loss), 0
    for step in range(64):
        before = engine._captures._done
        engine.clipped_sum(rows(5 + step % 4, step), 1.0)
        counted += engine._captures._done == before
    # Each size twice before it is captured; in turns while it is measured; then the 1st, 2nd, 4th, .. of all.
    assert counted <= 4 * 3 + 6 + 7
    assert capture._MISSED_UNASKED < capture._MISSED


def _run(chosen: EngineSettings | None) -> dc.Run:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    x = torch.randn(200, 20, generator=torch.Generator().manual_seed(0))
    plan = dc.calibrate(
        dc.Budget(3.0, 1e-4), dc.PoissonSampling(200, 40), steps=30, privacy=dc.curves.constant(1.0),
        clip=dc.curves.constant(1.0),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    return dc.train(model, loss, (x, (x[:, 0] > 0).long()), plan, optimizer, seed=4, settings=chosen)


def test_a_run_does_not_say_how_its_passes_were_done_and_has_the_same_weights(replays_win: None, tmp_path: Any) -> None:
    """Whether a pass came again hangs on the records' lengths: one record decided it where each had its own."""
    del replays_win
    auto, python = _run(None), _run(PYTHON)
    assert all(torch.equal(auto.weights[name], value) for name, value in python.weights.items())
    assert auto.provenance == python.provenance
    assert auto.assumptions == ()
    for name, run in (("auto", auto), ("python", python)):
        run.save(tmp_path / name)
    said = [dc.Run.load(tmp_path / name).statement().to_markdown() for name in ("auto", "python")]
    assert said[0] == said[1]
    assert "replayed" not in said[0]
