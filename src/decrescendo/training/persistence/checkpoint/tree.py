"""Nested state (dicts, lists, tuples, tensors, numbers) as JSON and named tensors, and back: no pickle."""

import base64
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from decrescendo.errors import FileRefused, InvalidType

_TAG = "__kind__"


def pack(value: object, tensors: dict[str, Tensor]) -> Any:
    """``value`` as JSON; its tensors are put into ``tensors``, and the JSON refers to them by name.

    >>> tensors = {}
    >>> packed = pack({"betas": (0.9, 0.99), 0: torch.ones(2)}, tensors)
    >>> unpack(packed, tensors)
    {'betas': (0.9, 0.99), 0: tensor([1., 1.])}
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)) and type(value) in (int, float):
        # Python reads JSON numbers exactly; NaN and infinity, which JSON lacks, are written as text.
        return value if isinstance(value, int) or value - value == 0 else {_TAG: "float", "value": repr(value)}
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {_TAG: "tensor", "name": name}
    if isinstance(value, np.generic):
        return pack(value.item(), tensors)
    if isinstance(value, np.ndarray):
        return {
            _TAG: "array",
            "value": pack(torch.from_numpy(_native(value)), tensors),
            "dtype": str(value.dtype),
        }
    if isinstance(value, bytes):
        return {_TAG: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        items = [pack(item, tensors) for item in cast("list[object]", value)]
        return items if isinstance(value, list) else {_TAG: "tuple", "items": items}
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {_TAG: "dict", "items": [[pack(key, tensors), pack(item, tensors)] for key, item in pairs]}
    raise InvalidType(
        f"state must be made of tensors, numbers, texts, lists, tuples and dicts, got {type(value).__name__}. "
        "Give the state_dict of the object, not the object"
    )


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value from which `pack` made ``packed``."""
    if isinstance(packed, list):
        return [unpack(item, tensors) for item in cast("list[Any]", packed)]
    if not isinstance(packed, dict):
        return packed
    known = cast("dict[str, Any]", packed)
    kind = known.get(_TAG)
    try:
        if kind == "float":
            return float(known["value"])
        if kind == "tensor":
            return tensors[known["name"]]
        if kind == "array":
            return unpack(known["value"], tensors).numpy().view(np.dtype(known["dtype"]))
        if kind == "bytes":
            return base64.b64decode(known["value"])
        if kind == "tuple":
            return tuple(unpack(item, tensors) for item in known["items"])
        if kind == "dict":
            return {unpack(key, tensors): unpack(item, tensors) for key, item in known["items"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileRefused(f"a checkpoint must hold state as it was packed, got {error!r}") from None
    raise FileRefused(f"a checkpoint must hold state as it was packed, got a {kind!r}")


def _native(value: np.ndarray) -> np.ndarray:
    """A contiguous array; unsigned types that safetensors or torch lack are reinterpreted as signed."""
    array = np.ascontiguousarray(value)
    signed = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}.get(str(array.dtype))
    return array.view(signed) if signed is not None else array
