"""Looks up the labels of the arguments of an operation."""

from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.base.assumptions import assumed, template
from decrescendo.base.storages import byte_form, exactly, is_whole, state_of, storage_key
from decrescendo.row_independence.basic_rules import pointwise
from decrescendo.row_independence.code_origin import line, own_line
from decrescendo.row_independence.dataflow import STALE
from decrescendo.row_independence.labels import Label, Public, RowLayout
from decrescendo.row_independence.operation_inputs import OperationInputs
from decrescendo.row_independence.replayed_operations import NUMBERS
from decrescendo.row_independence.row_layout import Span
from decrescendo.row_independence.torch_schemas import Operation
from decrescendo.row_independence.writing import Writing, _Given

OWN_GENERATOR = assumed("rows-own-generator")
TENSORS_READ = template("tensors-read")
_ALPHAS = 6


class Arguments(Writing):
    """The part of the tracer that looks up the labels of an operation's arguments before it runs."""

    def _given(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "OperationInputs":
        """The arguments of an operation for comparison: numbers one by one, tensors by label and by the last
        write to them."""
        found = OperationInputs()
        for position, value in enumerate((*args, *kwargs.values())):
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
        # (Nothing is read of what is overwritten.)
        over = {id(args[at] if at < len(args) else kwargs.get(name))
                for at, name in enumerate(op.arguments) if name in op.overwritten}  # fmt: skip
        for tensor in found.tensors:
            self._label_given(op, tensor, found, is_alphas=tensor is alphas, is_read=id(tensor) not in over)
        return found

    def _label_given(
        self, op: Operation, tensor: Tensor, found: "OperationInputs", *, is_alphas: bool, is_read: bool
    ) -> None:
        """Add to ``found`` one tensor argument: its label, and the event that wrote it last."""
        key = storage_key(tensor)
        mark, birth = self.labels.mark_of(key)
        if key < 0:
            mark, birth = self.labels.entry(tensor, key) or (mark, birth)
        if mark is Public.ANY and birth == key and self.memory.withholds(tensor):
            mark = STALE
        # (A number that is lifted was one of Python's.)
        if mark is Public.ANY and birth == key and is_read and (tensor.dim() or not op.lifts):
            self._list_outside(tensor, key)
        if mark is Public.RANDOM and tensor.layout is torch.strided and 0 in tensor.stride():
            mark = Public.ANY  # one number in several places
        single = op.rule is pointwise and mark is Public.ANY and _is_one_number(tensor)
        found.marks[key] = Public.FILL if single else mark
        if type(mark) is Span:
            found.data = True
            label, form = self.labels.view(tensor, mark)
            if is_alphas and tensor.is_contiguous() and is_whole(tensor):
                form = ("whole",)  # its width is the longest target's, which shows nowhere else
            found.labels.append(label)
            found.wires += (
                (self.labels.identity_of(tensor, key, birth),) if mark.constant else (birth, byte_form(tensor), form)
            )
            return
        found.wires.append(self.labels.identity_of(tensor, key, birth))
        sliced = self.labels.slices.get(tensor) if isinstance(mark, Public) else None
        if single and isinstance(sliced, RowLayout):
            sliced = sliced._replace(constant=Public.FILL)
        found.labels.append(cast("Label", mark) if sliced is None else sliced)
        found.data = found.data or type(found.labels[-1]) is not Public

    def _list_outside(self, tensor: Tensor, key: int) -> None:
        """List real numbers that the user's code reads from a tensor that is neither of the pass nor the model's.

        In a recorded pass only: in the others nobody has said which tensors are the model's.
        """
        known = key < 0 or key in self.labels.numbers or key in self.guarded
        numbers = tensor.is_floating_point() and not _is_one_number(tensor)
        if not self.guarded or known or not numbers:
            return
        # (Parameters of another model than the trained one: a teacher's, whose code may be a library's.)
        if where := own_line(around=isinstance(tensor, torch.nn.Parameter)):
            self.memory.assumed.add(TENSORS_READ.format(where))

    def _arguments_before(
        self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], given: "OperationInputs"
    ) -> _Given:
        """Copies of the arguments before an operation writes to them; refuses a write that is not allowed."""
        if not op.written or op.moves:
            return args, kwargs
        self._check_targets(op, args, kwargs, given.data)
        if not given.data:
            return args, kwargs
        return self._as_they_were(op, (args, kwargs), given.marks, given.known)


def _is_one_number(tensor: Tensor) -> bool:
    """Whether a tensor is one number expanded, as the parameters of a distribution sampled many times are."""
    if tensor.layout is not torch.strided or tensor.numel() < 2:
        return False
    return all(size == 1 or step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
