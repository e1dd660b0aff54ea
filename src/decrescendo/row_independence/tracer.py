"""`Tracer`: the dispatch mode that traces each operation, forward and backward, and labels its results.

Below autograd, views, ``.data``, hooks, compiled or functional code all look alike. Labels are stored per storage
(`dataflow.Labels`), so that a write through any alias changes the label of every alias.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decrescendo.base.storages import (
    FUNCTIONS_OFF,
    HAS_FUNCTION_MODES,
    content_of,
    key_of,
    storage_key,
    tensors_of,
)
from decrescendo.base.torch_private import HigherOrderOperator, is_traced, mkldnn_layout
from decrescendo.row_independence.arguments import Arguments
from decrescendo.row_independence.labels import Label, Mixed, Public, RowLayout, is_data
from decrescendo.row_independence.operation_inputs import OperationInputs, shapes_of
from decrescendo.row_independence.replayed_operations import arguments_of, as_before
from decrescendo.row_independence.torch_schemas import Operation, operation
from decrescendo.row_independence.trace import NOTHING, Event, ReplayedOperation
from decrescendo.row_independence.user_callbacks import is_a_users

_PLAIN = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
_TRACED = "a pass must be run, but a part of it is traced. Trace or compile it before (for linearize: torch.func.jvp)"
_SUBCLASS = (
    "every operation of a pass must be torch's own, but {0}.__torch_dispatch__ runs in its place. Give the pass plain "
    "tensors (tensor.as_subclass(torch.Tensor)), or leave {0} out"
)


class Tracer(Arguments):
    """The dispatch mode of one pass over ``count`` examples.

    Args:
        count: at least two: with one, any dimension of size one could be the batch dimension.
        memory: the state that the program's checks keep between passes.
        seed: the seed of torch's global generators in this pass; negative: no random numbers may be drawn.
        expected: the trace of the same program over another number of examples: constants whose shape differs from
            that noted there are as long as the batch.
        recipes: the label changes of the last accepted pass, reused for operations with the same inputs.
        natural: Python gets the true values of the data: for a comparison, of which nothing is released.
        replays: the trace of a pass whose random numbers Python gets again, where it reads some.
        poison: what Python gets for a number of the data that it reads.
        before: an accepted pass over as many examples, which this pass repeats under graph capture
            (`clipping.capture`), where no values can be read. Comparisons have their earlier results, which
            ``guards`` check on the device.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.idle:
            return func(*args, **kwargs)
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
                return NotImplemented  # the subclass unwraps itself; operations on its parts are traced
        if not HAS_FUNCTION_MODES():
            return self._dispatch(func, args, kwargs)
        with FUNCTIONS_OFF():
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at = len(self.trace.events)
        recipe = self.recipes.get(at)
        if recipe is not None and recipe.event.func is func:
            event = as_before(recipe, self.labels, args, kwargs)
            if event is not None:
                output = self._call(func, args, kwargs)
                self.trace.events.append(event)
                self.trace.recipes[at] = recipe
                if recipe.public:
                    self.trace.shapes[at] = shapes_of(tensors_of((output,)))
                if not operation(func).views:
                    views = None in recipe.labels
                    inputs = {storage_key(t) for t in tensors_of(args)} if views else self.labels.marks
                    self.labels.keep_all(output, recipe.labels, inputs, at)
                if recipe.noted:
                    self.labels.note(output, at)
                return output
        return self._follow(func, args, kwargs, at)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, noting an error: it may depend on the data, and the program may catch it."""
        op = operation(func)
        # A custom operation may write to tensors that its schema does not name. (No values can be read under capture.)
        kept = None if op.namespace == "aten" or self.capturing else _unwritten(op, args, kwargs)
        try:
            output = func(*args, **kwargs)
        except Exception as error:
            self.raised = self.raised or f"{func} raised {type(error).__name__}"
            raise
        for name, tensor, old in kept or ():
            if not torch.equal(_bytes(tensor), old):
                self.refuse(
                    f"an operation must write only to the arguments that its schema names, but {op.form} wrote to "
                    f"{name!r}. Declare it (mutates_args), or copy the tensor first"
                )
        return output

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], at: int) -> Any:
        """Run an operation and label its results by its rule."""
        if is_traced():
            self.refuse(_TRACED)
        op = operation(func)
        if op.composite and torch.is_inference_mode_enabled():
            with self.restored():
                return func.decompose(*args, **kwargs)
        given = self._given(op, args, kwargs)
        replayable = op.structural and self.expected is None
        arguments = arguments_of(self.labels, args, kwargs) if replayable else None
        drawing = False
        if op.special:
            if op.reads and given.data:
                return self.reads.answer_read(func, args, kwargs, given.tensors)
            if op.reads and Public.RANDOM in given.labels:
                return self.reads.draw(func, args, kwargs)
            drawing = self._check_special(op, args, kwargs, given.data)
        if drawing:
            self.stream.begin()
        before = self._arguments_before(op, args, kwargs, given)
        output = self._call(func, args, kwargs)
        made = [output] if isinstance(output, Tensor) else tensors_of((output,))
        if drawing:
            rejected = op.rejecting and any(map(is_data, given.labels))
            self.stream.end(made, jump=self.labels.counting or rejected)
        self.trace.events.append(event := self._event(func, op, given, made))
        if op.written:
            self._write(op, args, kwargs, made, given.known, before if given.data else None)
            if self.labels.counting:
                self.labels.count_on(given.marks.values(), made)
            self.labels.note(made, at)
            return output
        found, looked = self._label_made(op, args, kwargs, output, made, given, at)
        self._count(op, made, given)
        if op.views and self.labels.slices and given.tensors:
            self.labels.slices.follow(op.name, given.tensors[0], given.labels[0], made)
        if given.data and self.expected is not None:
            self._check_shapes(made, self.expected.shapes.get(at, ()))
        noted = self.labels.note(made, at)
        if arguments is not None and not looked:
            public = at in self.trace.shapes
            self.trace.recipes[at] = ReplayedOperation(event, arguments, tuple(kwargs), tuple(found), public, noted)
        return output

    def _event(self, func: Any, op: Operation, given: "OperationInputs", made: Sequence[Tensor]) -> Event:
        """The event of an operation, which is compared between passes."""
        numbers, wires = tuple(given.numbers), tuple(given.wires)
        if op.special:
            if op.empties:
                for tensor in made:
                    tensor.zero_()  # uninitialised memory must not be seen
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
        self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any,
        made: list[Tensor], given: "OperationInputs", at: int,
    ) -> tuple[list[Label | None], bool]:  # fmt: skip
        """The labels of the outputs, ``None`` for views; and whether tensor values were inspected for
        them."""
        if not given.data:
            return self._label_constants(op, args, kwargs, made, given, at), False
        if all(key_of(tensor) in given.marks for tensor in made):
            return [None] * len(made), False
        found, looked = self._label_data(op, args, kwargs, output, given.tensors, given.known)
        if any(tensor.layout is mkldnn_layout for tensor in made):
            self.refuse(
                f"the check must see where the data lie, but {op.name} puts them into memory of oneDNN's. "
                "Leave out to_mkldnn"
            )
        self.labels.keep_all(output, found, given.marks, at)
        if all(isinstance(label, Mixed) and not label.chooses for label in found):
            self.trace.events[at] = Event(self.trace.events[at].func, NOTHING, ())  # reaches no loss
        return found, looked

    def _count(self, op: Operation, made: Sequence[Tensor], given: "OperationInputs") -> None:
        """Note an output whose shape shows how many rows the data select."""
        if given.data and (op.selects or op.rule is None):
            first = int(op.name != "nonzero")  # the tensor selected from may be boolean, too: skip it
            pairs = zip(given.tensors[first:], given.labels[first:], strict=True)
            masks = [tensor for tensor, label in pairs if is_data(label)]
            masked = op.selects and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in masks)
            self.labels.select(made, op.name == "nonzero" or masked)
        if self.labels.counting:
            self.labels.count_on(given.marks.values(), made)
            if op.name == "expand" and not given.data and self.counts.given_selected_rows:
                self._check_expanded(given.tensors[0], made[0])


def _unwritten(op: Operation, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Tensor, Tensor]]:
    """The tensors that an operation must leave as they are: argument, tensor, and a copy of its bytes."""
    return [
        (name, tensor, _bytes(tensor).clone())
        for name, value in op.bind(args, kwargs).items()
        if name not in op.written
        for tensor in tensors_of((value,))
        if tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized
    ]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def _sizes(op: Operation, sized: list[int], given: tuple[object, ...], labels: Sequence[Label]) -> tuple[int, ...]:
    """Which integer arguments of an operation may grow with the batch size; ``labels``: those of its tensor
    arguments."""
    along = {label.dim for label in labels if isinstance(label, RowLayout) and not label.constant}
    if op.name.startswith("convolution") and along <= {0}:
        return ()  # groups grow with the number of examples only if examples lie in the channels
    if op.name.startswith("affine_grid") and not along:
        return ()  # a grid's entries depend on its length
    # A slice's start must be equal in all passes, except along the examples.
    start = -1
    if op.name == "slice_backward" and given[1] not in along:
        start = 2
    elif op.name == "slice" and not labels:
        start = 1
    return tuple(at for at in sized if at != start)
