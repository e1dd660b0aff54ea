"""How many rows the data select: sizes that torch may be given, and of which Python learns nothing.

``x[mask]`` has as many rows as the mask selects of all examples. Its shape shows a `DynamicSize` in that place:
it can be passed on as a size, multiplied, printed as ``?``, and is answered by constants where it is compared.
"""

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from decrescendo.base.storages import is_whole, storage_key, tensors_of
from decrescendo.row_independence.compared_sizes import Compared
from decrescendo.row_independence.data_reads import DataReads
from decrescendo.row_independence.dataflow import Labels
from decrescendo.row_independence.labels import Label, Mixed, Public, RowLayout, counted_of, is_data
from decrescendo.row_independence.row_layout import Owners

SHAPE: Any = cast("Any", Tensor.shape).__get__
_NUMEL = frozenset({Tensor.numel, Tensor.nelement, torch.numel})
# As many things as there are rows: by the dimension that they take apart, and where it is among the arguments.
_APART: dict[Any, int] = {
    Tensor.unbind: 1, torch.unbind: 1, Tensor.split: 2, torch.split: 2, Tensor.chunk: 2, torch.chunk: 2,
    Tensor.tensor_split: 2, torch.tensor_split: 2, Tensor.split_with_sizes: 2, torch.split_with_sizes: 2,
}  # fmt: skip
_LAYOUT = frozenset({Tensor.stride, Tensor.storage_offset, Tensor.is_contiguous})
SIZES: frozenset[Any] = frozenset({SHAPE, Tensor.size, Tensor.__len__, *_NUMEL, *_LAYOUT})
# Where all numbers are sizes: of one number everywhere or of random ones; or of a view.
_MADE = frozenset({
    "zeros", "ones", "empty", "full", "rand", "randn", "new_zeros", "new_ones", "new_empty", "new_full", "arange",
})  # fmt: skip
_MOVED = frozenset({"view", "reshape", "expand", "broadcast_to"})
# The value that C code sees for a hidden size: unusual on purpose, so that code which uses it fails the comparison.
_NONE = 1013


# Functions that tell a size, by their names in ``torch.ops`` too.
_TOLD = frozenset({"is_same_size", "size", "numel", "stride", "storage_offset", "_nnz", "sparse_dim"})


class Quotient(Compared):
    """What is left of such a number divided by one that its rows are not a multiple of: no size."""

    def __init__(self, counts: "DynamicSizes", value: int) -> None:
        self.counts, self.value = counts, value


