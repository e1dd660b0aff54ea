"""Observes trainings of other libraries: DPTrainer, which steps Opacus' optimiser by itself, and opake."""

import contextlib
import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decrescendo.base.torch_private import tree_leaves
from decrescendo.doctor.data_sets import facts_of
from decrescendo.doctor.events import user_frame, wrap
from decrescendo.doctor.loops import epochs_asked, named_numbers
from decrescendo.doctor.source import Sources
from decrescendo.doctor.watch_torch import TorchWatch

_NOISES = ("opake.dpsgd.noise", "opake.dpsgd", "opake.api.dpsgd.noise")


class PeersWatch:
    """What DPTrainer or opake does for the user's training.

    Args:
        torch_watch: which is told of their steps.
    """

    def __init__(self, torch_watch: TorchWatch) -> None:
        self._torch, self._events, self._neighbours = torch_watch, torch_watch.events, torch_watch.neighbours
        self._looked = False

    def start(self, sources: Sources) -> None:
        """Put the observers in for what the script, or a module beside it, names, and can be imported."""
        if sources.mentions("dptrainer"):
            self._wrap("dptrainer", "DPTrainer", "get_train_dataloader", self._loaded)
        if sources.mentions("opake"):
            for name in _NOISES:
                self._wrap(name, "", "gaussian_noise", self._made)
            self._wrap("opake.dpsgd.accounting", "", "poisson", self._counted)

    @staticmethod
    def _wrap(module: str, owner: str, name: str, around: Callable[..., Any]) -> None:
        with contextlib.suppress(Exception):  # not installed, or for another version of Python
            found = importlib.import_module(module)
            wrap(getattr(found, owner) if owner else found, name, around)

    # DPTrainer.

    def _loaded(self, load: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Its trainer makes the loader of a training: `OpacusWatch` has seen no ``make_private``."""
        loader = load(trainer, *args, **kwargs)
        self._torch.private += 1
        asked, given, optimizer = trainer.privacy_args, trainer.args, trainer.optimizer
        while not hasattr(optimizer, "noise_multiplier"):
            optimizer = optimizer.optimizer
        facts = facts_of(loader)
        size = given.per_device_train_batch_size * given.gradient_accumulation_steps
        steps = -(-facts["rows"] // size)
        total = given.max_steps if given.max_steps > 0 else math.ceil(given.num_train_epochs * steps)
        told = {
            "target_epsilon": asked.target_epsilon, "target_delta": asked.target_delta,
            "epochs": -(-total // steps), "poisson_sampling": asked.poisson_sampling,
        }  # fmt: skip
        accountant = trainer.dp_callback.accountant
        self._events.write("private", {
            "asked": told, "given": facts, "made": {**facts, "steps": steps}, "optimizer": id(optimizer),
            "noise": optimizer.noise_multiplier, "accountant": id(accountant), "history": list(accountant.history),
            "total": total,
        })  # fmt: skip
        return loader

    # opake.

    def _made(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        noise, state = make(*args, **kwargs)
        return functools.partial(self._noised, noise, float(kwargs["noise_multiplier"])), state

    def _noised(self, noise: Callable[..., Any], multiplier: float, clipped: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._looked:
            self._events.write("claims", {"names": {**named_numbers(user_frame()), "noise": multiplier}})
        sums = getattr(clipped, "grads", clipped)  # of gradients and their squares the former
        sensitivity = float(sums.sensitivity)
        epochs = {} if self._looked else {"epochs": epochs_asked(user_frame())}
        self._looked = True
        self._events.write(
            "noise",
            {"noise": multiplier, "clip": sensitivity, "optimizer": 0, "ghost_clip": None, **epochs},
        )
        tensors = [leaf for leaf in tree_leaves(sums.pytree) if isinstance(leaf, Tensor)]
        facts = {"kind": "sum", "std": multiplier * sensitivity, "noise": multiplier}
        self._neighbours.release(lambda: torch.cat([leaf.detach().flatten() for leaf in tensors]), facts)
        self._torch.twins.cannot_hold()
        made = noise(clipped, *args, **kwargs)
        self._torch.private += 1
        self._torch.took_step(private=True)
        return made

    def _counted(self, poisson: Callable[..., Any], inner: Any, sample_rate: float, **kwargs: Any) -> Any:
        multiplier = getattr(inner, "noise_multiplier", None)
        told = {} if multiplier is None else {"noise_multiplier": float(multiplier)}
        self._events.write("account", {"sample_rate": float(sample_rate), **told})
        return poisson(inner, sample_rate, **kwargs)
