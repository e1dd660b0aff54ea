"""The random numbers of one pass: each of the run's own stream is drawn once, or again by the same operation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import torch


@dataclass(eq=False)
class Stream:
    """Where torch's global generators have been.

    What is drawn again (a checkpoint's second forward pass) is drawn by the same operation from the same state. Numbers
    drawn again by another one lie at other places: those of one example would be those of another, by their place.

    Args:
        seed: of the generators in this pass; negative: no random numbers may be drawn.
        refuse: refuses the pass.
    """

    seed: int
    refuse: Callable[[str], NoReturn]
    # What was drawn, by the state it was drawn from; and the state after the last new one.
    drawn: dict[int, object] = field(default_factory=dict[int, object])
    head: int | None = None
    _at: int = 0

    def begin(self, operation: object) -> None:
        """Before an operation draws."""
        if self.seed < 0:
            self.refuse(
                "random numbers in a pass must come from a stream of the run's own, but the engine was given none. "
                "Give Engine(seeds=...), as Trainer does, or turn dropout off"
            )
        self._at = _state()
        first = self.head is None and torch.initial_seed() == self.seed
        if (self._at not in self.drawn and not first and self._at != self.head) or (
            self.drawn.setdefault(self._at, operation) != operation
        ):
            self.refuse(
                "random numbers in a pass must come from the run's own stream, each of them once, but torch's global "
                "generator was seeded or set back in it: numbers that are known, or drawn again for another place, "
                "tell examples by their place. Leave out manual_seed and set_rng_state"
            )

    def end(self) -> None:
        """After it."""
        after = _state()
        if after == self._at:
            del self.drawn[after]  # there was nothing to draw
        elif after not in self.drawn:
            self.head = after


def _state() -> int:
    """Of torch's global generators, in short."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += [generator.get_state() for generator in cast("Any", torch).cuda.default_generators]
    return hash(b"".join(state.numpy().tobytes() for state in states))
