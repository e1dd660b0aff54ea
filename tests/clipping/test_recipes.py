"""Labels that are repeated from an accepted pass, against the rules asked again: both must say the same everywhere."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from corpus.judge import quiet
from corpus.program import Program, programs
from often import some
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from decrescendo.base.storages import content_of
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import DecrescendoError
from decrescendo.row_independence.labels import Label, Mixed, RowLayout
from decrescendo.row_independence.torch_schemas import Operation, operation
from decrescendo.row_independence.trace import ReplayedOperation
from decrescendo.row_independence.tracer import Tracer

PROGRAMS: list[Program] = [p for family in programs("benign").values() for p in family]


class Withheld(dict[int, ReplayedOperation]):
    """Recipes that are there to compare with, and never given."""

    def get(self, *_: Any) -> None:
        return None


def described(label: Label | None) -> object:
    return (label.name, label.public) if isinstance(label, Mixed) else label


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(p, marks=[pytest.mark.slow] * (i % 30 > 0), id=f"{p.family}: {p.name}")
        for i, p in enumerate(PROGRAMS)
    ],
)
def test_a_repeated_label_is_what_the_rules_say_at_any_size(program: Program) -> None:
    if program.late is not None or program.conditional:
        return
    with quiet():
        model, loss = program.build()
        engine = Engine(model, loss)
        comparison = engine._checker.comparison
        first, *others = program.batches()
        engine.clipped_sum(first, 1.0)
        accepted = comparison.accepted
        assert accepted is not None
        for batch in [first, *others]:
            comparison.accepted = replace(accepted, recipes=Withheld())
            found = engine.checked_pass(batch).tracer.trace
            for at, recipe in accepted.recipes.items():
                if at >= len(found.events) or found.events[at] != recipe.event:
                    continue
                again = found.recipes.get(at)
                assert again is not None, f"values were looked at in {recipe.event}, but not before"
                if again.arguments != recipe.arguments:
                    continue  # it would not have been repeated
                assert list(map(described, again.labels)) == list(map(described, recipe.labels)), recipe.event
            comparison.accepted = accepted
        assert accepted.recipes, "nothing was repeated: the test says nothing"


def test_most_operations_of_a_usual_model_are_repeated() -> None:
    """The power of the test above, and the reason for recipes: the rules are asked once."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    engine = Engine(model, loss)
    for rows in (6, 4, 9):
        engine.clipped_sum((torch.randn(rows, 5, 8), torch.zeros(rows).long()), 1.0)
    accepted = engine._checker.comparison.accepted
    assert accepted is not None
    assert len(accepted.recipes) > 0.7 * len(accepted.events)


def test_views_are_repeated_whatever_the_number_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Flatten(0, 1), nn.Linear(8, 3), nn.Unflatten(0, (-1, 5)))
    engine = Engine(model, lambda model, batch: model(batch).square().sum((1, 2)))
    engine.clipped_sum(torch.randn(6, 5, 8), 1.0)
    asked: list[str] = []
    follow = Tracer._follow

    def noted(self: Tracer, func: Any, *rest: Any) -> Any:
        asked.append(str(func))
        return follow(self, func, *rest)

    monkeypatch.setattr(Tracer, "_follow", noted)
    for rows in (4, 9, 1):
        engine.clipped_sum(torch.randn(rows, 5, 8), 1.0)
    assert not any("view" in name for name in asked)


