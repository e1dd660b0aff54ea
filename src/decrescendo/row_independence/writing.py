"""Labels of what an operation wrote to, and the shapes that it made."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from decrescendo.base.storages import key_of, storage_key, tensors_of
from decrescendo.base.torch_private import tree_map_only
from decrescendo.row_independence.basic_rules import drawn, pointwise
from decrescendo.row_independence.code_origin import line
from decrescendo.row_independence.dataflow import Mark
from decrescendo.row_independence.labelling import OVERWRITTEN, Labelling
from decrescendo.row_independence.labels import LONG, Label, Mixed, Public, RowLayout, is_data
from decrescendo.row_independence.refusals import written_by_the_pass
from decrescendo.row_independence.row_layout import Owners, Span
from decrescendo.row_independence.torch_schemas import Operation

# Arguments, by place and by name.
_Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
_KEPT = "what was made from the examples is written to a tensor that is there before and after the pass"
_NO_STATE = "Leave out running statistics, code books and memories, or make them parameters that are trained"


class Writing(Labelling):
    """Gives labels to what operations write to."""

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
                self.memory.assumed.add(OVERWRITTEN.format(line()))
            return
        # An empty one shows by its shape that others are not.
        known = target.numel() or isinstance(label, Mixed)
        mark = self.labels.after(target, label, old) if known else old
        self.labels.keep(target, key, mark, len(self.trace.events) - 1)
