"""Data that lie in memory, to be looked at again: whether the rows are what they were."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from decrescendo.base.storages import tensors_of
from decrescendo.row_independence.dataflow import Memory
from decrescendo.training.bits import fingerprint
from decrescendo.training.examples import ColumnRows, FrameRows

# Tensors whose counts of writes are asked for at every step; of more a step would wait for them.
_COUNTED = 1_000


@final
class Held:
    """Tensors, arrays, lists and frames that a loop may write to between two steps.

    Memory maps are left out: a look would read the whole file.

    Args:
        data: what batches are taken from; ``None`` where that is code of a user's.

    >>> rows = [{"x": torch.zeros(2), "y": 1}]
    >>> held = Held(rows)
    >>> before = held.look()
    >>> rows[0]["x"] += 1
    >>> held.look() == before
    False
    """

    def __init__(self, data: object) -> None:
        self._data = data
        tensors = [value for value in _values(data) if isinstance(value, Tensor)]
        self._counted = tensors if len(tensors) <= _COUNTED else []

    def look(self) -> bytes:
        """A few bytes of all that is in them; of this process only."""
        rest, tensors = hashlib.blake2b(), list[Tensor]()
        for value in _values(self._data):
            if isinstance(value, Tensor):
                tensors.append(value)
            else:
                rest.update(cast("Any", value))
        return rest.digest() + fingerprint(*tensors)

    def writes(self) -> list[int]:
        """How often each tensor was written to, as far as torch counts it."""
        return [0 if tensor.is_inference() else tensor._version for tensor in self._counted]


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


def _values(data: object) -> Iterator[Tensor | bytes | memoryview]:
    """Tensors, and the bytes of the rest, in order."""
    if isinstance(data, Tensor):
        yield data if data.layout == torch.strided else data.detach().to_dense()
    elif isinstance(data, np.memmap):
        return
    elif isinstance(data, np.ndarray) and not data.dtype.hasobject:
        yield f"{data.dtype}{data.shape}".encode()
        yield np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    elif isinstance(data, np.ndarray):
        yield from _values(data.tolist())
    elif isinstance(data, Subset):
        part = cast("Subset[Any]", data)
        yield from _values((part.indices, part.dataset))
    elif isinstance(data, TensorDataset):
        yield from data.tensors
    elif isinstance(data, ColumnRows):
        yield from _values(data.columns)
    elif isinstance(data, FrameRows):
        yield from _columns(data.frame)
    else:
        yield from _plain(data)


def _plain(data: object) -> Iterator[Tensor | bytes | memoryview]:
    """Containers and what lies in them: as one text where Python has one for all of it."""
    try:
        yield json.dumps(data).encode()
        return
    except (TypeError, ValueError):
        pass
    if isinstance(data, Mapping):
        known = cast("Mapping[object, object]", data)
        yield from _values(list(known.keys()))
        data = list(known.values())
    if isinstance(data, (list, tuple)):
        for item in cast("list[object]", data):
            yield from _values(item)
    else:
        yield repr(data).encode()


def _columns(frame: Any) -> Iterator[Tensor | bytes | memoryview]:
    """Of a data frame; a series is one."""
    if not hasattr(frame, "columns"):
        yield from _values(frame.to_numpy())
        return
    yield from _values([str(name) for name in frame.columns])
    for place in range(len(frame.columns)):
        yield from _values(frame.iloc[:, place].to_numpy())
