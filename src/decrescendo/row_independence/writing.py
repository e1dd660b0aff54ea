"""Labels memory written by operations, refuses forbidden writes, checks new shapes."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from decrescendo.base.storages import is_whole, key_of, storage_key, tensors_of
from decrescendo.base.torch_private import tree_map_only
from decrescendo.row_independence.basic_rules import drawn, pointwise
from decrescendo.row_independence.code_origin import line
from decrescendo.row_independence.dataflow import SOME, Labels, Mark
from decrescendo.row_independence.labelling import OVERWRITTEN, Labelling
from decrescendo.row_independence.labels import (
    LAID_ALONG,
    LONG,
    Label,
    Mixed,
    Public,
    RowLayout,
    constant_of,
    counted_of,
    is_data,
    is_fixed,
)
from decrescendo.row_independence.refusals import written_by_the_pass
from decrescendo.row_independence.row_layout import Owners, Span, is_uniform
from decrescendo.row_independence.torch_schemas import Operation

# An operation's positional and keyword arguments.
_Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
_OUTLIVES = "what was made from the examples is written to a tensor that is there before and after the pass"
_NO_STATE = "Leave out running statistics, code books and memories, or make them parameters that are trained"


class Writing(Labelling):
    """Labels the memory that operations write to."""

    def _check_shapes(self, made: Sequence[Tensor], shapes: Sequence[torch.Size]) -> None:
        """Label a constant with one row per example `Mixed` if it has the number of examples in another dimension,
        too."""
        for tensor, its in zip(made, shapes, strict=False):
            label = self.label(tensor)
            if not isinstance(label, RowLayout) or not label.constant:
                continue
            rest = list(zip(tensor.shape, its, strict=False))
            del rest[label.dim : label.dim + 1]
            if len(its) == tensor.dim() and all(mine == other for mine, other in rest):
                continue
            long, key = Mixed(LONG, public=True), storage_key(tensor)
            mark, birth = self.labels.marks.get(key, (None, 0))
            if isinstance(mark, Span):
                self.labels.marks[key] = long, birth
            else:  # a part of a constant made before the pass
                self.labels.slices.put(tensor, long)

    def _check_expanded(self, source: Tensor, made: Tensor) -> None:
        """Hide the length of a constant that torch broadcasts to selected rows: its shape shows how many
        there are."""
        new = made.dim() - source.dim()
        for dim, size in enumerate(made.shape):
            for place in self.labels.known if dim < new or source.shape[dim - new] == 1 else ():
                if cast("Owners", place.owners).counted and size == self.labels.units(place):
                    self.labels.slices.put(made, place._replace(dim=dim, constant=Public.ANY))

    def _as_they_were(
        self, op: Operation, given: _Given, inputs: Mapping[int, Mark], known: dict[int, Label]
    ) -> _Given:
        """The arguments, with copies of constants that are about to be written to: rules must not see data in
        them."""
        bound = op.bind(*given)
        keys = {key_of(target) for target in tensors_of(bound.get(name) for name in op.written)}
        numbers = (Public.ANY, Public.RANDOM)
        constants = {key for key in keys if (m := inputs[key]) in numbers or (isinstance(m, Span) and m.constant)}

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
        """Label the written memory; ``before``: the arguments before the write, if data are among them."""
        if op.moves:
            return  # only shape, strides or storage change; a storage has its own label
        bound = op.bind(args, kwargs)
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
        # A written tensor no longer counts as positions within examples.
        labels = [label.unlisted() if isinstance(label, Mixed) else label for label in labels]
        labels = self._compared(list(zip(outputs, labels, strict=True)))
        if not direct:
            for tensor, label in zip(made, labels, strict=True):
                self.assign(tensor, label)
            kept = labels[0]  # `rrelu` writes its noise elementwise, too
            if op.rule is not pointwise:
                kept = Public.ANY if before is None else Mixed("it keeps statistics of the batch", op.name)
            labels = [kept] * len(targets)
        for target, label in zip(targets, labels, strict=False):
            self._store(target, label, op)

    def _check_targets(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], data: bool) -> None:
        """Refuse a forbidden write before it happens, so that the old values stay."""
        bound = op.bind(args, kwargs)
        for target in tensors_of(bound.get(name) for name in op.written):
            key = key_of(target)
            if key in self.guarded:
                self.refuse(written_by_the_pass([self.guarded[key]], {self.guarded[key]}.difference(self.buffers)))
            if data and key >= 0 and not target.untyped_storage().resizable():
                self.refuse(
                    f"no pass may write the data into memory that NumPy shares, by {op.name}: Python could read them "
                    "where nothing is seen. Make that tensor by torch, or copy it first (clone)"
                )
            if data and key not in self.labels.marks:
                self.refuse(
                    f"no pass may write the data into what outlives it, but {_OUTLIVES}, by {op.name}. {_NO_STATE}"
                )

    def _store(self, target: Tensor, label: Label, op: Operation) -> None:
        key = key_of(target)
        old = self.labels.mark_of(key)[0]
        if key not in self.labels.marks and old is Public.ANY:
            if is_data(label):
                self.refuse(
                    f"no pass may write the data into what outlives it, but {_OUTLIVES}, by {op.name}. {_NO_STATE}"
                )
            if op.rule is not drawn and op.name not in ("zero_", "fill_"):
                # The number of passes depends on the batch: none if it is empty, several if it is split.
                self.memory.assumed.add(OVERWRITTEN.format(line()))
            return
        # An empty target reveals data by shape only.
        known = target.numel() or isinstance(label, Mixed)
        mark = _after(self.labels, target, label, old) if known else old
        self.labels.keep(target, key, mark, len(self.trace.events) - 1)


def _after(labels: Labels, target: Tensor, label: Label, old: Mark) -> Mark:
    """The label of a storage after a write to a view of it."""
    if is_whole(target):
        # The target's shape still shows how many rows the data selected.
        if isinstance(old, Mixed) and (old.counted or counted_of(old)) and not is_data(label):
            return SOME
        rows = isinstance(old, Span) and old.owners is not None and not old.constant
        if rows and not is_data(label):
            return old if constant_of(label) is Public.FILL else SOME
        return labels.mark(target, label)
    if isinstance(label, Mixed) or isinstance(old, Mixed):
        return (label if isinstance(label, Mixed) else cast("Mixed", old)).unlisted()
    if isinstance(label, RowLayout):
        made = labels.mark(target, label)
        rows = old if isinstance(old, Span) and not old.constant else None
        if not isinstance(made, Span) or (rows is not None and not _same(made, rows)):
            return Mixed("rows of the examples are written over others' rows")
        if made.constant:
            return _label_of_written(labels, target, label, old)
        if rows is not None:
            return made
        kind = old.constant if isinstance(old, Span) else old
        return made if kind in (Public.FILL, Public.RANDOM) else Mixed(LAID_ALONG)
    return _label_of_written(labels, target, label, old) if isinstance(old, Span) else Public.ANY


def _label_of_written(labels: Labels, target: Tensor, label: Public | RowLayout, old: Mark) -> Mark:
    """The label of a storage after public values were written to a part of it."""
    if not isinstance(old, Span):
        return labels.mark(target, cast("RowLayout", label)._replace(constant=Public.ANY))
    if old.constant:
        return old._replace(constant=Public.ANY)
    place = labels.view(target, old)[0]
    if not isinstance(place, RowLayout):
        return Mixed("rows of some examples are written, by their place in the batch")
    uniform = not is_fixed(label) or is_uniform(target, place, labels.units(place))
    return old if uniform else Mixed(LAID_ALONG)


def _same(one: Span, two: Span) -> bool:
    same = (one.step, one.units, one.owners) == (two.step, two.units, two.owners)
    return same and (one.base - two.base) % (one.step * one.units) == 0
