"""`Labels`: the dependency label of each piece of memory in one pass."""

import threading
import weakref
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from decrescendo.base.storages import (
    FUNCTIONS_OFF,
    byte_form,
    content_of,
    is_shared,
    is_whole,
    key_of,
    parts_of,
    paused,
    storage_key,
    tensors_of,
)
from decrescendo.row_independence.known_memory import Memory
from decrescendo.row_independence.labels import (
    LONG,
    PARTS,
    Label,
    Mixed,
    Public,
    RowLayout,
    counted_of,
    is_data,
)
from decrescendo.row_independence.row_layout import Owners, Span, span_of, view_of
from decrescendo.row_independence.slices import Slices
from decrescendo.row_independence.trace import EVENT, PACKED, Number, Trace

Mark: TypeAlias = Public | Mixed | Span
_Views: TypeAlias = dict[int, dict[tuple[object, ...], frozenset[int]]]
STALE = Mixed(
    "a tensor is used that holds the data beside the batch, or that an earlier pass made from its examples or was given"
)
_PARTS = Mixed(PARTS)
SOME = replace(_PARTS, counted=True)
_STORAGE = cast("Any", torch.UntypedStorage)
_ENDING = threading.Lock()


@dataclass(eq=False)
class Labels:
    """The labels of memory in one pass over ``count`` examples; ``trace`` records its operations."""

    count: int
    memory: Memory
    trace: Trace
    # By storage: its label, and the unique number of the last write to it.
    marks: dict[int, tuple[Mark, int]] = field(default_factory=dict[int, tuple[Mark, int]])
    # Views of constants by storage: the operations of this pass that returned them.
    views: _Views = field(default_factory=_Views)
    weights: Container[int] = ()
    slices: Slices = field(default_factory=Slices)
    known: list[RowLayout] = field(default_factory=list[RowLayout])
    held: list[Tensor] = field(default_factory=list[Tensor])
    # Constants that appeared in the pass but were made before it, or in it unseen by the dispatcher.
    numbers: set[int] = field(default_factory=set[int])
    # Whether data selected rows in this pass.
    counting: bool = False
    _next: int = 0

    def label(self, tensor: Tensor) -> Label:
        """The dependency label of a tensor."""
        key = key_of(tensor)
        entry = self.marks.get(key) if key > 0 else self.entry(tensor, key)
        if entry is None:
            stale = (key in self.memory.stale and tensor.numel()) or self.memory.withholds(tensor)
            return STALE if stale else (self.slices.get(tensor) if key > 0 else None) or Public.ANY
        mark = entry[0]
        if self.slices and key > 0 and isinstance(mark, Public):
            return self.slices.get(tensor) or mark
        return self.view(tensor, mark)[0] if isinstance(mark, Span) else mark

    def entry(self, tensor: Tensor, key: int) -> tuple[Mark, int] | None:
        """The label of a tensor without its own memory, whose parts may have been written to separately."""
        found = self.marks.get(key)
        if found is None or isinstance(found[0], Public):
            with paused(), FUNCTIONS_OFF():
                keys = [storage_key(part) for part in parts_of(tensor) if isinstance(part, Tensor)]
            for part in keys:
                mark, birth = self.mark_of(part)
                if mark is STALE or not isinstance(mark, Public):
                    return Mixed("a part of a sparse tensor holds the data"), birth
        return found

    def view(self, tensor: Tensor, span: Span) -> tuple[Label, tuple[object, ...]]:
        """The label of a view of labelled memory, and its layout there."""
        packed, parts = PACKED, SOME if span.owners is not None and span.owners.counted else _PARTS
        if not tensor.numel():
            none = [dim for dim, size in enumerate(tensor.shape) if not size]
            known = span.owners is not None and not span.units and len(none) == 1
            empty = Mixed(LONG, public=True) if span.constant else Public.FILL
            # The shape of selected rows without features still shows how many rows there are.
            empty = parts if span.units and parts is SOME else empty
            place = RowLayout(none[0], 1, 1, *span[3:]) if known else empty
            return place, packed if span.owners else ()
        if span.units == 1:  # one row of packed data: the whole memory belongs to its example
            single = [dim for dim, size in enumerate(tensor.shape) if size == 1]
            place = RowLayout(single[0], 1, 1, span.owners, span.constant) if single else parts
            return place, packed
        width = tensor.element_size()
        place, form = view_of(tensor.shape, tensor.stride(), tensor.storage_offset() * width, width, span[:3])
        if place is None:
            return parts, form
        if span.owners is not None or span.constant:
            place = RowLayout(*place[:3], *span[3:])
        return place, form

    def units(self, place: RowLayout) -> int:
        """The number of units along the dimension of a row layout."""
        return self.count if place.owners is None else len(place.owners.example)

    def owners(self, dim: int, example: Tensor, *, counted: bool = False) -> RowLayout:
        """The row layout of rows that belong to the examples ``example``; an equal known one is reused.

        ``counted``: how many there are depends on the data.
        """
        self.counting = self.counting or counted
        with paused():
            each = len(example) == self.count and torch.equal(example, torch.arange(self.count, device=example.device))
            if each and not counted:
                return RowLayout(dim)
            for place in self.known:
                known = cast("Owners", place.owners)
                if known.counted == counted and torch.equal(known.example, example.to(known.example.device)):
                    return place.moved(dim)
            self.known.append(RowLayout(dim, 1, 1, Owners(example.detach().clone(), counted, each)))
            self.trace.rows.append(len(example))
        return self.known[-1]

    def mark_of(self, key: int) -> tuple[Mark, int]:
        """The label of a piece of memory, and the number of the last write to it, or its key."""
        return self.marks.get(key) or (STALE if key in self.memory.stale else Public.ANY, key)

    def owners_of(self, tensor: Tensor) -> Owners | None:
        """Which example each row of its memory belongs to, if the data selected the rows."""
        return _counted(self.mark_of(key_of(tensor))[0])

    def select(self, made: Iterable[Tensor], chosen: bool) -> None:
        """Mark outputs whose shape shows how many rows the data selected, unless their layout is known."""
        for tensor in made:
            key = storage_key(tensor)
            mark, birth = self.marks.get(key, (None, 0))
            shows = chosen or tensor.layout is not torch.strided
            if shows and isinstance(mark, Mixed) and mark.numbers is None:
                self.counting = True
                self.marks[key] = (replace(mark, counted=True), birth)

    def count_on(self, given: Iterable[Mark], made: Iterable[Tensor]) -> None:
        """Note that a tensor made from selected rows may show their number in its shape."""
        marks = list(given)
        counted = [mark for mark in marks if isinstance(mark, Span) and _counted(mark)]
        if not counted and not any(isinstance(m, Mixed) and (m.counted or counted_of(m)) for m in marks):
            return
        for tensor in made:
            key = storage_key(tensor)
            mark, birth = self.marks.get(key, (None, 0))
            if isinstance(mark, Mixed):
                self.marks[key] = (replace(mark, counted=True), birth)
            elif isinstance(mark, Public) and counted and is_whole(tensor) and not tensor.numel():
                none = not counted[0].units
                self.marks[key] = (Span(1, 0, 0, counted[0].owners) if none else SOME, birth)

    def assign(self, tensor: Tensor, label: Label) -> None:
        """Label a tensor that has its own memory."""
        with FUNCTIONS_OFF():
            self.keep(tensor, storage_key(tensor), self.mark(tensor, label), len(self.trace.events))

    def mark(self, tensor: Tensor, label: Label) -> Mark:
        """The memory label for a tensor with this label."""
        if not isinstance(label, RowLayout):
            return label
        if not tensor.numel():
            if label.owners is not None and label.owners.counted and tensor.shape[label.dim]:
                return SOME
            return Public.FILL if label.owners is None else Span(1, 0, 0, *label[3:])
        if not self.units(label):
            return SOME
        if tensor.layout is not torch.strided or label.dim >= tensor.dim():
            why = "it has no strides" if label.dim < tensor.dim() else "its rule is of other dimensions"
            return Mixed(why)
        why = "its examples lie in memory in no order that is known"
        return span_of(tensor, label, self.units(label)) or Mixed(why)

    def keep(self, tensor: Tensor, key: int, mark: Mark, at: int) -> None:
        """Note the label of a storage, which is kept alive so that its key is not used again."""
        if key not in self.marks:
            if key < 0:
                self.held.append(tensor)
            else:
                cast("Any", tensor.untyped_storage())._weak_ref()
            self.views.pop(key, None)  # of another storage that was there before
        birth = max(self._next, at * EVENT)
        self.marks[key] = (mark, birth)
        self._next = birth + 1
        if key < 0 and not isinstance(mark, Public):
            with paused(), FUNCTIONS_OFF():
                for part in parts_of(tensor):
                    if isinstance(part, Tensor) and storage_key(part) not in self.marks:
                        self.keep(part, storage_key(part), Mixed("it is a part of a sparse tensor"), at)

    def keep_all(self, output: Any, labels: Sequence[Label | None], inputs: Container[int], at: int) -> None:
        """Label the outputs of an operation, except views, which have the label of their memory."""
        made = (output,) if isinstance(output, Tensor) else tensors_of((output,))
        for tensor, label in zip(made, labels, strict=True):
            key = storage_key(tensor)
            if key in inputs:
                continue
            if label is None:
                label = Mixed("an operation gives a view in one pass and a copy in another")
            self.keep(tensor, key, self.mark(tensor, label), at)

    def identity_of(self, tensor: Tensor, key: int, birth: int) -> object:
        """The identity of a constant: the operation of this pass that made it, or its storage from before."""
        place = _laid(tensor)
        if place is None:
            return birth
        known = self.views.get(key)
        foreign = birth == key > 0 and key not in self.weights
        if foreign:
            self.numbers.add(key)
        # No operation shows constants made by NumPy or torch.jit, or writes by NumPy.
        shared = key not in self.weights and is_shared(tensor)
        if shared and birth != key:
            return (content_of(tensor), *place)
        if shared or (known is None and foreign and not tensor.dim() and tensor.device.type == "cpu"):
            self.trace.alive.append(tensor.detach())
            return Number(key, content_of(tensor), place)
        return (birth, *place) if known is None or place not in known else known[place]

    def note(self, output: Any, at: int) -> bool:
        """Number an output that depends on no single example, so that a data-dependent choice shows."""
        noted = False
        for tensor in (output,) if isinstance(output, Tensor) else tensors_of((output,)):
            key = storage_key(tensor)
            mark = self.marks.get(key, (None, 0))[0]
            if type(mark) is Span and not mark.constant:
                continue
            noted, number = True, max(self._next, at * EVENT)
            self._next = number + 1
            place = _laid(tensor)
            if place is None:
                continue
            known = self.views.setdefault(key, {})
            known[place] = known[place] | {number} if place in known else frozenset((number,))
        return noted

    def end(self) -> None:
        """Drop labels of freed memory; storages of data that are still alive are remembered as stale."""
        with _ENDING:
            self._end(self.memory.stale)

    def _end(self, stale: set[int]) -> None:
        for key in [key for key in stale if key > 0 and _STORAGE._expired(key)]:
            stale.discard(key)
            _STORAGE._free_weak_ref(key)
        for key, (mark, _) in self.marks.items():
            if key < 0:
                continue
            data = not mark.public if isinstance(mark, Mixed) else isinstance(mark, Span) and not mark.constant
            if data and key not in stale and not _STORAGE._expired(key):
                stale.add(key)
                continue
            if not data and key in stale:
                stale.discard(key)
                _STORAGE._free_weak_ref(key)
            _STORAGE._free_weak_ref(key)
        for tensor in self.held:  # without storage: identified by the object while it lives
            if is_data(self.label(tensor)):
                stale.add(-id(tensor))
                weakref.finalize(tensor, stale.discard, -id(tensor)).atexit = False
        self.marks = {}
        self.held.clear()


def _laid(tensor: Tensor) -> tuple[object, ...] | None:
    """The layout of a tensor in its memory; ``None`` if it has none."""
    try:
        return tensor.shape, tensor.stride(), tensor.storage_offset(), byte_form(tensor)
    except (NotImplementedError, RuntimeError):
        return None


def _counted(mark: Mark) -> Owners | None:
    """Which example each row belongs to, if the data selected the rows."""
    owners = mark.owners if isinstance(mark, Span) else None
    return owners if owners is not None and owners.counted else None
