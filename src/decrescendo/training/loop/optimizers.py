"""Helpers for torch optimisers: unwrap them, hook the next step, and tell the user's code from torch's."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.optim.several import parts_of


def assumed_of_optimizer(optimizer: torch.optim.Optimizer) -> set[Assumption]:
    """What is assumed about a user-defined optimiser; nothing for torch's and ours, wrapped by Accelerate or
    not.

    >>> weight = torch.zeros(1, requires_grad=True)
    >>> assumed_of_optimizer(torch.optim.SGD([weight], lr=1.0))
    set()
    >>> class Mine(torch.optim.SGD):
    ...     pass
    >>> [assumption.code for assumption in assumed_of_optimizer(Mine([weight], lr=1.0))]
    ['own-optimizer']
    """
    found = set[Assumption]()
    for part in parts_of(inner(optimizer)):
        kind = type(inner(part) if type(part).__module__ == "accelerate.optimizer" else part)
        known = kind.__module__.split(".")[0] in ("torch", "decrescendo")
        if not known or getattr(sys.modules.get(kind.__module__), kind.__name__, None) is not kind:
            found.add(assumed("own-optimizer", kind.__name__))
    return found


def inner(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimiser inside a wrapper that has no hooks itself (Accelerate's)."""
    held = None if "_optimizer_step_pre_hooks" in vars(optimizer) else vars(optimizer).get("optimizer")
    return inner(held) if isinstance(held, torch.optim.Optimizer) else optimizer


def state_at_start(optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of what an optimiser holds of earlier steps, sorted; empty for a new one.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.Adam([weight])
    >>> before = state_at_start(optimizer)
    >>> (weight * torch.tensor([1.0, 2.0])).sum().backward()
    >>> optimizer.step()
    >>> before, state_at_start(optimizer)
    ([], ['exp_avg', 'exp_avg_sq'])
    """
    held = [state for part in parts_of(inner(optimizer)) for state in inner(part).state.values()]
    states = [state for state in held if isinstance(state, Mapping)]
    return sorted({name for state in states for name, value in state.items() if name != "step" and _has_seen(value)})


def _has_seen(value: object) -> bool:
    """Whether a number or tensor is none that an optimiser begins with: 0, or one number throughout."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().flatten()
        return bool(flat.ne(0).any()) if flat.numel() < 2 else bool(flat.ne(flat[0]).any())
    return isinstance(value, (int, float)) and value != 0


def around_step(
    optimizer: torch.optim.Optimizer,
    before: Callable[[], None],
    after: Callable[[], None],
    within: Callable[[Callable[[], Any]], Callable[[], Any]],
) -> list[Any]:
    """Call ``before`` and ``after`` once around the next step; for combined optimisers before the first one's
    and after the last one's. What ``within`` makes of its closure, if it has one, takes the closure's place. The caller
    must then remove the returned handles."""
    parts = [inner(part) for part in parts_of(inner(optimizer))]
    left = set(map(id, parts))

    def first(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(left) == len(parts):
            before()
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": within(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], within(args[1]), *args[2:]), kwargs
        return None

    def last(stepped: object, *_: object) -> None:
        left.discard(id(stepped))
        if not left:
            after()

    pairs = [(part.register_step_pre_hook(first), part.register_step_post_hook(last)) for part in parts]
    return [handle for pair in pairs for handle in pair]
