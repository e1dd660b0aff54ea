"""Numbers and lengths that Python keeps from pass to pass: counted examples are found, counted passes are fine."""

import argparse
import random
import sys
from array import array
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from decrescendo.base.batches import Ragged
from decrescendo.base.rng import Seeds
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import changed_places, numbers_of

ROWS = 8


def data() -> Tensor:
    return torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 0.1


class Keeping(nn.Module):
    """Remembers something of the shape of each example, and goes by it."""

    def __init__(self, keep: Callable[["Keeping", Tensor], float]) -> None:
        super().__init__()
        self.one = nn.Linear(1, 1, bias=False)
        self.keep, self.kept, self.items = keep, 0.0, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x[:, :, None]).sum((1, 2)) * self.keep(self, x)


def longest(model: Keeping, x: Tensor) -> float:
    model.kept = max(model.kept, float(x.shape[1]))
    return 1.0 if model.kept < 9 else -1.0


def listed(model: Keeping, x: Tensor) -> float:
    model.items.append(x.shape[1])
    return 1.0 if max(model.items) < 9 else -1.0


def first(model: Keeping, x: Tensor) -> float:
    model.kept = model.kept or float(x.shape[1])
    return 1.0 if model.kept < 9 else -1.0


def drawn(model: Keeping, x: Tensor) -> Any:
    x = nn.functional.dropout(x, 0.1)
    if not model.kept:
        model.kept = torch.randn(1)  # type: ignore[assignment]
    return torch.sign(model.kept)  # type: ignore[arg-type]


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(1) + model(x).sum(1)


GLOBAL = argparse.Namespace(k=1.0)


@dataclass(slots=True)
class Slots:
    """Settings without a dictionary."""

    k: float = 1.0


class Settings(nn.Module):
    """Reads numbers from where programs keep their settings."""

    def __init__(self) -> None:
        super().__init__()
        self.args, self.slots = argparse.Namespace(k=1.0), Slots()
        self.user, self.array, self.queue = UserDict(k=1.0), array("d", [1.0]), Queue[float]()

    @property
    def of_a_global(self) -> float:
        """From the script's arguments."""
        return GLOBAL.k

    def forward(self, x: Tensor) -> Tensor:
        """Reads one more from a module of settings."""
        import settings_of_a_test  # type: ignore[import-not-found]

        return x * settings_of_a_test.k * self.of_a_global


CHANGES: dict[str, Callable[[Settings], Any]] = {
    "an instance of a library's class": lambda model: setattr(model.args, "k", 2.0),
    "slots": lambda model: setattr(model.slots, "k", 2.0),
    "a library's dictionary": lambda model: model.user.update(k=2.0),
    "an array": lambda model: model.array.append(2.0),
    "a queue": lambda model: model.queue.put(2.0),
    "what a property reads": lambda model: setattr(GLOBAL, "k", GLOBAL.k + 1),
    "a module imported inside": lambda model: setattr(sys.modules["settings_of_a_test"], "k", 2.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_are_searched_where_programs_keep_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("settings_of_a_test")
    module.__file__, module.k = str(Path("own") / "settings_of_a_test.py"), 1.0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model = Settings()
    before = numbers_of(model, None)
    assert changed_places(before, numbers_of(model, None)) == []
    CHANGES[name](model)
    assert changed_places(before, numbers_of(model, None))


def test_of_one_shape_nothing_is() -> None:
    for keep in (longest, first, drawn):
        engine = Engine(Keeping(keep), lambda model, x: model(x), seeds=Seeds.of(1))
        for rows in (1, 4, 9):
            engine.clipped_sum(torch.ones(rows, 5), 1.0)
        assert [one.code for one in engine.assumptions] == ["tensors-read"] * (keep is drawn)


def test_of_shapes_that_leave_nothing_neither() -> None:
    engine = Engine(Keeping(lambda model, x: 2.0), lambda model, x: model(x))
    for _ in range(2):
        engine.clipped_sum(Ragged((torch.ones(1, 9), torch.ones(4, 5), torch.ones(2, 7))), 1.0)
    assert not engine.assumptions


def test_random_numbers_of_the_first_pass_are_the_same_after_any_first_batch() -> None:
    """They followed a batch of two, or of three and more: +20 and -20 in the next."""
    found = set()
    for rows in (1, 2, 3, 7):
        model = Keeping(drawn)
        engine = Engine(model, lambda model, x: model(x), seeds=Seeds.of(1))
        engine.clipped_sum(torch.ones(rows, 5), 1.0)
        found.add(float(model.kept))
        assert [one.code for one in engine.assumptions] == ["tensors-read"]
    assert len(found) == 1


def test_a_layer_that_a_coin_leaves_out_assumes_nothing() -> None:
    """Stochastic depth by Python's truth value of a random number: a pass then does something else than one before."""

    def loss(model: Any, x: Tensor) -> Tensor:
        for layer in model[1:]:
            if float(torch.rand(1)) < 0.5 or np.random.random() < 0.2:  # (What checks types draws from `random`.)
                x = x + layer(x).tanh()
        return model[0](x).sum(1)

    engine = Engine(nn.ModuleList([nn.Linear(3, 3) for _ in range(3)]), loss, seeds=Seeds.of(0))
    for _ in range(12):
        engine.clipped_sum(data(), 1.0)
    assert engine.assumptions == ()


def test_two_engines_of_one_model_and_loss_assume_nothing() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 1)), torch.randn(ROWS, 4)
    for mode in (True, False, True):
        model.train(mode)
        engine = Engine(model, squares, seeds=lambda: 1)
        engine.clipped_sum(x, 1.0)
        assert engine.assumptions == ()


