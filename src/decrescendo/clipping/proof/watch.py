"""The proof at every pass: each operation that the dispatcher sees, forward and backward, moves the labels on.

Below autograd, views, ``.data``, hooks, compiled or functional code all look alike. Labels are kept by memory
(`places.Span`), so that a write through any alias changes what every alias is.
"""

import functools
import itertools
import math
import sys
from collections.abc import Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from decrescendo.clipping.proof.labels import LAID_ALONG, Call, Label, Mixed, Place, Public, is_data
from decrescendo.clipping.proof.operations import Operation, operation
from decrescendo.clipping.proof.places import Owners, Span, is_uniform, span_of, view_of
from decrescendo.clipping.proof.script import NOTHING, PACKED, Event, Given, Recipe, Script
from decrescendo.clipping.proof.tables import drawn, fill, pointwise
from decrescendo.errors import UnsupportedModel

# Where a constant occurs: the call, the argument, the dimension.
Guess: TypeAlias = tuple[int, int, int]
Mark: TypeAlias = Public | Mixed | Span
_PLAIN = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
_NUMBERS = frozenset({
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip
_STALE = Mixed("a tensor that an earlier pass made from its examples, or was given, is used again")
_PARTS = Mixed("only some of the examples are taken, or examples are taken in groups")
_KEPT = "what was made from the examples is written to a tensor that is there before and after the pass"
# Storages that one operation writes, at most, so that each has a number of its own.
_MANY = 2**20
_C = cast("Any", torch)._C
# Of a mode for torch functions the dispatcher would call from TorchScript and from backward passes.
_FUNCTIONS_OFF = _C.DisableTorchFunction
_HAS_MODES = _C._is_torch_function_mode_enabled
_Storage = cast("Any", torch.UntypedStorage)


class Memory:
    """What outlives a pass: tensors made from data that are still alive, answers to looks at the data, declarations."""

    def __init__(self, declared: Iterable[str] = ()) -> None:
        # Weak references to storages: an address that has one is not given to another storage.
        self.stale: set[int] = set()
        # What is answered instead of a truth value of the data, by line of code.
        self.answers: dict[str, bool] = {}
        # Lines of code (or files) whose looks at the data the user has declared harmless.
        self.declared = frozenset(declared)
        self.assumed: set[str] = set()
        # Constants that are as long as a batch by coincidence alone.
        self.coincident: set[Guess] = set()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for key in self.stale:
                _Storage._free_weak_ref(key)


@dataclass(eq=False)
class Watch(TorchDispatchMode):
    """The labels of one pass over ``count`` examples.

    Args:
        count: at least two: with one, a dimension of size one could be that of the examples or not.
        memory: of the engine that asks.
        seed: of torch's global generators in this pass; negative: no random numbers may be drawn.
        replays: the script of a pass whose random numbers Python gets again, where it reads some.
        poison: what Python gets for a number of the data that it reads.
        natural: Python sees the data as they are: for a comparison, of which nothing is released.
        guarded: the names of the model's parameters and buffers, by their storage: nothing may be written there.
        expected: the script of the same program over another number of examples: constants whose shape differs from
            that noted there are as long as the batch.
    """

    count: int
    memory: Memory
    seed: int
    expected: Script | None = None
    # Of the last pass that was accepted.
    recipes: Mapping[int, Recipe] = field(default_factory=dict[int, Recipe])
    guarded: dict[int, str] = field(default_factory=dict[int, str])
    natural: bool = False
    replays: Script | None = None
    poison: float = math.nan
    script: Script = field(init=False)
    # By storage: its label, and the number of what was written there last, which nothing else has.
    marks: dict[int, tuple[Mark, int]] = field(default_factory=dict[int, tuple[Mark, int]])
    # Views of constants by storage: which operations gave them. What no operation of the pass gave is not there.
    views: dict[int, dict[tuple[object, ...], frozenset[int]]] = field(
        default_factory=dict[int, dict[tuple[object, ...], frozenset[int]]]
    )
    slices: dict[tuple[object, ...], Label] = field(default_factory=dict[tuple[object, ...], Label])
    # Storages of one number everywhere, also those as long as the batch.
    filled: set[int] = field(default_factory=set[int])
    known: list[Place] = field(default_factory=list[Place])
    held: list[Tensor] = field(default_factory=list[Tensor])
    # Lines of code that looked at the data: truth values, which they were, and numbers.
    asked: list[str] = field(default_factory=list[str])
    truths: list[bool] = field(default_factory=list[bool])
    poisoned: str = ""
    idle: bool = False
    # The dtype with the fewest digits in which output gradients came.
    coarsest: torch.dtype = torch.float64
    refusal: str = ""
    # Constants of the batch's length that were taken for rows, by where they occur.
    guessed: set[Guess] = field(default_factory=set[Guess])

    def __post_init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.script = Script(self.count)
        self._next = 0

    # Labels of tensors.

    def label(self, tensor: Tensor) -> Label:
        """What a tensor depends on."""
        key = key_of(tensor)
        entry = self.marks.get(key)
        if entry is None:
            stale = key in self.memory.stale and tensor.numel()
            return _STALE if stale else self._sliced(key, tensor) or Public.ANY
        mark = entry[0]
        if self.slices and isinstance(mark, Public):
            return self._sliced(key, tensor) or mark
        return self._view(tensor, mark)[0] if isinstance(mark, Span) else mark

    def _random(self, at: int, tensor: Tensor) -> Label:
        """Of random numbers: as many rows as examples are each example's own."""
        for axis in range(min(2, tensor.dim())):
            key = (-1 - at, 0, axis)
            if tensor.shape[axis] == self.count:
                self.guessed.add(key)
                if key not in self.memory.coincident:
                    return Place(axis)
        return Public.RANDOM

    def _sliced(self, key: int, tensor: Tensor) -> Label | None:
        """Of a view of a constant that is as long as the batch though its memory is not."""
        return self.slices.get((key, tensor.shape, tensor.stride(), tensor.storage_offset()))

    def _view(self, tensor: Tensor, span: Span) -> tuple[Label, tuple[object, ...]]:
        packed = PACKED
        if not tensor.numel():
            return Public.FILL, packed if span.owners is not None else ()
        if span.units == 1:  # one row of packed data
            own = tensor.dim() > 0 and tensor.shape[0] == 1
            return (Place(0, 1, 1, span.owners) if own else _PARTS), packed
        width = tensor.element_size()
        place, form = view_of(tensor.shape, tensor.stride(), tensor.storage_offset() * width, width, span[:3])
        if place is None:
            return _PARTS, form
        if span.owners is not None or span.constant:
            place = Place(place.dim, place.inner, place.outer, span.owners, span.constant)
        return place, form

    def units(self, place: Place) -> int:
        """How many units lie along a place's dimension."""
        return self.count if place.owners is None else len(place.owners.example)

    def owners(self, dim: int, example: Tensor) -> Place:
        """The place of units that belong to these examples, one each; those known are found again by their values."""
        with paused():
            if len(example) == self.count and torch.equal(
                example, torch.arange(self.count, device=example.device)
            ):
                return Place(dim)
            for place in self.known:
                known = cast("Owners", place.owners)
                if torch.equal(known.example, example.to(known.example.device)):
                    return place.moved(dim)
            self.known.append(Place(dim, 1, 1, Owners(example.detach().clone())))
            self.script.rows.append(len(example))
        return self.known[-1]

    def assign(self, tensor: Tensor, label: Label) -> None:
        """Label a tensor that has memory of its own."""
        self._keep(tensor, key_of(tensor), self._mark(tensor, label), len(self.script.events))

    def _mark(self, tensor: Tensor, label: Label) -> Mark:
        if not isinstance(label, Place):
            return label
        if not tensor.numel():
            return Public.FILL if label.owners is None else Span(1, 0, 0, label.owners)
        if tensor.layout is not torch.strided:
            return Mixed("it has no strides")
        return span_of(tensor, label, self.units(label)) or Mixed(
            "its examples lie in memory in no order that is known"
        )

    def end(self) -> None:
        """Forget what is gone; what was made from data and is still there must not come back in another pass."""
        stale = self.memory.stale
        for key in [key for key in stale if _Storage._expired(key)]:
            stale.discard(key)
            _Storage._free_weak_ref(key)
        for key, (mark, _) in self.marks.items():
            if key < 0:
                continue
            data = (
                not mark.public if isinstance(mark, Mixed) else isinstance(mark, Span) and not mark.constant
            )
            if data and key not in stale and not _Storage._expired(key):
                stale.add(key)
                continue
            if not data and key in stale:
                stale.discard(key)
                _Storage._free_weak_ref(key)
            _Storage._free_weak_ref(key)
        self.marks = {}
        self.held.clear()

    # Operations.

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what is compiled is run as it is written while this mode is on

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.idle:
            return func(*args, **kwargs or {})
        for kind in types:
            if kind not in _PLAIN:
                if kind.__module__.startswith("torch._subclasses"):
                    self.refuse("a pass must be run, but a part of it is traced. Trace or compile it before")
                return NotImplemented  # what such a tensor is made of comes here
        if not _HAS_MODES():
            return self._dispatch(func, args, kwargs)
        with _FUNCTIONS_OFF():
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        at = len(self.script.events)
        recipe = self.recipes.get(at)
        if recipe is not None and recipe.event.func is func and self._is_as_before(recipe, args, kwargs):
            output = func(*args, **kwargs) if kwargs else func(*args)
            self.script.events.append(recipe.event)
            self.script.recipes[at] = recipe
            if recipe.shapes is not None:
                self.script.shapes[at] = recipe.shapes
            if not operation(func).views:
                views = None in recipe.labels
                inputs = {_key(t) for t in _tensors(args)} if views else self.marks
                self._keep_all(output, recipe.labels, inputs, at)
            if recipe.noted:
                self._note_views(output, at)
            return output
        return self._follow(func, args, kwargs, at)

    def _is_as_before(self, recipe: Recipe, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
        """Whether an operation is given what it was given in an accepted pass, but for the number of examples."""
        if kwargs:
            if tuple(kwargs) != recipe.names:
                return False
            args = (*args, *kwargs.values())
        elif recipe.names:
            return False
        if len(args) != len(recipe.arguments) or self.slices:
            return False
        marks = self.marks
        for value, before in zip(args, recipe.arguments, strict=True):
            if type(before) is not Given:
                if type(value) is not type(before) or value != before:
                    return False
                continue
            if not isinstance(value, Tensor):
                return False
            key = _key(value)
            entry = marks.get(key)
            if entry is None:
                mark, birth = Public.ANY, key
                if key in self.memory.stale:
                    return False
            else:
                mark, birth = entry
            if type(mark) is Span:
                if birth != before.wire or value.dtype is not before.dtype:
                    return False
                if mark.owners is not None or mark.constant or self._view(value, mark)[1] != before.form:
                    return False
            elif (
                mark is not before.label
                or before.shape != (value.dim() if mark is Public.FILL else value.shape)
                or self._wire(value, key, birth) != before.wire
            ):
                return False
        return True

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, at: int) -> Any:
        """Run an operation, and ask the rules what it does to labels."""
        op = operation(func)
        marks, stale = self.marks, self.memory.stale
        tensors: list[Tensor] = []
        numbers: list[object] = []
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor):
                tensors.append(value)
            elif isinstance(value, (list, tuple)):
                items = cast("list[Any]", value)
                inside = [item for item in items if isinstance(item, Tensor)]
                tensors += inside
                numbers.append(tuple(map(type, items)) if inside else tuple(items))
            else:
                numbers.append(value if type(value) in _NUMBERS else type(value))
                if isinstance(value, torch.Generator):
                    numbers.append(f"seed {value.initial_seed()}")
        if kwargs:
            numbers.append(tuple(kwargs))
        labels: list[Label] = []
        wires: list[object] = []
        inputs: dict[int, Mark] = {}
        data = False
        for tensor in tensors:
            key = _key(tensor)
            entry = marks.get(key)
            if entry is None:
                mark, birth = _STALE if key in stale else Public.ANY, key
            else:
                mark, birth = entry
            inputs[key] = mark
            if type(mark) is Span:
                data = True
                label, form = self._view(tensor, mark)
                labels.append(label)
                wires += (self._wire(tensor, key, birth),) if mark.constant else (birth, tensor.dtype, form)
                continue
            wires.append(self._wire(tensor, key, birth))
            sliced = self._sliced(key, tensor) if self.slices and isinstance(mark, Public) else None
            labels.append(cast("Label", mark) if sliced is None else sliced)
            data = data or type(labels[-1]) is not Public
        given, wired = tuple(numbers), tuple(wires)
        arguments = self._arguments(args, kwargs) if op.structural and self.expected is None else None
        if op.special:
            if op.reads and data:
                return self._look(func, args, kwargs or {}, tensors)
            if op.reads and Public.RANDOM in labels:
                return self._draw(func, args, kwargs or {})
            self._check_special(op, args, kwargs or {}, data)
        known = {id(tensor): label for tensor, label in zip(tensors, labels, strict=True)}
        if op.written and not op.moves:
            self._check_targets(op, args, kwargs or {}, data)
        output = func(*args, **kwargs) if kwargs else func(*args)
        made = [output] if isinstance(output, Tensor) else _tensors((output,))
        if op.special:
            if op.empties:
                for tensor in made:
                    tensor.zero_()  # what was in this memory before must not be seen
            if op.lifts:
                given, wired = (*given, _content(made[0])), ()
            if op.unread:
                given = ()
        event = Event(func, given, wired, op.sized)
        self.script.events.append(event)
        if op.written:
            self._write(op, args, kwargs or {}, made, data, known)
            self._note_views(made, at)
            return output
        if not data:
            found, looked = self._label_constants(op, kwargs, made, inputs, at), False
        else:
            fresh = any(key_of(tensor) not in inputs for tensor in made)
            found, looked = [None] * len(made), False
            if fresh:
                found, looked = self._label_data(op, args, kwargs or {}, output, tensors, known)
                self._keep_all(output, found, inputs, at)
            if fresh and all(type(label) is Mixed for label in found):
                self.script.events[at] = Event(func, NOTHING, ())  # it reaches no loss
        noted = self._note_views(made, at)
        if arguments is not None and not looked:
            names, shapes = tuple(kwargs or ()), self.script.shapes.get(at)
            self.script.recipes[at] = Recipe(event, arguments, names, tuple(found), shapes, noted)
        return output

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[object, ...] | None:
        """What an operation is given, to compare with in later passes; ``None`` where that does not say enough."""
        found: list[object] = []
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor):
                key = _key(value)
                mark, birth = self.marks.get(key, (_STALE if key in self.memory.stale else Public.ANY, key))
                if isinstance(mark, Span):
                    if mark.owners is not None or mark.constant:
                        return None
                    found.append(Given(birth, self._view(value, mark)[1], value.dtype))
                elif isinstance(mark, Public) and not value.is_nested:
                    shape = value.dim() if mark is Public.FILL else value.shape
                    found.append(Given(self._wire(value, key, birth), None, None, mark, shape))
                else:
                    return None
            elif isinstance(value, (list, tuple)) and any(
                isinstance(v, Tensor) for v in cast("list[Any]", value)
            ):
                return None
            elif isinstance(value, list) or type(value) in _NUMBERS:
                found.append(list(cast("list[Any]", value)) if isinstance(value, list) else value)
            else:
                return None
        return tuple(found)

    def _wire(self, tensor: Tensor, key: int, birth: int) -> object:
        """Which constant this is: the operations of the pass that gave it, or what it was before."""
        try:
            place = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
        except (NotImplementedError, RuntimeError):
            return birth
        known = self.views.get(key)
        return (birth, *place) if known is None or place not in known else known[place]

    def _note_views(self, output: Any, at: int) -> bool:
        """Number what an operation gave that is no example's own, so that no choice between two goes unseen."""
        noted = False
        for tensor in (output,) if isinstance(output, Tensor) else _tensors((output,)):
            key = _key(tensor)
            mark = self.marks.get(key, (None, 0))[0]
            if type(mark) is Span and not mark.constant:
                continue
            noted, number = True, max(self._next, at * _MANY)
            self._next = number + 1
            try:
                place = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
            except (NotImplementedError, RuntimeError):
                continue
            known = self.views.setdefault(key, {})
            known[place] = known[place] | {number} if place in known else frozenset((number,))
        return noted

    def _keep_all(self, output: Any, labels: Sequence[Label | None], inputs: Container[int], at: int) -> None:
        """Label what an operation made, but for views: these have the label of their memory."""
        made = (output,) if isinstance(output, Tensor) else _tensors((output,))
        for tensor, label in zip(made, labels, strict=True):
            key = _key(tensor)
            if key in inputs:
                continue
            if label is None:
                label = Mixed("an operation gives a view in one pass and a copy in another")
            self._keep(tensor, key, self._mark(tensor, label), at)
            if label is Public.FILL:
                self.filled.add(key)

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
        slots = [output] if isinstance(output, Tensor) else _slots(output)
        every, looked = self._labels(op, args, kwargs, slots, tensors, known)
        found: list[Label | None] = [
            label for slot, label in zip(slots, every, strict=False) if isinstance(slot, Tensor)
        ]
        if op.name == "unique_consecutive" and type(found[0]) is Mixed:
            self._merge(_tensors((output,)))
        elif op.grows and any(type(label) is Mixed for label in found):
            self.refuse(
                f"the data must not steer the pass, but the shape of what {op.name} returns at {line()} depends on "
                "several examples. Use operations whose shapes do not depend on values (a mask, torch.where)"
            )
        return found, looked

    def _check_special(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], data: bool
    ) -> None:
        if op.hides and data:
            bound = dict(zip(op.arguments, args, strict=False)) | dict(kwargs)
            if bound.get("training") and bound.get("running_mean") is not None:
                self.refuse(
                    f"no pass may write the data into what outlives it, but {op.name} keeps statistics. {_NO_STATE}"
                )
        if op.seeded and kwargs.get("generator") is None:
            chance = kwargs.get("dropout_p", args[op.chance] if 0 <= op.chance < len(args) else 0.0)
            if op.chance < 0 or chance:
                self._check_seed()

    def _keep(self, tensor: Tensor, key: int, mark: Mark, at: int) -> None:
        """Note what a storage is; it is held so that no other storage has its key as long as that is known."""
        if key not in self.marks:
            if key < 0:
                self.held.append(tensor)
            else:
                cast("Any", tensor.untyped_storage())._weak_ref()
            self.views.pop(key, None)  # of another storage that was there before
        birth = max(self._next, at * _MANY)
        self.marks[key] = (mark, birth)
        self._next = birth + 1

    def _label_constants(
        self,
        op: Operation,
        kwargs: Mapping[str, Any] | None,
        made: list[Tensor],
        inputs: Mapping[int, Mark],
        at: int,
    ) -> list[Label | None]:
        """What is made from no example."""
        if op.name == "_shape_as_tensor":
            self.script.events[at] = Event(op.name, (_content(made[0]),), ())
        self.script.shapes[at] = tuple(tensor.shape for tensor in made)
        label = self._constant(op, kwargs, inputs.values())
        found: list[Label | None] = []
        for number, tensor in enumerate(made):
            long = self._random(at, tensor) if label is Public.RANDOM and op.rule is drawn else None
            if self.expected is not None and label is not Public.RANDOM:
                long = self._as_long_as_the_batch(at, number, tensor)
            key = key_of(tensor)
            if key in inputs and not op.lifts:
                if long is not None:
                    # The label of a slice of a buffer is not that of all of it.
                    self.slices[key, tensor.shape, tensor.stride(), tensor.storage_offset()] = long
                found.append(None)
                continue
            found.append(label if long is None else long)
            self._keep(tensor, key, self._mark(tensor, label if long is None else long), at)
            if label is Public.FILL:
                self.filled.add(key)
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

    def _as_long_as_the_batch(self, at: int, number: int, tensor: Tensor) -> Label | None:
        """Of a constant that has another shape with another number of examples."""
        shapes = () if self.expected is None else self.expected.shapes.get(at, ())
        if self.expected is None or number >= len(shapes) or shapes[number] == tensor.shape:
            return None
        its = shapes[number]
        moved = [
            dim for dim in range(tensor.dim()) if len(its) == tensor.dim() and its[dim] != tensor.shape[dim]
        ]
        if len(moved) != 1 or tensor.shape[moved[0]] * self.expected.count != its[moved[0]] * self.count:
            mine, theirs = self.script, self.expected
            packed = itertools.product((mine.count, *mine.rows), (theirs.count, *theirs.rows))
            if len(moved) == 1 and any(
                tensor.shape[moved[0]] * two == its[moved[0]] * one for one, two in packed
            ):
                return None  # as long as packed data
            return Mixed("a constant depends on the number of examples", public=True)
        return Place(moved[0], tensor.shape[moved[0]] // self.count, 1, None, constant=True)

    def _labels(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Sequence[Tensor | None],
        tensors: Sequence[Tensor | None], known: Mapping[int, Label],
    ) -> tuple[Sequence[Label], bool]:  # fmt: skip
        """Of outputs that data may have reached; and whether values were looked at."""
        if op.rule is None:
            constant = not any(is_data(label) for label in known.values())
            refused = Mixed(f"the proof has no rule for {op.name}", op.name, public=constant)
            return [refused] * len(made), False

        def bind() -> Mapping[str, Any]:
            return {**op.defaults, **dict(zip(op.arguments, args, strict=False)), **kwargs}

        if op.special:
            bound = bind()
            if bound.get("generator") is not None:
                own = Mixed("its random numbers are those of a generator of its own", op.name)
                return [own] * len(made), False
            if op.declared:
                self.memory.assumed.add(f"{op.declared} keeps examples apart as its registered rule says")
            if op.foreach:
                return self._each(op, bound, made), True
        if op.rule is not pointwise or op.overwritten:
            # In the order of the schema, with gaps where optional ones are missing.
            tensors, given = [], len(args)
            for at, name in op.tensors:
                value = args[at] if at < given else kwargs.get(name)
                tensors += _tensors(value) if isinstance(value, (list, tuple)) else [value]

        def label(tensor: Tensor) -> Label:
            found = known.get(id(tensor))
            return self.label(tensor) if found is None else found

        call = Call(op.name, bind, tensors, made, label, self.units, self.owners)
        found = op.rule(call)
        labels = [found] * len(made) if isinstance(found, (Place, Public, Mixed)) else list(found)
        missing = Mixed(f"the proof has no rule for this output of {op.name}")
        return labels + [missing] * (len(made) - len(labels)), call.looked

    def _each(
        self, op: Operation, bound: Mapping[str, Any], made: Sequence[Tensor | None]
    ) -> Sequence[Label]:
        """Operations on lists, entry by entry."""
        lists = [value for value in bound.values() if isinstance(value, (list, tuple)) and _tensors(value)]
        single = [value for value in bound.values() if isinstance(value, Tensor)]
        call = Call(op.name, lambda: bound, (), made, self.label, self.units, self.owners)
        return [
            call.joined([*(cast("list[Tensor]", entries)[at] for entries in lists), *single], tensor.dim())
            for at, tensor in enumerate(made)
            if tensor is not None
        ]

    def _write(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Sequence[Tensor],
        data: bool, known: Mapping[int, Label],
    ) -> None:  # fmt: skip
        if op.moves:
            return  # other shapes and strides, or another storage, which has its own label
        bound = dict(zip(op.arguments, args, strict=False)) | dict(kwargs)
        targets = _tensors(bound.get(name) for name in op.written)
        into = {key_of(target) for target in targets}
        direct = all(key_of(tensor) in into for tensor in made)
        outputs = targets if direct else made
        if data:
            every, _ = self._labels(op, args, kwargs, outputs, _tensors((*args, *kwargs.values())), known)
            labels = list(every)
        else:
            left = [
                known[id(t)]
                for _, name in op.tensors
                if name not in op.overwritten
                for t in _tensors([bound.get(name)])
            ]
            labels = [self._constant(op, kwargs, left)] * len(outputs)
        if op.name == "resize_":
            labels = [Mixed("memory that was never written")] * len(outputs)
        if not direct:
            for tensor, label in zip(made, labels, strict=True):
                self.assign(tensor, label)
            labels = [Mixed("it keeps statistics of the batch", op.name) if data else Public.ANY] * len(
                targets
            )
        for target, label in zip(targets, labels, strict=False):
            self._store(target, label, op)

    def _check_targets(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], data: bool
    ) -> None:
        """Refuse a write before it is done: what was there stays."""
        bound = dict(zip(op.arguments, args, strict=False)) | dict(kwargs)
        for target in _tensors(bound.get(name) for name in op.written):
            key = key_of(target)
            if key in self.guarded:
                self.refuse(
                    "a forward pass must not change the model's parameters or buffers, got a change of "
                    f"{self.guarded[key]}. They would hold the data without noise; call .eval() on that module, or use "
                    "one without running statistics (GroupNorm, LayerNorm)"
                )
            if data and key not in self.marks:
                self.refuse(
                    f"no pass may write the data into what outlives it, but {_KEPT}, by {op.name}. {_NO_STATE}"
                )

    def _store(self, target: Tensor, label: Label, op: Operation) -> None:
        key = key_of(target)
        old = self.marks.get(key, (_STALE if key in self.memory.stale else None, 0))[0]
        if old is None:
            if is_data(label):
                self.refuse(
                    f"no pass may write the data into what outlives it, but {_KEPT}, by {op.name}. {_NO_STATE}"
                )
            return
        if target.numel():
            self._keep(target, key, self._after(target, label, old), len(self.script.events) - 1)
            self.filled.discard(key)

    def _after(self, target: Tensor, label: Label, old: Mark) -> Mark:
        """What a storage is after a write to a view of it."""
        if key_is_whole(target):
            return self._mark(target, label)
        if isinstance(label, Mixed) or isinstance(old, Mixed):
            return label if isinstance(label, Mixed) else cast("Mixed", old)
        if isinstance(label, Place):
            made = self._mark(target, label)
            if not isinstance(made, Span) or (isinstance(old, Span) and not old.constant):
                same = isinstance(made, Span) and isinstance(old, Span) and _same(made, old)
                return made if same else Mixed("rows of the examples are written over others' rows")
            uniform = old in (Public.FILL, Public.RANDOM) or key_of(target) in self.filled
            return made if uniform else Mixed(LAID_ALONG)
        if not isinstance(old, Span):
            return Public.ANY
        place = self._view(target, old)[0]
        if old.constant:
            return old
        if not isinstance(place, Place):
            return Mixed("rows of some examples are written, by their place in the batch")
        uniform = label in (Public.FILL, Public.RANDOM) or is_uniform(target, place, self.units(place))
        return old if uniform else Mixed(LAID_ALONG)

    # Looks at the data by Python.

    def refuse(self, why: str) -> None:
        """Refuse the pass, also where the program catches the error."""
        self.refusal = self.refusal or why
        raise UnsupportedModel(why)

    def _look(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Sequence[Tensor | None]
    ) -> Any:
        """What Python gets to see of the data: an answer that does not depend on them."""
        first = cast("Tensor", tensors[0])
        labels = [self.label(tensor) for tensor in tensors if tensor is not None]
        data = [label for label in labels if is_data(label)]
        where, returned = line(), str(func._schema.returns)
        if not data or self.natural:
            answer = func(*args, **kwargs)
            self.asked += [where] if data else []
        elif where in self.memory.declared or where.split(":")[0] in self.memory.declared:
            self.memory.assumed.add(f"what {where} reads of the data steers nothing")
            return func(*args, **kwargs)
        elif "bool" in returned or (first.dtype == torch.bool and "int" not in returned) or len(tensors) > 1:
            likely = isinstance(data[0], Mixed) and data[0].name in ("any", "bitwise_or", "logical_or")
            answer = self.memory.answers.setdefault(where, likely)
            self.asked.append(where)
            self.truths.append(bool(func(*args, **kwargs)))
        elif "int" not in returned and (first.dtype.is_floating_point or first.dtype.is_complex):
            self.poisoned, answer = where, self.poison
        else:
            answer = func(*args, **kwargs)
            if answer != self.count:
                self.refuse(
                    f"the data must not steer the pass, but {where} reads a whole number of them in Python. Use a "
                    f'constant there, or tensor operations; or declare the line: EngineSettings(declared=("{where}",))'
                )
        event = Event("a look at the data", (where,), ()) if data else Event(func, NOTHING, ())
        self.script.events.append(event)
        return answer

    def _merge(self, made: list[Tensor]) -> None:
        """Runs of equal data, whose number Python gets to see as a length: one, or as many, as no data say."""
        if self.natural:
            return
        where = line()
        several = self.memory.answers.setdefault(where, False)
        self.asked.append(where)
        self.truths.append(len(made[0]) > 1)
        for tensor in (made[0], *made[2:]):
            cast("Any", tensor).set_(tensor.new_zeros(1 + several, *tensor.shape[1:]))

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A random number that Python reads (which layers are left out): the same one with any number of examples."""
        at = len(self.script.drawn)
        replayed = [] if self.replays is None else self.replays.drawn
        self.script.drawn.append(replayed[at] if at < len(replayed) else func(*args, **kwargs))
        self.script.events.append(Event(func, NOTHING, ()))
        return self.script.drawn[-1]

    def check_read(self, name: str, tensor: object) -> None:
        """Refuse a read of the data that the dispatcher does not see."""
        if isinstance(tensor, Tensor) and is_data(self.label(tensor)) and not self.natural:
            where = line()
            if where in self.memory.declared or where.split(":")[0] in self.memory.declared:
                self.memory.assumed.add(f"what {where} reads of the data steers nothing")
                return
            self.refuse(
                f"the data must not leave torch in a pass, but {where} takes them out by {name.strip('_')}(). Use "
                "tensor "
                f'operations there; or declare the line: EngineSettings(declared=("{where}",))'
            )

    def check_lengths(self, values: Iterable[object]) -> None:
        """Refuse lengths of sequences that are not each example's own: the CTC loss reads them by itself."""
        for value in values:
            label = self.label(value) if isinstance(value, Tensor) else Public.FILL
            if isinstance(label, Mixed):
                self.refuse(
                    f"no example's loss may depend on another example, got a CTC loss of which {label.why}"
                )

    def _check_seed(self) -> None:
        if self.seed < 0:
            self.refuse(
                "random numbers in a pass must come from a stream of the run's own, but the engine was given none. "
                "Give Engine(seeds=...), as Trainer does, or turn dropout off"
            )
        if torch.initial_seed() != self.seed or (
            torch.cuda.is_available() and torch.cuda.initial_seed() != self.seed
        ):
            self.refuse(
                "random numbers in a pass must come from the run's own stream, but torch's global generator was seeded "
                "in it: numbers that are known for each place tell examples by their place. Leave out manual_seed"
            )


