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
        self._held: dict[str, list[tuple[Tensor, int]]] = {}

    def __len__(self) -> int:
        return len(self._made)

    @property
    def numbers(self) -> int:
        """How many numbers the largest of them trains."""
        most = 0
        for one in self._made:
            most = max(most, sum(int(p.numel()) for group in one.param_groups for p in group["params"]))
        return most

    @property
    def parameters(self) -> set[int]:
        """The identities of the tensors that they train."""
        return {id(p) for one in self._made for group in one.param_groups for p in group["params"]}

    @property
    def addresses(self) -> set[int]:
        """Where these tensors lie."""
        return {p.data_ptr() for one in self._made for group in one.param_groups for p in group["params"]}

    @property
    def shapes(self) -> set[tuple[int, ...]]:
        """Of the tensors that they train."""
        return {tuple(p.shape) for one in self._made for group in one.param_groups for p in group["params"]}

    def add(self, optimizer: Any) -> None:
        """One was made."""
        self._made.add(optimizer)

    def begin(self) -> None:
        """A batch is drawn: what was stepped by before has nothing to do with it."""
        self._taken.clear()

    def take(self, optimizer: Any) -> None:
        """It steps now, before the private one does."""
        self._taken |= _joined(optimizer)

    def gradients(self) -> dict[str, Tensor]:
        """By the number of the optimiser: what each has stepped by since the batch was drawn, or has for its step."""
        self._held = {str(id(one)): [(g, g._version) for g in _gradients_of(one)] for one in self._made}
        return {key: held for one in self._made for key, held in _joined(one).items()} | self._taken

    def steps_by_these(self, optimizer: Any) -> bool:
        """Whether it now steps by gradients that it had in the last call of `gradients`, none zeroed or changed."""
        known = self._held.get(str(id(optimizer)), [])
        now = _gradients_of(optimizer)
        return bool(now) and len(now) == len(known) and all(
            g is before and g._version == version for g, (before, version) in zip(now, known, strict=True)
        )  # fmt: skip


def _gradients_of(optimizer: Any) -> list[Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    clipped = any(hasattr(p, "grad_sample") for p in parameters)
    return [] if clipped else [p.grad for p in parameters if p.grad is not None]


def _joined(optimizer: Any) -> dict[str, Tensor]:
    held = [gradient.detach().flatten() for gradient in _gradients_of(optimizer)]
    return {str(id(optimizer)): torch.cat(held)} if held else {}
