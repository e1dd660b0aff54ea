"""Optimisers beside a private one: what they step by, in each of the neighbouring data sets."""

import weakref
from typing import Any

import torch
from torch import Tensor


class Unclipped:
    """Every optimiser that the training makes; of those whose parameters no library clips, the gradients."""

    def __init__(self) -> None:
        self._made = weakref.WeakSet[Any]()
        self._taken: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._made)

    def add(self, optimizer: Any) -> None:
        """One was made."""
        self._made.add(optimizer)

    def begin(self) -> None:
        """A batch is drawn: what was stepped by before has nothing to do with it."""
        self._taken.clear()

    def take(self, optimizer: Any) -> None:
        """It steps now, before the private one does."""
        self._taken |= _gradients(optimizer)

    def gradients(self) -> dict[str, Tensor]:
        """By the number of the optimiser: what each has stepped by since the batch was drawn, or would step by now."""
        return {key: held for one in self._made for key, held in _gradients(one).items()} | self._taken


def _gradients(optimizer: Any) -> dict[str, Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    held = [p.grad.detach().flatten() for p in parameters if p.grad is not None]
    if not held or any(hasattr(p, "grad_sample") for p in parameters):
        return {}
    return {str(id(optimizer)): torch.cat(held)}
