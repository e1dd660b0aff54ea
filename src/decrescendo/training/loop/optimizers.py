"""Helpers for torch optimisers: unwrap them, hook the next step, and tell the user's code from torch's."""

import sys
from collections.abc import Callable
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


def around_step(
    optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]
) -> list[Any]:
    """Call ``before`` and ``after`` once around the next step; for combined optimisers before the first one's
    and after the last one's. The caller must then remove the returned handles."""
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
