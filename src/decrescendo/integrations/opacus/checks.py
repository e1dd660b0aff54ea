"""What a recorded call may have among its arguments, so that nothing is in a loss but the batch and public values."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from decrescendo.errors import PlanViolation, UnsupportedModel
from decrescendo.integrations.opacus.calls import INSIDE, Call, Ref, Rows, Stale
from decrescendo.integrations.opacus.constants import Constant
from decrescendo.integrations.opacus.outputs import tree_leaves
from decrescendo.integrations.opacus.recording import LoopRecording
from decrescendo.training.processes.bits import fingerprint

# Numbers up to this one name a dimension or a place; but not in these.
_DIMS = 4
_RESHAPES = ("view", "reshape", "flatten", "unflatten", "expand")
_ARITHMETIC = ("add", "sub", "mul", "div", "pow", "clamp", "where", "fill", "lerp", "full")


def checked(call: Call) -> Call:
    """A call without what is made of other examples, or of a batch elsewhere than on the tape."""
    for value in tree_leaves((call.args, call.kwargs)):
        if isinstance(value, Stale):
            raise UnsupportedModel(
                "a loss must be computed from the batch just drawn, got a tensor made from an earlier one. Its "
                "examples would count without being clipped: keep nothing of a batch for the next"
            )
        if isinstance(value, Ref) and value == INSIDE:
            raise UnsupportedModel(
                "a loss must be computed from what the model returns, got a tensor that its forward kept elsewhere (an "
                "attribute, a hook). Return it from the model's forward"
            )
        if not isinstance(value, Constant):
            continue
        if value.of_batch:
            raise UnsupportedModel(
                "a tensor in a loss that is not of the batch or the model must hold nothing that was made of a batch, "
                "got one with such memory (through .data, NumPy or a view). Compute it from the batch by torch's "
                "functions, or leave it out"
            )
        if value.needs_grad and call.grad:
            raise UnsupportedModel(
                "a loss must be computed from the loader's batch by functions of torch and the private model, got a "
                "part of it with other gradients (of weights alone, of another model, of a batch that went through "
                "NumPy or Python's numbers). Take the optimizer's weight_decay for weights, call another model under "
                "torch.no_grad() or make it a part of the private one, and change a batch by torch's functions"
            )
    return call


def check_columns(tape: LoopRecording) -> None:
    """That tensors of the batch have the numbers with which they were handed out, but for what torch wrote."""
    written = {place for call in tape.calls if call.writes for place in target_of(call, tape)}
    for number, handed in enumerate(tape.handed):
        column = tape.values[Ref(number)]
        if column.untyped_storage().data_ptr() not in written and fingerprint(column) != fingerprint(handed):
            raise UnsupportedModel(
                "the batch must be changed by functions of torch alone, got other numbers in it than were handed out: "
                "an array that .numpy() gave has its memory. Copy the array, or compute it in torch"
            )


def check_gradients(module: nn.Module) -> None:
    """That no other loss has left gradients, which would not be counted."""
    for name, value in module.named_parameters():
        if value.requires_grad and value.grad is not None and value.grad.any():
            raise PlanViolation(
                f"gradients must come from the one loss of the batch, got others in .grad of {name} before the "
                "step, by a backward() of a loss without the batch. Add it to the loss, take the optimizer's "
                "weight_decay, or call optimizer.zero_grad() before the step"
            )


def is_plain(call: Call) -> bool:
    """Whether a call has no numbers and tensors of the loop's own: dimensions, names of reductions, and what is its
    function's own default."""
    arithmetic, shapes = any(name in call.name for name in _ARITHMETIC), call.name in _RESHAPES
    signature = None if call.func is None else signature_of(call.func)
    defaults = () if signature is None else tuple(one.default for one in signature.parameters.values())

    def plain(value: Any) -> bool:
        if isinstance(value, slice):
            return all(map(plain, (value.start, value.stop, value.step)))
        if isinstance(value, (Ref, Rows, bool, str, torch.dtype, torch.device)) or value in (None, ...):
            return True
        if isinstance(value, int) and (shapes or (-_DIMS <= value < _DIMS and not arithmetic)):
            return True
        return isinstance(value, (int, float)) and any(value is one or value == one for one in defaults)

    return all(map(plain, tree_leaves((call.args, call.kwargs))))


def target_of(call: Call, tape: LoopRecording) -> set[int]:
    """The memory that a call in place may write into."""
    first = call.kwargs.get("out", call.args[0] if call.args else call.kwargs.get("input"))
    return {tape.values[ref].untyped_storage().data_ptr() for ref in tree_leaves(first) if isinstance(ref, Ref)}


@cache
def signature_of(func: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(func)
    except ValueError:
        return None
