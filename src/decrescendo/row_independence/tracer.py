"""`Tracer`: the dispatch mode that sees each operation, forward and backward, and labels its results.

Below autograd, views, ``.data``, hooks, compiled or functional code all look alike. Labels are kept by memory
(`dataflow.Labels`), so that a write through any alias changes what every alias is.

Longer than most files: what happens to the labels at one operation is one walk.
"""

import itertools
import math
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias, cast

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._pytree import tree_map_only

from decrescendo.base.assumptions import assumed, template
from decrescendo.base.storages import (
    FUNCTIONS_OFF,
    HAS_FUNCTION_MODES,
    Pausable,
    content_of,
    exactly,
    is_whole,
    key_of,
    kind_of,
    slots_of,
    state_of,
    storage_key,
    tensors_of,
)
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.basic_rules import drawn, fill, pointwise
from decrescendo.row_independence.code_origin import line
from decrescendo.row_independence.data_reads import DataReads
from decrescendo.row_independence.dataflow import STALE, Guess, Labels, Mark, Memory
from decrescendo.row_independence.dynamic_sizes import DynamicSizes
from decrescendo.row_independence.labels import (
    LAID_ALONG,
    LONG,
    NO_RULE,
    SUMMED,
    Call,
    Label,
    Mixed,
    Public,
    RowLayout,
    constant_of,
    is_data,
)
from decrescendo.row_independence.process_settings import is_traced
from decrescendo.row_independence.random_stream import Stream, hosts_drew
from decrescendo.row_independence.refusals import (
    GENERATOR,
    STATISTICS,
    refusal,
    refused,
    written_by_the_pass,
)
from decrescendo.row_independence.replayed_operations import NUMBERS, arguments_of, as_before
from decrescendo.row_independence.row_layout import Owners, Span
from decrescendo.row_independence.strides import grid_of
from decrescendo.row_independence.torch_schemas import Operation, operation
from decrescendo.row_independence.trace import NOTHING, Event, ReplayedOperation, Trace
from decrescendo.row_independence.user_callbacks import is_a_users, read_by

# Arguments, by place and by name.
_Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
GENERATED = "its random numbers are those of a generator of its own"
OWN_GENERATOR = assumed("rows-own-generator")
_OPAQUE = cast("Any", torch)._mkldnn
_PLAIN = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
# Namespaces of torch itself: what an operation of theirs makes from constants is a constant.
_OWN = frozenset({"aten", "prims", "prim", "mkldnn", "mkl", "quantized"})
# Where the backward pass of the CTC loss is given what its forward pass kept.
_ALPHAS = 6
_KEPT = "what was made from the examples is written to a tensor that is there before and after the pass"
_OVER = template("overwritten-constant")
COMPARES = "a pass must be the one that was accepted before, but tensors of it are compared that were not"
_TRACED = "a pass must be run, but a part of it is traced. Trace or compile it before (for linearize: torch.func.jvp)"
_SUBCLASS = (
    "every operation of a pass must be torch's own, but {0}.__torch_dispatch__ runs in its place. Give the pass plain "
    "tensors (tensor.as_subclass(torch.Tensor)), or leave {0} out"
)
_NO_STATE = "Leave out running statistics, code books and memories, or make them parameters that are trained"


@dataclass(slots=True)
class _Inputs:
    """What an operation is given: its tensors with their labels, and what is compared of it between passes."""

    tensors: list[Tensor] = field(default_factory=list[Tensor])
    labels: list[Label] = field(default_factory=list[Label])
    numbers: list[object] = field(default_factory=list[object])
    # Which of the numbers are sizes.
    sized: list[int] = field(default_factory=list[int])
    wires: list[object] = field(default_factory=list[object])
    # The labels of their memory, by storage.
    marks: dict[int, Mark] = field(default_factory=dict[int, Mark])
    # Whether the examples reach one of them.
    data: bool = False
    _known: dict[int, Label] | None = None

    @property
    def known(self) -> dict[int, Label]:
        """The labels by the ``id`` of their tensors."""
        if self._known is None:
            self._known = {id(tensor): label for tensor, label in zip(self.tensors, self.labels, strict=True)}
        return self._known


