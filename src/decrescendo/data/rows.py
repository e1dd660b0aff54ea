"""What training draws batches from: a pytree of tensors or a map-style data set, seen as numbered rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from decrescendo.errors import InvalidType, InvalidValue


@dataclass(frozen=True, slots=True)
class Rows:
    """A number of rows, and how to take some of them as one batch.

    Args:
        count: number of rows.
        take: from ascending indices (never none) to the batch of these rows.
    """

    count: int
    take: Callable[[Int[np.ndarray, " batch"]], Any]


def rows(data: object) -> Rows:
    """``data`` as numbered rows.

    Args:
        data: a tensor, or a tuple, list or mapping of such (nested as deep as you like) with equal length
            along dimension 0; or a map-style `torch.utils.data.Dataset`, whose items torch's
            ``default_collate`` puts together.

    Raises:
        InvalidType: something else.
        InvalidValue: tensors of different lengths.

    >>> toy = rows({"x": torch.arange(8.0).reshape(4, 2), "y": torch.tensor([0, 1, 2, 3])})
    >>> toy.count, toy.take(np.array([1, 3]))["y"].tolist()
    (4, [1, 3])
    """
    if isinstance(data, TensorDataset):  # the same rows without a Python call for each
        data = data.tensors
    if isinstance(data, TorchDataset):
        return _from_dataset(data)
    lengths = dict(_lengths(data, "data"))
    if not lengths:
        raise InvalidValue("data must hold at least one tensor, got none")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise InvalidValue(f"the tensors in data must have one row an example each, got {listed}")
    return Rows(next(iter(lengths.values())), lambda indices: tensors_map(_taker(indices), data))


def tensors_map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """``tree`` with ``function`` applied to every tensor in it.

    >>> tensors_map(lambda x: x * 2, [torch.tensor(1), {"a": torch.tensor(3)}])
    [tensor(2), {'a': tensor(6)}]
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: tensors_map(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a named tuple takes its fields one by one
        return type(tree)(*(tensors_map(function, value) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(tensors_map(function, value) for value in tree)
    return tree


def batch_rows(batch: object) -> int | None:
    """Rows of a batch: the length of its tensors along dimension 0, or ``None`` where they disagree.

    >>> batch_rows((torch.zeros(3, 2), torch.zeros(3)))
    3
    """
    found: set[int] = set()

    def note(tensor: Tensor) -> Tensor:
        found.add(int(tensor.shape[0]) if tensor.ndim else -1)
        return tensor

    tensors_map(note, batch)
    return found.pop() if len(found) == 1 else None


def _lengths(tree: object, name: str) -> list[tuple[str, int]]:
    if isinstance(tree, Tensor):
        if tree.ndim == 0:
            raise InvalidValue(f"{name} must have one row an example, got a tensor without dimensions")
        return [(name, int(tree.shape[0]))]
    if isinstance(tree, Mapping):
        return [pair for key, value in tree.items() for pair in _lengths(value, f"{name}[{key!r}]")]
    if isinstance(tree, (tuple, list)):
        return [pair for i, value in enumerate(tree) for pair in _lengths(value, f"{name}[{i}]")]
    raise InvalidType(
        f"{name} must be a tensor, a tuple, list or mapping of tensors, or a map-style torch Dataset, "
        f"got {type(tree).__name__}"
    )


def _taker(indices: Int[np.ndarray, " batch"]) -> Callable[[Tensor], Tensor]:
    chosen = torch.from_numpy(indices)
    return lambda tensor: tensor.index_select(0, chosen.to(tensor.device))


def _from_dataset(data: "TorchDataset[Any]") -> Rows:
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise InvalidType(
            f"data must be a map-style Dataset with a length, got {type(data).__name__}. "
            "Poisson sampling must be able to draw any record at any step"
        )
    return Rows(len(data), lambda indices: default_collate([data[int(index)] for index in indices]))  # type: ignore[arg-type]
