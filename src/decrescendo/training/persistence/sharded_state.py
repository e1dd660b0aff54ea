"""A checkpoint's whole tensors, sharded again as a model's parameters are."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from decrescendo.training.processes.bits import is_part, local


def as_held(held: Any, value: Any) -> Any:
    """``value``, sharded as ``held`` is if that is a DTensor."""
    if not isinstance(held, Tensor) or not is_part(held):
        return value
    from torch.distributed.tensor import distribute_tensor

    part = cast("Any", held)
    return distribute_tensor(value.to(part.device), part.device_mesh, part.placements, src_data_rank=None)


def in_parts(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state, with moments sharded like their parameters."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        index: {
            key: as_held(held[index], value)
            if isinstance(value, Tensor) and value.shape == held[index].shape
            else value
            for key, value in found.items()
        }
        for index, found in state["state"].items()
    }
    return {**state, "state": moments}


def noise_in_parts(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """A checkpoint's correlated noise; of sharded parameters, this rank's part."""
    held = dict(model.named_parameters())

    def own(name: str, value: Tensor) -> Tensor:
        parameter = held.get(name)
        return value if parameter is None else local(as_held(parameter, value.view(parameter.shape)))

    return {
        **state,
        "rows": [{name: own(name, value) for name, value in row.items()} for row in state["rows"]],
    }