class Tracer(Pausable):
    """The dispatch mode of one pass over ``count`` examples.

    Args:
        count: at least two: with one, a dimension of size one could be that of the examples or not.
        memory: of the engine that asks.
        seed: of torch's global generators in this pass; negative: no random numbers may be drawn.
        expected: the trace of the same program over another number of examples: constants whose shape differs from
            that noted there are as long as the batch.
        recipes: of the last pass that was accepted.
        natural: Python sees the data as they are: for a comparison, of which nothing is released.
        replays: the trace of a pass whose random numbers Python gets again, where it reads some.
        poison: what Python gets for a number of the data that it reads.
        before: an accepted pass over as many examples. This one is another of that trace, and what it does is written
            down for replay (`clipping.capture`): nothing is there to be read. What is compared
            is as it was there, and the device sees to it (``guards``).
    """

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
        # Truth values on the device, all of which must be true for the pass to be proven.
        self.guards: list[Tensor] = []
        self.capturing = before is not None
        self._before = before or Trace(count)
        # Storages of what the program made of Python's numbers.
        self.lifted: set[int] = set()
        self.stream = Stream(seed, self.refuse, self.capturing)
        self.recipes: Mapping[int, ReplayedOperation] = recipes or {}
        self.trace = Trace(count)
        self.labels = Labels(
            count,
            memory,
            self.trace,
        )
        self.reads = DataReads(
            count, memory, self.trace, self.labels.label, self.refuse, natural, replays, poison,
            before, self.guards,
        )  # fmt: skip
        self.counts = DynamicSizes(self.labels, self.reads)
        # Of tensors: what they depend on, and how the engine labels what it makes by itself.
        self.label, self.assign = self.labels.label, self.labels.assign
        self.units, self.owners, self.end = self.labels.units, self.labels.owners, self.labels.end
        # The names of the model's parameters and buffers, by their storage: nothing may be written there.
        self.guarded: dict[int, str] = {}
        self.buffers: Collection[str] = ()
        # The dtype with the fewest digits in which output gradients came.
        self.coarsest = torch.float64
        self.refusal = ""
        # Where a generator of the program's own gave random numbers.
        self.generator = ""
        # Whether NumPy or Python drew random numbers.
        self.hosts = False
        # The line of the program that first called an operation which put rows together, by its name.
        self.lines: dict[str, str] = {}
        # Whose the rows of packed sequences are, by the number of what was written to the tensor of their sizes.
        self.packed: dict[int, Owners | None] = {}
        # An operation that raised an error which the program caught.
        self.raised = ""
        # Constants of the batch's length that were taken for rows, by where they occur; before which event.
        self.guessed: dict[Guess, int] = {}

    def guess(self, call: int, argument: int, place: RowLayout) -> bool:
        """Note that a constant is as long as the batch; whether that was not found to be a coincidence."""
        key = (call, argument, place)
        self.guessed.setdefault(key, len(self.trace.events))
        return key not in self.memory.coincident

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Whether two tensors have the same numbers."""
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
        """Refuse the pass, also where the program catches the error."""
        self.refusal = self.refusal or why
        raise UnsupportedModel(why)

    def blame(self, label: Label, of: str) -> NoReturn:
        """Refuse a loss or a gradient with this label."""
        drawn = isinstance(label, Mixed) and label.why in (LAID_ALONG, LONG, GENERATED)
        if drawn and self.generator:
            raise UnsupportedModel(GENERATOR.format(self.generator))
        where = self.lines.get(label.name, "") if isinstance(label, Mixed) else ""
        raise refused(refusal(label, of, hosts=self.hosts, where=where))

    def consume(self, name: str, *tensors: Tensor, numbers: tuple[object, ...] = ()) -> None:
        """Note which tensors leave the pass, or go where the engine works by itself: a choice between two must show."""
        self.hosts = hosts_drew()
        with FUNCTIONS_OFF():
            wires: list[object] = []
            for tensor in tensors:
                key = storage_key(tensor)
                mark, birth = self.labels.mark_of(key)
                if isinstance(mark, Span) and not mark.constant:
                    wires += (birth, kind_of(tensor), self.labels.view(tensor, mark)[1])
                else:
                    wires.append(self.labels.wire(tensor, key, birth))
        self.trace.events.append(Event(name, numbers, tuple(wires)))

    def made(self, tensor: Tensor) -> bool:
        """Whether the pass made the memory of a tensor."""
        return key_of(tensor) in self.labels.marks

    def written(self, tensor: Tensor) -> int:
        """The number of what was written last to a tensor's memory: it changes with every write, also through .data."""
        return self.labels.mark_of(key_of(tensor))[1]

    def read(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Python reads the numbers of tensors, or takes hold of their memory, by a function that no dispatcher sees."""
        tensors = tensors_of((*args, *kwargs.values()))
        self.reads.check_read(str(getattr(func, "__name__", "a read")), tensors)

    def check_called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse what torch's own code reads in a function where no dispatch mode is on."""
        if tensors := read_by(func, args, kwargs):
            self.reads.check_read(str(func.__name__), tensors)

    @contextmanager
    def again(self) -> Generator[None]:
        """Inside of an operation, its own operations are seen, too."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what is compiled is run as it is written while this mode is on

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.idle:
            return func(*args, **kwargs or {})
        if isinstance(func, HigherOrderOperator):
            self.refuse(
                f"the check must see each operation, but {func.name()} runs functions of the model where "
                "nothing is seen. Use torch's ordinary operations (torch.where, scaled_dot_product_attention)"
            )
        for kind in types:
            if kind not in _PLAIN:
                if kind.__module__.startswith("torch._subclasses"):
                    self.refuse(_TRACED)
                if is_a_users(kind):
                    self.refuse(_SUBCLASS.format(kind.__name__))
                return NotImplemented  # what such a tensor is made of comes here
        if not HAS_FUNCTION_MODES():
            return self._dispatch(func, args, kwargs)
        with FUNCTIONS_OFF():
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        at = len(self.trace.events)
        recipe = self.recipes.get(at)
        if recipe is not None and recipe.event.func is func:
            event = as_before(recipe, self.labels, args, kwargs)
            if event is not None:
                output = self._call(func, args, kwargs)
                self.trace.events.append(event)
                self.trace.recipes[at] = recipe
                if recipe.public:
                    self.trace.shapes[at] = _shapes(tensors_of((output,)))
                if not operation(func).views:
                    views = None in recipe.labels
                    inputs = {storage_key(t) for t in tensors_of(args)} if views else self.labels.marks
                    self.labels.keep_all(output, recipe.labels, inputs, at)
                if recipe.noted:
                    self.labels.note(output, at)
                return output
        return self._follow(func, args, kwargs, at)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Run an operation; one that raises may tell of the data by that, to a program that catches the error."""
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            self.raised = self.raised or f"{func} raised {type(error).__name__}"
            raise

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, at: int) -> Any:
        """Run an operation, and ask the rules what it does to labels."""
        if is_traced():
            self.refuse(_TRACED)
        op = operation(func)
        if op.composite and torch.is_inference_mode_enabled():
            with self.again():
                return func.decompose(*args, **kwargs or {})
        given = self._given(op, args, kwargs)
        arguments = (
            arguments_of(self.labels, args, kwargs) if op.structural and self.expected is None else None
        )
        drawing = False
        if op.special:
            if op.reads and given.data:
                return self.reads.look(func, args, kwargs or {}, given.tensors)
            if op.reads and Public.RANDOM in given.labels:
                return self.reads.draw(func, args, kwargs or {})
            drawing = self._check_special(op, args, kwargs or {}, given.data)
        if drawing:
            self.stream.begin()
        before = self._arguments_before(op, args, kwargs or {}, given)
        output = self._call(func, args, kwargs)
        made = [output] if isinstance(output, Tensor) else tensors_of((output,))
        if drawing:
            rejected = op.rejecting and any(map(is_data, given.labels))
            self.stream.end(made, jump=self.labels.counting or rejected)
        self.trace.events.append(event := self._event(func, op, given, made))
        if op.written:
            self._write(op, args, kwargs or {}, made, given.known, before if given.data else None)
            if self.labels.counting:
                self.labels.count_on(given.marks.values(), made)
            self.labels.note(made, at)
            return output
        found, looked = self._label_made(op, args, kwargs, output, made, given, at)
        self._count(op, made, given)
        if op.views and self.labels.slices and given.tensors:
            self.labels.view_slices(op.name, given.tensors[0], given.labels[0], made)
        if given.data and self.expected is not None:
            self._check_shapes(made, self.expected.shapes.get(at, ()))
        noted = self.labels.note(made, at)
        if arguments is not None and not looked:
            public = at in self.trace.shapes
            self.trace.recipes[at] = ReplayedOperation(
                event, arguments, tuple(kwargs or ()), tuple(found), public, noted
            )
        return output

    def _given(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> "_Inputs":
        """What an operation is given: numbers one by one, tensors by their labels and by what wrote them last."""
        found = _Inputs()
        for position, value in enumerate((*args, *kwargs.values()) if kwargs else args):
            if isinstance(value, Tensor):
                found.tensors.append(value)
                continue
            if position in op.sized and position < len(args):
                found.sized.append(len(found.numbers))
            if isinstance(value, (list, tuple)):
                items = cast("list[Any]", value)
                inside = [item for item in items if isinstance(item, Tensor)]
                found.tensors += inside
                found.numbers.append(tuple(map(type, items)) if inside else tuple(map(exactly, items)))
                continue
            found.numbers.append(exactly(value) if type(value) in NUMBERS else type(value))
            if isinstance(value, torch.Generator):
                found.numbers.append(state_of(value))
                if value is not torch.default_generator:
                    self.memory.assumed.add(OWN_GENERATOR)
                    self.generator = self.generator or line()
        if kwargs:
            found.numbers.append(tuple(kwargs))
        alphas = args[_ALPHAS] if op.unread and len(args) > _ALPHAS else None
        for tensor in found.tensors:
            self._label_given(op, tensor, found, is_alphas=tensor is alphas)
        return found

    def _label_given(self, op: Operation, tensor: Tensor, found: "_Inputs", *, is_alphas: bool) -> None:
        """The label of one tensor that an operation is given, and which tensor it is."""
        key = storage_key(tensor)
        mark, birth = self.labels.mark_of(key)
        if key < 0:
            mark, birth = self.labels.entry(tensor, key) or (mark, birth)
        if mark is Public.ANY and birth == key and self.memory.withholds(tensor):
            mark = STALE
        if mark is Public.RANDOM and tensor.layout is torch.strided and 0 in tensor.stride():
            mark = Public.ANY  # one number in several places
        single = op.rule is pointwise and mark is Public.ANY and _is_one_number(tensor)
        found.marks[key] = Public.FILL if single else mark
        if type(mark) is Span:
            found.data = True
            label, form = self.labels.view(tensor, mark)
            if is_alphas and tensor.is_contiguous() and is_whole(tensor):
                form = ("whole",)  # as wide as the longest target, of which nothing else shows
            found.labels.append(label)
            found.wires += (
                (self.labels.wire(tensor, key, birth),) if mark.constant else (birth, kind_of(tensor), form)
            )
            return
        found.wires.append(self.labels.wire(tensor, key, birth))
        sliced = self.labels.sliced(key, tensor) if self.labels.slices and isinstance(mark, Public) else None
        if single and isinstance(sliced, RowLayout):
            sliced = sliced._replace(constant=Public.FILL)
        found.labels.append(cast("Label", mark) if sliced is None else sliced)
        found.data = found.data or type(found.labels[-1]) is not Public

    def _arguments_before(
        self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], given: "_Inputs"
    ) -> _Given:
        """The arguments as they are before an operation writes to them; refuses what it may not write to."""
        if not op.written or op.moves:
            return args, kwargs
        self._check_targets(op, args, kwargs, given.data)
        return (
            self._as_they_were(op, (args, kwargs), given.marks, given.known) if given.data else (args, kwargs)
        )

    def _event(self, func: Any, op: Operation, given: "_Inputs", made: Sequence[Tensor]) -> Event:
        """What is compared of an operation between passes."""
        numbers, wires = tuple(given.numbers), tuple(given.wires)
        if op.special:
            if op.empties:
                for tensor in made:
                    tensor.zero_()  # what was in this memory before must not be seen
            if op.lifts:
                numbers, wires = (*numbers, content_of(made[0])), ()
                self.lifted.update(map(storage_key, given.tensors))
            if op.unread:
                numbers = ()
        sizes = _sizes(op, given.sized, numbers, given.labels if given.data else ())
        if op.strided:
            numbers, sizes = self._laid(made[0], numbers, sizes)
        return Event(func, numbers, wires, sizes)

    def _label_made(
        self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any] | None, output: Any,
        made: list[Tensor], given: "_Inputs", at: int,
    ) -> tuple[list[Label | None], bool]:  # fmt: skip
        """The labels of what an operation made, ``None`` for views; and whether values were looked at for them."""
        if not given.data:
            return self._label_constants(op, args, kwargs, made, given, at), False
        if all(key_of(tensor) in given.marks for tensor in made):
            return [None] * len(made), False
        found, looked = self._label_data(op, args, kwargs or {}, output, given.tensors, given.known)
        if any(tensor.layout is _OPAQUE for tensor in made):
            self.refuse(
                f"the check must see where the data lie, but {op.name} puts them into memory of oneDNN's. "
                "Leave out to_mkldnn"
            )
        self.labels.keep_all(output, found, given.marks, at)
        if all(isinstance(label, Mixed) and not label.chooses for label in found):
            self.trace.events[at] = Event(self.trace.events[at].func, NOTHING, ())  # it reaches no loss
        return found, looked

    def _count(self, op: Operation, made: Sequence[Tensor], given: "_Inputs") -> None:
        """Note where a shape shows how many rows the data select."""
        if given.data and (op.selects or op.rule is None):
            first = int(op.name != "nonzero")  # what is selected from may be of truth values too
            pairs = zip(given.tensors[first:], given.labels[first:], strict=True)
            masks = [tensor for tensor, label in pairs if is_data(label)]
            masked = op.selects and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in masks)
            self.labels.select(made, op.name == "nonzero" or masked)
        if self.labels.counting:
            self.labels.count_on(given.marks.values(), made)
            if op.name == "expand" and not given.data and self.counts.given_selected_rows:
                self._check_expanded(given.tensors[0], made[0])

    def _laid(
        self, view: Tensor, given: tuple[object, ...], sizes: tuple[int, ...]
    ) -> tuple[tuple[object, ...], tuple[int, ...]]:
        """The numbers of `as_strided`, and which are sizes: as `strides` says, where the pass made the memory."""
        key = key_of(view)
        mark = self.labels.marks.get(key, (None, 0))[0]
        if mark is None or not view.numel():
            return given, sizes
        if isinstance(mark, Span) and not mark.constant and mark.owners is None:
            return (self.labels.view(view, mark)[1],), ()
        filled = mark is Public.FILL or (isinstance(mark, Span) and mark.constant is Public.FILL)
        if self.labels.counting and not filled:
            return given, sizes  # a size may be as many as the data selected
        total = view.untyped_storage().nbytes() // view.element_size()
        grid = grid_of(total, view.shape, view.stride(), int(view.storage_offset()))
        return (given, sizes) if grid is None else (grid, (0,))

    def _check_shapes(self, made: Sequence[Tensor], shapes: Sequence[torch.Size]) -> None:
        """A constant that has as many rows as examples may follow their number in no other dimension."""
        for tensor, its in zip(made, shapes, strict=False):
            label = self.label(tensor)
            if not isinstance(label, RowLayout) or not label.constant:
                continue
            rest = [(mine, other) for mine, other in zip(tensor.shape, its, strict=False)]
            del rest[label.dim : label.dim + 1]
            if len(its) == tensor.dim() and all(mine == other for mine, other in rest):
                continue
            long, key = Mixed(LONG, public=True), storage_key(tensor)
            mark, birth = self.labels.marks.get(key, (None, 0))
            if isinstance(mark, Span):
                self.labels.marks[key] = long, birth
            else:  # a part of a constant from before
                self.labels.slices[key, tensor.shape, tensor.stride(), tensor.storage_offset()] = long

    def _check_expanded(self, source: Tensor, made: Tensor) -> None:
        """A constant that torch lays along rows that the data selected (to broadcast it) shows how many there are."""
        new = made.dim() - source.dim()
        for dim, size in enumerate(made.shape):
            for place in self.labels.known if dim < new or source.shape[dim - new] == 1 else ():
                if cast("Owners", place.owners).counted and size == self.labels.units(place):
                    along = place._replace(dim=dim, constant=Public.ANY)
                    self.labels.slices[
                        storage_key(made), made.shape, made.stride(), made.storage_offset()
                    ] = along

    def _label_data(
        self,
        op: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        tensors: Sequence[Tensor],
        known: Mapping[int, Label],
    ) -> tuple[list[Label | None], bool]:
        """Labels of what is made from data, and whether values were looked at for them."""
        slots = [output] if isinstance(output, Tensor) else slots_of(output)
        every, looked = self._labels(op, args, kwargs, slots, tensors, known)
        made = [(slot, label) for slot, label in zip(slots, every, strict=False) if isinstance(slot, Tensor)]
        found = list[Label | None](self._compared(made))
        if op.name == "unique_consecutive" and type(found[0]) is Mixed:
            self.reads.merge(tensors_of((output,)))
        # (In a pass for comparison, in which Python sees the data anyway, there is none to tell constants by.)
        elif (
            op.grows
            and not self.reads.natural
            and any(type(label) is Mixed and label.numbers is None for label in found)
        ):
            self.refuse(
                f"the data must not steer the pass, but the shape of what {op.name} returns at {line()} depends on "
                "several examples. Use operations whose shapes do not depend on values (a mask, torch.where)"
            )
        return found, looked

    def _compared(self, made: Sequence[tuple[Tensor, Label]]) -> list[Label]:
        """The labels of what an operation made or wrote; public ones by whether they are as long as the batch."""
        at = len(self.trace.events) - 1
        if any(isinstance(label, Public) for _, label in made):
            self.trace.shapes[at] = _shapes([tensor for tensor, _ in made])
        return [
            (isinstance(label, Public) and self._as_long_as_the_batch(at, number, tensor, label)) or label
            for number, (tensor, label) in enumerate(made)
        ]

    def _check_special(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], data: bool
    ) -> bool:
        """Refuse what hides data; whether an operation draws from the run's stream."""
        if op.talks:
            self.refuse(
                f"a pass must be of its own process alone, but {op.name} at {line()} sends tensors to other processes "
                "or receives them. decrescendo.distributed adds up over processes: leave it out of the loss"
            )
        if op.hides:
            bound = dict(zip(op.arguments, args, strict=False)) | dict(kwargs)
            kept = bound.get("running_mean") is not None or bound.get("running_var") is not None
            if bound.get("training", True) and kept and data:
                self.refuse(
                    f"no pass may write the data into what outlives it, but {op.name} keeps statistics. {STATISTICS}"
                )
            if bound.get("training", True) and kept:
                self.memory.assumed.add(_OVER.format(line()))
        if op.unread:
            self.reads.check_lists(args, 2 if data and op.name == "_ctc_loss" else 1)
        chance = kwargs.get("dropout_p", args[op.chance] if 0 <= op.chance < len(args) else 0.0)
        return op.seeded and kwargs.get("generator") is None and bool(op.chance < 0 or chance)

    def _label_constants(
        self,
        op: Operation,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        made: list[Tensor],
        given: "_Inputs",
        at: int,
    ) -> list[Label | None]:
        """What is made from no example."""
        inputs, tensors = given.marks, given.tensors
        if op.name == "_shape_as_tensor":
            self.trace.events[at] = Event(op.name, (content_of(made[0]),), ())
        self.trace.shapes[at] = _shapes(made)
        public = self._constant(op, kwargs, inputs.values())
        chosen = op.name == "multinomial" and public is Public.ANY and self._own_stream(op, kwargs)
        if (
            chosen
            and tensors[0].dim() == 1
            and {**dict(enumerate(args)), **(kwargs or {})}.get(2, (kwargs or {}).get("replacement", False))
        ):
            public = Public.RANDOM  # each number is drawn from all, whatever the others are
        label: Label = public
        if op.rule is None and op.namespace not in _OWN:
            label = Mixed(NO_RULE + op.form, op.name, public=True)
        found: list[Label | None] = []
        for number, tensor in enumerate(made):
            long = None
            if label is Public.RANDOM and (op.rule is drawn or chosen):
                long = self._random(at, tensor)
            elif label is Public.ANY and self._own_stream(op, kwargs):
                long = self._alike(op, tensors, given.known, tensor, at)
            if long is None or isinstance(long, Public):
                long = self._as_long_as_the_batch(at, number, tensor, public)
            key = key_of(tensor)
            if key in inputs and not (op.lifts and is_whole(tensor) and tensor.numel()):
                if long is not None:
                    # The label of a slice of a buffer is not that of all of it.
                    self.labels.slices[key, tensor.shape, tensor.stride(), tensor.storage_offset()] = long
                found.append(None)
                continue
            found.append(label if long is None else long)
            self.labels.keep(tensor, key, self.labels.mark(tensor, label if long is None else long), at)
        return found

    def _constant(self, op: Operation, kwargs: Mapping[str, Any] | None, kinds: Iterable[object]) -> Public:
        if op.rule is fill:
            return Public.FILL
        if kwargs and kwargs.get("generator") is not None:
            return Public.ANY  # its seed may be public, and then each place has numbers that are known
        if op.rule is drawn:
            return Public.RANDOM
        if op.rule is pointwise:
            kinds = set(kinds)
            if Public.ANY not in kinds:
                return Public.RANDOM if op.seeded or Public.RANDOM in kinds else Public.FILL
        return Public.ANY

    def _random(self, at: int, tensor: Tensor) -> Label:
        """Of random numbers: as many rows as examples are each example's own."""
        for axis in range(min(2, tensor.dim())):
            if tensor.shape[axis] == self.count and self.guess(-1 - at, 0, RowLayout(axis)):
                return RowLayout(axis)
        times, rest = divmod(tensor.numel(), self.count)
        # Of whole numbers, several for each example one after another (negative samples).
        if times > 1 and not rest and tensor.dim() == 1 and not tensor.is_floating_point():
            several = RowLayout(0, times)
            if self.guess(-1 - at, 0, several):
                return several
        return Public.RANDOM

    def _own_stream(self, op: Operation, kwargs: Mapping[str, Any] | None) -> bool:
        return op.seeded and op.namespace in _OWN and not (kwargs and kwargs.get("generator") is not None)

    def _alike(
        self, op: Operation, tensors: Sequence[Tensor], known: Mapping[int, Label], made: Tensor, at: int
    ) -> Label | None:
        """Of random numbers of laws that are the same for each of as many rows as there are examples: their own."""
        rows = {"_sample_dirichlet": 1, "multinomial": 1}.get(
            op.name
        )  # dimensions at the end that are one draw
        if rows is None and op.rule is not pointwise:
            return None
        for axis in range(min(2, made.dim() - (rows or 0))):
            places = [(tensor, axis + tensor.dim() - made.dim()) for tensor in tensors]
            same = all(
                own < 0
                or tensor.shape[own] == 1
                or (tensor.layout is torch.strided and tensor.stride(own) == 0)
                or constant_of(known[id(tensor)]) is Public.FILL
                for tensor, own in places
            )
            if same and made.shape[axis] == self.count and self.guess(-1 - at, 0, RowLayout(axis)):
                return RowLayout(axis)
        return None

    def _as_long_as_the_batch(self, at: int, number: int, tensor: Tensor, label: Public) -> Label | None:
        """Of a constant that has another shape with another number of examples."""
        shapes = () if self.expected is None else self.expected.shapes.get(at, ())
        if self.expected is None or number >= len(shapes) or shapes[number] == tensor.shape:
            return None
        its = shapes[number]
        moved = [
            dim for dim in range(tensor.dim()) if len(its) == tensor.dim() and its[dim] != tensor.shape[dim]
        ]
        if len(moved) != 1 or tensor.shape[moved[0]] * self.expected.count != its[moved[0]] * self.count:
            size, other = (tensor.shape[moved[0]], its[moved[0]]) if len(moved) == 1 else (0, 0)
            packed = list[RowLayout]()
            for (one, place), two in itertools.product(
                zip(self.trace.rows, self.labels.known, strict=False), self.expected.rows
            ):
                if bool(one) is bool(size) and bool(two) is bool(other) and size * two == other * one:
                    times, rest = divmod(other, two) if two else divmod(size, one or 1)
                    if times and not rest:
                        packed.append(RowLayout(moved[0], times, 1, place.owners, label))
            # As long as packed data; of several the one with fewest numbers a row.
            return min(packed, key=lambda place: place.inner, default=Mixed(LONG, public=True))
        return RowLayout(moved[0], tensor.shape[moved[0]] // self.count, 1, None, label)

    def _labels(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Sequence[Tensor | None],
        tensors: Sequence[Tensor | None], known: Mapping[int, Label],
    ) -> tuple[Sequence[Label], bool]:  # fmt: skip
        """Of outputs that data may have reached; and whether values were looked at."""
        if op.rule is None:
            constant = not any(is_data(label) for label in known.values())
            refused = Mixed(NO_RULE + op.form, op.name, public=constant)
            return [refused] * len(made), False

        def bind() -> Mapping[str, Any]:
            return {**op.defaults, **dict(zip(op.arguments, args, strict=False)), **kwargs}

        if op.special:
            bound = bind()
            if bound.get("generator") is not None:
                own = Mixed(GENERATED, op.name)
                return [own] * len(made), False
            if op.declared:
                self.memory.assumed.add(assumed("rows-declared-operation", op.declared))
            if op.foreach:
                return self._each(op, bound, made), True
        if op.rule is not pointwise or op.overwritten:
            # In the order of the schema, with gaps where optional ones are missing.
            tensors, given = list[Tensor | None](), len(args)
            for at, name in op.tensors:
                value = args[at] if at < given else kwargs.get(name)
                several = isinstance(value, (list, tuple))
                tensors += tensors_of(value) if several else [value if isinstance(value, Tensor) else None]

        def label(tensor: Tensor) -> Label:
            found = known.get(id(tensor))
            return self.label(tensor) if found is None else found

        call = Call(op.name, bind, tensors, made, label, self.units, self.owners, self.same)
        found = op.rule(call)
        labels = [found] * len(made) if isinstance(found, (RowLayout, Public, Mixed)) else list(found)
        if op.name not in self.lines and any(isinstance(label, Mixed) for label in labels):
            self.lines[op.name] = line()
        if op.rule is drawn and self._own_stream(op, kwargs):
            at = len(self.trace.events) - 1
            labels = [
                self._random(at, tensor) if label is Public.RANDOM and tensor is not None else label
                for label, tensor in zip(labels, made, strict=True)
            ]
        if op.rule not in (fill, drawn) and any(constant_of(label) for label in labels):
            labels = [_computed(label, op) for label in labels]
            if constant_of(labels[0]) is Public.ANY and made[0] is not None and self._own_stream(op, kwargs):
                drawn_by = [tensor for tensor in tensors if tensor is not None]
                alike = self._alike(op, drawn_by, known, made[0], len(self.trace.events) - 1)
                # That they came out alike for all examples, in this pass, is no reason to take them for alike.
                by_place = (
                    Mixed(LAID_ALONG, op.name, public=True) if isinstance(labels[0], RowLayout) else labels[0]
                )
                labels = [by_place if alike is None else alike, *labels[1:]]
        missing = Mixed(f"the check of independence has no rule for this output of {op.name}")
        return labels + [missing] * (len(made) - len(labels)), call.looked

    def _each(
        self, op: Operation, bound: Mapping[str, Any], made: Sequence[Tensor | None]
    ) -> Sequence[Label]:
        """Operations on lists, entry by entry."""
        lists = [value for value in bound.values() if isinstance(value, (list, tuple)) and tensors_of(value)]
        single = [value for value in bound.values() if isinstance(value, Tensor)]
        call = Call(op.name, lambda: bound, (), made, self.label, self.units, self.owners, self.same)
        return [
            call.mixed(SUMMED)
            if any(cast("list[Tensor]", entries)[at].dim() > tensor.dim() for entries in lists)
            else call.joined(
                [*(cast("list[Tensor]", entries)[at] for entries in lists), *single], tensor.dim()
            )
            for at, tensor in enumerate(made)
            if tensor is not None
        ]

    def _as_they_were(
        self, op: Operation, given: _Given, inputs: Mapping[int, Mark], known: dict[int, Label]
    ) -> _Given:
        """Arguments with copies of constants that are going to be written to: rules must not see data in them."""
        bound = dict(zip(op.arguments, given[0], strict=False)) | given[1]
        keys = {key_of(target) for target in tensors_of(bound.get(name) for name in op.written)}
        marks = ((key, inputs[key]) for key in keys)
        constants = {
            key
            for key, mark in marks
            if mark in (Public.ANY, Public.RANDOM) or (isinstance(mark, Span) and mark.constant)
        }

        def copy(tensor: Tensor) -> Tensor:
            if key_of(tensor) not in constants:
                return tensor
            found = tensor.clone()
            known[id(found)] = known[id(tensor)]
            return found

        return tree_map_only(Tensor, copy, given) if constants else given

    def _write(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Sequence[Tensor],
        known: Mapping[int, Label], before: _Given | None,
    ) -> None:  # fmt: skip
        """Label what was written to; ``before``: the arguments as they were, where data are among them."""
        if op.moves:
            return  # other shapes and strides, or another storage, which has its own label
        bound = dict(zip(op.arguments, args, strict=False)) | dict(kwargs)
        targets = tensors_of(bound.get(name) for name in op.written)
        into = {key_of(target) for target in targets}
        direct = all(key_of(tensor) in into for tensor in made)
        outputs = targets if direct else made
        if before is not None:
            was = tensors_of((*before[0], *before[1].values()))
            labels = list(self._labels(op, *before, outputs, was, known)[0])
        else:
            left = [
                known[id(t)]
                for _, name in op.tensors
                if name not in op.overwritten
                for t in tensors_of([bound.get(name)])
            ]
            public, at = self._constant(op, kwargs, left), len(self.trace.events) - 1
            labels = [
                self._random(at, tensor)
                if op.rule is drawn and public is Public.RANDOM and self.made(tensor)
                else public
                for tensor in outputs
            ]
        if op.name.startswith("resize"):
            labels = [Mixed("memory that was never written")] * len(outputs)
        # A list of places within examples is none any more where it is written to.
        labels = [
            replace(label, within=None, rows=None, folded=None) if isinstance(label, Mixed) else label
            for label in labels
        ]
        labels = self._compared(list(zip(outputs, labels, strict=True)))
        if not direct:
            for tensor, label in zip(made, labels, strict=True):
                self.assign(tensor, label)
            kept = labels[0]  # of the noise of `rrelu`: entry by entry, as all that it writes
            if op.rule is not pointwise:
                kept = Public.ANY if before is None else Mixed("it keeps statistics of the batch", op.name)
            labels = [kept] * len(targets)
        for target, label in zip(targets, labels, strict=False):
            self._store(target, label, op)

    def _check_targets(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], data: bool
    ) -> None:
        """Refuse a write before it is done: what was there stays."""
        bound = dict(zip(op.arguments, args, strict=False)) | dict(kwargs)
        for target in tensors_of(bound.get(name) for name in op.written):
            key = key_of(target)
            if key in self.guarded:
                self.refuse(
                    written_by_the_pass([self.guarded[key]], {self.guarded[key]}.difference(self.buffers))
                )
            if data and key not in self.labels.marks:
                self.refuse(
                    f"no pass may write the data into what outlives it, but {_KEPT}, by {op.name}. {_NO_STATE}"
                )

    def _store(self, target: Tensor, label: Label, op: Operation) -> None:
        key = key_of(target)
        old = self.labels.mark_of(key)[0]
        if key not in self.labels.marks and old is Public.ANY:
            if is_data(label):
                self.refuse(
                    f"no pass may write the data into what outlives it, but {_KEPT}, by {op.name}. {_NO_STATE}"
                )
            if op.rule is not drawn and op.name not in ("zero_", "fill_"):
                # There is no pass over an empty batch, and there are several over one in parts.
                self.memory.assumed.add(_OVER.format(line()))
            return
        # An empty one shows by its shape that others are not.
        known = target.numel() or isinstance(label, Mixed)
        mark = self.labels.after(target, label, old) if known else old
        self.labels.keep(target, key, mark, len(self.trace.events) - 1)


