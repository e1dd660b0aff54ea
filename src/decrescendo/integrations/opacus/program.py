"""`Program`: the loss of each example, computed as a recorded loop computes it for a batch of that example alone."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from decrescendo.base.batches import Batch, map_rows
from decrescendo.base.torch_private import tree_flatten
from decrescendo.clipping.byproducts import note_byproducts
from decrescendo.clipping.each_row import PerExample
from decrescendo.clipping.memory import is_out_of_memory
from decrescendo.errors import DecrescendoError, PlanViolation, UnsupportedModel
from decrescendo.integrations.opacus.calls import Call, Ref, Rows, modes_of, numbers_in, objects_in
from decrescendo.integrations.opacus.constants import Constant
from decrescendo.integrations.opacus.outputs import leaves, tree_leaves, tree_map
from decrescendo.row_independence.tracing import Content, changed_places

# ``call``: as recorded; ``mean`` and ``sum``: over the places of each example; ``first``: the first argument, as it is.
Kind: TypeAlias = Literal["call", "mean", "sum", "first"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One call of a program, and how it is done for each example."""

    call: Call
    kind: Kind

    @property
    def given(self) -> list[Any]:
        """The arguments, out of their containers."""
        return tree_leaves((self.call.args, self.call.kwargs))

    def run(self, model: nn.Module, values: dict[Ref, Any], rows: int) -> None:
        """Compute its outputs into ``values``, for a batch of so many rows."""

        def given(value: Any) -> Any:
            if isinstance(value, Constant):
                return value.value
            if isinstance(value, slice):
                return slice(*map(given, (value.start, value.stop, value.step)))
            return values[value] if isinstance(value, Ref) else rows if isinstance(value, Rows) else value

        if self.call.training not in (None, modes_of(model)):
            raise PlanViolation(
                "the model must be in the mode of its call until optimizer.step(), got train() or eval() between. "
                "Evaluate after the step"
            )

        args, kwargs = tree_map(given, (self.call.args, self.call.kwargs))
        with nullcontext() if self.call.grad else torch.no_grad():
            if self.kind == "call":
                found = (model if self.call.func is None else self.call.func)(*args, **kwargs)
            else:
                found = args[0] if self.kind == "first" else _by_row(args[0], rows, self.kind)
        tensors = [leaf for leaf in leaves(found) if isinstance(leaf, Tensor)]
        if self.call.func is None:
            note_byproducts(tensors)
        values.update(zip(self.call.outputs, tensors, strict=True))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Program(Content):
    """The loss of each example, as one recorded loop computes it. Nothing in it changes: two are compared by identity.

    Args:
        steps: what it computes.
        result: the losses.
        rows: of the batch that it was recorded with.
        late: calls that came after the loop had read something, and may hold what it read.
        sized: the name of a call with a tensor of the loop's own that has a place for each of these rows; empty if
            there is none.
    """

    steps: tuple[Step, ...]
    result: Ref
    rows: int
    late: tuple[Call, ...] = ()
    sized: str = ""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss a row of ``batch``."""
        values: dict[Ref, Any] = {}
        writes = any(step.call.writes for step in self.steps)

        def note(column: Tensor) -> Tensor:
            values[Ref(len(values))] = column.clone() if writes else column
            return column

        map_rows(note, batch)
        rows = len(values[Ref(0)])
        with PerExample(rows):
            for step in self.steps:
                _run(step, model, values, rows)
        return values[self.result]

    def differs(self, kept: "Program") -> str:
        """What it computes otherwise than a program recorded earlier, in words; empty if both compute the same."""
        if len(self.steps) != len(kept.steps) or self.result != kept.result:
            return "other calls"
        found = (_differs(one, two, self.rows) for one, two in zip(self.steps, kept.steps, strict=True))
        return next(filter(None, found), "")

    def call_of_model(self) -> Call | None:
        """Its only call of the model; ``None`` if there are several, if it changes tensors in place, or if objects are
        given to it whose contents nobody compares."""
        calls = [step.call for step in self.steps if step.call.func is None]
        if len(calls) != 1 or self.objects or any(step.call.writes for step in self.steps):
            return None
        return calls[0]

    @property
    def objects(self) -> list[Any]:
        """Arguments of its calls that are no tensors, numbers, names and the like."""
        return [leaf for step in self.steps for leaf in objects_in(step.given)]

    @property
    def changed(self) -> str:
        """Where an object holds another number than when it was given to a function; empty if none does."""
        given = [(step.call.held, (step.call.args, step.call.kwargs)) for step in self.steps]
        return next((where for held, tree in given if held for where in changed_places(held, numbers_in(tree))), "")

    def has_modes_of(self, kept: "Program") -> bool:
        """Whether the model is called in the modes of another program."""
        own, other = ([step.call.training for step in program.steps] for program in (self, kept))
        return own == other

    def moves_on(self, kept: "Program") -> bool:
        """Whether it is to be computed in the place of an equal one: for entries of a vector, which go on from step to
        step, and for the mode of the model."""
        tables = any(isinstance(leaf, Constant) and leaf.table for step in self.steps for leaf in step.given)
        return tables or not self.has_modes_of(kept)


def _run(step: Step, model: nn.Module, values: dict[Ref, Any], rows: int) -> None:
    """One step, over another number of rows than it was recorded with."""
    try:
        step.run(model, values, rows)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        own = step.call.func is None and not any(isinstance(leaf, Constant) for leaf in step.given)
        if own or isinstance(error, DecrescendoError) or is_out_of_memory(error):
            raise
        raise UnsupportedModel(
            "a loop must compute its loss from a batch of any number of examples, got an error of "
            f"{step.call.name} over {rows}: {str(error).splitlines()[0]}. Make "
            "tensors from those of the batch (torch.ones_like, x.new_zeros(x.shape[0])), and sizes from x.shape"
        ) from error


def _by_row(value: Tensor, rows: int, kind: Kind) -> Tensor:
    if value.dim() == 0 and rows == 1:
        return value.reshape(1)
    if value.dim() == 0 or value.shape[0] % rows:
        raise UnsupportedModel(
            f"a loss must have as many places for each example, got a {kind} over shape {tuple(value.shape)} for "
            f"{rows} examples. Keep the examples first, and end with .mean()"
        )
    each = value.reshape(rows, -1)
    return each.mean(1) if kind == "mean" else each.sum(1)


def _differs(one: Step, kept: Step, rows: int) -> str:
    a, b = one.call, kept.call
    if (a.func, a.outputs, a.grad, one.kind) != (b.func, b.outputs, b.grad, kept.kind):
        return f"another call ({a.name})"
    (mine, form), (its, its_form) = tree_flatten((a.args, a.kwargs)), tree_flatten((b.args, b.kwargs))
    if form != its_form:
        return f"other arguments of {a.name}"
    if changed := changed_places(b.held, a.held):
        return f"another number in an object that {a.name} is given ({changed[0]})"
    other = next((value for value, old in zip(mine, its, strict=True) if not is_same(value, old, rows)), Ref)
    return "" if other is Ref else f"another {'tensor' if isinstance(other, Constant) else 'number'} in {a.name}"


def is_same(one: Any, kept: Any, rows: int) -> bool:
    """Whether an argument is that of a kept call, for all that a batch of so many rows can change."""
    if isinstance(one, Constant) and isinstance(kept, Constant):
        return one.same(kept)
    if isinstance(one, slice) and isinstance(kept, slice):
        pairs = ((one.start, kept.start), (one.stop, kept.stop), (one.step, kept.step))
        return all(is_same(*pair, rows) for pair in pairs)
    if isinstance(kept, Rows):  # another size may be that of the rows by chance
        return isinstance(one, Rows) or one == rows
    if isinstance(one, Rows):
        return one.number == kept
    if isinstance(one, Tensor) or isinstance(kept, Tensor):  # of the model
        return one is kept
    return type(one) is type(kept) and bool(one == kept)
