"""From a recorded loop to a `Program`: where it makes one number of a batch, each example gets its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from decrescendo.clipping.each_row import PerExample
from decrescendo.errors import UnsupportedModel
from decrescendo.integrations.opacus.calls import Call, Ref, Rows, out_of_place
from decrescendo.integrations.opacus.checks import check_columns, checked, signature_of, target_of
from decrescendo.integrations.opacus.constants import Constant
from decrescendo.integrations.opacus.outputs import tree_leaves, tree_map
from decrescendo.integrations.opacus.program import Program, Step
from decrescendo.integrations.opacus.recording import LoopRecording

_MEANS = frozenset((torch.mean, Tensor.mean))
_SUMS = frozenset((torch.sum, Tensor.sum))
# What is linear in its one argument that is a loss, or adds two.
_UNARY = frozenset(
    (torch.clone, Tensor.clone, Tensor.float, Tensor.double, Tensor.to, Tensor.neg, torch.neg, Tensor.cpu, Tensor.cuda,
     Tensor.contiguous, Tensor.mean, torch.mean, Tensor.sum, torch.sum)
)  # fmt: skip
_ADDS = frozenset(
    (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__)
)  # fmt: skip
_TIMES = frozenset((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply))
_OVER = frozenset((torch.div, Tensor.div, Tensor.__truediv__, torch.true_divide, Tensor.true_divide))

_NOTHING = nn.Module()


@dataclass(frozen=True, slots=True)
class _Loss:
    """A number that is the mean, or the sum, of one of each example.

    Args:
        is_sum: the sum, which must still be divided by the number of examples.
        places: numbers that were added up; 0 if nobody knows.
    """

    is_sum: bool
    places: int = 0


def program_of(tape: LoopRecording, loss: Ref, module: nn.Module) -> Program:
    """The program of a loop whose backward pass began at ``loss``.

    Raises:
        UnsupportedModel: the loss is not the mean, over the examples of the batch, of what the loop computes for one.
    """
    check_columns(tape)
    found: dict[Ref, _Loss] = {}
    needed = _needed(tape, loss)
    steps = [_step_of(checked(call), tape, found, module) for call in needed]
    if loss not in found or found[loss].is_sum:
        got = "the sum" if loss in found else f"what {_name(tape, loss)} returns"
        raise UnsupportedModel(
            f"the loss must be the mean over the examples of the batch, got {got}. End it with .mean(), or take "
            "reduction='mean'"
        )
    clean = set(map(id, tape.calls[: tape.seen.clean] if tape.seen.read else tape.calls))
    program = _numbered(steps, loss, tape, tuple(call for call in needed if id(call) not in clean))
    return replace(program, sized=next((call.name for call in needed if _is_sized(call, tape)), ""))


def _numbered(steps: list[Step], loss: Ref, tape: LoopRecording, late: tuple[Call, ...]) -> Program:
    """A program whose tensors are numbered as it uses them, whatever else the loop computed."""
    first = tape.columns
    new: dict[Ref, Ref] = {}
    made = {ref for step in steps for ref in step.call.outputs if ref.number >= first}

    def named(value: Any) -> Any:
        if not isinstance(value, Ref) or value not in made:
            return value
        return new.setdefault(value, Ref(first + len(new)))

    for place, step in enumerate(steps):
        args, kwargs = tree_map(named, (step.call.args, step.call.kwargs))
        outputs = tuple(map(named, step.call.outputs))
        steps[place] = replace(step, call=replace(step.call, args=args, kwargs=kwargs, outputs=outputs))
    return Program(tuple(steps), named(loss), tape.rows, late)


def _needed(tape: LoopRecording, loss: Ref) -> list[Call]:
    """The calls that the loss depends on, in their order, and those that write into tensors."""
    wanted, kept = {loss}, list[Call]()

    def memory(ref: Ref) -> int:
        return tape.values[ref].untyped_storage().data_ptr()

    for call in reversed(tape.calls):
        if wanted.intersection(call.outputs) or (call.writes and target_of(call, tape) & set(map(memory, wanted))):
            wanted.update(_refs(call))
            kept.append(call)
    return kept[::-1]


def _step_of(call: Call, tape: LoopRecording, found: dict[Ref, _Loss], module: nn.Module) -> Step:
    """How a call is done for each example; ``found`` is told which of its outputs are losses."""
    losses = [found[ref] for ref in _refs(call) if ref in found]
    if losses:
        call = replace(call, func=out_of_place(call.func))
        step, made = _of_losses(call, losses, found, tape)
        found[call.outputs[0]] = made
        return step
    numbers = [ref for ref in call.outputs if tape.values[ref].dim() == 0]
    if call.func is None:
        for ref in numbers:
            found[ref] = _Loss(is_sum=False)
        if numbers:
            _check_model(call, tape, module)
        return Step(call, "call")
    kind = _reduces(call, tape) if numbers else ""
    if not kind:
        return Step(call, "call")
    step = Step(call, kind if call.func in _MEANS | _SUMS else "call")
    made = _Loss(kind == "sum", tape.values[next(_refs(call))].numel() if step.kind == "sum" else 0)
    _check_value(step, tape, made)
    found[call.outputs[0]] = made
    return step


def _reduces(call: Call, tape: LoopRecording) -> Literal["mean", "sum", ""]:
    """How a call makes one number of all places, if it does."""
    if call.func in _MEANS | _SUMS:
        first = call.args[0] if call.args else None
        if not isinstance(first, Ref) or (tape.values[first].dim() == 0 and tape.rows > 1):
            return ""
        return "mean" if call.func in _MEANS else "sum"
    how = _reduction(cast("Any", call.func), call)
    return "sum" if how == "sum" else "mean" if how in ("mean", "batchmean") else ""


def _reduction(func: Callable[..., Any], call: Call) -> str:
    signature = signature_of(func)
    if signature is None or "reduction" not in signature.parameters:
        return ""
    bound = signature.bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    if bound.arguments.get("size_average") is not None or bound.arguments.get("reduce") is not None:
        return ""
    return str(bound.arguments["reduction"])


def _of_losses(call: Call, losses: list[_Loss], found: dict[Ref, _Loss], tape: LoopRecording) -> tuple[Step, _Loss]:
    """A call with losses among its arguments, which must be linear in them."""
    # Numbers of the loop's own that losses are added to.
    constants = {made for one in tape.calls if one.func is torch.clone and _is_own(one) for made in one.outputs}
    others = [
        value for value in tree_leaves((call.args, call.kwargs)) if not (isinstance(value, Ref) and value in found)
    ]
    data = any(isinstance(value, Ref) and value not in constants for value in others)
    one, divisor = losses[0], others[0] if len(others) == 1 else None
    alike = all(loss.is_sum == one.is_sum for loss in losses)
    if call.func in _UNARY and len(losses) == 1 and not data:
        averages = call.func in _MEANS | _SUMS  # of one number: itself
        return Step(call, "first" if averages else "call"), one
    if call.func in _ADDS and alike and not data:
        return Step(call, "call"), replace(one, places=0)
    if call.func in _TIMES and len(losses) == 1 and not data:
        return Step(call, "call"), replace(one, places=0)
    if call.func in _OVER and len(losses) == 1 and not data and call.args and call.args[0] in found:
        return _over(call, one, divisor, tape.rows)
    raise UnsupportedModel(
        "the loss must be a weighted sum of means over the examples, got "
        f"{call.name} of a number that is made from the whole batch. Compute it for "
        "each example, and end with .mean()"
    )


def _over(call: Call, one: _Loss, divisor: Any, rows: int) -> tuple[Step, _Loss]:
    """A loss over a number; of a sum, over the number of examples or of all places, it is the mean."""
    divisor = divisor.number if isinstance(divisor, Rows) else divisor
    if one.is_sum and isinstance(divisor, (int, float)) and divisor in (rows, one.places):
        if divisor == rows:
            return Step(replace(call, args=call.args[:1], kwargs={}), "first"), _Loss(is_sum=False)
        own = replace(call, args=(call.args[0], one.places // rows), kwargs={})
        return Step(own, "call"), _Loss(is_sum=False)
    return Step(call, "call"), replace(one, places=0)


def _check_value(step: Step, tape: LoopRecording, made: _Loss) -> None:
    """That the mean, or sum, of the examples' losses is the number that the function makes of the batch."""
    whole, each = dict(tape.values), dict(tape.values)
    with torch.no_grad():
        Step(step.call, "call").run(_NOTHING, whole, tape.rows)
        with PerExample(tape.rows):
            step.run(_NOTHING, each, tape.rows)
    for ref in step.call.outputs:
        if whole[ref].dim() == 0:
            _compare(each[ref], whole[ref], tape.rows, step.call.name, is_sum=made.is_sum)


