"""The tensor arguments of an operation, with their labels and the events that wrote them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decrescendo.row_independence.dataflow import Mark
from decrescendo.row_independence.labels import Label


@dataclass(slots=True)
class OperationInputs:
    """The tensor arguments of an operation with their labels, and what is compared of them between passes."""

    tensors: list[Tensor] = field(default_factory=list[Tensor])
    labels: list[Label] = field(default_factory=list[Label])
    numbers: list[object] = field(default_factory=list[object])
    # The indices of those numbers that are sizes.
    sized: list[int] = field(default_factory=list[int])
    wires: list[object] = field(default_factory=list[object])
    # The labels of their memory, by storage.
    marks: dict[int, Mark] = field(default_factory=dict[int, Mark])
    # Whether the examples reach one of them.
    data: bool = False
    _known: dict[int, Label] | None = None

    @property
    def known(self) -> dict[int, Label]:
        """The labels by the ``id`` of their tensors."""
        if self._known is None:
            self._known = {id(tensor): label for tensor, label in zip(self.tensors, self.labels, strict=True)}
        return self._known


def shapes_of(made: Sequence[Tensor]) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in made)