@contextmanager
def paused() -> Generator[None]:
    """Inside, the engine works by itself: nothing is watched, and what is made has to be labelled by `Watch.assign`."""
    modes = cast("list[object]", cast("Any", _python_dispatch)._get_current_dispatch_mode_stack())
    if len(modes) <= 1:
        with _C._DisableTorchDispatch():
            yield
        return
    watches = [mode for mode in modes if isinstance(mode, Watch) and not mode.idle]
    for watch in watches:  # other modes (one that counts memory) go on
        watch.idle = True
    try:
        yield
    finally:
        for watch in watches:
            watch.idle = False


_NO_STATE = "Leave out running statistics, code books and memories, or make them parameters that are trained"


def _same(one: Span, two: Span) -> bool:
    same = (one.step, one.units, one.owners) == (two.step, two.units, two.owners)
    return same and (one.base - two.base) % (one.step * one.units) == 0


def key_is_whole(target: Tensor) -> bool:
    """Whether a tensor has every number of its storage, each once."""
    return target.layout is not torch.strided or (
        target.numel() * target.element_size() == target.untyped_storage().nbytes()
        and 0 not in target.stride()
    )


def key_of(tensor: Tensor) -> int:
    """Of the memory a tensor lies in; negative for those without one."""
    if _HAS_MODES():
        with _FUNCTIONS_OFF():
            return _key(tensor)
    return _key(tensor)


