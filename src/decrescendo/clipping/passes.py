"""One recorded forward pass, and one backward pass to the recorded outputs, both checked for row
independence."""

import sys
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from decrescendo.base.storages import key_of, paused
from decrescendo.base.torch_private import parametrize
from decrescendo.clipping.byproducts import keep_byproducts_if
from decrescendo.clipping.clipped import Batch, Loss, norm_accumulator, trainable_of
from decrescendo.clipping.coverage import check_coverage
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.measured import Measured, parts_of
from decrescendo.clipping.recording import Recorder
from decrescendo.clipping.reference import check_losses
from decrescendo.clipping.restored import gradients_kept, unchanged
from decrescendo.clipping.streaming import arrived, check_arrived, stream
from decrescendo.clipping.uses import Use
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import (
    Mixed,
    RowLayout,
    Tracer,
    UnobservedReads,
    check_own,
    check_raised,
    is_by_row,
    opened,
    reads_a_number,
)


@dataclass(slots=True)
class Pass:
    """The result of one forward and one backward pass: the losses, and per-example gradients in the rules'
    forms."""

    losses: Float[Tensor, " batch"]
    measured: Measured
    tracer: Tracer
    uses: list[Use]
    scores: Tensor | None = None
    known: dict[str, Tensor] | None = field(default=None)

    def squares(self) -> dict[str, Float[Tensor, " batch"]]:
        """|g_i|^2 by parameter, computed once."""
        if self.known is None:
            self.known = self.measured.squared_norms()
        return self.known


def run(
    model: nn.Module, held: Inventory, loss: Loss, batch: Batch, workspace: Workspace, tracer: Tracer, *,
    scored: bool = False,
) -> Pass:  # fmt: skip
    """One recorded forward pass and one backward pass, every operation of both watched.

    ``held``: the model's inventory; ``batch``: a copy in its own memory, whose rows the tracer has labelled.
    ``scored``: the loss returns a score per example, too.

    Raises:
        UnsupportedModel: an example's loss or gradient that may depend on other examples, a use of a parameter that
            was not followed, or data that would be kept.
    """
    parameters = trainable_of(held)
    check_hooks(parameters.values())
    recorder = Recorder(parameters, tracer, workspace.fresh())
    tracer.guarded = {key_of(tensor): name for name, tensor in held.tensors()}
    tracer.buffers = held.buffers.keys()
    tracer.labels.weights = frozenset(map(key_of, held.parameters.values()))
    with gradients_kept(parameters.values()):
        with torch.enable_grad(), eager(), unchanged(model, held), tracer, recorder:
            returned = loss(model, batch)
        losses, scores = check_losses(returned, tracer.count, scored=scored)
        keep_byproducts_if(lambda tensor: is_by_row(tracer, tensor))
        return _measured(losses, scores, recorder, parameters, tracer, wide=workspace.wide)


def _measured(
    losses: Float[Tensor, " batch"], scores: Tensor | None, recorder: Recorder, parameters: dict[str, nn.Parameter],
    tracer: Tracer, *, wide: bool,
) -> Pass:  # fmt: skip
    """The backward pass from the losses to the recorded outputs."""
    for own in (losses, scores):
        if own is not None:
            check_own(tracer, own)
    reached = check_coverage(losses, recorder.uses, parameters, double_backward=recorder.double_backward)
    check_hooks(tensor for use in recorder.uses for item in use.parameters for tensor in item.chain())
    check_hooks(item.tensor for item in recorder.tracking.items.values() if not item.root)
    uses = recorder.uses
    with stream(uses, tracer, wide=wide) as arrivals, tracer, UnobservedReads(tracer):
        others = [use for index, use in enumerate(uses) if index not in arrivals]
        try:
            captured = iter(output_gradients(losses, tracer, others))
        except CheckpointError as error:
            raise UnsupportedModel(
                "a checkpointed part must save the same tensors when it is run again, but a layer in it is replaced in "
                "the recorded forward pass only (a recurrent layer, or attention with dropout and a trained mask). "
                "Leave that layer out of the checkpoint"
            ) from error
    check_arrived(list(arrivals.values()), reached)
    recorder.tracking.check_kept()
    gradients = [
        arrivals[index].d if index in arrivals else _arrived(use, next(captured), tracer, wide=wide)
        for index, use in enumerate(uses)
    ]
    if tracer.refusal:
        raise UnsupportedModel(tracer.refusal)
    check_raised(tracer)
    if tracer.reads.poisoned and not all(
        bool(torch.isfinite(d).all()) for d in (losses.detach(), *gradients) if d is not None
    ):
        raise UnsupportedModel(reads_a_number(tracer.reads.poisoned))
    dtype = norm_accumulator(parameters)
    measured = Measured(parameters, tracer.count, parts_of(uses, gradients), dtype, wide=wide)
    return Pass(losses.detach(), measured, tracer, uses, scores)


def check_hooks(tensors: Iterable[Tensor]) -> None:
    """Refuse hooks on weights: autograd calls them with the sum over examples, not with each example's gradient."""
    for tensor in tensors:
        if tensor._backward_hooks:
            raise UnsupportedModel(
                "the gradient of every parameter must be the sum of its examples' gradients, got a hook on a parameter "
                f"or on what is made from one, of shape {tuple(tensor.shape)}. Remove the hook, or apply it to the "
                "parameter itself in the forward pass"
            )


def output_gradients(losses: Float[Tensor, " batch"], tracer: Tracer, uses: list[Use]) -> list[Tensor | None]:
    """Gradients of the sum of losses at the outputs of the recorded operations only."""
    if not uses:
        return []
    with paused(), torch.enable_grad():
        # For a vector torch would want ``grad_outputs``, and import sympy to compare shapes.
        start = torch.ones_like(losses)
        total = (losses * start).sum()
    tracer.assign(start, RowLayout(0))
    tracer.assign(total, Mixed("it is the sum of all losses"))
    # (`opened`: called directly, autograd.grad would switch off the mode that watches Python's reads in hooks.)
    return list(opened(torch.autograd.grad)(total, [use.edge for use in uses], allow_unused=True))


def _arrived(use: Use, gradient: Tensor | None, tracer: Tracer, *, wide: bool) -> Tensor | None:
    return None if gradient is None else arrived(use, gradient, tracer, wide=wide)


@contextmanager
def _nothing_cached() -> Generator[None]:
    """Give a pass its own `parametrize.cached()` cache: weights in an outer cache belong to another pass's graph."""
    before, parametrize._cache = parametrize._cache, dict[Any, Any]()
    try:
        yield
    finally:
        parametrize._cache = before


@contextmanager
def eager() -> Generator[None]:
    """Switch off torch.compile and torch.jit's optimisations inside: a compiled region hides its operations. And
    opt-einsum, which orders contractions by the number of examples: torch.einsum goes from left to right."""
    einsum: Any = torch.backends.opt_einsum
    with ExitStack() as stack:
        stack.enter_context(cast("Any", torch.jit).optimized_execution(False))
        stack.enter_context(_nothing_cached())
        if einsum.enabled:
            stack.enter_context(einsum.flags(enabled=False))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
