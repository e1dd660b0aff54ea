"""Where data lie in memory: what no model, optimiser or loss may hold or read beside its batch."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from decrescendo.base.storages import tensors_of
from decrescendo.row_independence.tracing import Memory
from decrescendo.training.data.examples import ColumnRows, FrameRows


def check_model_apart(model: nn.Module, data: object) -> None:
    """That a model of which a copy is trained holds no data: the copy would hold them elsewhere.

    Raises:
        UnsupportedModel: a parameter or a buffer in the memory of the data.
    """
    memory = Memory()
    memory.withhold(memory_of(data))
    memory.check_apart([*model.named_parameters(), *model.named_buffers()])


def kept_by(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Tensors that an optimiser has beside parameters, with their names for an error: of its settings and state."""
    for group in [*optimizer.param_groups, *optimizer.state.values()]:
        for name, value in group.items():
            if name != "params":
                yield from ((f"{name} of the optimizer", tensor) for tensor in tensors_of((value,)))


def memory_of(data: object) -> Iterator[Tensor | np.ndarray]:
    """What holds data, but for Python's own numbers and texts."""
    if isinstance(data, (Tensor, np.ndarray)):
        yield data
    elif isinstance(data, Subset):
        yield from _part(cast("Subset[Any]", data))
    elif isinstance(data, ConcatDataset):
        yield from memory_of(cast("ConcatDataset[Any]", data).datasets)
    elif isinstance(data, TensorDataset):
        yield from data.tensors
    elif isinstance(data, ColumnRows):
        yield from memory_of(data.columns)
    elif isinstance(data, FrameRows):
        yield from memory_of(data.frame)
    elif hasattr(data, "iloc") and type(data).__module__.partition(".")[0] == "pandas":
        yield from _frame(data)
    elif isinstance(data, Mapping):
        yield from memory_of(list(cast("Mapping[object, object]", data).values()))
    elif isinstance(data, (list, tuple)):
        for item in cast("list[object]", data):
            yield from memory_of(item)


def _part(data: "Subset[Any]") -> Iterator[Tensor | np.ndarray]:
    """Of tensors its rows alone, a run of them after another: the others may be public."""
    whole = cast("object", data.dataset)
    if not isinstance(whole, TensorDataset) or not len(data.indices):
        yield from memory_of(whole)
        return
    chosen = np.unique(np.asarray(data.indices) % len(whole))  # counted from the end, too
    for run in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1):
        for tensor in whole.tensors:
            yield tensor[int(run[0]) : int(run[-1]) + 1]


def _frame(frame: Any) -> Iterator[np.ndarray]:
    """Of a data frame, or a series, in memory of NumPy's: views, where pandas gives them."""
    columns = (
        [frame.iloc[:, place] for place in range(len(frame.columns))]
        if hasattr(frame, "columns")
        else [frame]
    )
    for column in columns:
        found = column.to_numpy()
        if not found.dtype.hasobject:
            yield found
