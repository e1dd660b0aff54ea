"""One captured pass: its key, its memory and its results."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from decrescendo.base.batches import count_rows, form_of, leaves_of, map_rows, memory_order
from decrescendo.base.precision import full_precision
from decrescendo.base.rng import seeded
from decrescendo.base.storages import key_of
from decrescendo.base.torch_private import DeviceContext, function_modes, hooks_of_all_modules
from decrescendo.clipping.byproducts import byproducts
from decrescendo.clipping.checker import Checker
from decrescendo.clipping.clipped import Batch
from decrescendo.clipping.device_graphs import Capture
from decrescendo.clipping.factors import Factors
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.workspace import Workspace
from decrescendo.row_independence.tracing import Number, Trace, draws, settings

# Equal for passes that run the same kernels (`pass_key`).
PassKey: TypeAlias = tuple[object, ...]
# Batches are padded to a multiple of 1/32 to 1/16 of their rows (of 2 from 8 rows on, of 4 from 16 on), so that few
# numbers of rows occur.
_BITS, _LEAST = 5, 4


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replayed pass: numbers, as `Factors` has them, the clipped sums by name, and what the loss
    noted of each row (`note_byproducts`)."""

    numbers: Float[Tensor, " numbers"]
    sums: dict[str, Tensor]
    byproducts: list[Tensor]


@dataclass(slots=True)
class Captured:
    """A captured pass: in its own memory its rows, how many of them count, and the clip norm; the names of its sums,
    and how many by-products follow them; its trace, and whether the trace draws random numbers."""

    rows: Batch
    count: Int[Tensor, ""]
    limit: Float64[Tensor, ""]
    names: list[str]
    byproducts: int
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
            numbers, *found = self.capture.run()
        sums = dict(zip(self.names, found[: len(self.names)], strict=True))
        return Replayed(numbers, sums, [made[: count_rows(batch)] for made in found[len(self.names) :]])


@dataclass(frozen=True, slots=True)
class Ahead:
    """The result of a pass that was replayed before its step, and of what."""

    found: Replayed
    by: Captured
    batch: Batch
    limit: float
    seed: int
    # How often the rows and the model's tensors were written.
    versions: list[int]

    @classmethod
    def of(cls, by: Captured, batch: Batch, limit: float, seed: int, held: Inventory) -> "Ahead":
        """Replay a captured pass. (On a GPU its numbers lie where the next replay's do.)"""
        found = by.replay(batch, limit, seed)
        kept = replace(found, numbers=found.numbers.clone())
        return cls(kept, by, batch, limit, seed, versions_of(batch, held))

    def is_of(self, by: Captured, batch: Batch, limit: float, seed: int, held: Inventory) -> bool:
        """Whether a replay now would have the same result."""
        same = self.by is by and self.batch is batch and (self.limit, self.seed) == (limit, seed)
        return same and self.versions == versions_of(batch, held)


def versions_of(batch: Batch, held: Inventory) -> list[int]:
    """How often each tensor of the batch and the model was written; torch counts it for all but inference tensors."""
    return [tensor._version for tensor in (*leaves_of(batch), *(tensor for _, tensor in held.tensors()))]


