"""Watches torch's global random generators during a pass: all random numbers must come from the run's
stream."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.rng import restarted
from decrescendo.base.storages import DispatchMode, unwatched

# The position of a Mersenne Twister in its state right after seeding.
_SEEDED = 624


@dataclass(eq=False)
class Stream:
    """Watches the states of torch's global generators during a pass.

    Redrawn random numbers (activation checkpointing's second forward pass) start at the same state and are the same.

    Args:
        seed: the generators' seed in this pass; negative: no random numbers may be drawn.
        refuse: refuses the pass, with a reason.
        capturing: in graph capture generator states cannot be read; the capturing code refuses numbers that are not
            drawn on the device.
    """

    seed: int
    refuse: Callable[[str], NoReturn]
    capturing: bool = False
    # Whether redrawing is refused: a captured pass would draw new numbers instead.
    once: bool = False
    # Generator state -> index among the operations that draw a data-dependent number of random values; None for an
    # operation that does not.
    reseeded: dict[int, int | None] = field(default_factory=dict[int, int | None])
    _at: int = 0

    def begin(self) -> None:
        """Call before an operation that may draw random numbers."""
        if self.capturing:
            return
        self._at = _state()
        if self.once and self._at in self.reseeded:
            self.refuse("random numbers are drawn again, as a checkpoint with dropout does")

    def end(self, made: Sequence[Tensor], *, jump: bool) -> None:
        """Call after such an operation. ``jump``: it may have drawn a data-dependent number of values, so the
        generator is reseeded: its position stays public."""
        if self.capturing:
            return
        if self.seed < 0:  # an operation that can draw need not: attention without dropout
            if _state() != self._at:
                self.refuse(
                    "random numbers in a pass must come from a stream of the run's own, but the engine was given none. "
                    "Give Engine(.., seeds=lambda: 0), a function as training has, or turn dropout off (model.eval())"
                )
            return
        if any(_generator_of(tensor).initial_seed() != self.seed for tensor in made):
            self.refuse(
                "random numbers in a pass must come from the run's own stream, but torch's global generator was seeded "
                "in it, or set to a state from before it: numbers that are known tell examples by their place. Leave "
                "out manual_seed and set_rng_state"
            )
        number = self.reseeded.setdefault(self._at, len(self.reseeded) if jump else None)
        if number is not None:
            restarted(self.seed, number)
        elif self.once and _state() == self._at:
            del self.reseeded[self._at]  # nothing was drawn

    def restored(self) -> AbstractContextManager[object]:
        """For a backward pass that is not traced: a context in which redrawing (activation checkpointing) gives
        the same numbers."""
        moved = any(number is not None for number in self.reseeded.values())
        return _Redrawn(self) if moved else nullcontext()


class _Redrawn(DispatchMode):
    """Reseeds the generators after the same operations as the traced forward pass did."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        at = _state() if torch.Tag.nondeterministic_seeded in func.tags else None
        output = func(*args, **(kwargs or {}))
        number = None if at is None else self._stream.reseeded.get(at)
        if number is not None:
            restarted(self._stream.seed, number)
        return output


def hosts_drew() -> bool:
    """Whether Python or NumPy drew random numbers since a pass began and seeded their global generators."""
    return random.getstate()[1][-1] != _SEEDED or np.random.get_state(legacy=False)["state"]["pos"] != _SEEDED


def _generator_of(tensor: Tensor) -> torch.Generator:
    """The global generator of a device."""
    if tensor.device.type == "cuda":
        return torch.cuda.default_generators[tensor.device.index or 0]
    return torch.default_generator


def _state() -> int:
    """A short digest of the states of torch's global generators."""
    with unwatched():
        states = [torch.get_rng_state()]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states += [generator.get_state() for generator in cast("Any", torch).cuda.default_generators]
        return hash(b"".join(state.numpy().tobytes() for state in states))
