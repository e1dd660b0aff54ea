"""`OneForward`: a loop has its model's outputs from the pass of its step, and not from a forward pass of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.base.torch_private import tree_flatten
from decrescendo.integrations.opacus.calls import Call, Ref
from decrescendo.integrations.opacus.model_state import ModelState
from decrescendo.integrations.opacus.outputs import leaves, mapped
from decrescendo.integrations.opacus.program import Program, is_same


class OneForward:
    """Does the pass of a step when the loop calls the model, where the step is known to be the last one's again.

    Only where a call of the model does nothing that the loop could see but return tensors with a place for each row.

    Args:
        state: of the private model.
        before_step: does the pass, where it can be done now, and returns the tensors that the model made in it.

    Attributes:
        program: what the engine computes; ``None`` before the first step.
    """

    def __init__(self, state: ModelState, before_step: Callable[[], list[Tensor]]) -> None:
        self._state, self._before_step = state, before_step
        self.program: Program | None = None
        # What the model returned last, with the numbers of its tensors in their place.
        self._form: Any = None

    def note(self, found: Any) -> None:
        """A forward pass of the loop's own returned this."""
        tensors = [leaf for leaf in leaves(found) if leaf is not None]
        numbers = {id(tensor): Ref(place) for place, tensor in enumerate(tensors)}
        plain = len(numbers) == len(tensors) and all(isinstance(leaf, Tensor) for leaf in tensors)
        seen = not plain or self._state.has_outputs or any(map(_is_watched, self._state.module.modules()))
        self._form = None if seen else mapped(lambda leaf: numbers.get(id(leaf)), found)

    def outputs(self, calls: Sequence[Call], given: Any, rows: int) -> Any:
        """What the model makes of these arguments; ``None`` where it must be called.

        Args:
            calls: what the loop has computed of this batch so far.
            given: the model's arguments, as a `Call` has them.
            rows: of the batch.
        """
        call = None if self.program is None or self._form is None else self.program.call_of_model()
        if self.program is None or call is None or any(one.func is None or one.writes for one in calls):
            return None
        module = self._state.module
        if (call.training, call.grad) != (module.training, torch.is_grad_enabled()):
            return None
        if any(map(_is_watched, module.modules())) or not _alike(given, call, calls, self.program, rows):
            return None
        made = self._before_step()
        if len(made) != len(call.outputs):
            return None
        return mapped(lambda leaf: leaf if leaf is None else made[leaf.number], self._form)


def _is_watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _alike(given: Any, kept: Call, calls: Sequence[Call], program: Program, rows: int) -> bool:
    """Whether arguments are computed from the batch as those of a program's call."""
    mine = {ref: (one, at) for one in calls for at, ref in enumerate(one.outputs)}
    its = {ref: (step, at) for step in program.steps for at, ref in enumerate(step.call.outputs)}
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
