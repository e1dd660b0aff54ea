"""What training draws batches from: a pytree of tensors or a map-style data set, seen as numbered rows."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from decrescendo.clipping.batches import count_rows, select_rows
from decrescendo.clipping.clipped import Batch
from decrescendo.errors import InvalidType


@dataclass(frozen=True, slots=True)
class Rows:
    """A number of rows, and how to take some of them as one batch.

    Args:
        count: number of rows.
        take: from ascending indices (never none) to the batch of these rows, a copy.

    >>> squares = Rows(5, lambda indices: torch.from_numpy(indices) ** 2)
    >>> squares.take(np.array([1, 3]))
    tensor([1, 9])
    """

    count: int
    take: Callable[[Int[np.ndarray, " batch"]], Batch]


def rows(data: object) -> Rows:
    """``data`` as numbered rows.

    Args:
        data: a tensor, or a tuple, list or mapping of such (nested as deep as you like) with equal length
            along dimension 0; or a map-style `torch.utils.data.Dataset`, whose items torch's
            ``default_collate`` puts together; or `Rows`, which are returned as they are.

    Raises:
        InvalidType: something else.
        InvalidValue: tensors of different lengths, or none.

    >>> toy = rows({"x": torch.arange(8.0).reshape(4, 2), "y": torch.tensor([0, 1, 2, 3])})
    >>> toy.count, toy.take(np.array([1, 3]))["y"].tolist()
    (4, [1, 3])
    """
    if isinstance(data, Rows):
        return data
    if isinstance(data, TensorDataset):  # the same rows without a Python call for each
        data = data.tensors
    if isinstance(data, TorchDataset):
        return _from_dataset(data)
    if not isinstance(data, (Tensor, Mapping, tuple, list)):
        raise InvalidType(
            "data must be a tensor, a tuple, list or mapping of tensors, or a map-style torch Dataset, "
            f"got {type(data).__name__}"
        )
    return Rows(count_rows(data), lambda indices: select_rows(data, torch.from_numpy(indices)))


def _from_dataset(data: "TorchDataset[Any]") -> Rows:
    if isinstance(data, IterableDataset) or not isinstance(data, Sized):
        raise InvalidType(
            f"data must be a map-style Dataset with a length, got {type(data).__name__}. "
            "Poisson sampling must be able to draw any record at any step"
        )
    return Rows(len(data), lambda indices: default_collate([data[int(index)] for index in indices]))
