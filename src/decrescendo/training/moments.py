"""An optimiser, as a loop may change it between two steps: what it remembers, its hooks and its code."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from decrescendo.optim.several import parts_of
from decrescendo.row_independence.code_origin import is_librarys
from decrescendo.training.bits import fingerprint

HOOKED = "hooks on the optimiser moved the weights by released and public values alone"


def supposed_of(optimizer: torch.optim.Optimizer, *, own: int = 0) -> set[str]:
    """What is assumed of an optimiser's code: nothing of torch's and of ours, without hooks but ``own`` ones, also
    where Accelerate has wrapped it.

    >>> weight = torch.zeros(1, requires_grad=True)
    >>> supposed_of(torch.optim.SGD([weight], lr=1.0))
    set()
    >>> class Mine(torch.optim.SGD):
    ...     pass
    >>> supposed_of(Mine([weight], lr=1.0))
    {'Mine, code of neither torch nor decrescendo, moved the weights by released and public values alone'}
    """
    optimizer = _prepared(optimizer)
    if len(parts := parts_of(optimizer)) > 1:
        return set[str]().union(
            *(supposed_of(part, own=own // len(parts)) for part in parts), _hooked(optimizer, 0)
        )
    (optimizer,) = parts
    kind, found = type(optimizer), set[str]()
    known = kind.__module__.split(".")[0] in ("torch", "decrescendo")
    same = getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    # Schedulers of torch's put a counter round it.
    step = vars(optimizer).get("step")
    if not known or not same or (step is not None and not hasattr(step, "_wrapped_by_lr_sched")):
        found.add(
            f"{kind.__name__}, code of neither torch nor decrescendo, moved the weights by released and public values "
            "alone"
        )
    found |= _hooked(optimizer, own)
    kinds = {type(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return found | {
        f"{kind.__name__}, a class of parameters that is not of torch, makes of a gradient what it is"
        for kind in kinds - {nn.Parameter}
        if not is_librarys(kind)
    }


def _hooked(optimizer: torch.optim.Optimizer, own: int) -> set[str]:
    held = cast("Any", inner(optimizer))
    hooks = len(held._optimizer_step_pre_hooks) + len(held._optimizer_step_post_hooks)
    hooks += len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks)
    return {HOOKED} if hooks > own else set()


def _prepared(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """What steps in the wrapper that ``accelerator.prepare`` puts round an optimiser: it steps that one, or skips."""
    return inner(optimizer) if type(optimizer).__module__ == "accelerate.optimizer" else optimizer


def inner(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """What steps in a wrapper that calls itself an optimiser (Accelerate's) and has no hooks."""
    held = None if "_optimizer_step_pre_hooks" in vars(optimizer) else vars(optimizer).get("optimizer")
    return inner(held) if isinstance(held, torch.optim.Optimizer) else optimizer


def around_step(
    optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]
) -> list[Any]:
    """Call these once around the next step, of several optimisers around the first and the last of theirs; handles of
    the hooks, two for each."""
    parts = [inner(part) for part in parts_of(inner(optimizer))]
    left = set(map(id, parts))

    def first(*_: object) -> None:
        if len(left) == len(parts):
            before()

    def last(stepped: object, *_: object) -> None:
        left.discard(id(stepped))
        if not left:
            after()

    pairs = [(part.register_step_pre_hook(first), part.register_step_post_hook(last)) for part in parts]
    return [handle for pair in pairs for handle in pair]


def tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Those that an optimiser keeps of its steps."""
    kept = [list(entry.values()) for entry in optimizer.state.values() if isinstance(entry, dict)]
    return [value for values in kept for value in values if isinstance(value, Tensor)]


def remembered_by(optimizer: torch.optim.Optimizer) -> object:
    """All that an optimiser keeps of its steps: a fingerprint of tensors, and the rest as it is."""
    tensors: list[Tensor] = []

    def shown(value: object) -> object:
        if isinstance(value, Tensor):
            tensors.append(value)
            return value.dtype, value.shape
        if isinstance(value, Mapping):
            pairs = cast("Mapping[object, object]", value).items()
            return [(repr(key), shown(item)) for key, item in pairs]
        if isinstance(value, (list, tuple)):
            return [shown(item) for item in cast("Sequence[object]", value)]
        return repr(value)

    state = inner(optimizer).state
    known = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # Of parameters that are new, or were never moved, it remembers nothing.
    found = [shown(state[parameter]) for parameter in known if parameter in state]
    return len(state), found, fingerprint(*tensors)
