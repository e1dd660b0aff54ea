"""Observes torch: loaders, optimisers, noise and checkpoints, for Opacus' trainings and for hand-written ones."""

import functools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from decrescendo.base.torch_private import LossModule, fetching, is_wrapped_by_transform
from decrescendo.doctor.by_hand import WeightsByHand, joined
from decrescendo.doctor.data_sets import draws_from_all, facts_of
from decrescendo.doctor.draws import Draws
from decrescendo.doctor.events import Events, user_frame, user_place, wrap
from decrescendo.doctor.indexed import IndexedRows
from decrescendo.doctor.loops import epochs_asked, named_numbers
from decrescendo.doctor.neighbours import (
    AFTER,
    GOING_ON,
    SCALES,
    Neighbours,
    changed_indices,
    changed_rows,
    enlarging,
    putting,
)
from decrescendo.doctor.servers import Servers
from decrescendo.doctor.twins import Twins
from decrescendo.doctor.unclipped import Unclipped


class Enough(BaseException):
    """So many steps were observed as were asked for."""


# Seconds of steps without privacy that may come before Opacus makes a private optimiser.
_MOST_EARLY = 60.0
# Of worker processes, of which there are none here.
_OF_WORKERS = ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


class TorchWatch:
    """What torch does for the user's training.

    Args:
        events: where it is written.
        neighbours: which process this is.
        steps: after so many steps of the optimiser the training ends.
    """

    def __init__(self, events: Events, neighbours: Neighbours, steps: int) -> None:
        self.events, self.neighbours, self.steps = events, neighbours, steps
        self.private = 0  # optimisers that Opacus made
        self.expected = False  # whether the source asks Opacus for one
        self._early, self._began = 0, 0.0
        self.inside = False  # a step of Opacus' optimiser
        self.done = self._stops = self.fetched = self.bypassed = 0
        self._claimed = False  # whether what the code calls noise, clip norm and epsilon is written
        self.depth, self._random = 0, torch.get_rng_state()
        self._backward = self._batch = 0  # passes since the last step, and rows of the last one
        self.draws, self.rows, self.twins = Draws(self), IndexedRows(self), Twins(self)
        self._buffers: set[int] = set()
        self.unclipped, self.by_hand, self.servers = Unclipped(), WeightsByHand(self), Servers(self)
        self._of_others = False  # the step that is made: a client's, or beside the private ones
        self._loaders: set[int] = set()
        # Data sets and parameters of the steps before Opacus'.
        self._fetching: Any = None
        self.early_data: list[Any] = []
        self.early_weights: dict[Tensor, int] = {}

    @property
    def waits(self) -> bool:
        """Whether what comes before the private training is left out: a baseline, training on public data."""
        if not self.expected or self.private:
            return False
        return not self._early or time.monotonic() - self._began < _MOST_EARLY

    def start(self) -> None:
        """Put the observers in."""
        self._watch_loaders()
        self._watch_steps()
        self.draws.start()
        self.rows.start()
        self.by_hand.start()
        self.servers.start()
        self.twins.outputs.watch_files()
        self.twins.outputs.held, self.twins.outputs.state = self.by_hand, self.twins.state
        wrap(torch, "load", self._loaded)

    def fork(self, loader: int) -> str:
        """See `Neighbours.fork`: random numbers that are drawn from here on are drawn in the step."""
        self.draws.begin()
        self.by_hand.forked()
        role = self.neighbours.fork(loader)
        self.steps += 2 * AFTER if self.neighbours.role in GOING_ON else 0
        return role

    # Loaders.

    def _watch_loaders(self) -> None:
        places: dict[int, tuple[str, int]] = {}

        def init(made: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            for name in _OF_WORKERS:
                kwargs.pop(name, None)
            args = (*args[:5], 0, *args[6:]) if len(args) > 5 else args
            made(loader, *args, **kwargs)
            places[id(loader)] = user_place()

        def iter_(iterate: Any, loader: Any) -> Any:
            iterator = iterate(loader)
            fetcher = getattr(iterator, "_dataset_fetcher", None)
            if isinstance(fetcher, fetching._MapDatasetFetcher):
                file, line = places.get(id(loader), ("", 0))
                self._wrap(fetcher, loader, {"made_file": file, "made_line": line, **facts_of(loader)})
            return iterator

        wrap(DataLoader, "__init__", init)
        wrap(DataLoader, "__iter__", iter_)

    def _wrap(self, fetcher: Any, loader: Any, facts: dict[str, Any]) -> None:
        fetch = fetcher.fetch

        def changed(indices: Any) -> Any:
            self.fetched, self._fetching = id(loader), loader.dataset
            self.twins.fetched(loader.dataset, indices, all_are_drawn=draws_from_all(facts))
            if id(loader) not in self._loaders:
                self._loaders.add(id(loader))
                self.events.write("loader", {"id": id(loader), **facts})
            self.unclipped.begin()
            many = isinstance(indices, (list, tuple)) and len(indices) >= 2
            if not many or self.waits or not self.neighbours.due(id(loader)):
                return fetch(indices)
            role = self.fork(id(loader))
            if role in SCALES and fetcher.collate_fn is not None:
                collate = fetcher.collate_fn
                fetcher.collate_fn = enlarging(collate, role)
                try:
                    return fetch(indices)
                finally:
                    fetcher.collate_fn = collate
            return fetch(changed_indices(role, indices, len(loader.dataset)))

        fetcher.fetch = changed

    # Steps.

    def _watch_steps(self) -> None:
        modules.register_module_forward_pre_hook(self._before_forward)
        modules.register_module_forward_hook(self._after_forward, always_call=True)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        wrap(torch.optim.Optimizer, "__init__", self._made)
        for owner, name in ((Tensor, "backward"), (torch.autograd, "grad")):
            wrap(owner, name, self._derived)

    def _derived(self, derive: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.by_hand.differentiated = True
        self._backward += 1
        return derive(*args, **kwargs)

    def _made(self, make: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:
        make(optimizer, *args, **kwargs)
        self.unclipped.add(optimizer)
        self.by_hand.begin()

    def _before_forward(self, module: nn.Module, args: Any) -> Any:
        self.depth += 1
        if self.depth == 1:
            self._random = torch.get_rng_state()
            if self.twins.active:
                self.by_hand.hold(module)
            if not torch.is_grad_enabled():
                self.servers.look_at(module)
        if self.depth > 1 or not torch.is_grad_enabled() or not args or torch.jit.is_tracing():
            return None
        if isinstance(module, LossModule) or not isinstance(args[0], Tensor) or not args[0].dim():
            return None
        if is_wrapped_by_transform(args[0]):  # under vmap it is every record at once
            return None
        self._batch = len(args[0])
        if self.servers.trains(module):
            self.rows.see(args[0])
        self._watch_buffers(module)
        self.by_hand.before_pass(module)
        self.servers.passed()
        if not (module.training or self.by_hand) or self.fetched or self.waits or not self.neighbours.due(0):
            return None
        # No loader made this batch: change a record where the model takes it, or a client. Labels stay.
        return (changed_rows(self.fork(0), args[0], whole=self.servers.federates), *args[1:])

    def _watch_buffers(self, module: nn.Module) -> None:
        if id(module) in self._buffers:
            return
        parts = {name: part for name, part in module.named_modules() if getattr(part, "track_running_stats", False)}
        kept = {name: part for name, part in parts.items() if part.training}
        if parts and not kept:
            self.events.write("frozen", {"layers": [*parts][:5]})
        if module.training:
            self._buffers.add(id(module))
        if kept:
            self.neighbours.buffers += [b for part in kept.values() for b in part.buffers() if b.is_floating_point()]
            self.events.write("buffers", {"layers": [*kept][:5]})

    def _after_forward(self, module: nn.Module, args: Any, result: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if not self.depth and not torch.equal(self._random, torch.get_rng_state()):
            self.neighbours.random_layers = True

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.inside or self.waits:
            return
        groups = [p for group in optimizer.param_groups for p in group["params"]]
        if not self.private and (kwargs.get("closure") or args[1:] != (None,) * len(args[1:])):
            self.twins.cannot_hold()  # the closure computes the gradient in the step
            return
        if self.private:
            if any(getattr(p, "grad_sample", None) is not None for p in groups):
                self.bypassed += 1
                self.events.write("bypass", {"loader": self.fetched})
                if self.bypassed >= self.steps:
                    raise Enough
                return
            if self.neighbours.waiting:
                self.unclipped.take(optimizer)
            if self.neighbours.waiting or self.unclipped.steps_by_these(optimizer):
                self.events.write("beside", {"optimizer": id(optimizer)})
            return
        gradients = [p.grad for p in groups if p.grad is not None]
        noised = all(tuple(p.shape) in self.draws.shapes for p in groups if p.grad is not None)
        self._of_others = self.servers.are_trained_locally(groups) or (self.by_hand.in_a_dict and not noised)
        if gradients and not self._of_others:
            whole = functools.partial(joined, gradients)
            self.released(whole, putting(gradients), whose=id(optimizer), noised=noised)
            self.twins.release(gradients)

    def released(
        self, vector: Callable[[], Tensor], put: Callable[[Tensor], None] | None = None, *, at_once: bool = True,
        whose: int = 0, noised: bool = False, of_a_round: bool = False,
    ) -> None:  # fmt: skip
        """By a step that is not Opacus': with what the code around it calls noise, clip norm and epsilon."""
        if not self._claimed:
            self._claimed = True
            frame = user_frame()
            self.events.write("claims", {"names": named_numbers(frame), "epochs": epochs_asked(frame)})
        facts = {"kind": "gradient", "few": self.draws.few, "whose": whose, "noised": noised, "round": of_a_round}
        self.neighbours.release(vector, {**facts, "elsewhere": self.draws.elsewhere(at_once)}, put)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.waits:
            self.early_data += [] if self._fetching is None else [self._fetching]
            self._fetching = None
            self.early_weights = {p: p._version for group in optimizer.param_groups for p in group["params"]}
        if self.inside or not (self.private or self._of_others):
            self.took_step(private=self.inside)

    def took_step(self, *, private: bool, of_a_round: bool = False) -> None:
        """A step was taken, with a private sum or another one, or a round of a federation.

        Raises:
            Enough: it was the last to be observed.
        """
        if self.waits:
            self._began = self._began or time.monotonic()
            self._early += 1
            self.twins.forget()
            return
        if not self.done:
            self.finish()
        self.done += 1
        loader, alone = (0, False) if of_a_round else (self.fetched, self._backward == 1 and self._batch > 1)
        facts = {"private": private, "loader": loader, "drawn": self.draws.count, "rate": self.rows.rate}
        self.events.write("step", {**facts, "of_a_batch": alone})
        self._backward = 0
        self.rows.rate = None
        self.twins.stepped(of_a_round=of_a_round)
        if self.done >= self.steps and not self.twins.start():
            self._stops += 1
            if self._stops > 3:  # somebody catches everything
                os.kill(os.getpid(), signal.SIGTERM)
            raise Enough

    def finish(self) -> None:
        """How many steps without privacy were left out; also at the end of a training that has no others."""
        if self._early and not self.done:
            self.events.write("early", {"steps": self._early})

    # Files.

    def _loaded(self, load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        content = load(*args, **kwargs)
        keys = sorted(map(str, content)) if isinstance(content, dict) else []
        self.events.write("load", {"keys": keys[:20]})
        return content
