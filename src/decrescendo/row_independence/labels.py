"""Dependency labels: which examples a tensor's entries may depend on, and how elementwise operations join labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from decrescendo.base.storages import storage_key
from decrescendo.row_independence.row_layout import (
    Owners,
    Public,
    RowLayout,
    Span,
    is_uniform,
    place_in,
    span_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """A label: depends on several examples, or on their positions or number; with the reason and the
    operation.

    ``numbers``: it is the numbers of the examples that lie at that place, which may select these and nothing else.
    """

    why: str
    name: str = ""
    numbers: RowLayout | None = None
    # For positions of nonzero entries: the key of their memory and, as first entry and step, the columns in it
    # that are positions within each example, not numbers of examples.
    within: tuple[int, frozenset[tuple[int, int]]] | None = None
    # For the column of row numbers among such positions (an example may have several rows): the row layout of these
    # rows, the key of the column's memory, and its first entry and step.
    rows: tuple[RowLayout, int, tuple[int, int]] | None = None
    # An index into flattened rows, own_index + example * rows_per_example: here rows_per_example, the key of the
    # index's memory, and where the examples lie in it.
    folded: tuple[int, int, Span] | None = None
    # Made from constants alone: it depends on the number of examples or on positions, but on no example.
    public: bool = False
    # Its shape depends on how many rows the data selected.
    counted: bool = False

    def unlisted(self) -> "Mixed":
        """The same label for memory that was copied or written to, without its list of positions or rows."""
        return replace(self, within=None, rows=None, folded=None)

    @property
    def chooses(self) -> bool:
        """Whether a tensor with this label may serve as an index: it has numbers or positions of examples."""
        return self.numbers is not None or self.folded is not None


# A `RowLayout`: each index along the dimension depends on its own example and on public values.
Label: TypeAlias = Public | Mixed | RowLayout


@dataclass(slots=True)
class Call:
    """One operation as the dispatcher sees it, given to its rule.

    Args:
        name: the operation, without namespace and overload.
        bind: gives all arguments by name, with defaults.
        tensors: the tensor arguments in order, ``None`` where an optional one is missing; lists flattened.
        outputs: the tensors that the operation returned.
        label: gives an argument's label.
        units: the number of units along the dimension of a row layout.
        owners: the row layout of rows along a dimension, given the example of each row.
        compare: whether two tensors have the same values.
    """

    name: str
    bind: Callable[[], Mapping[str, Any]]
    tensors: Sequence[Tensor | None]
    outputs: Sequence[Tensor | None]
    label: Callable[[Tensor], Label]
    units: Callable[[RowLayout], int]
    owners: Callable[..., RowLayout]
    compare: Callable[[Tensor, Tensor], bool] = torch.equal
    # Whether the rule read tensor values, which may differ in the next pass.
    looked: bool = False
    _args: Mapping[str, Any] | None = None

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments by name; most rules do not need them."""
        if self._args is None:
            self._args = self.bind()
        return self._args

    @property
    def dims(self) -> int:
        """Number of dimensions of the first output."""
        return next((output.dim() for output in self.outputs if output is not None), 0)

    def mixed(self, why: str, numbers: RowLayout | None = None) -> Mixed:
        """The label of an output that depends on several examples."""
        reached = [self.label(tensor) for tensor in self.tensors if tensor is not None]
        return Mixed(why, self.name, numbers, public=not any(map(is_data, reached)))

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Whether two tensors have the same values."""
        self.looked = True
        return self.compare(one, other)

    def uniform(self, tensor: Tensor, place: RowLayout) -> bool:
        """Whether a constant has the same values for every example, or has no rows."""
        if place.dim < 0 or tensor.shape[place.dim] == 1:
            return True
        self.looked = True
        units = self.units(place)
        return tensor.shape[place.dim] == place.inner * place.outer * units and is_uniform(
            tensor, place, units, self.compare
        )

    def examples(self, place: RowLayout, size: int, like: Tensor) -> Tensor:
        """The number of the example at each index along the dimension of a row layout."""
        units = self.units(place)
        unit = torch.arange(size, device=like.device) // place.inner % units
        return unit if place.owners is None else place.owners.example.to(like.device)[unit]

    def joined(self, tensors: Sequence[Tensor | None], dims: int) -> Label:
        """The label of a result with ``dims`` dimensions whose entries depend on the entries broadcast to
        their position."""
        found: list[tuple[Tensor, Label]] = [(t, self.label(t)) for t in tensors if t is not None]
        mixed = next((label for _, label in found if isinstance(label, Mixed)), None)
        if mixed is not None:
            return self.mixed(mixed.why) if mixed.public else self._shifted(mixed)
        places = [label.moved(label.dim + dims - t.dim()) for t, label in found if isinstance(label, RowLayout)]
        fixed = [(tensor, label) for tensor, label in found if is_fixed(label)]
        kinds = {constant_of(label) for _, label in found}
        if not places:
            return Public.ANY if fixed else Public.RANDOM if Public.RANDOM in kinds else Public.FILL
        rows = [place for place in places if not place.constant] or places
        place = next((place for place in rows if place.owners is None), rows[0])
        if not all(map(place.same, rows)):
            return self.mixed(APART)
        if any(other.dim != place.dim for other in places):
            return self.mixed(LONG)
        if place.constant and Public.RANDOM not in kinds:
            return place._replace(constant=Public.ANY if fixed else Public.FILL)
        uniform = all(self.uniform(t, place.moved(place.dim - dims + t.dim())) for t, _ in fixed)
        if place.constant:
            return place._replace(constant=Public.RANDOM if uniform else Public.ANY)
        return place if uniform else self._folded(place, [tensor for tensor, _ in fixed], dims)

    def _shifted(self, label: Mixed) -> Mixed:
        """The label of an index into flattened rows after one integer was added or subtracted."""
        found = self.outputs[0]
        if label.folded is None or self.name not in ("add", "sub") or found is None:
            return label
        (times, key, span), index, number = label.folded, self.args["self"], self.args["other"]
        given = type(number) is int and storage_key(index) == key and index.dtype == found.dtype == torch.int64
        own = place_in(index, span) if given else None
        moved = span_of(found, own, span.units) if own else None
        return replace(label, folded=(times, storage_key(found), moved) if moved else None)

    def _folded(self, place: RowLayout, fixed: Sequence[Tensor], dims: int) -> Mixed:
        """The label of each example's own data plus a constant that differs between examples. As
        `Mixed.folded` says, the constant must be a multiple of the example's number plus a part that is the
        same for all."""
        laid, found = self.mixed(LAID_ALONG), self.outputs[0]
        if self.name != "add" or found is None or len(fixed) != 1 or place != RowLayout(place.dim):
            return laid
        dim, units = place.dim - dims + fixed[0].dim(), self.units(place)
        if any(tensor.dtype != torch.int64 for tensor in (found, *fixed)) or self.args["alpha"] != 1:
            return laid
        rows = fixed[0].movedim(dim, 0).reshape(units, -1)
        times = int(rows[1, 0] - rows[0, 0])
        rest = rows - times * torch.arange(units, device=rows.device)[:, None]
        span = span_of(found, place, units)
        if span is None or not self.same(rest, rest[:1].expand_as(rest)):
            return laid
        return replace(laid, folded=(times, storage_key(found), span))


def is_data(label: Label) -> bool:
    """Whether a tensor with this label depends on any example."""
    return not label.public if isinstance(label, Mixed) else rows_of(label) is not None


def rows_of(label: Label) -> RowLayout | None:
    """The row layout in a label; ``None`` for mixed data and constants."""
    return label if isinstance(label, RowLayout) and not label.constant else None


def constant_of(label: Label) -> Public | None:
    """The kind of a constant, also of one with one row per example."""
    return label.constant if isinstance(label, RowLayout) else label if isinstance(label, Public) else None


def is_fixed(label: Label) -> bool:
    """Whether the values are known constants; if they differ along the examples, they identify an example by
    its position."""
    return constant_of(label) is Public.ANY


def counted_of(label: Label) -> Owners | None:
    """Which example each row selected by the data belongs to, if the label has it."""
    place = label.numbers if isinstance(label, Mixed) else label
    owners = place.owners if isinstance(place, RowLayout) else None
    return owners if owners is not None and owners.counted else None


LAID_ALONG = "a constant laid along the examples is not the same for each of them"
PARTS = "only some of the examples are used, or examples are processed in groups"
SUMMED = "several examples are put together"
APART = "examples that do not lie at the same places are put together"
LONG = "a constant depends on the number of examples"
NO_RULE = "the check of independence has no rule for "