def _check_model(call: Call, tape: LoopRecording, module: nn.Module) -> None:
    """The same of a loss that the model itself computes."""
    values, now = dict(tape.values), torch.get_rng_state()
    try:
        if call.random is not None:
            torch.set_rng_state(call.random)
        with torch.no_grad(), PerExample(tape.rows):
            Step(call, "call").run(module, values, tape.rows)
    finally:
        torch.set_rng_state(now)
    for ref, number in call.numbers.items():
        _compare(values[ref], number, tape.rows, f"the loss of {type(module).__name__}", is_sum=False)


def _compare(each: Tensor, number: Tensor, rows: int, name: str, *, is_sum: bool) -> None:
    whole = each.sum() if is_sum else each.mean()
    close = 1e-4 if number.dtype in (torch.float32, torch.float64) else 5e-2
    if each.shape != (rows,) or not torch.allclose(
        whole.double(), number.detach().double(), rtol=close, atol=1e-6, equal_nan=True
    ):
        raise UnsupportedModel(
            f"the loss must be the mean over the examples of the batch of what each has by itself, but {name} weighs "
            "examples by each other: weights of classes, ignored labels, examples of several lengths. Compute one "
            "loss per example, and end with .mean()"
        )


def _is_sized(call: Call, tape: LoopRecording) -> bool:
    """Whether a tensor of the loop's own meets the rows of the batch place by place."""
    shapes = {tuple(tape.values[ref].shape) for ref in (*_refs(call), *call.outputs)}
    met = {len(shape) for shape in shapes if shape[:1] == (tape.rows,)}
    own = (leaf.value for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Constant))
    return tape.rows > 1 and any(one.shape[:1] == (tape.rows,) and one.dim() in met for one in own)


def _is_own(call: Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], Constant)


def _refs(call: Call) -> Any:
    return (leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Ref))


def _name(tape: LoopRecording, ref: Ref) -> str:
    return next((call.name for call in reversed(tape.calls) if ref in call.outputs), "the model")