# Names of this script that are attributes of a model, too.
out: list[int] = []
trainer: list[Engine] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out, self.trainer = nn.Embedding(9, 8), nn.Linear(8, 1), None

    def forward(self, ids: Tensor) -> Tensor:
        assert self.trainer is None
        return self.out(self.embedding(ids).mean(1)).squeeze(1)


def test_a_global_name_that_an_attribute_has_too_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # (The run's type checker draws random numbers of Python's.)
    monkeypatch.setattr("decrescendo.clipping.checker.drawn_by_python", lambda held: ())
    engine = Engine(Net(), lambda m, ids: m(ids), EngineSettings(capture=True))
    trainer.append(engine)
    try:
        for step in range(12):
            examples = engine.clipped_sum(torch.randint(0, 9, (8, 5 if step < 8 else 7)), 1.0).diagnostics
            out.append(examples.examples)
    finally:
        out.clear()
        trainer.clear()
    assert [found.code for found in engine.assumptions] == ["replayed-passes"]
    assert engine._captures._done


def test_an_interruption_before_a_pass_leaves_the_generators(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    engine = Engine(nn.Linear(3, 1), lambda m, x: m(x).squeeze(1), seeds=lambda: 7)
    engine.clipped_sum(data(), 1.0)
    # (A checker of every call draws random numbers of Python's.)
    pythons = (lambda: 0) if pytestconfig.getoption("jaxtyping_packages") else random.getstate
    before = pythons(), str(np.random.get_state()), np.random.get_bit_generator()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np.random, "seed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.clipped_sum(data(), 1.0)
    assert (pythons(), str(np.random.get_state()), np.random.get_bit_generator()) == before


def test_an_attribute_that_is_a_weights_memory_moves_with_it() -> None:
    """`self.v = layer.weight.data`, as tutorials keep it."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.v = self.layer.weight.data
            self.row = self.layer.weight.detach()[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).squeeze(1) + x @ self.row

    model = Net()
    engine, reference = (kind(model, lambda m, x: m(x)) for kind in (Engine, Reference))
    for _ in range(4):
        for rows in (4, 8):
            found, expected = (one.clipped_sum(data()[:rows], 0.5) for one in (engine, reference))
            for name, total in expected.gradients.items():
                torch.testing.assert_close(found.gradients[name], total)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
    assert engine.assumptions == ()


def weighed_by(count: Callable[[int], float]) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda model, x: model(x).squeeze(1) * count(len(x))


class Counter:
    """Counts what it is given, in an attribute, in one of its class, and in a list."""

    of_all = 0

    def __init__(self) -> None:
        self.seen, self.sizes, self.calls = 0, list[float](), 0

    def attribute(self, rows: int) -> float:
        self.seen += rows
        return 1.0

    def in_class(self, rows: int) -> float:
        type(self).of_all += rows
        return 1.0

    def in_list(self, rows: int) -> float:
        self.sizes += [1.0] * rows
        return 1.0

    def passes(self, rows: int) -> float:
        self.calls += 1
        return 1.0


@pytest.mark.parametrize("way", ["attribute", "in_class", "in_list"])
def test_counted_examples_are_among_the_assumptions(way: str) -> None:
    engine = Engine(nn.Linear(3, 1), weighed_by(getattr(Counter(), way)))
    engine.clipped_sum(data(), 1.0)
    (said,) = engine.assumptions
    assert said.code == "stored-count"
    assert said.sentence.startswith("Assumed: the number of examples stored in loss.")


def test_keys_of_a_dictionary_are_in_no_sentence() -> None:
    """They may be data, and a statement publishes the sentence."""
    seen = {"patient 12.5": {"rows": 0}}

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        seen["patient 12.5"]["rows"] += len(x)
        return model(x).square().sum(1)

    engine = Engine(nn.Linear(3, 1), loss)
    engine.clipped_sum(data(), 1.0)
    (said,) = engine.assumptions
    assert "stored in loss.seen[...] does" in said.sentence


@pytest.mark.parametrize("where", ["<stdin>", "<string>", "<ipython-input-1-0>"])
def test_what_code_typed_into_a_shell_keeps_is_looked_at(where: str) -> None:
    """It has no file, by which it could be told from torch's own."""
    text = """
seen = [0]
def keeps(model, x):
    seen[0] += len(x)
    return model(x).square().sum(1)
"""
    names: dict[str, Any] = {}
    exec(compile(text, where, "exec"), names)
    engine = Engine(nn.Linear(3, 1), names["keeps"])
    engine.clipped_sum(data(), 1.0)
    (said,) = engine.assumptions
    assert "stored in loss.seen.0 does" in said.sentence


def test_a_tensor_that_another_engines_pass_kept_is_refused() -> None:
    """One loss of two trainings carries nothing from one to the other."""
    kept: list[Tensor] = []
    uses = [False]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if uses[0]:
            return model(x).square().sum(1) * kept[0].sum()
        kept[:1] = [x * 1.0]
        return model(x).square().sum(1)

    Engine(nn.Linear(3, 1), loss).per_example_norms(data())
    uses[0] = True
    with pytest.raises(UnsupportedModel, match="an earlier pass"):
        Engine(nn.Linear(3, 1), loss).per_example_norms(data())


def test_a_loss_that_goes_by_the_examples_it_has_counted_is_refused() -> None:
    counter = Counter()

    def after(rows: int) -> float:
        counter.seen += rows
        return 1.0 if counter.seen < 50 else 0.5

    engine = Engine(nn.Linear(3, 1), weighed_by(after))
    with pytest.raises(UnsupportedModel, match=r"examples earlier ones had|any number of examples"):
        list(map(engine.clipped_sum, [data()] * 9, [1.0] * 9))


def test_counted_passes_and_a_weight_that_is_set_between_steps_assume_nothing() -> None:
    """A warm-up: the loss counts its passes, and a callback sets a number in it."""
    counter, settings = Counter(), {"scale": 1.0}
    engine = Engine(nn.Linear(3, 1), weighed_by(lambda rows: counter.passes(rows) * settings["scale"]))
    for step in range(4):
        settings["scale"] = 1.0 / (1 + step)
        engine.clipped_sum(data(), 1.0)
    assert engine.assumptions == ()


def test_the_largest_batch_so_far_is_not_seen() -> None:
    """A known limit (pitfalls.md): what is kept neither grows by the examples nor is their number."""
    largest = [0]

    def kept(rows: int) -> float:
        largest[0] = max(largest[0], rows)
        return 1e-3 if largest[0] > 7 else 1.0

    x, found = data(), []
    for rows in (7, 8):
        largest[0] = 0
        torch.manual_seed(0)
        engine = Engine(nn.Linear(3, 1), weighed_by(kept))
        engine.clipped_sum(x[:rows], 1.0)
        found.append(engine.clipped_sum(x[:6], 1.0).gradients["weight"])
    assert not torch.allclose(*found)


@pytest.mark.slow
def test_what_is_beyond_the_objects_that_are_searched_is_assumed() -> None:
    many = [[[0.0] for _ in range(150)] for _ in range(150)]
    for table, expected in ((many, ["stored-unsearched"]), (many[:2], [])):
        engine = Engine(nn.Linear(3, 1), weighed_by(lambda rows, table=table: 1.0 + table[0][0][0]))
        engine.clipped_sum(data(), 1.0)
        assert [found.code for found in engine.assumptions] == expected
