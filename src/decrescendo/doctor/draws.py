"""Normal random numbers that a training draws outside of its modules: the noise, as far as an observer can know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decrescendo.doctor.events import wrap

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch


class Draws:
    """Counts normal draws, and makes them zero in the neighbour without noise.

    Args:
        watch: of the training.
    """

    def __init__(self, watch: TorchWatch) -> None:
        self._watch = watch
        self.count = 0
        self._states: list[Any] = []
        self._early = (
            False  # whether many numbers were drawn before the step, and after an optimiser was made
        )

    def start(self) -> None:
        """Put the observers in."""
        for owner, names in (
            (torch, ("normal", "randn", "randn_like")), (Tensor, ("normal_",)),
            (np.random, ("normal", "laplace", "randn", "standard_normal")),
        ):  # fmt: skip
            for name in names:
                wrap(owner, name, self._drawn)
        kind = _watched(self._drawn)

        def made(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return kind(make(*args, **kwargs).bit_generator)

        vars(np.random)["Generator"] = kind
        wrap(np.random, "default_rng", made)

    def begin(self) -> None:
        """A step begins here."""
        self._states = _states()

    def elsewhere(self, at_once: bool) -> bool:
        """Whether noise may have been drawn by another way than those that are watched, or before the step. At once:
        nothing was drawn after the step, the next batch, say."""
        return self._early or (at_once and any(map(_differ, self._states, _states())))

    def _drawn(self, draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        drawn = draw(*args, **kwargs)
        if self._watch.depth:
            return drawn
        self.count += 1
        size = drawn.numel() if isinstance(drawn, Tensor) else np.size(drawn)
        self._early = self._early or (not self._states and 0 < self._watch.unclipped.numbers <= size)
        if self._watch.neighbours.role != "quiet":
            return drawn
        return drawn.zero_() if isinstance(drawn, Tensor) else drawn * 0


def _watched(around: Callable[..., Any]) -> type[np.random.Generator]:
    """NumPy's generator, observed; its methods cannot be replaced."""

    class Generator(np.random.Generator):
        pass

    for name in ("normal", "standard_normal", "laplace"):
        setattr(Generator, name, getattr(np.random.Generator, name))
        wrap(Generator, name, around)
    return Generator


def _states() -> list[Any]:
    legacy: Any = np.random.get_state()
    return [torch.get_rng_state(), *legacy[1:3]]


def _differ(one: Any, other: Any) -> bool:
    return not np.array_equal(np.asarray(one), np.asarray(other))
