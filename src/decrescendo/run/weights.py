"""The weights of a run, apart from the model."""

from collections.abc import Mapping

import torch
from torch import Tensor


def cpu_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state dict on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory. Tied weights do, which the file format refuses; the names are what counts here."""
    return {
        name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in weights.items()
    }
