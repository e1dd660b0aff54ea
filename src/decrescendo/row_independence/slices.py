"""`Slices`: labels of views with one row per example of constants whose memory has no such rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from decrescendo.base.storages import key_of
from decrescendo.row_independence.labels import LONG, Label, Mixed, RowLayout


@dataclass(slots=True)
class Slices:
    """The views seen in one pass, by memory and layout."""

    known: dict[tuple[object, ...], Label] = field(default_factory=dict[tuple[object, ...], Label])

    def __bool__(self) -> bool:
        return bool(self.known)

    def get(self, tensor: Tensor) -> Label | None:
        """The label of a view, if it has its own."""
        return self.known.get(_place(tensor)) if self.known else None

    def put(self, tensor: Tensor, label: Label) -> None:
        """Give a view its own label."""
        self.known[_place(tensor)] = label

    def follow(self, name: str, source: Tensor, label: Label, made: Sequence[Tensor]) -> None:
        """Label the views ``made`` by the operation ``name`` from ``source``, a view with its own label."""
        if isinstance(label, Mixed) and label.public:
            for tensor in made:  # a part of what has the batch's length somewhere may follow it too
                self.known.setdefault(_place(tensor), label)
            return
        if not isinstance(label, RowLayout) or not label.constant:
            return
        size, step = source.shape[label.dim], source.stride(label.dim)
        for tensor in made:
            dims = [d for d in range(tensor.dim()) if (tensor.shape[d], tensor.stride(d)) == (size, step)]
            same = label.dim + tensor.dim() - source.dim()
            if name == "expand" and same in dims:
                dims = [same]  # others may be as long, and laid out so, by coincidence
            found = label.moved(dims[0]) if len(dims) == 1 else Mixed(LONG, public=True)
            self.known.setdefault(_place(tensor), found)


def _place(tensor: Tensor) -> tuple[object, ...]:
    return key_of(tensor), tensor.shape, tensor.stride(), tensor.storage_offset()
