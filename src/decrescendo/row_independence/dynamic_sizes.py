"""Sizes that depend on the data (``len(x[mask])``): torch may use them, Python code never learns the number.

``x[mask]`` has as many rows as the mask selects of all examples. In its shape Python finds a `DynamicSize` instead of
that number: it can be passed on as a size, be multiplied, and prints as ``?``; comparing it gives a fixed answer.

"""

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from decrescendo.base.storages import is_whole, storage_key, tensors_of
from decrescendo.base.torch_private import is_wrapped_by_transform
from decrescendo.row_independence.data_reads import DataReads
from decrescendo.row_independence.dataflow import Labels
from decrescendo.row_independence.dynamic_size import DynamicSize
from decrescendo.row_independence.labels import Label, Mixed, Public, RowLayout, counted_of, is_data
from decrescendo.row_independence.row_layout import Owners

SHAPE: Any = cast("Any", Tensor.shape).__get__
_NBYTES: Any = cast("Any", Tensor.nbytes).__get__
_NUMEL = frozenset({Tensor.numel, Tensor.nelement, torch.numel, _NBYTES})
# Functions that return a list with an entry for each row or block; the value: at which position they take ``dim``.
_SPLITTING: dict[Any, int] = {
    Tensor.unbind: 1, torch.unbind: 1, Tensor.split: 2, torch.split: 2, Tensor.chunk: 2, torch.chunk: 2,
    Tensor.tensor_split: 2, torch.tensor_split: 2, Tensor.split_with_sizes: 2, torch.split_with_sizes: 2,
}  # fmt: skip
_MEMORY_LAYOUT = frozenset({Tensor.stride, Tensor.storage_offset, Tensor.is_contiguous})
SIZES: frozenset[Any] = frozenset({SHAPE, Tensor.size, Tensor.__len__, *_NUMEL, *_MEMORY_LAYOUT})
# Functions that may be given a `DynamicSize`, since all their integers are sizes: they create or reshape a tensor.
_CREATING = frozenset({
    "zeros", "ones", "empty", "full", "rand", "randn", "new_zeros", "new_ones", "new_empty", "new_full", "arange",
})  # fmt: skip
_RESHAPING = frozenset({"view", "reshape", "expand", "broadcast_to"})
# Functions that return a size, by name, since they are called through ``torch.ops`` too.
_SIZE_QUERIES = frozenset({"is_same_size", "size", "numel", "stride", "storage_offset", "_nnz", "sparse_dim"})


class Shape(tuple[Any, ...]):
    """``tensor.shape`` if one of the sizes is a `DynamicSize`."""

    __slots__ = ()

    def numel(self) -> Any:
        """The number of entries, which is a `DynamicSize` too."""
        return math.prod(self)