def _shapes(made: Sequence[Tensor]) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in made)


def _is_one_number(tensor: Tensor) -> bool:
    """Whether a tensor shows one number many times, as the parameters of a distribution that is sampled as often do."""
    if tensor.layout is not torch.strided or tensor.numel() < 2:
        return False
    return all(size == 1 or step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _sizes(
    op: Operation, sized: list[int], given: tuple[object, ...], labels: Sequence[Label]
) -> tuple[int, ...]:
    """Which numbers of an operation may grow with the number of examples; ``labels``: of the data among them."""
    along = {label.dim for label in labels if isinstance(label, RowLayout) and not label.constant}
    if op.name.startswith("convolution") and along <= {0}:
        return ()  # groups follow the number of examples only where these lie in the channels
    if op.name.startswith("affine_grid") and not along:
        return ()  # a grid's entries say how many there are
    # A slice begins at the same place, but along the examples.
    start = -1
    if op.name == "slice_backward" and given[1] not in along:
        start = 2
    elif op.name == "slice" and not labels:
        start = 1
    return tuple(at for at in sized if at != start)


def _computed(label: Label, op: Operation) -> Label:
    """Of constants as long as the batch: of which kind they are when an operation is through with them."""
    if not isinstance(label, RowLayout) or label.constant in (None, Public.ANY):
        return label
    kind = Public.ANY if op.rule is not pointwise else Public.RANDOM if op.seeded else label.constant
    return label._replace(constant=kind)
