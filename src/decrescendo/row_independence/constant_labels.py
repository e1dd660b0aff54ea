"""Labels constants and random numbers that an operation made: public, or with one row per example."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from decrescendo.base.storages import content_of, is_whole, key_of
from decrescendo.row_independence.basic_rules import drawn, fill, pointwise
from decrescendo.row_independence.labels import LONG, NO_RULE, Label, Mixed, Public, RowLayout, constant_of
from decrescendo.row_independence.operation_inputs import OperationInputs, shapes_of
from decrescendo.row_independence.torch_schemas import Operation
from decrescendo.row_independence.trace import Event
from decrescendo.row_independence.trace_state import TraceState

_OWN = frozenset({"aten", "prims", "prim", "mkldnn", "mkl", "quantized"})


class ConstantLabels(TraceState):
    """The part of the tracer that labels constants and random numbers."""

    def _label_constants(
        self,
        op: Operation,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        made: list[Tensor],
        given: "OperationInputs",
        at: int,
    ) -> list[Label | None]:
        """The labels of outputs that depend on no example."""
        inputs, tensors = given.marks, given.tensors
        if op.name == "_shape_as_tensor":
            self.trace.events[at] = Event(op.name, (content_of(made[0]),), ())
        self.trace.shapes[at] = shapes_of(made)
        public = self._constant(op, kwargs, inputs.values())
        chosen = op.name == "multinomial" and public is Public.ANY and self._own_stream(op, kwargs)
        if chosen and tensors[0].dim() == 1 and op.bind(args, kwargs).get("replacement", False):
            public = Public.RANDOM  # each number is drawn independently of the others
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
                    self.labels.slices.put(tensor, long)
                found.append(None)
                continue
            found.append(label if long is None else long)
            self.labels.keep(tensor, key, self.labels.mark(tensor, label if long is None else long), at)
        return found

    def _constant(self, op: Operation, kwargs: Mapping[str, Any], kinds: Iterable[object]) -> Public:
        if op.rule is fill:
            return Public.FILL
        if kwargs.get("generator") is not None:
            return Public.ANY  # its seed may be public: then the number at each position is known
        if op.rule is drawn:
            return Public.RANDOM
        if op.rule is pointwise:
            kinds = set(kinds)
            if Public.ANY not in kinds:
                return Public.RANDOM if op.seeded or Public.RANDOM in kinds else Public.FILL
        return Public.ANY

    def _random(self, at: int, tensor: Tensor) -> Label:
        """The label of random numbers: with one row per example, each example has its own."""
        for axis in range(min(2, tensor.dim())):
            if tensor.shape[axis] == self.count and self.guess(-1 - at, 0, RowLayout(axis)):
                return RowLayout(axis)
        times, rest = divmod(tensor.numel(), self.count)
        # A vector of integers may have several in a row for each example (negative samples).
        if times > 1 and not rest and tensor.dim() == 1 and not tensor.is_floating_point():
            several = RowLayout(0, times)
            if self.guess(-1 - at, 0, several):
                return several
        return Public.RANDOM

    def _own_stream(self, op: Operation, kwargs: Mapping[str, Any]) -> bool:
        return op.seeded and op.namespace in _OWN and kwargs.get("generator") is None

    def _alike(
        self, op: Operation, tensors: Sequence[Tensor], known: Mapping[int, Label], made: Tensor, at: int
    ) -> Label | None:
        """The label of random numbers whose distribution is the same for every example: each example's
        own."""
        drawn_whole = op.name in ("_sample_dirichlet", "multinomial")  # the last dimension is one draw
        if not drawn_whole and op.rule is not pointwise:
            return None
        for axis in range(min(2, made.dim() - drawn_whole)):
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
        """The label of a constant whose shape changes with the batch size."""
        shapes = () if self.expected is None else self.expected.shapes.get(at, ())
        if self.expected is None or number >= len(shapes) or shapes[number] == tensor.shape:
            return None
        its = shapes[number]
        moved = [dim for dim in range(tensor.dim()) if len(its) == tensor.dim() and its[dim] != tensor.shape[dim]]
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
            # As long as some packed data; among several, those with the fewest entries per row.
            return min(packed, key=lambda place: place.inner, default=Mixed(LONG, public=True))
        return RowLayout(moved[0], tensor.shape[moved[0]] // self.count, 1, None, label)
