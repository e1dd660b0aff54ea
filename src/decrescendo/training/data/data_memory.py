"""Finds the memory of the training data; model, optimiser and loss must not hold or read any of it."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from decrescendo.base.storages import tensors_of
from decrescendo.row_independence.tracing import Memory, attributes_of, is_of_a_library, slots_of
from decrescendo.training.data.items import ColumnRows, FrameRows


def check_model_apart(model: nn.Module, data: object) -> None:
    """Refuse a model that shares memory with the data. Call it before the model is copied: a copy hides the
    sharing.

    Raises:
        UnsupportedModel: a parameter or a buffer in the memory of the data.
    """
    memory = Memory()
    memory.withhold(memory_of(data))
    memory.check_apart([*model.named_parameters(), *model.named_buffers()])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an optimiser's settings and state, except parameters, each with a name for error
    messages."""
    for group in [*optimizer.param_groups, *optimizer.state.values()]:
        for name, value in group.items():
            if name != "params":
                yield from ((f"{name} of the optimizer", tensor) for tensor in tensors_of((value,)))


def memory_of(data: object, seen: set[int] | None = None) -> Iterator[Tensor | np.ndarray]:
    """The tensors and arrays that hold ``data`` (any kind of data set); Python numbers and strings are left
    out.

    A list's records are searched with their attributes. Of a data set of a user's class only what has a row or an item
    per record is taken: what else it holds may be public (a mean per channel, word vectors).

    Args:
        seen: by ``id``, the objects whose attributes were searched; ``None`` of a whole data set.
    """
    if data is None or isinstance(data, (str, bytes, int, float)):
        return
    if isinstance(data, (Tensor, np.ndarray)):
        yield data
    elif isinstance(data, Subset):
        yield from _rows_of_subset(cast("Subset[Any]", data))
    elif isinstance(data, ConcatDataset):
        yield from memory_of(cast("ConcatDataset[Any]", data).datasets)
    elif isinstance(data, TensorDataset):
        yield from data.tensors
    elif isinstance(data, ColumnRows):
        yield from memory_of(data.columns)
    elif isinstance(data, FrameRows):
        yield from memory_of(data.frame)
    elif hasattr(data, "iloc") and type(data).__module__.partition(".")[0] == "pandas":
        yield from columns_of_frame(data)
    elif isinstance(data, Mapping):
        yield from memory_of(list(cast("Mapping[object, object]", data).values()), seen)
    elif isinstance(data, (list, tuple)):
        seen = set() if seen is None else seen
        for item in cast("list[object]", data):
            yield from memory_of(item, seen)
    elif not (isinstance(data, nn.Module) or is_of_a_library(type(data)) or id(data) in (seen or ())):
        held = [*attributes_of(data).values(), *(item for _, item in slots_of(data))]
        if seen is None or isinstance(data, Dataset):
            held = _with_rows(held, len(cast("Any", data)) if hasattr(type(data), "__len__") else -1)
        yield from memory_of(held, {id(data)} if seen is None else seen | {id(data)})


def _with_rows(values: list[Any], rows: int) -> list[object]:
    """Data sets, frames, tensors with ``rows`` rows, and the items of containers with as many."""
    found: list[object] = []
    for value in values:
        if isinstance(value, (Tensor, np.ndarray)):
            found += [value] if value.ndim and len(value) == rows else []
        elif isinstance(value, Dataset) or hasattr(value, "iloc"):
            found.append(value)
        elif isinstance(value, (Mapping, list, tuple)):
            items: list[Any] = list(value.values() if isinstance(value, Mapping) else value)
            found += items if len(items) == rows else _with_rows(items, rows)
    return found


def _rows_of_subset(data: "Subset[Any]") -> Iterator[Tensor | np.ndarray]:
    """The rows that a subset selects, as slices of consecutive rows: the other rows of its data set may be
    public."""
    whole = cast("object", data.dataset)
    if not isinstance(whole, TensorDataset) or not len(data.indices):
        yield from memory_of(whole)
        return
    chosen = np.unique(np.asarray(data.indices) % len(whole))  # negative indices count from the end
    for run in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1):
        for tensor in whole.tensors:
            yield tensor[int(run[0]) : int(run[-1]) + 1]


def columns_of_frame(frame: Any) -> Iterator[np.ndarray]:
    """The columns of a pandas data frame (or a series) as NumPy arrays: views of its memory if pandas allows
    it."""
    columns = [frame.iloc[:, place] for place in range(len(frame.columns))] if hasattr(frame, "columns") else [frame]
    for column in columns:
        found = column.to_numpy()
        if not found.dtype.hasobject:
            yield found
