"""How a loader draws, whether some rows are several times in its data set, and whether another one has the same."""

import bisect
import contextlib
from collections import Counter
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

_MOST = 1_000_000  # rows that are counted


def most_repeated(data: Any) -> int:
    """How often the row that is most often in a data set is in it, by parts and numbers of the rows alone."""
    with contextlib.suppress(TypeError, ValueError, LookupError, NotImplementedError):
        if isinstance(data, (Subset, ConcatDataset)) and len(data) <= _MOST:
            return max(Counter(_row(data, at) for at in range(len(data))).values(), default=1)
    return 1


def _row(data: Any, at: int) -> tuple[int, int]:
    if isinstance(data, Subset):
        return _row(data.dataset, int(data.indices[at]))
    if isinstance(data, ConcatDataset):
        part = bisect.bisect_right(data.cumulative_sizes, at)
        return _row(data.datasets[part], at - (data.cumulative_sizes[part - 1] if part else 0))
    return id(data), at


def same_rows(one: Any, other: Any) -> bool:
    """Whether two data sets are one, or are made of the same tensor."""
    if isinstance(one, TensorDataset) and isinstance(other, TensorDataset) and len(one) == len(other):
        return bool({t.data_ptr() for t in one.tensors} & {t.data_ptr() for t in other.tensors})
    return one is other


def facts_of(loader: Any) -> dict[str, Any]:
    """How a loader draws its batches."""
    batches = loader.batch_sampler
    if type(batches).__name__ == "BatchSplittingSampler":  # Opacus', which cuts batches into parts of one step
        batches = batches.sampler
    sampler = getattr(batches, "sampler", loader.sampler)
    weights = getattr(sampler, "weights", None)
    held = None if weights is None else torch.as_tensor(weights)
    rows = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
    return {
        "sampler": type(sampler).__name__,
        "batches": type(batches).__name__,
        "size": loader.batch_size or getattr(batches, "batch_size", None),
        "rate": getattr(loader, "sample_rate", None) or getattr(batches, "sample_rate", None),
        "rows": rows,
        "steps": len(loader) if hasattr(loader, "__len__") and rows else None,
        "heaviest": None if held is None else float(held.max() / held.sum()),
        "dataset": id(loader.dataset),
        "repeats": most_repeated(loader.dataset),
    }
