"""Reads how `fully_shard` (FSDP2) has sharded a model, and turns its hooks off."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from decrescendo.errors import UnsupportedModel
from decrescendo.training.processes.bits import checksum

_PLACEMENTS = ((Shard(0),), (Replicate(), Shard(0)))


@dataclass(slots=True)
class Block:
    """Parameters that are gathered together, by name: sharded, and whole (without memory most of the time)."""

    parts: dict[str, DTensor] = field(default_factory=dict[str, DTensor])
    whole: dict[str, nn.Parameter] = field(default_factory=dict[str, nn.Parameter])


def blocks_of(model: nn.Module, size: int) -> list[Block]:
    """One block per module that ``fully_shard`` was called on, without the parameters of blocks inside of it."""
    owners = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    originals: dict[int, object] = {}
    for owner, module in owners.items():
        module.reshard()
        state = cast("Any", fully_shard).state(module)
        if state._mp_policy != MixedPrecisionPolicy():
            raise UnsupportedModel(
                f"parameters must be used as they are held, got {owner or 'the model'} with mp_policy. "
                "Cast the model, or use torch.autocast in the loss"
            )
        # torch before 2.12 has one group, and does not record the parameter that a sharded one was made from.
        groups = getattr(state, "_fsdp_param_groups", None) or filter(None, [state._fsdp_param_group])
        for held in (held for group in groups for held in group.fsdp_params):
            if originals.setdefault(getattr(held, "_orig_param_uid", id(held)), held) is not held:
                _refuse_cut(names[id(held.sharded_param)])
            if held.offload_to_cpu:
                raise UnsupportedModel(
                    f"parameters must be held where they are used, got {owner or 'the model'} with offload_policy. "
                    "Leave it out"
                )
    blocks: dict[str, Block] = {}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            if hasattr(parameter, "_fsdp_orig_uid"):
                _refuse_cut(name)
            continue
        part = cast("DTensor", parameter)
        above = [owner for owner in owners if not owner or name.startswith(owner + ".")]
        mesh = part.device_mesh
        everybody = sorted(mesh.mesh.flatten().tolist()) == list(range(size))
        # With ranks in another order torch's own gathering would permute the parts.
        everybody = everybody and bool((mesh.mesh.diff(dim=-1) > 0).all())
        if not above or not everybody or tuple(part.placements) not in _PLACEMENTS:
            raise UnsupportedModel(
                "parameters must be whole on each rank, or cut along their first dimension by fully_shard on a mesh of "
                f"all {size} ranks in their order, got {name} with placements={tuple(part.placements)} on ranks "
                f"{mesh.mesh.tolist()}. Tensor parallelism is not supported: no rank would see an example's whole "
                "gradient"
            )
        whole = nn.Parameter(torch.empty(part.shape, dtype=part.dtype, device=part.device), part.requires_grad)
        whole.untyped_storage().resize_(0)
        block = blocks.setdefault(max(above, key=len), Block())
        block.parts[name], block.whole[name] = part, whole
    if not all(hasattr(held, "_orig_param_uid") for held in originals.values()):
        _check_alike({name: part for block in blocks.values() for name, part in block.parts.items()})
    return list(blocks.values())


def _check_alike(parts: dict[str, DTensor]) -> None:
    """Refuse sharded matrices with equal values, for versions of torch that do not show whether they were tied."""
    seen: set[object] = set()
    for name, part in parts.items():
        own = part.to_local().detach()
        if part.ndim < 2 or not own.numel() or own.min() == own.max():
            continue
        key = (tuple(part.shape), checksum(own))
        if key in seen:
            raise UnsupportedModel(
                f"a tied parameter must stay one, got {name}, which has the numbers of another one: torch "
                f"{torch.__version__} does not say whether fully_shard made two of one. Use torch 2.12 or later"
            )
        seen.add(key)


def _refuse_cut(name: str) -> None:
    raise UnsupportedModel(
        f"a tied parameter must stay one, got {name}, of which fully_shard made two that would be trained apart. Give "
        "both modules to one call, fully_shard([first, second]), or call it only on a module that holds both"
    )


@contextmanager
def without_hooks(model: nn.Module) -> Generator[None]:
    """Inside, ``fully_shard``'s hooks (which gather and need ranks in step) are not called, nor the wrappers of
    ``register_fsdp_forward_method``."""
    kept: list[tuple[Any, dict[int, Any]]] = []
    methods: list[tuple[dict[str, Any], str, Any]] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            own = module.__dict__
            methods += [(own, name, value) for name, value in own.items() if _is_registered(value)]
            for hooks in (cast("Any", module)._forward_pre_hooks, cast("Any", module)._forward_hooks):
                kept.append((hooks, dict(hooks)))
                for key, hook in kept[-1][1].items():
                    if str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp."):
                        del hooks[key]
    for own, name, value in methods:
        own[name] = value.__func__.__wrapped__
    try:
        yield
    finally:
        for own, name, value in methods:
            own[name] = value
        for hooks, before in kept:
            hooks.clear()
            hooks.update(before)


def _is_registered(value: object) -> bool:
    made = getattr(value, "__func__", None)
    code = getattr(made, "__code__", None)
    return hasattr(made, "__wrapped__") and code is not None and "fsdp" in Path(code.co_filename).parts


def set_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Replace a module's parameter; also in the lists that recurrent modules keep."""
    if type(module).__setattr__ is nn.Module.__setattr__:
        cast("Any", module)._parameters[name] = parameter
    else:
        setattr(module, name, parameter)
