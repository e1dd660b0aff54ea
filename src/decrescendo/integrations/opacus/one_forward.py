"""`OneForward`: a loop has its model's outputs from the pass of its step, and not from a forward pass of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.base.batches import Batch
from decrescendo.base.torch_private import tree_flatten
from decrescendo.errors import PlanViolation
from decrescendo.integrations.opacus.calls import Call, Ref, modes_of
from decrescendo.integrations.opacus.constants import Constant
from decrescendo.integrations.opacus.model_state import ModelState
from decrescendo.integrations.opacus.outputs import leaves, mapped, tree_leaves
from decrescendo.integrations.opacus.program import Program, is_same


class LoopLoss:
    """The loss that a loop computes, of each example.

    Attributes:
        program: of the last step; ``None`` before the first.
        objects: that the program gives to its functions: with others in them a captured pass is another one.
    """

    def __init__(self) -> None:
        self.program: Program | None = None
        self.objects = list[Any]()

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss a row."""
        if self.program is None:
            raise PlanViolation("a loss must be computed in the loop first, got none. Call loss.backward()")
        return self.program(model, batch)

    def take(self, program: Program) -> None:
        """The program of this step."""
        if program is not self.program:
            self.program, self.objects = program, program.objects


class OneForward:
    """Does the pass of a step when the loop calls the model, where the step is known to be the last one's again.

    Only where a call of the model does nothing that the loop could see but return real tensors with a place for each
    row, each made of that row (the engine checks that).

    Args:
        state: of the private model.
        loss: what the engine computes.
        before_step: does the pass, where it can be done now, and returns the tensors that the model made in it.
    """

    def __init__(self, state: ModelState, loss: LoopLoss, before_step: Callable[[], list[Tensor]]) -> None:
        self._state, self._loss, self._before_step = state, loss, before_step
        self._random = list[Tensor]()  # the states of torch's generators where a batch was handed out

    def begin(self) -> None:
        """A batch is handed out."""
        self._random = _random_of(self._state.module)

    def outputs(self, calls: Sequence[Call], given: Any, rows: int) -> tuple[Any, Any]:
        """What the model makes of these arguments, and its form (`Call`); ``None`` twice where it must be called.

        Args:
            calls: what the loop has computed of this batch so far.
            given: the model's arguments, as a `Call` has them.
            rows: of the batch.
        """
        program = self._loss.program
        call = None if program is None else program.call_of_model()
        if program is None or call is None or call.form is None:
            return None, None
        module = self._state.module
        same = (call.training, call.grad) == (modes_of(module), torch.is_grad_enabled())
        if not same or any(one.func is None or one.writes for one in calls):
            return None, None
        if any(map(_is_watched, module.modules())) or not _alike(given, call, calls, program, rows):
            return None, None
        drawn = zip(self._random, _random_of(module), strict=True)
        if calls and not all(torch.equal(one, other) for one, other in drawn):
            return None, None  # by the loop, for what it gives to the model: the pass draws other numbers
        made = self._before_step()
        if len(made) != len(call.outputs):
            return None, None
        return mapped(lambda leaf: made[leaf.number] if isinstance(leaf, Ref) else leaf, call.form), call.form


def form_of(found: Any, state: ModelState) -> Any:
    """The `Call.form` of what the model has just returned.

    >>> form_of({"logits": torch.zeros(2), "hidden": None}, ModelState(nn.Linear(1, 1)))
    {'logits': Ref(number=0), 'hidden': None}
    """
    tensors = [leaf for leaf in leaves(found) if leaf is not None]
    by_row = all(isinstance(leaf, Tensor) and leaf.dim() for leaf in tensors)
    if not by_row or state.has_outputs or any(map(_is_watched, state.module.modules())):
        return None
    places = map(Ref, range(len(tensors)))
    return mapped(lambda leaf: leaf if leaf is None else next(places), found)


def _random_of(module: nn.Module) -> list[Tensor]:
    """The states of torch's global generators on the CPU and on the model's GPUs."""
    there = {one.device for one in module.parameters() if one.device.type == "cuda"}
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(one) for one in sorted(there, key=str))]


def _is_watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _made(call: Call) -> list[tuple[int, Ref]]:
    """The outputs that a call makes, with their places: not those that it was given (``x.to(x.device)`` is ``x``)."""
    given = tree_leaves((call.args, call.kwargs))
    return [(at, ref) for at, ref in enumerate(call.outputs) if ref not in given]


def _alike(given: Any, kept: Call, calls: Sequence[Call], program: Program, rows: int) -> bool:
    """Whether arguments are computed from the batch as those of a program's call."""
    mine = {ref: (one, at) for one in calls for at, ref in _made(one)}
    its = {ref: (step, at) for step in program.steps for at, ref in _made(step.call)}
    known = dict[tuple[Ref, Ref], bool]()

    def same(one: Any, other: Any) -> bool:
        if not (isinstance(one, Ref) and isinstance(other, Ref)):
            tables = isinstance(one, Constant) and isinstance(other, Constant)
            return one.code == other.code if tables else is_same(one, other, rows)
        if one not in mine or other not in its:
            return one == other
        if (one, other) not in known:
            (a, at), (step, place) = mine[one], its[other]
            alike = (a.func, a.grad, at, "call") == (step.call.func, step.call.grad, place, step.kind)
            known[one, other] = alike and arguments((a.args, a.kwargs), (step.call.args, step.call.kwargs))
        return known[one, other]

    def arguments(one: Any, other: Any) -> bool:
        (own, form), (others, its_form) = tree_flatten(one), tree_flatten(other)
        return form == its_form and all(map(same, own, others))

    return arguments(given, (kept.args, kept.kwargs))
