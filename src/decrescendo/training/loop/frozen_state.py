"""Watches what is published without noise beside the trained weights: buffers and frozen parameters."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeAlias, cast

import torch
from torch import nn

from decrescendo.base.assumption import Assumption
from decrescendo.base.storages import parts_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import UnsupportedModel
from decrescendo.training.loop.assumptions import (
    PARAMETERS_MADE,
    PUBLIC_BUFFERS,
    PUBLIC_PARAMETERS,
    STATE_SET,
    named,
)
from decrescendo.training.loop.constructed import not_as_constructed
from decrescendo.training.processes.bits import fingerprints

# For each buffer and frozen parameter: its layout, dtype and shape, and its fingerprint.
_State: TypeAlias = dict[str, tuple[object, bytes]]


class FrozenStateGuard:
    """Detects changes of a model's buffers and frozen parameters, and parameters that are added.

    A pass over private rows must not change them (`check_pass`). Changes by other code, and values that were there
    from the beginning, cannot be checked: a run lists them by name among its assumptions.

    >>> model = nn.Linear(2, 2)
    >>> model.register_buffer("temperature", torch.ones(()))
    >>> state = FrozenStateGuard(model)
    >>> state.assumptions()
    ()
    >>> _ = model.temperature.fill_(0.5)
    >>> [assumption.code for assumption in state.assumptions()]
    ['public-changed-state']
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # Ordered sets of names: of changed state, and of parameters that were added.
        self._changed, self._made = dict[str, None](), dict[str, None]()
        self._trained, self._begun = set[str](), False
        self._frozen = set[str]()
        self._note()

    def begin(self) -> None:
        """Call before the first draw: the state found then cannot depend on private data."""
        if not self._begun:
            self._begun = True
            self._note()

    def _note(self) -> None:
        self._keep(self._look(), self._names_now())
        self._public_buffers = list(not_as_constructed(self._model))
        self._public_parameters = [name for name, value in self._parameters() if not value.requires_grad]

    def trained(self, names: Iterable[str]) -> None:
        """Note parameters that a step updates: they are released with noise."""
        self._trained |= set(names)

    def follow(self) -> None:
        """Call before each step: checks for changes if the set of trainable parameters has changed. (A check
        at each step would be slow for large models.)"""
        now = {name: value.requires_grad for name, value in self._parameters()}
        if {name for name, trained in now.items() if not trained} != self._frozen or self._names.keys() != now.keys():
            self.look()

    def look(self) -> None:
        """Note what has changed since the last check, also in parameters that were frozen then and are
        trained now."""
        names = self._names_now()
        self._made |= dict.fromkeys(name for name in names if name not in self._names)
        now = self._look()
        for name, found in now.items():
            before = self._state.get(name)
            # A parameter trained until now, or new, has no earlier state to compare.
            is_known = name not in self._made and (before is not None or name not in self._names)
            if is_known and before != found:
                self._changed[name] = None
        self._keep(now, names)

    def check_pass(self) -> None:
        """Check, after a pass over private rows, that it changed nothing since the last check.

        Raises:
            UnsupportedModel: the pass changed a buffer or a frozen parameter, or added a parameter.
        """
        now = self._look()
        changed = [name for name, found in now.items() if self._state.get(name) != found]
        if new := [name for name in self._names_now() if name not in self._names]:
            raise UnsupportedModel(
                f"a forward pass must not add parameters to the model, got {named(new)}. What it makes of private rows "
                "has no noise: make all parameters before the first step"
            )
        if changed:
            raise UnsupportedModel(
                f"a forward pass must not change the model's buffers or frozen parameters, got a change of "
                f"{named(changed)}. What it writes there of private rows has no noise: replace BatchNorm by GroupNorm "
                "(decrescendo.training.without_batch_norm(model)), and train what is to learn by its gradient"
            )

    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions about everything published beside the trained weights, after one more check.

        One each for buffers that are not as constructed (`constructed.not_as_constructed`), for parameters
        that were frozen from the beginning and never trained, for state that code outside of the passes changed, and
        for parameters that it added.
        """
        self.look()
        frozen = [name for name in self._public_parameters if name not in self._trained]
        found = {
            PUBLIC_BUFFERS: self._public_buffers,
            PUBLIC_PARAMETERS: frozen,
            STATE_SET: self._changed,
            PARAMETERS_MADE: self._made,
        }
        return tuple(kind.format(named(names)) for kind, names in found.items() if names)

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(Inventory.of(self._model).parameters.items())

    def _names_now(self) -> dict[str, None]:
        return dict.fromkeys(name for name, _ in self._parameters())

    def _keep(self, state: _State, names: dict[str, None]) -> None:
        """Keep, for the next check, the names of parameters and the state of buffers and frozen parameters."""
        trained = {name for name, value in self._parameters() if value.requires_grad}
        self._frozen = names.keys() - trained
        self._state, self._names = {name: state[name] for name in state if name not in trained}, names

    def _look(self) -> _State:
        """Fingerprints of all buffers and of all parameters that are, or were, frozen."""
        held = list(self._model.named_buffers())
        held += [(name, value) for name, value in self._parameters() if name in self._frozen or not value.requires_grad]
        plain = [value.detach().int_repr() if value.is_quantized else value for _, value in held]
        parts = [cast("Sequence[torch.Tensor]", parts_of(value)) for value in plain]
        codes = iter(fingerprints(*chain.from_iterable(parts)))
        return {
            name: ((value.layout, value.dtype, tuple(value.shape)), b"".join(next(codes) for _ in own))
            for (name, value), own in zip(held, parts, strict=True)
        }
