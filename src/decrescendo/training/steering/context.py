"""`PolicyContext` and `Settings`: the input and the output of a policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import nn

from decrescendo.clipping.clipped import check_clip_norm
from decrescendo.errors import check_instance, check_real
from decrescendo.training.steering.reading import Reading


@dataclass(frozen=True, slots=True)
class Settings:
    """Noise multiplier and clip norm of one step.

    Args:
        noise_multiplier: z >= 0, finite; every filter refuses zero.
        clip_norm: C >= 1e-12; infinite (no clipping) only without noise.

    >>> Settings(noise_multiplier=1.5, clip_norm=1.0)
    Settings(noise_multiplier=1.5, clip_norm=1.0)
    """

    noise_multiplier: float
    clip_norm: float

    def __post_init__(self) -> None:
        noise = check_real("noise_multiplier", self.noise_multiplier, at_least=0)
        if noise:
            check_real("clip_norm", self.clip_norm, above=0)
        clip = check_clip_norm("clip_norm", self.clip_norm)
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "clip_norm", clip)


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The input of a policy: released values and what follows from them. Nothing in it is private.

    The clipping's diagnostics, losses and batch sizes are not in it: they are private and free of noise, and a policy
    that used them would release them.

    Args:
        past: settings of the steps taken, in order.
        model: with the weights released by the last step; to be looked at, not changed.
        share_left: the unspent share of the filter's budget, in [0, 1].
        readings: the telemetry of the steps taken; empty without telemetry.

    >>> context = PolicyContext((Settings(2.0, 1.0), Settings(1.5, 1.0)), nn.Linear(1, 1), 0.25)
    >>> context.step
    2
    """

    past: tuple[Settings, ...]
    model: nn.Module
    share_left: float
    _smallest: Callable[[int], float] | None = field(default=None, repr=False)
    readings: Sequence[Reading] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_instance("model", self.model, nn.Module)
        check_real("share_left", self.share_left, at_least=0, at_most=1)

    @property
    def step(self) -> int:
        """Number of steps taken; 0 when a training begins."""
        return len(self.past)

    def smallest_noise_multiplier(self, steps: int = 1) -> float:
        """The smallest noise multiplier with which ``steps`` more steps fit the budget; infinite if none
        does.

        >>> PolicyContext((), nn.Linear(1, 1), 1.0).smallest_noise_multiplier()
        inf
        """
        return float("inf") if self._smallest is None else self._smallest(steps)


@runtime_checkable
class Policy(Protocol):
    """Chooses the settings of the next step from released values; ``None`` ends the training.

    Called once before each step, first with ``context.step == 0``: a policy with state resets it then. It must not
    look at private data, nor at numbers computed from them without noise.
    """

    def __call__(self, context: PolicyContext, /) -> Settings | None:
        """The next step's settings."""
        ...
