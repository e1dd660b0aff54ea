"""Rounds of a federation by hand: weights that change with noise, of a model whose copies clients train without any."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from decrescendo.doctor.events import wrap
from decrescendo.doctor.neighbours import LARGEST

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch


class Servers:
    """What is released is the change of a server's model between two looks at it: it is copied, or it predicts.

    Args:
        watch: of the training.
    """

    def __init__(self, watch: TorchWatch) -> None:
        self._watch = watch
        self.expected = False  # whether noise is drawn anywhere in the source
        self.rounds = 0
        self._copies = weakref.WeakSet[nn.Module]()
        self._known = weakref.WeakKeyDictionary[nn.Module, tuple[Tensor, int]]()  # with the draws until then
        self._drawn = 0  # until the last pass with a gradient
        self._passes = 0  # since the last look, with a gradient
        self.federates = False  # whether models were copied
        self._inside = False

    def start(self) -> None:
        """Put the observers in."""
        wrap(copy, "deepcopy", self._copied)
        wrap(nn.Module, "state_dict", self._asked)
        wrap(nn.Module, "load_state_dict", self._loaded)

    def passed(self) -> None:
        """A pass with a gradient begins."""
        self._drawn = self._watch.draws.count
        self._passes += 1

    def trains(self, module: nn.Module) -> bool:
        """Whether a pass with a gradient is one of a training, not one of the server's model on public rows."""
        return not self.federates or module in self._copies

    def are_trained_locally(self, parameters: list[Tensor]) -> bool:
        """Whether a step is one of a client: of a copy's parameters, without noise since its last pass."""
        local = {id(p) for module in self._copies for p in module.parameters()}
        own = {id(p) for p in parameters}
        return self.expected and bool(own) and own <= local and self._watch.draws.count == self._drawn

    def look_at(self, module: nn.Module) -> None:
        """See what a model has become since the last look."""
        watch, parameters = self._watch, [p for p in module.parameters() if p.requires_grad]
        if self._inside or not self.expected or watch.private or not parameters or not self._is_a_server(module):
            return
        now, count = torch.cat([p.detach().flatten() for p in parameters]), watch.draws.count
        before, drawn = self._known.get(module, (now, count))
        if before.shape != now.shape:
            before = now
        moved = self.federates and drawn < count and not torch.equal(before, now)
        if moved and watch.twins.active:
            watch.twins.release([p.data for p in parameters])
            now = torch.cat([p.detach().flatten() for p in parameters])
        if self.federates and self._passes and count == drawn and not torch.equal(before, now):
            watch.events.write("bare", {})
        self._known[module], self._passes = (now, count), 0
        if moved and not watch.twins.active:
            self.rounds += 1
            watch.released(lambda: before - now, at_once=False, of_a_round=True)
            watch.took_step(private=False, of_a_round=True)

    def _is_a_server(self, module: nn.Module) -> bool:
        """Whether a model is no copy, nor any optimiser's, and not too large to be kept."""
        parameters = list(module.parameters())
        small = sum(p.numel() for p in parameters) <= LARGEST and len({p.device for p in parameters}) == 1
        return (
            small and module not in self._copies and not {id(p) for p in parameters} & self._watch.unclipped.parameters
        )

    def _copied(self, copying: Callable[..., Any], held: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(held, nn.Module) or self._inside:
            return copying(held, *args, **kwargs)
        self.look_at(held)
        result = self._within(copying, held, *args, **kwargs)
        self._add(result)
        return result

    def _asked(self, ask: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.look_at(module)
        return self._within(ask, module, *args, **kwargs)

    def _add(self, module: nn.Module) -> None:
        self.federates = True
        self._copies.add(module)

    def _within(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what calls itself for the parts of a module."""
        inside, self._inside = self._inside, True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside = inside

    def _loaded(self, load: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if module not in self._known:
            self._add(module)
        return load(module, *args, **kwargs)
