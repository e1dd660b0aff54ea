"""What only the optimiser, or nobody, may write to: there raw data would stay without noise."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import nn

from decrescendo.clipping.proof.memory import parts_of
from decrescendo.errors import UnsupportedModel
from decrescendo.training.bits import fingerprint


class FrozenStateGuard:
    """The buffers and frozen parameters of a model, as they were, and which tensors it has.

    >>> model = nn.BatchNorm1d(2)
    >>> before = FrozenStateGuard(model)
    >>> _ = model(torch.ones(3, 2))
    >>> before.check()
    Traceback (most recent call last):
    decrescendo.errors.UnsupportedModel: buffers must not change in training, got a change of running_mean...
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        self._names = {name for name, _ in model.named_parameters()}
        # Frozen parameters may be many times what is trained: a fingerprint instead of a copy.
        self._frozen = {name: fingerprint(value) for name, value in _frozen(model)}

    def unfreeze(self, names: Iterable[str]) -> None:
        """These are trained: from now on they may change."""
        for name in names:
            self._frozen.pop(name, None)

    def check(self) -> None:
        """Look again.

        Raises:
            UnsupportedModel: something has changed.
        """
        for name, buffer in self._model.named_buffers():
            before = self._buffers.get(name)
            if before is None or not _equal(before, buffer):
                raise UnsupportedModel(
                    f"buffers must not change in training, got a change of {name}. It holds statistics of "
                    "the raw data without noise: freeze it (eval mode), or use GroupNorm or LayerNorm"
                )
        for name, _ in self._model.named_parameters():
            if name not in self._names:
                raise UnsupportedModel(
                    f"a model must keep its parameters in training, got a new one, {name}. What a forward pass makes "
                    "of its inputs is raw data without noise: make all parameters before the start"
                )
        for name, value in _frozen(self._model):
            if name in self._frozen and self._frozen[name] != fingerprint(value):
                raise UnsupportedModel(
                    f"frozen parameters must not change in training, got a change of {name}. What a forward "
                    "pass writes to it is raw data without noise: train it by its gradient, or leave it alone"
                )


def _frozen(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in model.named_parameters() if not value.requires_grad]


def _equal(before: torch.Tensor, after: torch.Tensor) -> bool:
    """A sparse tensor is not compared by torch; what it is made of is."""
    if (before.layout, before.shape) != (after.layout, after.shape):
        return False
    parts = (cast("Sequence[torch.Tensor]", parts_of(value)) for value in (before, after))
    return all(map(torch.equal, *parts))
