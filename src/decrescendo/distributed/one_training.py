"""The ranks of a group, for one of several trainings."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ParamSpec, TypeVar, final

import numpy as np
from jaxtyping import Int
from torch import nn

from decrescendo.accounting.release import Release
from decrescendo.clipping.clipped import ClippedSum, Diagnostics
from decrescendo.optim.noise import NoisyMean
from decrescendo.training.processes.world import Noised, Parts, Tree

if TYPE_CHECKING:
    from decrescendo.distributed.group import Group

_P = ParamSpec("_P")
_R = TypeVar("_R")


@final
class OneTraining:
    """The ranks of a group, for one training: each meeting says which it is of."""

    def __init__(self, group: "Group", number: int) -> None:
        self._group, self._number = group, number
        self.rank, self.size = group.rank, group.size

    def _asked(self, ask: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._group.of(self._number):
            return ask(*args, **kwargs)

    def training(self, number: int) -> "OneTraining":
        return self._group.training(number)

    def agree(self, facts: Callable[[], Mapping[str, str]], step: int = 0) -> None:
        self._asked(self._group.agree, facts, step)

    def together(self, sentences: tuple[str, ...]) -> tuple[str, ...]:
        return self._asked(self._group.together, sentences)

    def draw(self, make: Callable[[], Tree]) -> Tree:
        return self._asked(self._group.draw, make)

    def share(self, indices: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " share"]:
        return self._group.share(indices)

    def hold(self, model: nn.Module) -> Parts:
        return self._group.hold(model)

    def release(
        self, clip: Callable[[], ClippedSum], noise: Noised, record: Callable[[Release, bytes], None]
    ) -> tuple[NoisyMean, Diagnostics]:
        return self._asked(self._group.release, clip, noise, record)

    def watched(self) -> AbstractContextManager[object]:
        return self._group.watched()
