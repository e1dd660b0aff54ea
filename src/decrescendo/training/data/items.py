"""Items by index: which data have them, which of them lie in memory, and how fast they are read."""

import sys
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from decrescendo.base.batches import map_rows
from decrescendo.errors import InvalidValue


@runtime_checkable
class Items(Protocol):
    """Examples by index: a list, a map-style ``torch`` or ``datasets`` data set, an array, a memory map."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Repeated:
    """The first ``count`` of the items; if there are fewer, they are repeated.

    >>> [Repeated(["a", "b"], 3)[i] for i in range(3)]
    ['a', 'b', 'a']
    """

    items: Items
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> Any:
        return self.items[index % len(self.items)]


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """Columns as items: item i has row i of every column."""

    columns: Any
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> Any:
        return map_rows(lambda column: column[index], self.columns)


class FrameRows:
    """The rows of a data frame as dicts; each column keeps its dtype.

    Raises:
        InvalidValue: two columns of one name.
    """

    def __init__(self, frame: Any) -> None:
        self.frame, names = frame, list(getattr(frame, "columns", ()))
        if len(set(names)) < len(names):
            raise InvalidValue(
                f"columns of a data frame must have names of their own, got {names}. Of two with one name a row could "
                "only have one: rename one, or give an array"
            )
        self._columns = {name: frame.iloc[:, place].array for place, name in enumerate(names)}
        self.dtypes: list[object] = list(frame.dtypes) if names else [getattr(frame, "dtype", None)]

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int, /) -> Any:
        if not hasattr(self.frame, "columns"):
            return self.frame.iloc[index]
        return {name: column[index] for name, column in self._columns.items()}


def are_held(items: object) -> bool:
    """Whether the items lie in memory, and reading one runs no user code."""
    if type(items) is Subset:
        return type(items.indices) in (list, tuple, range, np.ndarray, Tensor) and are_held(items.dataset)
    if type(items) is TensorDataset:
        return is_plain(items.tensors)
    if type(items) is ColumnRows:
        return is_plain(items.columns)
    if type(items) is FrameRows:
        pandas = sys.modules.get("pandas")
        known = pandas is not None and type(items.frame) in (pandas.DataFrame, pandas.Series)
        return known and all(map(_is_of_pandas, items.dtypes))
    return type(items) in (list, tuple, np.ndarray, np.memmap) and is_plain(items)


def reads_at_once(items: object) -> bool:
    """Whether the items are a table of Hugging Face's ``datasets``, which reads many rows at once in a part of the
    time. Not with a format: whole numbers beside a missing value would become floats."""
    datasets = sys.modules.get("datasets")
    known = datasets is not None and type(items) is datasets.Dataset
    return known and cast("Any", items).format["type"] is None


def _is_of_pandas(dtype: object) -> bool:
    """Whether a data-frame column holds numbers, dates or strings, and no user-defined objects."""
    if isinstance(dtype, np.dtype):
        return not dtype.hasobject
    if hasattr(dtype, "categories"):
        return _is_of_pandas(cast("Any", dtype).categories.dtype)
    return type(dtype).__module__.split(".")[0] == "pandas"


def is_plain(value: object) -> bool:
    """Whether a value contains no user-defined class: a subclass of a tensor or a dict may run any code when
    read."""
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__module__ in ("numpy", "numpy.memmap") and not value.dtype.hasobject
    if type(value) is dict:
        return all(map(is_plain, cast("dict[Any, object]", value).values()))
    if type(value) in (list, tuple):
        return all(map(is_plain, cast("list[object]", value)))
    return type(value) in (Tensor, int, float, bool, str, bytes, type(None))
