"""`OneForward`: a loop has its model's outputs from the pass of its step, and not from a forward pass of its own."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from decrescendo.base.torch_private import tree_flatten
from decrescendo.integrations.opacus.calls import Call, Ref
from decrescendo.integrations.opacus.model_state import ModelState
from decrescendo.integrations.opacus.outputs import leaves, mapped, tree_leaves
from decrescendo.integrations.opacus.program import Program, is_same


class HasProgram(Protocol):
    """A loss that a loop computes.

    Attributes:
        program: of its last step; ``None`` before the first.
    """

    program: Program | None


class OneForward:
    """Does the pass of a step when the loop calls the model, where the step is known to be the last one's again.

    Only where a call of the model does nothing that the loop could see but return tensors with a place for each row.

    Args:
        state: of the private model.
        loss: what the engine computes.
        before_step: does the pass, where it can be done now, and returns the tensors that the model made in it.
    """

    def __init__(self, state: ModelState, loss: HasProgram, before_step: Callable[[], list[Tensor]]) -> None:
        self._state, self._loss, self._before_step = state, loss, before_step

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
        same = (call.training, call.grad) == (module.training, torch.is_grad_enabled())
        if not same or any(one.func is None or one.writes for one in calls):
            return None, None
        if any(map(_is_watched, module.modules())) or not _alike(given, call, calls, program, rows):
            return None, None
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
    plain = all(isinstance(leaf, Tensor) for leaf in tensors)
    if not plain or state.has_outputs or any(map(_is_watched, state.module.modules())):
        return None
    places = map(Ref, range(len(tensors)))
    return mapped(lambda leaf: leaf if leaf is None else next(places), found)


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
            return is_same(one, other, rows)
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
