"""Labels the outputs of an operation by its rule."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from decrescendo.base.assumptions import assumed, template
from decrescendo.base.storages import key_of, slots_of, tensors_of
from decrescendo.row_independence.basic_rules import drawn, fill, pointwise
from decrescendo.row_independence.code_origin import line
from decrescendo.row_independence.constant_labels import ConstantLabels
from decrescendo.row_independence.labels import (
    LAID_ALONG,
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
from decrescendo.row_independence.operation_inputs import shapes_of
from decrescendo.row_independence.refusals import STATISTICS
from decrescendo.row_independence.row_layout import Span
from decrescendo.row_independence.strides import grid_of
from decrescendo.row_independence.torch_schemas import Operation
from decrescendo.row_independence.trace_state import GENERATED

OVERWRITTEN = template("overwritten-constant")


class Labelling(ConstantLabels):
    """The part of the tracer that labels outputs by the rules."""

    def _laid(
        self, view: Tensor, given: tuple[object, ...], sizes: tuple[int, ...]
    ) -> tuple[tuple[object, ...], tuple[int, ...]]:
        """The integer arguments of `as_strided`, and which are sizes; rewritten by `strides` if this pass
        made the memory."""
        key = key_of(view)
        mark = self.labels.marks.get(key, (None, 0))[0]
        if mark is None or not view.numel():
            return given, sizes
        if isinstance(mark, Span) and not mark.constant and mark.owners is None:
            return (self.labels.view(view, mark)[1],), ()
        filled = mark is Public.FILL or (isinstance(mark, Span) and mark.constant is Public.FILL)
        if self.labels.counting and not filled:
            return given, sizes  # a size may be the number of rows that the data selected
        total = view.untyped_storage().nbytes() // view.element_size()
        grid = grid_of(total, view.shape, view.stride(), int(view.storage_offset()))
        return (given, sizes) if grid is None else (grid, (0,))

    def _label_data(
        self,
        op: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        tensors: Sequence[Tensor],
        known: Mapping[int, Label],
    ) -> tuple[list[Label | None], bool]:
        """Label outputs made from data; returns whether values of tensors were inspected for it."""
        slots = [output] if isinstance(output, Tensor) else slots_of(output)
        every, looked = self._labels(op, args, kwargs, slots, tensors, known)
        made = [(slot, label) for slot, label in zip(slots, every, strict=False) if isinstance(slot, Tensor)]
        found = list[Label | None](self._compared(made))
        if op.name == "unique_consecutive" and type(found[0]) is Mixed:
            self.reads.merge(tensors_of((output,)))
        # (Not in a comparison pass: Python gets true values there, and no other trace identifies constants.)
        elif (
            op.dynamic_shape
            and not self.reads.natural
            and any(type(label) is Mixed and label.numbers is None for label in found)
        ):
            self.refuse(
                f"the data must not steer the pass, but the shape of what {op.name} returns at {line()} depends on "
                "several examples. Use operations whose shapes do not depend on values (a mask, torch.where)"
            )
        return found, looked

    def _compared(self, made: Sequence[tuple[Tensor, Label]]) -> list[Label]:
        """The labels of outputs and written arguments, in a form to compare; public ones by whether they are
        as long as the batch."""
        at = len(self.trace.events) - 1
        if any(isinstance(label, Public) for _, label in made):
            self.trace.shapes[at] = shapes_of([tensor for tensor, _ in made])
        return [
            (isinstance(label, Public) and self._as_long_as_the_batch(at, number, tensor, label)) or label
            for number, (tensor, label) in enumerate(made)
        ]

    def _check_special(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], data: bool) -> bool:
        """Refuse operations that hide data; returns whether the operation draws from the run's stream."""
        if op.communicates:
            self.refuse(
                f"a pass must be of its own process alone, but {op.name} at {line()} sends tensors to other processes "
                "or receives them. decrescendo.distributed adds up over processes: leave it out of the loss"
            )
        if op.writes_hidden:
            bound = op.bind(args, kwargs)
            kept = bound.get("running_mean") is not None or bound.get("running_var") is not None
            if bound.get("training", True) and kept and data:
                self.refuse(
                    f"no pass may write the data into what outlives it, but {op.name} keeps statistics. {STATISTICS}"
                )
            if bound.get("training", True) and kept:
                self.memory.assumed.add(OVERWRITTEN.format(line()))
        if op.unread:
            self.reads.check_lists(args, 2 if data and op.name == "_ctc_loss" else 1)
        chance = kwargs.get("dropout_p", args[op.dropout_at] if 0 <= op.dropout_at < len(args) else 0.0)
        return op.seeded and kwargs.get("generator") is None and bool(op.dropout_at < 0 or chance)

    def _labels(
        self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Sequence[Tensor | None],
        tensors: Sequence[Tensor | None], known: Mapping[int, Label],
    ) -> tuple[Sequence[Label], bool]:  # fmt: skip
        """The labels of outputs that data may have reached; and whether values were inspected."""
        if op.rule is None:
            constant = not any(is_data(label) for label in known.values())
            refused = Mixed(NO_RULE + op.form, op.name, public=constant)
            # If an earlier operation mixed rows, the refusal names that, not this operation's missing rule.
            mixed = (label for label in known.values() if isinstance(label, Mixed) and not label.public)
            reason = next((Mixed(label.why, label.name) for label in mixed if label.name), refused)
            return [reason] * len(made), False

        def bind() -> Mapping[str, Any]:
            return op.defaults | op.bind(args, kwargs)

        if op.special:
            bound = bind()
            if bound.get("generator") is not None:
                return [Mixed(GENERATED, op.name)] * len(made), False
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
        labels = [found] * len(made) if isinstance(found, Label) else list(found)
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
                # Equal values for all examples in this pass need not be equal in the next.
                by_place = Mixed(LAID_ALONG, op.name, public=True) if isinstance(labels[0], RowLayout) else labels[0]
                labels = [by_place if alike is None else alike, *labels[1:]]
        missing = Mixed(f"the check of independence has no rule for this output of {op.name}")
        return labels + [missing] * (len(made) - len(labels)), call.looked

    def _each(self, op: Operation, bound: Mapping[str, Any], made: Sequence[Tensor | None]) -> Sequence[Label]:
        """The rule of an operation on lists: entry by entry."""
        lists = [value for value in bound.values() if isinstance(value, (list, tuple)) and tensors_of(value)]
        single = [value for value in bound.values() if isinstance(value, Tensor)]
        call = Call(op.name, lambda: bound, (), made, self.label, self.units, self.owners, self.same)
        return [
            call.mixed(SUMMED)
            if any(cast("list[Tensor]", entries)[at].dim() > tensor.dim() for entries in lists)
            else call.joined([*(cast("list[Tensor]", entries)[at] for entries in lists), *single], tensor.dim())
            for at, tensor in enumerate(made)
            if tensor is not None
        ]


def _computed(label: Label, op: Operation) -> Label:
    """The label of an operation's output, with its kind if it is a constant with one row per example."""
    if not isinstance(label, RowLayout) or label.constant in (None, Public.ANY):
        return label
    kind = Public.ANY if op.rule is not pointwise else Public.RANDOM if op.seeded else label.constant
    return label._replace(constant=kind)
