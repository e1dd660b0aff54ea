"""Tensors as Flower's arrays and back, with nothing of what comes back trusted."""

import math
from collections.abc import Mapping
from io import BytesIO
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from decrescendo.errors import FileRefused, InvalidType

_NUMPY = "numpy.ndarray"


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """A record of NumPy arrays, bit for bit.

    Raises:
        InvalidType: a dtype that NumPy does not have (bfloat16).

    >>> import torch
    >>> to_tensors(to_arrays({"w": torch.tensor([0.1])}))
    {'w': tensor([0.1000])}
    """
    record = ArrayRecord()
    for name, tensor in tensors.items():
        try:
            record[name] = Array(tensor.detach().cpu().contiguous().numpy())
        except TypeError:
            raise InvalidType(
                f"tensors must have a dtype that NumPy has, got {name} of {tensor.dtype}. Hold the model as float32"
            ) from None
    return record


def to_tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """What `to_arrays` gave; tensors of their own memory.

    Raises:
        FileRefused: an array that is not what it says, or not one of plain numbers.
    """
    return {name: torch.from_numpy(_read(name, array)) for name, array in record.items()}


def _read(name: str, array: Array) -> np.ndarray[Any, np.dtype[Any]]:
    """One array; its size is checked against its bytes before anything is allocated for it."""
    if array.stype != _NUMPY:
        raise FileRefused(f"arrays must be of the kind {_NUMPY}, got {name} of {array.stype[:40]!r}")
    stream = BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = reader(stream)
        there = len(array.data) - stream.tell()
        if (
            dtype.kind not in "fiu"
            or not dtype.isnative
            or dtype.itemsize > 8
            or there != math.prod(shape) * dtype.itemsize
        ):
            raise FileRefused(
                f"an array must hold plain numbers, as many as its shape says, got {name} of {dtype} {shape} "
                f"in {there} bytes"
            )
        stream.seek(0)
        return np.load(stream, allow_pickle=False).copy(order="C")  # (ascontiguousarray makes a list of a scalar)
    except FileRefused:
        raise
    except (
        ValueError, TypeError, KeyError, EOFError, OverflowError, MemoryError, SyntaxError, RecursionError, TokenError,
    ) as error:  # fmt: skip
        raise FileRefused(f"an array must be readable, got {name}: {type(error).__name__}") from None
