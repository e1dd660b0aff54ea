"""One captured pass: its key, its memory and its results."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from decrescendo.base.batches import count_rows, form_of, leaves_of, memory_order
from decrescendo.base.rng import seeded
from decrescendo.base.torch_private import DeviceContext, function_modes, hooks_of_all_modules
from decrescendo.clipping.clipped import Batch
from decrescendo.clipping.device_graphs import Capture
from decrescendo.clipping.inventory import Inventory
from decrescendo.row_independence.tracing import Number, Trace, settings

# Equal for passes that run the same kernels (`pass_key`).
PassKey: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replayed pass: numbers, as `Factors` has them, and the clipped sums by name."""

    numbers: Float[Tensor, " numbers"]
    sums: dict[str, Tensor]


@dataclass(slots=True)
class Captured:
    """A captured pass: in its own memory its rows, how many of them count, and the clip norm; the names of its sums;
    its trace, and whether the trace draws random numbers."""

    rows: Batch
    count: Int[Tensor, ""]
    limit: Float64[Tensor, ""]
    names: list[str]
    trace: Trace
    draws: bool
    capture: Capture
    # Tensors from before the pass that it reads, kept alive; the workspace's block that it may write to.
    constants: list[Tensor]
    block: Tensor
    # How often it was replayed.
    times: int = 0

    def replay(self, batch: Batch, limit: float, seed: int) -> Replayed:
        """The same operations on other rows, clipped to ``limit``."""
        fill_rows(self.rows, batch)
        self.count.fill_(count_rows(batch))
        self.limit.fill_(limit)
        with seeded(max(seed, 0), {self.limit.device}) if self.draws else nullcontext():
            numbers, *sums = self.capture.run()
        return Replayed(numbers, dict(zip(self.names, sums, strict=True)))


def fill_rows(rows: Batch, batch: Batch) -> None:
    """Copy ``batch`` into ``rows``, and its first rows once more into what is left."""
    with torch.no_grad():
        for own, given in zip(leaves_of(rows), leaves_of(batch), strict=True):
            own[: len(given)].copy_(given)
            own[len(given) :].copy_(given[: len(own) - len(given)])


def pass_key(batch: Batch, count: int, held: Inventory) -> PassKey:
    """Everything that decides which kernels a pass runs, except the program's Python state."""
    places = tuple(
        (name, id(t), t.data_ptr(), t.shape, t.stride(), t.dtype, t.requires_grad, t.is_conj(), t.is_neg(),
         bool(t._backward_hooks), t.is_leaf and t.grad is None)
        for name, t in held.tensors()
    )  # fmt: skip
    wanted = tuple((leaf.requires_grad, memory_order(leaf)) for leaf in leaves_of(batch))
    return (form_of(batch), wanted, count, held.mode, places, settings())


def is_called_everywhere() -> bool:
    """Whether hooks of all modules, or modes of all functions, are on: a replay would not call them."""
    return any(hooks_of_all_modules()) or any(type(mode) is not DeviceContext for mode in function_modes())


def constant_numbers(trace: Trace) -> list[object]:
    """The values of one-number constants in a trace, which a capture that ``bakes_numbers`` has read."""
    return [wire.content for event in trace.events for wire in event.wires if isinstance(wire, Number)]
