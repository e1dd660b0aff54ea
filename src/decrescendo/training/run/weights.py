"""The weights of a run, apart from the model: what may be published of it, and nothing else."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.storages import pieces
from decrescendo.errors import UnsupportedModel, check_instance
from decrescendo.training.processes.bits import is_part


def cpu_weights(model: nn.Module, *, begun: bool = False) -> dict[str, Tensor]:
    """Copies on the CPU of the weights to publish: the named parameters, and the named buffers that torch would save.

    They are taken from the modules themselves and not from ``model.state_dict()``, in which code of the model
    (``get_extra_state``, ``_save_to_state_dict``, hooks) can put anything, raw data too. Names are those of the state
    dict, so ``load_state_dict`` of an ordinary model takes them. A wrapper of tensors (a quantised weight of torchao's)
    is there as what it is made of, each by the wrapper's name and its attribute's in brackets (``"weight[qdata]"``).

    Args:
        model: whose weights are copied.
        begun: whether something was released already: what else was put into the state dict since is then left out,
            and not refused.

    Guarantee:
        every tensor is one of ``named_parameters()`` or ``named_buffers()``: the trained ones move by noisy means, and
        a run lists the others among its assumptions (`training.Trainer`).

    Raises:
        UnsupportedModel: see `check_published`; unless ``begun``.

    >>> sorted(cpu_weights(nn.BatchNorm1d(2, affine=False)))
    ['num_batches_tracked', 'running_mean', 'running_var']
    """
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())} if begun else set[int]()
    listed = {name: value for name, value in _held(model, "") if id(value) in known}
    published = listed if begun else check_published(model)
    plain = ((name + part, piece) for name, value in published.items() for part, piece in pieces(value))
    return {name: _whole(piece).to("cpu", copy=True) for name, piece in plain}


def _whole(value: Tensor) -> Tensor:
    """All of a tensor; of one that ranks hold in parts only if all of them ask."""
    return cast("Any", value.detach()).full_tensor() if is_part(value) else value.detach()


def check_published(model: nn.Module) -> Mapping[str, Tensor]:
    """What would be published of ``model``, by name; or an error where its state dict has anything else in it.

    Raises:
        UnsupportedModel: an entry that is no parameter and no persistent buffer, or is another tensor than these; but
            of frozen layers (see `entries_of_frozen_layers`).

    >>> class Remembers(nn.Linear):
    ...     def get_extra_state(self):
    ...         return {"seen": 3}
    >>> check_published(Remembers(1, 1))
    Traceback (most recent call last):
    decrescendo.errors.UnsupportedModel: a model's state dict must have its parameters and buffers only, got
    '_extra_state' as well. ...
    """
    check_instance("model", model, nn.Module)
    held = dict(_held(model, ""))
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
        if name in held and not _same(value, held[name]):
            raise UnsupportedModel(
                f"an entry of a model's state dict must be the tensor of its name, got another {name!r}. What a hook "
                "puts in its place may hold raw data: remove the hook"
            )
    return held


def entries_of_frozen_layers(model: nn.Module) -> dict[str, object]:
    """What frozen layers put into the state dict beside parameters and buffers (scales of quantised weights), by name.

    It is in no run's weights.
    """
    held = dict(_held(model, ""))
    found: Mapping[str, object] = model.state_dict(keep_vars=True)
    return {name: value for name, value in found.items() if name not in held}


def assumed_of(model: nn.Module) -> tuple[Assumption, ...]:
    """One for each class of frozen layers that puts entries of its own into the state dict."""
    by_kind: dict[str, list[str]] = {}
    for name in entries_of_frozen_layers(model):
        owner = _frozen_owner(model, name)
        by_kind.setdefault(type(owner).__name__, []).append(name)
    return tuple(
        assumed("frozen-layer-entries", len(names), kind, names[0]) for kind, names in sorted(by_kind.items())
    )


def _frozen_owner(model: nn.Module, name: str) -> nn.Module | None:
    """The innermost module by whose name an entry's begins, where it holds tensors and trains none."""
    modules, path = dict(model.named_modules(remove_duplicate=False)), name
    while path:
        path = path.rpartition(".")[0]
        if path in modules:
            owner = modules[path]
            tensors = [*owner.parameters(), *owner.buffers()]
            return owner if tensors and not any(tensor.requires_grad for tensor in tensors) else None
    return None


def separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory. Tied weights do, which the file format refuses; the names are what counts here."""
    return {
        name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in weights.items()
    }


def _held(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Each tensor by each of its names, in the order of torch's own state dict."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    passing = module._non_persistent_buffers_set
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in passing:
            yield prefix + name, buffer
    for name, child in module._modules.items():
        if child is not None:
            yield from _held(child, f"{prefix}{name}.")


def _same(value: object, tensor: Tensor) -> bool:
    """The same numbers in the same memory."""
    if value is tensor:
        return True
    return (
        isinstance(value, Tensor)
        and (value.shape, value.stride(), value.dtype, value.device)
        == (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        and value.data_ptr() == tensor.data_ptr()
    )
