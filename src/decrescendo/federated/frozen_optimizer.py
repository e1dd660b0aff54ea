"""The state of any torch optimiser as JSON facts and named tensors, and back, bit for bit."""

import json
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from decrescendo.errors import FileRefused, InvalidType

_PREFIX = "optimizer"


def freeze(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and plain numbers as facts, tensors by name.

    Raises:
        InvalidType: a setting that is no plain value.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> facts, tensors = freeze(torch.optim.SGD([weight], lr=0.5))
    >>> facts["groups"][0]["lr"], tensors
    (0.5, {})
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, values in cast("dict[int, dict[str, Any]]", state["state"]).items():
        numbers[str(index)] = {}
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{_PREFIX}/{index}/{key}"] = value.detach().cpu().clone()
            else:
                numbers[str(index)][key] = value
    facts: dict[str, Any] = {
        "kind": type(optimizer).__name__,
        "groups": state["param_groups"],
        "numbers": numbers,
    }
    try:
        return json.loads(json.dumps(facts, allow_nan=False)), tensors
    except (TypeError, ValueError) as error:
        raise InvalidType(
            f"the settings of an optimiser must be plain values to be written to a journal, got {error} in "
            f"{type(optimizer).__name__}. Give numbers, not tensors, as its settings"
        ) from None


def thaw(optimizer: torch.optim.Optimizer, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Give ``optimizer``, of the same kind over the same parameters, the state that `freeze` took.

    Raises:
        FileRefused: another kind of optimiser, or other parameters.
    """
    try:
        if facts["kind"] != type(optimizer).__name__:
            raise FileRefused(
                f"the journal was written with the optimiser {facts['kind']}, got {type(optimizer).__name__}"
            )
        groups = [
            {
                key: tuple(value) if isinstance(value, list) and key != "params" else value
                for key, value in group.items()
            }
            for group in facts["groups"]
        ]
        optimizer.load_state_dict({"state": {}, "param_groups": groups})
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        optimizer.state.clear()
        for index, values in facts["numbers"].items():
            optimizer.state[parameters[int(index)]].update(values)
        for name, value in tensors.items():
            if name.startswith(f"{_PREFIX}/"):
                _, index, key = name.split("/", 2)
                parameter = parameters[int(index)]
                # A count of steps stays where torch put it, on the CPU; moments are with their parameter.
                place = "cpu" if key == "step" else parameter.device
                optimizer.state[parameter][key] = value.to(place, copy=True)
    except FileRefused:
        raise
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise FileRefused(
            f"the journal's optimiser must fit {type(optimizer).__name__} and its parameters, got {error}"
        ) from error
