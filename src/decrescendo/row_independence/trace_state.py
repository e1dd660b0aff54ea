"""`TraceState`: the state of one traced pass: labels, data reads, sizes, random numbers, reason of a refusal."""

import math
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from decrescendo.base.storages import FUNCTIONS_OFF, Pausable, byte_form, key_of, storage_key, tensors_of
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.data_reads import DataReads
from decrescendo.row_independence.dataflow import Labels
from decrescendo.row_independence.dynamic_sizes import DynamicSizes
from decrescendo.row_independence.known_memory import Memory, SuspectConstant
from decrescendo.row_independence.labels import LAID_ALONG, LONG, Label, Mixed, RowLayout
from decrescendo.row_independence.random_stream import Stream, hosts_drew
from decrescendo.row_independence.refusals import GENERATOR, refusal, refused
from decrescendo.row_independence.row_layout import Owners, Span
from decrescendo.row_independence.trace import Event, ReplayedOperation, Trace
from decrescendo.row_independence.user_callbacks import read_by

GENERATED = "its random numbers are those of a generator of its own"
COMPARES = "a pass must be the one that was accepted before, but tensors of it are compared that were not"


class TraceState(Pausable):
    """The state of one traced pass over ``count`` rows; see `Tracer` for the arguments."""

    supports_higher_order_operators = True

    def __init__(
        self,
        count: int,
        memory: Memory,
        seed: int,
        expected: Trace | None = None,
        recipes: Mapping[int, ReplayedOperation] | None = None,
        *,
        natural: bool = False,
        replays: Trace | None = None,
        poison: float = math.nan,
        before: Trace | None = None,
    ) -> None:
        super().__init__()
        self.count, self.memory, self.expected = count, memory, expected
        # Truth values on the device, all of which must be true for a captured pass to be valid.
        self.guards: list[Tensor] = []
        self.capturing = before is not None
        self._before = before or Trace(count)
        # Storages of tensors that the program made from Python numbers.
        self.lifted: set[int] = set()
        self.stream = Stream(seed, self.refuse, self.capturing)
        self.recipes: Mapping[int, ReplayedOperation] = recipes or {}
        self.trace = Trace(count)
        self.labels = Labels(count, memory, self.trace)
        self.reads = DataReads(
            count, memory, self.trace, self.labels.label, self.refuse, natural, replays, poison,
            before, self.guards,
        )  # fmt: skip
        self.counts = DynamicSizes(self.labels, self.reads)
        # Look up a tensor's label; label a tensor that the engine makes by itself.
        self.label, self.assign = self.labels.label, self.labels.assign
        self.units, self.owners, self.end = self.labels.units, self.labels.owners, self.labels.end
        # The names of the model's parameters and buffers, by their storage: nothing may be written there.
        self.guarded: dict[int, str] = {}
        self.buffers: Collection[str] = ()
        # The coarsest dtype among the output gradients.
        self.coarsest = torch.float64
        self.refusal = ""
        # The line where a generator of the program's own drew random numbers.
        self.generator = ""
        # Whether NumPy or Python drew random numbers, set at the end of the pass.
        self.hosts = False
        # By the name of an operation that mixed rows, the program's line that first called it.
        self.lines: dict[str, str] = {}
        # The owners of the rows of packed sequences, by the number of the write to the tensor of their batch sizes.
        self.packed: dict[int, Owners | None] = {}
        # An operation that raised an error (the program may catch it).
        self.raised = ""
        # Constants as long as the batch that were labelled as rows, with the index of the next event.
        self.guessed: dict[SuspectConstant, int] = {}

    def guess(self, call: int, argument: int, place: RowLayout) -> bool:
        """Note that a constant is as long as the batch; returns false if that is known to be a
        coincidence."""
        key = (call, argument, place)
        self.guessed.setdefault(key, len(self.trace.events))
        return key not in self.memory.coincident

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Whether two tensors have the same values."""
        at = len(self.trace.compared)
        if not self.capturing:
            found = torch.equal(one, other)
        elif at < len(self._before.compared):
            found = self._before.compared[at]
            if one.shape == other.shape:
                equal = (one == other).all()
                self.guards.append(equal if found else ~equal)
        else:
            self.refuse(COMPARES)
        self.trace.compared.append(found)
        return found

    def refuse(self, why: str) -> NoReturn:
        """Refuse the pass, even if the program catches the error."""
        self.refusal = self.refusal or why
        raise UnsupportedModel(why)

    def blame(self, label: Label, of: str) -> NoReturn:
        """Refuse a loss or a gradient (``of``) because of its label."""
        drawn = isinstance(label, Mixed) and label.why in (LAID_ALONG, LONG, GENERATED)
        if drawn and self.generator:
            raise UnsupportedModel(GENERATOR.format(self.generator))
        where = self.lines.get(label.name, "") if isinstance(label, Mixed) else ""
        raise refused(refusal(label, of, hosts=hosts_drew(), where=where))

    def consume(self, name: str, *tensors: Tensor, numbers: tuple[object, ...] = ()) -> None:
        """Note tensors that leave the pass or enter untraced engine code, so that a data-dependent choice
        between two shows."""
        with FUNCTIONS_OFF():
            wires: list[object] = []
            for tensor in tensors:
                key = storage_key(tensor)
                mark, birth = self.labels.mark_of(key)
                if isinstance(mark, Span) and not mark.constant:
                    wires += (birth, byte_form(tensor), self.labels.view(tensor, mark)[1])
                else:
                    wires.append(self.labels.identity_of(tensor, key, birth))
        self.trace.events.append(Event(name, numbers, tuple(wires)))

    def made(self, tensor: Tensor) -> bool:
        """Whether this pass made the memory of a tensor."""
        return key_of(tensor) in self.labels.marks

    def written(self, tensor: Tensor) -> int:
        """The number of the last write to a tensor's memory; every write changes it, also through .data."""
        return self.labels.mark_of(key_of(tensor))[1]

    def read(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that Python reads tensor values, or gets access to their memory, by a function that no
        dispatcher sees."""
        tensors = tensors_of((*args, *kwargs.values()))
        self.reads.check_read(str(getattr(func, "__name__", "a read")), tensors)

    def check_called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse data reads by torch's own code in a function where no dispatch mode is active."""
        if tensors := read_by(func, args, kwargs):
            self.reads.check_read(str(func.__name__), tensors)

    @contextmanager
    def restored(self) -> Generator[None]:
        """While an operation runs, trace the operations that it calls, too."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)
