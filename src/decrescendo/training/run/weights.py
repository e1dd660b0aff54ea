"""Copies the weights that a run publishes: named parameters and persistent buffers, and nothing else of the model."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.storages import pieces
from decrescendo.errors import UnsupportedModel, check_instance
from decrescendo.training.processes.bits import is_part

# The ways in which PEFT initialises adapters from activations or gradients of rows.
_FROM_DATA = ("eva", "corda", "lora_ga")


def cpu_weights(model: nn.Module, *, begun: bool = False) -> dict[str, Tensor]:
    """CPU copies of the weights to publish: named parameters, and the named buffers that torch would save.

    They are taken from the modules themselves and not from ``model.state_dict()``, in which code of the model
    (``get_extra_state``, ``_save_to_state_dict``, hooks) can put anything, raw data too. Names are those of the state
    dict, so ``load_state_dict`` of an ordinary model takes them. A tensor subclass that wraps tensors (torchao's
    quantised weights) is copied as its inner tensors, each named by the weight and the attribute
    (``"weight[qdata]"``).

    Args:
        model: whose weights are copied.
        begun: whether something was released already: then other entries of the state dict are left out, not
            refused.

    Guarantee:
        every tensor is one of ``named_parameters()`` or ``named_buffers()``: the trained ones move by noisy means, and
        a run lists the others among its assumptions (`training.Trainer`).

    Raises:
        UnsupportedModel: see `check_published`; unless ``begun``.

    >>> sorted(cpu_weights(nn.BatchNorm1d(2, affine=False)))
    ['num_batches_tracked', 'running_mean', 'running_var']
    """
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())} if begun else set[int]()
    listed = {name: value for name, value in _named_tensors(model, "") if id(value) in known}
    published = listed if begun else check_published(model)
    plain = ((name + part, piece) for name, value in published.items() for part, piece in pieces(value))
    return {name: _full_tensor(piece).to("cpu", copy=True) for name, piece in plain}


def _full_tensor(value: Tensor) -> Tensor:
    """The full tensor; a sharded one (DTensor) is gathered, and then every rank must call this."""
    return cast("Any", value.detach()).full_tensor() if is_part(value) else value.detach()


def check_published(model: nn.Module) -> Mapping[str, Tensor]:
    """The tensors that would be published of ``model``, by name; refuses a state dict with any other entries.

    Raises:
        UnsupportedModel: an entry that is no parameter and no persistent buffer, or is another tensor than these;
            entries of frozen layers are allowed (see `entries_of_frozen_layers`).

    >>> class Remembers(nn.Linear):
    ...     def get_extra_state(self):
    ...         return {"seen": 3}
    >>> check_published(Remembers(1, 1))
    Traceback (most recent call last):
    decrescendo.errors.UnsupportedModel: a model's state dict must have its parameters and buffers only, got
    '_extra_state' as well. ...
    """
    check_instance("model", model, nn.Module)
    held = dict(_named_tensors(model, ""))
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for name, value in held.items():
        if id(value) not in known:
            raise UnsupportedModel(
                f"what is published must be among model.parameters() and model.buffers(), got {name}, which they do "
                "not list: nothing would watch what it holds. Let them list all"
            )
    found: Mapping[str, object] = model.state_dict(keep_vars=True)
    for name, value in found.items():
        if name not in held and _frozen_owner(model, name) is None:
            raise UnsupportedModel(
                f"a model's state dict must have its parameters and buffers only, got {name!r} as well. What code of "
                "the model puts there (get_extra_state, _save_to_state_dict, hooks) may hold raw data: remove it, or "
                "register a buffer that does not change"
            )
        if name in held and not _is_same_memory(value, held[name]):
            raise UnsupportedModel(
                f"an entry of a model's state dict must be the tensor of its name, got another {name!r}. What a hook "
                "puts in its place may hold raw data: remove the hook"
            )
    return held


def entries_of_frozen_layers(model: nn.Module) -> dict[str, object]:
    """The entries that frozen layers add to the state dict beside parameters and buffers (scales of quantised
    weights), by name.

    These entries are in no run's weights.
    """
    held = dict(_named_tensors(model, ""))
    found: Mapping[str, object] = model.state_dict(keep_vars=True)
    return {name: value for name, value in found.items() if name not in held}


def assumed_of(model: nn.Module) -> tuple[Assumption, ...]:
    """The assumptions about frozen layers with extra state dict entries, one for each class, and about adapters
    that were initialised from data."""
    by_kind: dict[str, list[str]] = {}
    for name in entries_of_frozen_layers(model):
        owner = _frozen_owner(model, name)
        by_kind.setdefault(type(owner).__name__, []).append(name)
    found = [assumed("frozen-layer-entries", len(names), kind, names[0]) for kind, names in sorted(by_kind.items())]
    if kinds := _initialised_from_data(model):
        found.append(assumed("adapters-from-data", ", ".join(kinds)))
    return tuple(found)


def _initialised_from_data(model: nn.Module) -> list[str]:
    """The kinds of PEFT's adapters in the model that begin with what rows told of."""
    configs: list[Any] = []
    for module in model.modules():
        held = getattr(module, "peft_config", None)
        configs += held.values() if isinstance(held, Mapping) else []
    return sorted({kind for config in configs if (kind := getattr(config, "init_lora_weights", None)) in _FROM_DATA})


def _frozen_owner(model: nn.Module, name: str) -> nn.Module | None:
    """The innermost module that a state dict entry belongs to by its name, if it has tensors and all are
    frozen."""
    modules, path = dict(model.named_modules(remove_duplicate=False)), name
    while path:
        path = path.rpartition(".")[0]
        if path in modules:
            owner = modules[path]
            tensors = [*owner.parameters(), *owner.buffers()]
            return owner if tensors and not any(tensor.requires_grad for tensor in tensors) else None
    return None


def without_shared_memory(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory: the file format refuses tied weights, so each name gets a copy."""
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in weights.items()}


def _named_tensors(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by name, in the order of ``state_dict()``; tied ones by each of their names."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    passing = module._non_persistent_buffers_set
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in passing:
            yield prefix + name, buffer
    for name, child in module._modules.items():
        if child is not None:
            yield from _named_tensors(child, f"{prefix}{name}.")


def _is_same_memory(value: object, tensor: Tensor) -> bool:
    """Whether ``value`` is ``tensor``, or a view of the same memory with the same shape, strides and dtype."""
    if value is tensor:
        return True
    return (
        isinstance(value, Tensor)
        and (value.shape, value.stride(), value.dtype, value.device)
        == (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        and value.data_ptr() == tensor.data_ptr()
    )
