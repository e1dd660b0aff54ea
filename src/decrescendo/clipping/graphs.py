"""Passes on a CUDA device done again as the kernels that they were, by CUDA graphs: Python takes no part.

A private pass is thousands of kernels, most of which are over before Python has launched the next one. Where a pass
over as many examples was proven, one more is proven while the device writes down what it would do; from then on that is
done, on other rows, until the model lies elsewhere. What is written down is the proven pass itself, so no step is less
proven; but what Python would do differently in a later pass does not happen. Passes in Python come in between, and must
do the same as what was written down.
"""

import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from decrescendo.base.rng import seeded
from decrescendo.clipping.batches import form_of, leaves_of, map_rows
from decrescendo.clipping.clipped import Batch
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.memory import is_out_of_memory, release
from decrescendo.clipping.passes import Pass
from decrescendo.clipping.precision import full_precision
from decrescendo.clipping.proof.script import Number, Script
from decrescendo.clipping.proof.surroundings import settings
from decrescendo.clipping.prover import CHANGES, Prover, draws
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import UnsupportedModel

# What passes that do the same have in common.
_Key: TypeAlias = tuple[object, ...]
# Passes that are written down at once, those used last: each has memory for what it is given and what it gives.
_MOST = 32
# A batch is filled up to a multiple of a sixteenth to a thirty-second of its rows, so that few numbers of rows occur.
_BITS = 5
# Passes that may be done twice before graphs are given up, and after that half of all.
_MISSED = 8


@runtime_checkable
class Recording(Protocol):
    """What the device does inside of `record`, to be done again."""

    def record(self) -> AbstractContextManager[object]:
        """Inside, nothing is done, and all is written down."""
        ...

    def replay(self) -> None:
        """Do it."""
        ...


class DeviceGraph:
    """A CUDA graph; all of one engine share their memory."""

    def __init__(self, device: torch.device, pool: Any) -> None:
        self._device, self._graph, self._pool = device, torch.cuda.CUDAGraph(), pool

    @contextmanager
    def record(self) -> Generator[None]:
        generator: Any = torch.cuda.default_generators[self._device.index or 0]
        kept = generator.clone_state()
        try:
            # (Of other threads, which load data, nothing is written down.)
            with torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"):
                yield
        except BaseException:
            generator.graphsafe_set_state(kept)  # what was broken off would hold on to its state
            raise

    def replay(self) -> None:
        self._graph.replay()


def recorder(tensors: list[Tensor]) -> Callable[[], Recording] | None:
    """Makes recordings of one pool of memory; ``None`` where these tensors are not all on one CUDA device.

    >>> recorder([torch.zeros(1)]) is None
    True
    """
    device, *others = {tensor.device for tensor in tensors}
    if others or device.type != "cuda":
        return None
    pool = cast("Any", torch).cuda.graph_pool_handle()
    return lambda: DeviceGraph(device, pool)


@dataclass(slots=True)
class Written:
    """A pass that is written down: its rows, losses, norms and factors, in memory of its own, and its sums."""

    rows: Batch
    losses: Float[Tensor, " batch"]
    norms: Float[Tensor, " batch"]
    factors: Float[Tensor, " batch"]
    sums: Mapping[str, Tensor]
    narrow: bool
    script: Script
    passing: Recording
    summing: Recording
    # How often it was done again.
    times: int = 0


@dataclass(slots=True)
class Again:
    """A pass that was done again. What it gives is overwritten by the next one."""

    losses: Float[Tensor, " batch"]
    norms: Float[Tensor, " batch"]
    narrow: bool
    _written: Written

    def sums(self, factors: Float[Tensor, " batch"]) -> dict[str, Tensor]:
        """sum_i w_i g_i for each parameter, by name, in memory of their own."""
        self._written.factors.copy_(factors)
        self._written.summing.replay()
        sums = self._written.sums
        copies = cast("Any", torch)._foreach_mul(list(sums.values()), 1.0)  # by one kernel
        return dict(zip(sums, copies, strict=True))


