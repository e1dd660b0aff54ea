"""Normal random numbers that a training draws outside of its modules: the noise, as far as an observer can know."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decrescendo.doctor.events import wrap

if TYPE_CHECKING:
    from decrescendo.doctor.watch_torch import TorchWatch

_NORMAL = ("normal", "standard_normal", "laplace")
_OTHERS = ("random", "rand", "random_sample", "uniform", "exponential", "gumbel")
_LOUDER = -1000.0  # times the noise, so that no rounding hides it


class Draws:
    """Counts normal draws, and makes them zero in the neighbour without noise.

    Args:
        watch: of the training.
    """

    def __init__(self, watch: TorchWatch) -> None:
        self._watch = watch
        self.count = self.others = self._before = 0  # normal draws, others, and others before the step
        self._states: list[Any] = []
        self.shapes = set[tuple[int, ...]]()  # of what was drawn in the step
        self._uniform: Any = None
        self._coins: Any = None  # the last uniform numbers, and which of them were below a rate
        self._rate: float | None = None
        self.few = False  # whether single numbers were noised, as counts are: more is released than gradients
        # Whether many numbers were drawn before the step, and after an optimiser was made.
        self._early = False

    def start(self) -> None:
        """Put the observers in."""
        for owner, names, around in (
            (torch, ("normal", "randn", "randn_like"), self._drawn), (Tensor, ("normal_",), self._drawn),
            (np.random, (*_NORMAL, "randn"), self._drawn),
            (torch, ("rand", "rand_like"), self._other), (Tensor, ("uniform_", "exponential_"), self._other),
            (Tensor, ("__lt__", "lt"), self._tossed),
        ):  # fmt: skip
            for name in names:
                wrap(owner, name, around)
        for owner in (random, random.Random):
            for name in ("gauss", "normalvariate"):
                wrap(owner, name, self._drawn)
            for name in ("random", "uniform", "expovariate"):
                wrap(owner, name, self._other)
        for name in ("rand", "random", "random_sample", "uniform", "exponential", "gumbel"):
            wrap(np.random, name, self._other)
        kind = _watched(np.random.Generator, self._drawn, self._other)

        def made(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return kind(make(*args, **kwargs).bit_generator)

        vars(np.random)["Generator"] = kind
        vars(np.random)["RandomState"] = _watched(np.random.RandomState, self._drawn, self._other)
        wrap(np.random, "default_rng", made)

    def watch_scipy(self) -> None:
        """SciPy's distributions, if they are loaded."""
        stats = sys.modules.get("scipy.stats")
        for name in ("rv_continuous", "rv_discrete") if stats is not None else ():
            wrap(getattr(stats, name), "rvs", self._drawn)

    def begin(self) -> None:
        """A step begins here."""
        self._states, self._before = _states(), self.others
        self.shapes.clear()

    def elsewhere(self, at_once: bool) -> bool:
        """Whether the noise of a step may have been drawn before it, or in another way than by normal draws.

        Args:
            at_once: the gradient is looked at in its own step. Later, the next batch has been drawn as well: then a
                generator that moved shows nothing.
        """
        moved = self.others != self._before or any(map(_differ, self._states, _states()))
        return self._early or (at_once and moved)

    def _other(self, draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.others += 1
        drawn = draw(*args, **kwargs)
        self._uniform = drawn
        return drawn

    def _tossed(self, below: Callable[..., Any], drawn: Any, *args: Any, **kwargs: Any) -> Any:
        tossed = below(drawn, *args, **kwargs)
        if drawn is self._uniform:
            self._coins, self._uniform = tossed, None
            self._rate = float(args[0]) if args and isinstance(args[0], int | float) else None
        return tossed

    def rate_of(self, rows: int, numbers: Tensor) -> float | None:
        """The rate at which the coins that were tossed last draw each of so many rows, if they drew these."""
        coins = self._coins
        if self._rate is None or not isinstance(coins, Tensor) or tuple(coins.shape) != (rows,):
            return None
        return self._rate if torch.equal(coins.nonzero().flatten(), numbers) else None

    def are_coins(self, index: Any) -> bool:
        """Whether these are the coins that were tossed last, as `torch.rand(n) < rate` tosses one for each row."""
        return index is self._coins

    def _drawn(self, draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        drawn = draw(*args, **kwargs)
        if self._watch.depth:
            return drawn
        self.count += 1
        size = drawn.numel() if isinstance(drawn, Tensor) else np.size(drawn)
        shape = tuple(np.shape(drawn))
        self.few = self.few or (size == 1 and shape not in self._watch.unclipped.shapes)
        self.shapes.add(shape)
        self._early = self._early or (not self._states and 0 < self._watch.unclipped.numbers <= size)
        if self._watch.neighbours.role == "louder":
            return drawn * _LOUDER if np.ndim(drawn) == 0 and not isinstance(drawn, Tensor) else _multiplied(drawn)
        if self._watch.neighbours.role != "quiet":
            return drawn
        if isinstance(drawn, Tensor):
            return drawn.zero_()
        if isinstance(drawn, np.ndarray):  # (which may be an ``out=`` of the caller's)
            drawn[...] = 0
            return drawn
        return drawn * 0


def _multiplied(drawn: Any) -> Any:
    drawn *= _LOUDER
    return drawn


def _watched(own: Any, normal: Callable[..., Any], other: Callable[..., Any]) -> Any:
    """A generator of NumPy's, observed; its methods cannot be replaced. NumPy's own passes for one of these."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, own)

    class Watched(own, metaclass=Kind):
        pass

    for name in (*_NORMAL, "randn", *_OTHERS):
        if hasattr(own, name):
            setattr(Watched, name, getattr(own, name))
            wrap(Watched, name, other if name in _OTHERS else normal)
    return Watched


def _states() -> list[Any]:
    legacy: Any = np.random.get_state()
    return [torch.get_rng_state(), *legacy[1:3]]


def _differ(one: Any, other: Any) -> bool:
    return not np.array_equal(np.asarray(one), np.asarray(other))