def capture_pass(
    checker: Checker, capture: Capture, batch: Batch, count: int, held: Inventory, seed: int, workspace: Workspace,
    block: Tensor, factors: Callable[..., Factors], *, first: bool,
) -> Captured | None:  # fmt: skip
    """Run a pass over ``batch``, padded to ``count`` rows, and record it in ``capture``; ``None`` if no pass over as
    many was accepted yet.

    Args:
        block: the workspace's.
        factors: computes clip factors from norms.
        first: whether nothing was captured yet, and nobody has asked for captures.
    """
    rows = map_rows(lambda tensor: tensor.new_empty(count, *tensor.shape[1:]), batch)
    fill_rows(rows, batch)
    for own, given in zip(leaves_of(rows), leaves_of(batch), strict=True):
        own.requires_grad_(given.requires_grad)
    device = block.device
    if first and capture.computes_later:
        # A program may keep uncomputed tensors of a capture that fails: the first time without one.
        checker.capture(rows, count, held, seed, workspace, nullcontext)
    own_count = torch.full((), count_rows(batch), device=device)
    limit = torch.ones((), dtype=torch.float64, device=device)
    with byproducts() as noted:
        found = checker.capture(rows, count, held, seed, workspace, capture.passing)
    if found is None:
        return None
    done, norms, constants, known = found
    with full_precision(), capture.summing():
        clip = factors(done, norms, own_count, limit)
        sums = done.measured.scaled_sums(clip.factors)
    own = {key_of(tensor) for tensor in (*leaves_of(rows), own_count, limit, block)}
    by_row = [made.detach() for made in noted] if all(map(torch.is_floating_point, noted)) else []
    capture.finish([clip.numbers, *sums.values(), *by_row], known | own)
    trace = done.tracer.trace
    return Captured(rows, own_count, limit, list(sums), len(by_row), trace, draws(trace), capture, constants, block)


def fill_rows(rows: Batch, batch: Batch) -> None:
    """Copy ``batch`` into ``rows``, and its first rows once more into what is left."""
    with torch.no_grad():
        for own, given in zip(leaves_of(rows), leaves_of(batch), strict=True):
            own[: len(given)].copy_(given)
            own[len(given) :].copy_(given[: len(own) - len(given)])


def is_compared(use: int) -> bool:
    """Whether this occurrence of captured passes runs in Python, to be compared: 1, 2, 4, .."""
    return use & (use - 1) == 0


def padded(rows: int, most: int | None) -> int:
    """The number of rows to which a pass is padded: few occur, and none above ``most``.

    >>> padded(7, None), padded(9, None), padded(33, None), padded(500, None), padded(500, 500)
    (7, 10, 36, 512, 500)
    """
    step = max(1 << max(rows.bit_length() - _BITS, 0), min(_LEAST, 1 << max(rows.bit_length() - 3, 0)))
    count = -(-rows // step) * step
    return count if most is None or count <= most else rows


def pass_key(batch: Batch, count: int, held: Inventory) -> PassKey:
    """Everything that decides which kernels a pass runs, except the program's Python state."""
    places = tuple(
        (name, id(t), t.data_ptr(), t.shape, t.stride(), t.dtype, t.requires_grad, t.is_conj(), t.is_neg(),
         bool(t._backward_hooks), t.is_leaf and t.grad is None)
        for name, t in held.tensors()
    )  # fmt: skip
    wanted = tuple((leaf.requires_grad, memory_order(leaf)) for leaf in leaves_of(batch))
    return (form_of(batch), wanted, count, held.mode, places, settings())


def why_not_around(held: Inventory) -> str:
    """What is on around the pass that a replay would not do; empty if nothing is."""
    if torch.is_autocast_enabled(next(iter(held.parameters.values())).device.type):
        return "autocast is on around the pass, which keeps copies of weights. Put it into the loss"
    if any(hooks_of_all_modules()) or any(type(mode) is not DeviceContext for mode in function_modes()):
        return "hooks of all modules, or a mode of all functions, are on around the pass"
    return ""


def does_otherwise(captured: Captured, now: Trace) -> bool:
    """Whether a pass in Python with this trace ran other operations than the captured one."""
    trace = captured.trace
    if trace.compared != now.compared or bool(now.differs(trace)):
        return True
    return captured.capture.bakes_numbers and _constant_numbers(trace) != _constant_numbers(now)


def _constant_numbers(trace: Trace) -> list[object]:
    """The values of one-number constants in a trace, which a capture that ``bakes_numbers`` has read."""
    return [wire.content for event in trace.events for wire in event.wires if isinstance(wire, Number)]