class DynamicSize(Compared, int):
    """``times`` the number of rows that data selected; an int to C code, which reads the same number whatever it is."""

    owners: Owners
    times: int

    def __new__(cls, counts: "DynamicSizes", owners: Owners, times: int, value: int) -> "DynamicSize":
        made = super().__new__(cls, _NONE)
        made.counts, made.owners, made.times, made.value = counts, owners, times, value
        return made

    def __mul__(self, other: Any) -> Any:
        if type(other) is not int:
            self._refuse()
        return DynamicSize(self.counts, self.owners, self.times * other, self.value * other)

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is not int or other <= 0:
            self._refuse()
        if self.times % other:
            return Quotient(self.counts, self.value // other)
        return DynamicSize(self.counts, self.owners, self.times // other, self.value // other)

    def __mod__(self, other: Any) -> Any:
        if type(other) is not int or not other or self.times % other:
            self._refuse()
        return 0

    def _number(self, *_: object) -> float:
        return self.counts.reads.number()

    def __hash__(self) -> int:
        return hash((id(self.counts), self.times))

    __rmul__, __float__ = cast("Any", __mul__), cast("Any", _number)
    __truediv__ = __rtruediv__ = cast("Any", _number)
    __index__ = __int__ = __add__ = __radd__ = __sub__ = __rsub__ = __rfloordiv__ = cast(
        "Any", Compared._refuse
    )
    __rmod__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = cast(
        "Any", Compared._refuse
    )


class Shape(tuple[Any, ...]):
    """A shape in which a size is a `DynamicSize`."""

    __slots__ = ()

    def numel(self) -> Any:
        """How many numbers there are."""
        return math.prod(self)


class DynamicSizes:
    """What Python sees of sizes that depend on the data, in one pass."""

    def __init__(self, labels: Labels, looks: DataReads) -> None:
        self.labels, self.reads = labels, looks
        # Whether Python has such a size.
        self.handed = False
        # Whether the function that runs was given rows that the data selected.
        self.within = False
        # Python of torch's own runs with the mode on: it sees the sizes as they are, and returns tensors alone.
        self.trusting = False

    def size(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What Python gets for a size that it asks for."""
        tensor = cast("Tensor", args[0] if args else kwargs.get("self", kwargs.get("input")))
        place = self._counted(tensor)
        if place is None or self.trusting or self.reads.vouched():
            return func(*args, **kwargs)
        if isinstance(place, Mixed):
            self._refuse()
        owners, dim = cast("Owners", place.owners), place.dim
        self.handed = True
        rows = DynamicSize(self, owners, place.inner * place.outer, tensor.shape[dim])
        if func == SHAPE or (func is Tensor.size and len(args) < 2 and kwargs.get("dim") is None):
            return Shape(rows if at == dim else size for at, size in enumerate(tensor.shape))
        if func is Tensor.size:
            wanted = args[1] if len(args) > 1 else kwargs["dim"]
            return rows if wanted % tensor.dim() == dim else tensor.shape[wanted]
        if func in _NUMEL:
            return rows * math.prod(size for at, size in enumerate(tensor.shape) if at != dim)
        if func is Tensor.is_contiguous:
            return self.reads.answer(tensor.is_contiguous(), likely=False)
        if dim == 0 if func is Tensor.__len__ else dim:
            self._refuse()
        return func(*args, **kwargs)

    @contextmanager
    def trusted(self) -> Generator[None]:
        """Inside, Python of torch's own runs."""
        before, self.trusting = self.trusting, True
        try:
            yield
        finally:
            self.trusting = before

    def enter(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note whether a function is given rows that the data selected; refuse to take these apart, one by one."""
        self.within = any(self._counted(t) is not None for t in tensors_of((*args, *kwargs.values())))
        name = str(getattr(func, "__name__", "")).split(".")[0].removeprefix("sym_")
        if self.within and name in _TOLD and not self.trusting and not self.reads.vouched():
            self._refuse()
        at = _APART.get(func)
        tensor = args[0] if args else None
        place = self._counted(tensor) if at is not None and isinstance(tensor, Tensor) else None
        if at is None or place is None or self.trusting or self.reads.vouched():
            return
        dim = args[at] if len(args) > at else kwargs.get("dim", 0)
        if isinstance(place, Mixed) or place.dim == dim % cast("Tensor", tensor).dim():
            self._refuse()

    def _counted(self, tensor: Tensor) -> RowLayout | Mixed | None:
        """Where a tensor has rows that the data selected; why that is not known; or ``None`` where it has none."""
        if cast("Any", torch)._C._functorch.is_functorch_wrapped_tensor(tensor):
            return Mixed("it is one of a transform of torch.func")
        label = self.labels.label(tensor)
        owners = counted_of(label)
        if owners is None and label is Public.FILL and self.labels.owners_of(tensor) is not None:
            return Mixed("it has no numbers")
        if isinstance(label, Mixed):
            if owners is not None and label.numbers is not None:
                return label.numbers if _is_list(tensor, label, len(owners.example)) else label
            return label if label.counted else None
        return label if owners is not None and isinstance(label, RowLayout) else None

    def _refuse(self) -> NoReturn:
        self.reads.selected()

    def given(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        """Run a function that is given such sizes: of its result the same dimension must be that of these rows."""
        found = _counts_in((*args, *kwargs.values()))
        name = str(getattr(func, "__name__", ""))
        if len(found) != 1 or name not in _MADE | _MOVED or kwargs.get("generator") is not None:
            self._refuse()
        (count,) = found
        lists = [v for v in (*args, *kwargs.values()) if isinstance(v, (tuple, list))]
        listed = bool(_counts_in(lists))
        if not listed and (name in ("full", "new_full") or _counts_in(kwargs.values())):
            self._refuse()
        numbers = next(
            (list(v) for v in lists if _counts_in(v)), [a for a in args if not isinstance(a, Tensor)]
        )
        dim = next((at for at, size in enumerate(numbers) if size is count), -1)
        if name == "arange":
            if dim != len(numbers) - 1 or numbers[:dim] not in ([], [0]):
                self._refuse()
            dim = 0
        plain = {key: _plain((value,))[0] for key, value in kwargs.items()}
        output = run(func, _plain(args), plain) if run is not func else func(*_plain(args), **plain)
        return self._labelled(name, cast("Tensor", output), dim, count)

    def _labelled(self, name: str, output: Tensor, dim: int, count: DynamicSize) -> Tensor:
        place = RowLayout(dim, count.times, 1, count.owners)
        label: Label = self.labels.label(output)
        if name in _MADE:
            self.labels.assign(output, place._replace(constant=Public.ANY if name == "arange" else None))
            return output
        one = output.shape[dim] < 2 or output.stride(dim) == 0
        if not is_data(label) and not output.requires_grad and one:
            output = output.clone(memory_format=torch.contiguous_format)  # one row for each of these
            self.labels.assign(output, place)
            return output
        if isinstance(label, Mixed) and label.numbers is not None and label.numbers.owners is count.owners:
            return output  # their examples' numbers, for each feature: its shape is hidden as before
        same = isinstance(label, RowLayout) and label.dim == dim and label.owners is count.owners
        if output.numel() and not (
            same and cast("RowLayout", label).inner * cast("RowLayout", label).outer == count.times
        ):
            self._refuse()
        return output


def _is_list(tensor: Tensor, label: Mixed, rows: int) -> bool:
    """Whether a tensor has one number for each of so many rows, or is what `nonzero` gave: the places of each.

    In another shape (a list laid on its side, each number beside each) any size may be that of the rows.
    """
    if tensor.dim() == 0 or tensor.shape[0] != rows:
        return False
    if tensor.dim() != 2 or label.rows is None:
        return all(size == 1 for size in tensor.shape[1:])
    _, key, (_, step) = label.rows
    return tensor.shape[1] == 1 or (
        is_whole(tensor) and (storage_key(tensor), tensor.stride(0)) == (key, step)
    )


def not_seen(error: str) -> str:
    """Why a pass is refused whose program raises an error where it has such a size."""
    return (
        f"the data must not steer the pass, but {error} was raised where the number of rows that they select is a "
        "size. Use it as a size of zeros, views and the like only, or compute all rows and choose by torch.where"
    )


def is_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether such a size is among the arguments."""
    return bool(_counts_in((*args, *kwargs.values())))


def _counts_in(values: Iterable[Any]) -> list[DynamicSize]:
    found: list[DynamicSize] = []
    for value in values:
        if type(value) is DynamicSize:
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _counts_in(cast("list[Any]", value))
        elif isinstance(value, slice):
            found += _counts_in((value.start, value.stop, value.step))
    return found


def _plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        inside = isinstance(value, (list, tuple)) and _counts_in(cast("list[Any]", value))
        found.append(_plain(tuple(value)) if inside else value.value if type(value) is DynamicSize else value)
    return tuple(found)