def _key(tensor: Any) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return -id(tensor)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(cast("list[Any]", value))
    return found


def _slots(output: Any) -> list[Tensor | None]:
    """What an operation returned, with gaps for what it left out."""
    found: list[Tensor | None] = []
    for value in cast("list[Any]", output) if isinstance(output, (list, tuple)) else ():
        if isinstance(value, (list, tuple)):
            found += _slots(value)
        elif value is None or isinstance(value, Tensor):
            found.append(value)
    return found


def _content(tensor: Tensor) -> object:
    """The numbers of a constant made in Python, so that one that depends on the number of examples shows."""
    if tensor.numel() > 64 or tensor.is_meta:
        return (
            tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else ()
        )
    return tuple(cast("list[Any]", tensor.detach().flatten().tolist()))


@functools.cache
def _is_ours(filename: str) -> bool:
    parts = filename.replace("\\", "/")
    library = any(f"/{name}/" in parts for name in ("torch", "jaxtyping", "beartype"))
    return library or "decrescendo/clipping" in parts or filename.startswith("<")


def line() -> str:
    """The innermost line of code that is neither torch's nor the engine's."""
    frame = cast("Any", sys)._getframe(1)
    while frame is not None and (_is_ours(frame.f_code.co_filename) or "__tracebackhide__" in frame.f_locals):
        frame = frame.f_back
    if frame is None:
        return "the model"
    return f"{frame.f_code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.f_lineno}"
