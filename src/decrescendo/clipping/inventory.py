"""`Inventory`: the tensors and modules of a model."""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from decrescendo.base.storages import pieces
from decrescendo.errors import UnsupportedModel

_WALKS = {"modules", "named_modules", "named_parameters", "named_buffers", "_named_members"}
_T = TypeVar("_T", bound=Tensor)
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
        parameters: dict[str, nn.Parameter] = {}
        buffers: dict[str, Tensor] = {}
        modules: dict[int, nn.Module] = {}
        left: list[tuple[str, nn.Module]] = [("", model)]
        while left:  # in the order of torch's three walks, in half of their time
            path, module = left.pop()
            if id(module) in modules:
                continue
            if not _walked_by_torch(type(module)) or (module is model and _WALKS & vars(module).keys()):
                mode = tuple(one.training for one in model.modules())
                return cls(dict(model.named_parameters()), dict(model.named_buffers()), mode)
            modules[id(module)] = module
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    parameters[path + name] = parameter
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    buffers[path + name] = buffer
            inner = [(f"{path}{name}.", one) for name, one in module._modules.items() if one is not None]
            left += reversed(inner)
        mode = tuple([module.training for module in modules.values()])
        return cls(_each_once(parameters), _each_once(buffers), mode)


def _each_once(tensors: dict[str, _T]) -> dict[str, _T]:
    """Without the further names of a tensor that has several."""
    if len(set(map(id, tensors.values()))) == len(tensors):
        return tensors
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(id(tensor), name)
    return {name: tensors[name] for name in first.values()}


@functools.lru_cache(4096)
def _walked_by_torch(kind: type) -> bool:
    """Whether a class of modules has none of these walks of its own, and keeps its tensors in dicts."""
    return not issubclass(kind, torch.jit.ScriptModule) and all(
        getattr(kind, name) is getattr(nn.Module, name) for name in _WALKS
    )


def check_values(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse tensors on the meta device, by name."""
    for name, tensor in tensors:
        if tensor.is_meta:
            raise UnsupportedModel(
                f"the model must have values, got {name} on the meta device. Load or initialise it first"
            )
