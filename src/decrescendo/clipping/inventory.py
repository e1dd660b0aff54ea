"""`Inventory`: the tensors and modules of a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from decrescendo.base.storages import pieces

# Whether each module is in training mode (dropout, batch statistics, ..).
Mode: TypeAlias = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The tensors of a model by name, each tied one once, and the mode of each module, the model itself first."""

    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    mode: Mode

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors by name; a wrapper tensor (a quantised weight of torchao) by its parts."""
        for name, tensor in (*self.buffers.items(), *self.parameters.items()):
            for part, plain in pieces(tensor):
                yield name + part, plain

    @classmethod
    def of(cls, model: nn.Module) -> "Inventory":
        """The inventory of the model as it is now.

        >>> model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.BatchNorm1d(1).eval()))
        >>> held = Inventory.of(model)
        >>> list(held.parameters) == [name for name, _ in model.named_parameters()]
        True
        >>> list(held.buffers), held.mode
        (['1.0.running_mean', '1.0.running_var', '1.0.num_batches_tracked'], (True, True, True, False))
        """
        # In one walk over the modules; `named_parameters` and `named_buffers` take one each, and every step asks.
        parameters, buffers = dict[str, Any](), dict[str, Any]()
        mode, seen = list[bool](), set[int]()
        for prefix, module in model.named_modules():
            mode.append(module.training)
            for found, held in ((parameters, module._parameters), (buffers, module._buffers)):
                for name, tensor in held.items():
                    if tensor is not None and id(tensor) not in seen:
                        seen.add(id(tensor))
                        found[f"{prefix}.{name}" if prefix else name] = tensor
        return cls(parameters, buffers, tuple(mode))