@dataclass(slots=True)
class Graphs:
    """The passes of one engine that are written down.

    Args:
        prover: proves those in Python.
        workspace: what the rules may spend.
        wanted: without, nothing is written down.
    """

    prover: Prover
    workspace: Workspace
    wanted: bool
    # One pass at a time: they share their memory.
    one_at_a_time: threading.RLock = field(default_factory=threading.RLock)
    _record: Callable[[], Recording] | None = None
    _written: dict[_Key, Written] = field(default_factory=dict[_Key, Written])
    _seen: set[_Key] = field(default_factory=set[_Key])
    _epoch: int = 0
    # Passes that were done again, and those of them that had to be done in Python after that.
    _done: int = 0
    _missed: int = 0

    def count(self, rows: int, most: int | None, held: Inventory, batch: Batch) -> int:
        """How many rows a pass over so many is to have: where it may be done again, a number that comes often.

        ``most``: no more than these, if there are not as many.
        """
        if not self.wanted or rows < 2:
            return rows
        if self._record is None:
            self._record = recorder([tensor for _, tensor in held.tensors()] + leaves_of(batch))
        if self._record is None:
            return rows
        step = 1 << max(rows.bit_length() - _BITS, 0)
        count = -(-rows // step) * step
        return count if most is None or count <= most else rows

    def again(self, batch: Batch, count: int, held: Inventory, seed: int) -> Again | None:
        """The pass over ``batch``, filled up to ``count`` rows; ``None`` where it has to be done in Python."""
        record = self._record if self.wanted and count > 1 else None
        if record is None:
            return None
        if self._epoch != self.prover.epoch:  # data are withheld that a pass may have used
            self._written.clear()
            self._epoch = self.prover.epoch
        if torch.is_autocast_enabled(next(iter(held.parameters.values())).device.type):
            self._stop("autocast is on around the pass, which keeps copies of weights. Put it into the loss")
            return None
        key = _key(batch, count, held)
        if key not in self._seen:
            self._seen.add(key)
            return None
        written = self._written.pop(key, None)
        if written is None:
            written = self._write(record, batch, count, held, seed)
            if written is None:
                return None
        self._written[key] = written  # the one used last is last
        if len(self._written) > _MOST:
            del self._written[next(iter(self._written))]
        written.times += 1
        if written.times & (written.times - 1) == 0:
            return None  # the first, the second, the fourth, ..
        self._done += 1
        _fill(written.rows, batch)
        if draws(written.script):
            with seeded(max(seed, 0), {written.losses.device}):
                written.passing.replay()
        else:
            written.passing.replay()
        return Again(written.losses, written.norms, written.narrow, written)

    def missed(self) -> None:
        """A pass that was done again has a gradient that is not finite, or constants that are not as they were."""
        self._missed += 1
        if self._missed > max(_MISSED, self._done // 2):
            self._stop("most of what they did had to be done in Python once more")

    def compare(self, batch: Batch, held: Inventory, done: Pass) -> None:
        """Whether a pass in Python did what is written down."""
        written = self._written.get(_key(batch, done.watch.count, held)) if self.wanted else None
        if written is None or _same(written.script, done.watch.script):
            return
        self._stop(
            f"{CHANGES}; passes since then ({max(written.times - written.times.bit_length(), 0)} over as many "
            "examples) were done as that one"
        )

    def _write(
        self, record: Callable[[], Recording], batch: Batch, count: int, held: Inventory, seed: int
    ) -> Written | None:
        rows = map_rows(lambda tensor: tensor.new_empty(count, *tensor.shape[1:]), batch)
        _fill(rows, batch)
        for own, given in zip(leaves_of(rows), leaves_of(batch), strict=True):
            own.requires_grad_(given.requires_grad)
        passing, summing = record(), record()
        try:
            found = self.prover.again(rows, count, held, seed, self.workspace, passing.record)
            if found is None:
                return None
            done, norms = found
            factors = torch.zeros(
                count, dtype=torch.float64 if done.measured.wide or not done.measured.narrow else torch.float32,
                device=norms.device,
            )  # fmt: skip
            with full_precision(), summing.record():
                sums = done.measured.scaled_sums(factors)
        except Exception as error:
            causes: list[BaseException] = [error]
            while (before := causes[-1].__context__) is not None:
                causes.append(before)
            ours = [cause for cause in causes if isinstance(cause, UnsupportedModel)]
            said = (str((ours or causes)[-1]).strip() or type(error).__name__).splitlines()[0]
            memory = any(map(is_out_of_memory, causes))
        else:
            return Written(
                rows,
                done.losses,
                norms,
                factors,
                sums,
                done.measured.narrow,
                done.watch.script,
                passing,
                summing,
            )
        if memory:
            release()
        self._stop(said)
        return None

    def _stop(self, reason: str) -> None:
        self._written.clear()
        self.wanted = False
        warnings.warn(
            f"passes are done without CUDA graphs from here on: {reason}", UserWarning, stacklevel=2
        )


def _fill(rows: Batch, batch: Batch) -> None:
    """The rows, and the first of them once more where there is room."""
    with torch.no_grad():
        for own, given in zip(leaves_of(rows), leaves_of(batch), strict=True):
            own[: len(given)].copy_(given)
            own[len(given) :].copy_(given[: len(own) - len(given)])


def _key(batch: Batch, count: int, held: Inventory) -> _Key:
    """What decides about the kernels of a pass, but for what the program keeps."""
    places = tuple(
        (id(tensor), tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.requires_grad)
        for _, tensor in held.tensors()
    )
    wanted = tuple(leaf.requires_grad for leaf in leaves_of(batch))
    return (form_of(batch), wanted, count, held.mode, places, settings())


def _same(written: Script, done: Script) -> bool:
    """Whether two passes over as many examples did the same, with the same numbers."""
    if written.compared != done.compared:
        return False
    if written.events == done.events:
        return True
    return not done.differs(written) and _numbers(written) == _numbers(done)


def _numbers(script: Script) -> list[object]:
    """The values of constants of one number, which are no kernel's memory."""
    return [wire.content for event in script.events for wire in event.wires if isinstance(wire, Number)]
