"""`Inventory`: the tensors and modules of a model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from decrescendo.base.storages import pieces
from decrescendo.errors import UnsupportedModel

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
        mode = tuple(module.training for module in model.modules())
        return cls(dict(model.named_parameters()), dict(model.named_buffers()), mode)


def check_values(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse tensors on the meta device, by name."""
    for name, tensor in tensors:
        if tensor.is_meta:
            raise UnsupportedModel(
                f"the model must have values, got {name} on the meta device. Load or initialise it first"
            )