class DynamicSizes:
    """Answers Python's queries of sizes in one pass, with a `DynamicSize` for sizes that depend on the data.

    The tracer makes one per pass; torch function modes query it.
    """

    def __init__(self, labels: Labels, reads: DataReads) -> None:
        self.labels, self.reads = labels, reads
        # Whether Python code was given a `DynamicSize` in this pass.
        self.python_has_one = False
        # Whether the torch function now running has an argument whose rows the data selected.
        self.given_selected_rows = False
        # Whether torch's own Python code runs: it sees true sizes, since it returns nothing but tensors to the user's.
        self.in_torch_code = False

    def size(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer to one of `SIZES`, called by Python: a `DynamicSize` for a size that depends on the data."""
        tensor = cast("Tensor", args[0] if args else kwargs.get("self", kwargs.get("input")))
        place = self._selected_rows(tensor)
        if place is None or self.in_torch_code or self.reads.vouched():
            return func(*args, **kwargs)
        if isinstance(place, Mixed):
            self._refuse()
        owners, dim = cast("Owners", place.owners), place.dim
        self.python_has_one = True
        rows = DynamicSize(self.reads, owners, place.inner * place.outer, tensor.shape[dim])
        if func == SHAPE or (func is Tensor.size and len(args) < 2 and kwargs.get("dim") is None):
            return Shape(rows if at == dim else size for at, size in enumerate(tensor.shape))
        if func is Tensor.size:
            wanted = args[1] if len(args) > 1 else kwargs["dim"]
            return rows if wanted % tensor.dim() == dim else tensor.shape[wanted]
        if func in _NUMEL:
            each = tensor.element_size() if func == _NBYTES else 1
            return rows * math.prod((each, *(size for at, size in enumerate(tensor.shape) if at != dim)))
        if func is Tensor.is_contiguous:
            return self.reads.answer(tensor.is_contiguous(), likely=False)
        if dim == 0 if func is Tensor.__len__ else dim:
            self._refuse()
        return func(*args, **kwargs)

    @contextmanager
    def torch_code(self) -> Generator[None]:
        """Within this context torch's own Python code runs and sees the true sizes."""
        before, self.in_torch_code = self.in_torch_code, True
        try:
            yield
        finally:
            self.in_torch_code = before

    def enter(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call before a torch function: notes whether the data selected an argument's rows, and refuses to
        split them by row."""
        self.given_selected_rows = any(
            self._selected_rows(t) is not None for t in tensors_of((*args, *kwargs.values()))
        )
        name = str(getattr(func, "__name__", "")).split(".")[0].removeprefix("sym_")
        if self.given_selected_rows and name in _SIZE_QUERIES and not self.in_torch_code and not self.reads.vouched():
            self._refuse()
        at = _SPLITTING.get(func)
        tensor = args[0] if args else None
        place = self._selected_rows(tensor) if at is not None and isinstance(tensor, Tensor) else None
        if at is None or place is None or self.in_torch_code or self.reads.vouched():
            return
        dim = args[at] if len(args) > at else kwargs.get("dim", 0)
        if isinstance(place, Mixed) or place.dim == dim % cast("Tensor", tensor).dim():
            self._refuse()

    def _selected_rows(self, tensor: Tensor) -> RowLayout | Mixed | None:
        """The layout of a tensor's rows if the data selected them; `Mixed` if that is unknown; else ``None``."""
        if is_wrapped_by_transform(tensor):
            return Mixed("it is one of a transform of torch.func")
        label = self.labels.label(tensor)
        owners = counted_of(label)
        if owners is None and label is Public.FILL and self.labels.owners_of(tensor) is not None:
            return Mixed("it has no numbers")
        if isinstance(label, Mixed):
            if owners is not None and label.numbers is not None:
                return label.numbers if _is_one_number_per_row(tensor, label, len(owners.example)) else label
            return label if label.counted else None
        return label if owners is not None and isinstance(label, RowLayout) else None

    def _refuse(self) -> NoReturn:
        self.reads.selected()

    def run_with_sizes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        """Run a function with a `DynamicSize` argument as its true value; label that dimension as rows."""
        found = _sizes_in((*args, *kwargs.values()))
        name = str(getattr(func, "__name__", ""))
        if len(found) != 1 or name not in _CREATING | _RESHAPING or kwargs.get("generator") is not None:
            self._refuse()
        (count,) = found
        if count.times is None:
            self._refuse()
        lists = [v for v in (*args, *kwargs.values()) if isinstance(v, (tuple, list))]
        listed = bool(_sizes_in(lists))
        if not listed and (name in ("full", "new_full") or _sizes_in(kwargs.values())):
            self._refuse()
        numbers = next((list(v) for v in lists if _sizes_in(v)), [a for a in args if not isinstance(a, Tensor)])
        dim = next((at for at, size in enumerate(numbers) if size is count), -1)
        if name == "arange":
            if dim != len(numbers) - 1 or numbers[:dim] not in ([], [0]):
                self._refuse()
            dim = 0
        plain = {key: _without_sizes((value,))[0] for key, value in kwargs.items()}
        output = run(func, _without_sizes(args), plain) if run is not func else func(*_without_sizes(args), **plain)
        return self._labelled(name, cast("Tensor", output), dim, count)

    def _labelled(self, name: str, output: Tensor, dim: int, count: DynamicSize) -> Tensor:
        place = RowLayout(dim, cast("int", count.times), 1, count.owners)
        label: Label = self.labels.label(output)
        if name in _CREATING:
            self.labels.assign(output, place._replace(constant=Public.ANY if name == "arange" else None))
            return output
        one = output.shape[dim] < 2 or output.stride(dim) == 0
        if not is_data(label) and not output.requires_grad and one:
            output = output.clone(memory_format=torch.contiguous_format)  # memory with an entry for each row
            self.labels.assign(output, place)
            return output
        if isinstance(label, Mixed) and label.numbers is not None and label.numbers.owners is count.owners:
            return output  # index numbers of examples, repeated per feature: its size stays hidden
        same = isinstance(label, RowLayout) and label.dim == dim and label.owners is count.owners
        if output.numel() and not (
            same and cast("RowLayout", label).inner * cast("RowLayout", label).outer == count.times
        ):
            self._refuse()
        return output


def _is_one_number_per_row(tensor: Tensor, label: Mixed, rows: int) -> bool:
    """Whether a tensor has one number for each of ``rows`` rows, or is the result of `nonzero` (indices of each row).

    In another shape (a transposed list, an outer product) any of the sizes could be the number of rows.
    """
    if tensor.dim() == 0 or tensor.shape[0] != rows:
        return False
    if tensor.dim() != 2 or label.rows is None:
        return all(size == 1 for size in tensor.shape[1:])
    _, key, (_, step) = label.rows
    return tensor.shape[1] == 1 or (is_whole(tensor) and (storage_key(tensor), tensor.stride(0)) == (key, step))


def raised_with_size(error: str) -> str:
    """The message of a refusal: the program raised an error in a pass in which Python had a `DynamicSize`."""
    return (
        f"the data must not steer the pass, but {error} was raised where the number of rows that they select is a "
        "size. Use it as a size of zeros, views and the like only, or compute all rows and choose by torch.where"
    )


def is_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a `DynamicSize` is among the arguments."""
    return bool(_sizes_in((*args, *kwargs.values())))


def _sizes_in(values: Iterable[Any]) -> list[DynamicSize]:
    found: list[DynamicSize] = []
    for value in values:
        if type(value) is DynamicSize:
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _sizes_in(cast("list[Any]", value))
        elif isinstance(value, slice):
            found += _sizes_in((value.start, value.stop, value.step))
    return found


def _without_sizes(values: tuple[Any, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        inside = isinstance(value, (list, tuple)) and _sizes_in(cast("list[Any]", value))
        found.append(_without_sizes(tuple(value)) if inside else value.value if type(value) is DynamicSize else value)
    return tuple(found)