@pytest.mark.parametrize(
    ("later", "refused"),
    [
        (lambda x: x.view(len(x), 2, 2).flatten(1), False),
        (lambda x: x.view(len(x) * 2, 2).view(len(x), 4), False),
        (lambda x: x.view(4, len(x)).T, True),
        (lambda x: x.view(2, -1).view(-1, 2).view(2, -1)[:1].view(-1, 2).repeat(1, 2), True),
    ],
)
def test_a_view_by_other_sizes_is_judged_anew(later: Any, refused: bool) -> None:
    """An accepted pass says how its views lie; one that becomes another one is proven, or refused, by itself."""
    model: Any = nn.Linear(4, 3)
    model.form = lambda x: x.view(len(x), 4, 1).view(len(x), 4)

    def loss(model: Any, batch: Tensor) -> Tensor:
        return model(model.form(batch)).square().sum(1)

    engine = Engine(model, loss)
    for rows in (6, 4, 6):
        engine.clipped_sum(torch.randn(rows, 4), 1.0)
    model.form, batch = later, torch.randn(6, 4)
    if refused:
        with pytest.raises(DecrescendoError, match=r"another example|mix|in groups|any number of examples"):
            engine.clipped_sum(batch, 1.0)
        return
    found, exact = engine.clipped_sum(batch, 1.0), Reference(model, loss).clipped_sum(batch, 1.0)
    for name, gradient in exact.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient)


class Forbidding(TorchDispatchMode):
    """Notes what reads the numbers of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not operation(func).views:
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("program", some(PROGRAMS[::3], 16), ids=lambda p: f"{p.family}: {p.name}")
def test_rules_that_may_be_repeated_look_at_no_value_without_saying_so(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[str]] = {}
    unwatched = Tracer._labels

    def watched(self: Tracer, op: Operation, *args: Any) -> Any:
        with Forbidding() as mode:
            labels, looked = unwatched(self, op, *args)
        if op.structural and mode.seen and not looked:
            seen[op.name] = mode.seen
        return labels, looked

    monkeypatch.setattr(Tracer, "_labels", watched)
    with quiet():
        model, loss = program.build()
        try:
            Engine(model, loss).clipped_sum(program.batches()[0], 1.0)
        except DecrescendoError:
            assert program.conditional
    assert seen == {}


def squares(model: Any, batch: Tensor) -> Tensor:
    return model(batch * model.scale(len(batch))).square().sum(1)


def test_a_constant_of_another_shape_is_not_taken_for_the_one_before() -> None:
    """One number for all becomes one for each place, in the same memory and without an operation."""
    model: Any = nn.Linear(4, 3)
    memory = torch.ones(20, 1)
    views = dict.fromkeys(range(20), memory[:1])
    model.scale = lambda n: views[n]
    engine = Engine(model, squares)
    engine.clipped_sum(torch.randn(6, 4), 1.0)
    views |= {n: memory[:n] for n in range(20)}
    with pytest.raises(DecrescendoError, match=r"any number of examples|laid along|another example"):
        engine.clipped_sum(torch.randn(6, 4), 1.0)


def test_a_value_that_was_the_same_for_all_and_is_no_more_is_seen() -> None:
    """What was compared by value is compared at every pass."""
    model: Any = nn.Linear(4, 3)
    table = torch.ones(20, 1)
    model.scale = lambda n: table[:n]
    engine = Engine(model, squares)
    for _ in range(2):
        engine.clipped_sum(torch.randn(6, 4), 1.0)
    table.copy_(torch.arange(20.0)[:, None])
    with pytest.raises(DecrescendoError, match=r"laid along|another example"):
        engine.clipped_sum(torch.randn(6, 4), 1.0)


def test_places_are_compared_by_what_they_say() -> None:
    assert RowLayout(0, 2, 1) != RowLayout(0, 1, 2)
    assert RowLayout(0) == RowLayout(0, 1, 1, None, None)


def test_what_is_remembered_of_a_large_constant_is_short() -> None:
    """Scripts of passes over many numbers of examples are remembered, each with what the program made in Python."""
    numbers = torch.arange(1000.0)
    assert content_of(numbers) == content_of(numbers.clone())
    for other in (numbers.flip(0), numbers[:-1], -numbers, numbers.to(torch.float64)):
        assert content_of(other) != content_of(numbers)
    assert len(cast("bytes", content_of(numbers))) == 32
