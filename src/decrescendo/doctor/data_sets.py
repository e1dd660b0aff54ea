"""Which rows a data set has: whether some are several times in it, and whether another one has the same."""

from collections import Counter
from typing import Any

from torch.utils.data import ConcatDataset, Subset, TensorDataset

_MOST = 1_000_000  # rows that are counted


def most_repeated(data: Any) -> int:
    """How often the row that is most often in a data set is in it, by parts and numbers of the rows alone."""
    if not hasattr(data, "__len__") or len(data) > _MOST:
        return 1
    return max(Counter(_rows(data)).values(), default=1)


def _rows(data: Any) -> list[tuple[int, int]]:
    if isinstance(data, ConcatDataset):
        return [row for part in data.datasets for row in _rows(part)]
    if isinstance(data, Subset):
        rows = _rows(data.dataset)
        return [rows[int(at)] for at in data.indices]
    return [(id(data), at) for at in range(len(data))]


def same_rows(one: Any, other: Any) -> bool:
    """Whether two data sets are one, or are made of the same tensor."""
    if isinstance(one, TensorDataset) and isinstance(other, TensorDataset) and len(one) == len(other):
        return bool({t.data_ptr() for t in one.tensors} & {t.data_ptr() for t in other.tensors})
    return one is other
