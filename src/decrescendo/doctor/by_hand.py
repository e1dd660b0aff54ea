"""Steps of a loop that moves the weights of its module itself, without an optimiser of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from decrescendo.doctor.neighbours import LARGEST

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch


class WeightsByHand:
    """Between two passes of a module its weights were changed.

    Args:
        watch: of the training.
    """

    def __init__(self, watch: TorchWatch) -> None:
        self._watch = watch
        self._known: dict[int, tuple[nn.Module, Tensor]] = {}
        self.differentiated = False  # since the last step: without a gradient, weights were loaded or drawn again

    def begin(self) -> None:
        """An optimiser was made: it moves them."""
        self._known.clear()

    def before_pass(self, module: nn.Module) -> None:
        """Look at the weights that a pass is about to use."""
        if self._watch.twins.active:
            self._hold(module)
            return
        now = _weights(module) if module.training and not len(self._watch.unclipped) else None
        if now is None:
            return
        _, before = self._known.get(id(module), (None, None))
        self._known[id(module)] = module, now
        if not self.differentiated or before is None or before.shape != now.shape or torch.equal(before, now):
            return
        self.differentiated = False
        self._watch.released(lambda: before - now, at_once=False)
        self._watch.took_step(private=False)

    def hold_all(self) -> None:
        """In a twin: give every module the weights that it has in the first one."""
        for module, _ in [*self._known.values()]:
            self._hold(module)

    @property
    def moved(self) -> bool:
        """Whether some have been changed since the last pass."""
        return any(not torch.equal(before, _joined(module)) for module, before in self._known.values())

    def _hold(self, module: nn.Module) -> None:
        if id(module) not in self._known:
            return
        before, now = self._known[id(module)][1], _joined(module)
        if before.shape == now.shape and not torch.equal(before, now):
            self._watch.twins.release([p.data for p in module.parameters() if p.requires_grad])
            self._known[id(module)] = module, _joined(module)


def _weights(module: nn.Module) -> Tensor | None:
    """All that is trained, if it is not too much."""
    trained = [p for p in module.parameters() if p.requires_grad]
    if any(map(torch.nn.parameter.is_lazy, trained)) or len({p.device for p in trained}) != 1:
        return None
    return _joined(module) if sum(p.numel() for p in trained) <= LARGEST else None


def _joined(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])
