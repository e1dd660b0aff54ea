"""What a model holds, from one walk over its modules: a step asks several times."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

# Which modules are in training mode: dropout, statistics, whatever else a model does differently then.
Mode: TypeAlias = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The tensors of a model by name, each tied one once, and the mode of each module, the model itself first."""

    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    mode: Mode

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All of them, by name."""
        yield from self.buffers.items()
        yield from self.parameters.items()

    @classmethod
    def of(cls, model: nn.Module) -> "Inventory":
        """As the model is now.

        >>> model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.BatchNorm1d(1).eval()))
        >>> held = Inventory.of(model)
        >>> list(held.parameters) == [name for name, _ in model.named_parameters()]
        True
        >>> list(held.buffers), held.mode
        (['1.0.running_mean', '1.0.running_var', '1.0.num_batches_tracked'], (True, True, True, False))
        """
        modules: dict[nn.Module, str] = {}
        if not _collect(model, "", modules):
            mode = tuple(module.training for module in model.modules())
            return cls(dict(model.named_parameters()), dict(model.named_buffers()), mode)
        parameters: dict[str, nn.Parameter] = {}
        buffers: dict[str, Tensor] = {}
        seen: set[int] = set()
        for module, prefix in modules.items():
            for name, parameter in module._parameters.items():  # pyright: ignore[reportPrivateUsage]
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    parameters[prefix + name] = parameter
            for name, buffer in module._buffers.items():  # pyright: ignore[reportPrivateUsage]
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    buffers[prefix + name] = buffer
        return cls(parameters, buffers, tuple(module.training for module in modules))


def _collect(module: nn.Module, prefix: str, found: dict[nn.Module, str]) -> bool:
    """Modules in torch's order, with what their tensors' names begin with; whether torch's own walk is this one."""
    if not _is_walked_plainly(type(module)):
        return False
    found[module] = prefix
    return all(
        child is None or child in found or _collect(child, f"{prefix}{name}.", found)
        for name, child in module._modules.items()  # pyright: ignore[reportPrivateUsage]
    )


@functools.lru_cache(maxsize=1024)
def _is_walked_plainly(kind: type[nn.Module]) -> bool:
    """Whether modules of this class list what they hold as `nn.Module` does: some have their own names."""
    return all(
        getattr(kind, name) is getattr(nn.Module, name)
        for name in ("named_modules", "named_parameters", "named_buffers", "_named_members", "modules")
    )
