"""One forward pass with the recorder on, and one backward pass to the recorded outputs."""

import sys
from collections.abc import Generator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from decrescendo.clipping.clipped import Batch, Loss, norm_accumulator, trainable_of
from decrescendo.clipping.coverage import check_coverage
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.means import Means
from decrescendo.clipping.measured import Measured, parts_of
from decrescendo.clipping.recording import Decision, Recorder, Use
from decrescendo.clipping.reference import check_losses
from decrescendo.clipping.streaming import arrived, check_arrived, stream
from decrescendo.errors import UnsupportedModel

# The operations of a forward pass in order: name, parameters, layout.
Form: TypeAlias = tuple[tuple[str, tuple[str, ...], str], ...]


@dataclass(slots=True)
class Pass:
    """What one forward and backward pass left: the losses, and per-example gradients in the rules' forms."""

    losses: Float[Tensor, " batch"]
    measured: Measured
    decisions: tuple[Decision, ...]
    known: dict[str, Tensor] | None = field(default=None)
    # Of the watched uses those to which something came.
    awake: frozenset[int] = frozenset()
    # Uses that a check has not seen enough gradient of to know where the examples are.
    unseen: frozenset[int] = frozenset()

    @property
    def form(self) -> Form:
        """Which operations used which parameters, in order: a new form has to be checked again."""
        return tuple((decision.name, decision.roots, decision.kind) for decision in self.decisions)

    def squares(self) -> dict[str, Float[Tensor, " batch"]]:
        """|g_i|^2 by parameter, computed once."""
        if self.known is None:
            self.known = self.measured.squared_norms()
        return self.known


@dataclass(slots=True)
class Forward:
    """A recorded forward pass, its graph still alive."""

    losses: Float[Tensor, " batch"]
    uses: list[Use]
    decisions: tuple[Decision, ...]
    parameters: dict[str, nn.Parameter]
    reached: AbstractSet[Node]


def forward(
    model: nn.Module, loss: Loss, batch: Batch, rows: int, hints: tuple[Decision, ...], means: Means
) -> Forward:
    """Run ``loss(model, batch)`` and record each use of a trainable parameter."""
    held = Inventory.of(model)
    parameters = trainable_of(held)
    constants = frozenset(map(id, (*held.buffers.values(), *held.parameters.values())))
    recorder = Recorder(parameters, constants, rows, hints, means.fresh())
    with torch.enable_grad(), eager(), unchanged(model, held), recorder:
        losses = loss(model, batch)
    losses = check_losses(losses, rows)
    reached = check_coverage(losses, recorder.uses, parameters)
    return Forward(losses, recorder.uses, tuple(recorder.decisions), parameters, reached)


def run(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    rows: int,
    hints: tuple[Decision, ...],
    means: Means,
    watched: AbstractSet[int] = frozenset(),
) -> Pass:
    """One recorded forward pass and one backward pass."""
    seen = forward(model, loss, batch, rows, hints, means)
    with stream(seen.uses, precise=means.precise, watched=watched) as arrivals:
        others = [use for index, use in enumerate(seen.uses) if index not in arrivals]
        captured = iter(output_gradients(seen.losses, None, others))
    check_arrived(list(arrivals.values()), seen.reached)
    gradients = [
        arrivals[index].d if index in arrivals else _arrived(use, next(captured), precise=means.precise)
        for index, use in enumerate(seen.uses)
    ]
    found = _pass(seen, rows, gradients, precise=means.precise)
    found.awake = frozenset(
        index
        for index, gradient in enumerate(gradients)
        if index in watched and gradient is not None and bool(gradient.any())
    )
    return found


def output_gradients(
    losses: Float[Tensor, " batch"],
    weights: Float[Tensor, " batch"] | None,
    uses: list[Use],
    *,
    keep: bool = False,
) -> list[Tensor | None]:
    """Gradients of the (weighted) sum of losses at the outputs of the recorded operations only."""
    if not uses:
        return []
    edges = [use.edge for use in uses]
    start = torch.ones_like(losses) if weights is None else weights
    return list(torch.autograd.grad(losses, edges, start, allow_unused=True, retain_graph=keep))


def finish(seen: Forward, rows: int, gradients: list[Tensor | None]) -> Pass:
    """The per-example gradients that follow from the output gradients."""
    found = [_arrived(use, d, precise=False) for use, d in zip(seen.uses, gradients, strict=True)]
    return _pass(seen, rows, found, precise=False)


def _arrived(use: Use, gradient: Tensor | None, *, precise: bool) -> Tensor | None:
    return None if gradient is None else arrived(use, gradient, precise=precise)


def _pass(seen: Forward, rows: int, gradients: list[Tensor | None], *, precise: bool) -> Pass:
    dtype = norm_accumulator(seen.parameters)
    measured = Measured(seen.parameters, rows, parts_of(seen.uses, gradients), dtype, precise=precise)
    return Pass(seen.losses.detach(), measured, seen.decisions)


@contextmanager
def unchanged(model: nn.Module, held: Inventory) -> Generator[None]:
    """Refuse a forward pass that writes to a buffer or a parameter: what it keeps of the data leaves without noise.

    ``held`` is what the model holds on entry.

    Writes through ``.data`` are not seen here; `training.Trainer` compares values.
    """
    before = _tensors(held)
    versions = {name: tensor._version for name, tensor in before.items()}
    yield
    after = _tensors(Inventory.of(model))
    changed = sorted(
        name
        for name in before.keys() | after.keys()
        if after.get(name) is not before.get(name) or after[name]._version != versions[name]
    )
    if changed:
        raise UnsupportedModel(
            f"a forward pass must not change the model's parameters or buffers, got a change of {', '.join(changed)}. "
            "They would hold the data without noise; call .eval() on that module, or leave it out"
        )


def _tensors(held: Inventory) -> dict[str, Tensor]:
    return {**held.buffers, **held.parameters}


def eager() -> AbstractContextManager[object]:
    """Ignore torch.compile inside: a compiled region hides its operations."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
