"""How a loader draws, whether some rows are several times in its data set, and whether another one has the same."""

import contextlib
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from decrescendo.training.data.repeated_records import most_repeated


def draws_from_all(facts: dict[str, Any]) -> bool:
    """Whether a loader, by its facts, draws from all rows of its data set."""
    plain = facts["batches"] == "BatchSampler" and facts["sampler"] in ("RandomSampler", "SequentialSampler")
    return plain or facts["batches"] == "UniformWithReplacementSampler"


_MOST = 1_000_000  # rows that are counted


def _repeats(data: Any) -> int:
    """How often the row that is most often in a data set is in it, as far as the rows can be told from each other."""
    with contextlib.suppress(TypeError, ValueError, LookupError, NotImplementedError):
        if isinstance(data, (Subset, ConcatDataset)) and len(data) <= _MOST:
            return most_repeated(data)
    return 1


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
        "repeats": _repeats(loader.dataset),
    }
