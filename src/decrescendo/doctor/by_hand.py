"""Steps of a loop that moves weights itself, without an optimiser of torch: those of a module, or of a dict that
`functional_call` takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from decrescendo.base.torch_private import (
    is_wrapped_by_transform,
    outside_transforms,
    running_transform,
    unwrapped_by_transform,
)
from decrescendo.doctor.events import wrap
from decrescendo.doctor.neighbours import LARGEST

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch


class WeightsByHand:
    """Between two passes weights were changed, and a gradient was computed.

    Args:
        watch: of the training.
    """

    def __init__(self, watch: TorchWatch) -> None:
        self._watch = watch
        self._modules = weakref.WeakKeyDictionary[nn.Module, Tensor]()
        self._functional: dict[int, Tensor] = {}
        self._trained = set[int]()  # modules that were seen in their training mode, with a gradient
        # Since the last step. (Without a gradient, weights were loaded or drawn again.)
        self.differentiated = False
        self._stale = False
        self._open = False  # weights of a dict may have been changed since they were seen

    def __bool__(self) -> bool:
        """Whether any are known."""
        return bool(self._modules or self._functional)

    @property
    def in_a_dict(self) -> bool:
        """Whether weights of a dict are trained. (An optimiser's, of a generator beside them, have no private rows.)"""
        return bool(self._functional)

    def start(self) -> None:
        """Put the observer in."""
        wrap(torch.func, "functional_call", self._called)

    def begin(self) -> None:
        """An optimiser was made: it moves them."""
        self._modules.clear()

    # Modules.

    def before_pass(self, module: nn.Module) -> None:
        """Look at the weights that a pass with a gradient is about to use."""
        servers = self._watch.servers
        if servers.federates and not servers.are_trained_locally(list(module.parameters())):
            servers.look_at(module)
        self._trained |= {id(module)} if module.training else set()
        evaluates = not module.training and id(module) in self._trained
        if evaluates or servers.rounds or len(self._watch.unclipped) or self._functional or self._watch.twins.active:
            return
        trained = [p for p in module.parameters() if p.requires_grad]
        if any(map(torch.nn.parameter.is_lazy, trained)) or not _is_small(trained):
            return
        before, now = self._modules.get(module), joined(trained)
        self._modules[module] = now
        if not servers.are_trained_locally(list(module.parameters())):
            self._look(before, now)

    def hold(self, module: nn.Module) -> None:
        """In a twin: give a module the weights that it has in the first one."""
        if module not in self._modules:
            return
        before, trained = self._modules[module], [p for p in module.parameters() if p.requires_grad]
        if not torch.equal(before, joined(trained)):
            self._watch.twins.release([p.data for p in trained])
            self._modules[module] = joined(trained)

    def hold_all(self) -> None:
        """The same for every module."""
        for module in [*self._modules]:
            self.hold(module)

    @property
    def moved(self) -> bool:
        """Whether some may be others than those of the first twin."""
        return self._open or any(
            not torch.equal(before, joined([p for p in module.parameters() if p.requires_grad]))
            for module, before in self._modules.items()
        )

    # Dicts.

    def _called(self, call: Callable[..., Any], module: nn.Module, given: Any, *args: Any, **kwargs: Any) -> Any:
        derives = running_transform() is not None
        if self._watch.waits or not (derives or self._watch.twins.active):
            return call(module, given, *args, **kwargs)
        with outside_transforms():
            tensors = [held for held in _tensors(given) if held.is_floating_point()]
            if (
                not {t.data_ptr() for t in tensors} & self._watch.unclipped.addresses
            ):  # of a module that an optimiser has
                self._look_at(module, tensors, derives)
        return call(module, given, *args, **kwargs)

    def _look_at(self, module: nn.Module, tensors: list[Tensor], derives: bool) -> None:
        if not tensors or not _is_small(tensors):
            return
        before, now = self._functional.get(id(module)), joined(tensors)
        if self._watch.twins.active:
            if before is not None and before.shape == now.shape and not torch.equal(before, now):
                self._watch.twins.release([t.detach() for t in tensors])
                now = joined(tensors)
            self._open = derives
        self._functional[id(module)] = now
        if not self._watch.twins.active:
            self._look(before, now)
            self.differentiated = self.differentiated or derives

    def forked(self) -> None:
        """A record of the batch to come is changed: what moved the weights before it is no release of it."""
        self._stale = self.differentiated

    def _look(self, before: Tensor | None, now: Tensor) -> None:
        stale, self._stale = self._stale, False
        if not self.differentiated or before is None or before.shape != now.shape or torch.equal(before, now):
            return
        self.differentiated = False
        if not stale:
            self._watch.released(lambda: before - now, at_once=False)
        if not stale or self._watch.neighbours.role == "parent":
            self._watch.took_step(private=False)


def _tensors(given: Any) -> Iterator[Tensor]:
    """The tensors of a dict, or of several, without what a transform wraps them in."""
    for held in given.values() if isinstance(given, Mapping) else given:
        if isinstance(held, Tensor):
            unwrapped = held
            while is_wrapped_by_transform(unwrapped):
                unwrapped = unwrapped_by_transform(unwrapped)
            yield unwrapped
        elif isinstance(held, (Mapping, tuple, list)):
            yield from _tensors(held)


def _is_small(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors of one device hold few enough numbers to be kept."""
    return len({t.device for t in tensors}) == 1 and sum(t.numel() for t in tensors) <= LARGEST


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([t.detach().flatten() for t in tensors])
