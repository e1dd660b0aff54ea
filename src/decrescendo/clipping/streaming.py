"""Uses output gradients as soon as they arrive in the backward pass, so that they need not be stored.

A backward pass to many outputs at once holds all their gradients until it ends. Where an operation is the only one on
its parameters, a hook on its node takes what norms and sums need from the gradient as it passes.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from decrescendo.base.precision import full_precision
from decrescendo.base.storages import FUNCTIONS_OFF, paused
from decrescendo.clipping.graph import walk
from decrescendo.clipping.rules.conv import ConvKernel
from decrescendo.clipping.rules.elementwise import ElementKernel
from decrescendo.clipping.rules.embedding import EmbeddingKernel
from decrescendo.clipping.rules.linear import LinearKernel
from decrescendo.clipping.uses import Use
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import Public, Tracer, constant_of, is_data

# Kernels that may need their output gradient only once: ``absorb`` takes from it what all later calls need, and says
# whether they need neither it nor the inputs any more. Then they get a ``d`` without columns.
Absorbing: TypeAlias = LinearKernel | ConvKernel | EmbeddingKernel | ElementKernel


@dataclass(slots=True)
class Arrival:
    """A hook that takes one use's output gradient: ``d``, without columns if the kernel absorbed it."""

    use: Use
    tracer: Tracer
    wide: bool
    fired: bool = False
    d: Tensor | None = None
    # The gradient, if it is read again, and the number of the last write to it.
    kept: Tensor | None = None
    written: int = 0

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """The hook: called with the gradients of all outputs of the node."""
        self.fired = True
        gradient = gradients[self.use.edge.output_nr]
        kernel = self.use.kernel
        if gradient is None or not isinstance(kernel, Absorbing):
            return
        # The backward pass has the precision that the user set; norms and sums are computed in full precision.
        with full_precision(), paused(), FUNCTIONS_OFF():
            d = arrived(self.use, gradient, self.tracer, wide=self.wide)
            absorbed = kernel.absorb(d)
            self.d = d.new_empty((d.shape[0], 0)) if absorbed else d
            if not absorbed:
                self.kept, self.written = gradient, self.tracer.written(gradient)


def arrived(use: Use, gradient: Tensor, tracer: Tracer, *, wide: bool) -> Tensor:
    """A use's output gradient in the form of its kernel, with its label checked; in float64 if ``wide``.

    Raises:
        UnsupportedModel: the gradient has not the row layout of the use's output.
    """
    # Recorded, as no operation shows which use, and which parameters, the gradient is for.
    tracer.consume(f"the gradient of {use.name}", gradient, numbers=(use.place, use.roots))
    label, place = tracer.label(gradient), use.layout.place
    if constant_of(label) is not Public.FILL and not (is_data(label) and place.same(label)):
        tracer.blame(label, "gradient")
    if torch.finfo(gradient.dtype).eps > torch.finfo(tracer.coarsest).eps:
        tracer.coarsest = gradient.dtype
    d = use.arrived(gradient)
    return d.to(_WIDE.get(d.dtype, d.dtype)) if wide else d


_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@contextmanager
def stream(uses: Sequence[Use], tracer: Tracer, *, wide: bool = False) -> Generator[dict[int, Arrival]]:
    """Hooks, while inside, on the uses that allow it, by index; the other gradients must be asked of autograd.

    A node is run in a backward pass only if something that is asked for lies behind it: only uses with another use
    behind them are taken.
    """
    counts = Counter(root for use in uses for source in use.parameters for root in source.roots)
    nodes = frozenset(use.edge.node for use in uses)
    found: dict[int, Arrival] = {}
    handles: list[RemovableHandle] = []
    for index, use in enumerate(uses):
        alone = all(source.isometric and all(counts[root] == 1 for root in source.roots) for source in use.parameters)
        if alone and isinstance(use.kernel, Absorbing) and _leads_to(use, nodes):
            arrival = found[index] = Arrival(use, tracer, wide)
            handles.append(use.edge.node.register_prehook(arrival))
    try:
        yield found
    finally:
        # A node that holds a hook that holds the node would never be freed.
        for handle in handles:
            handle.remove()


def check_arrived(arrivals: Sequence[Arrival], reached: AbstractSet[Node]) -> None:
    """Raise if a hook got no gradient of a use that the losses depend on, or one that was overwritten since."""
    for arrival in arrivals:
        if arrival.kept is not None and arrival.tracer.written(arrival.kept) != arrival.written:
            raise UnsupportedModel(
                f"a gradient must not be overwritten after it arrived, got that of {arrival.use.name}. Let the hook "
                "return another tensor"
            )
        if not arrival.fired and arrival.use.edge.node in reached:
            names = ", ".join(sorted({root for source in arrival.use.parameters for root in source.roots}))
            raise UnsupportedModel(
                f"the gradient of every operation must come in the backward pass, got none for {arrival.use.name} "
                f"with {names}. Is there a hook or a function of your own that stops it? Freeze these parameters"
            )


def _leads_to(use: Use, nodes: AbstractSet[Node]) -> bool:
    """Whether a use passes gradients on to another use."""
    found = walk(edge.node for edge in use.outer)
    return any(node in nodes and node is not use.edge.node for node, _ in found)
