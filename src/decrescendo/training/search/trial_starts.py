"""Trials of a private search start from initial weights that follow from their seeds: the price of a search is that of
independent trials, and a model that "goes on from the best so far" makes one long training of them."""

from collections.abc import Iterable
from typing import final

from torch import nn

from decrescendo.errors import InvalidValue
from decrescendo.training.processes.bits import fingerprint
from decrescendo.training.tasks.task import Task, first_of


@final
class TrialStarts:
    """The initial weights of a search's trials, as they are before the first.

    Args:
        task: what is searched for. Its score is asked once, of a model that saw no data: one that fails must not be
            found out after the budget is spent.

    >>> from decrescendo.training import find_task
    >>> starts = TrialStarts(find_task("digits"))
    >>> starts.note([1, 2])
    >>> starts.check(1)
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._starts: dict[int, bytes] = {}
        first_of(task.scores(task.fresh(0)))

    def note(self, seeds: Iterable[int]) -> None:
        """Build the models of these seeds. Call it before the first trial."""
        self._starts = {seed: _weights(self._task.fresh(seed)) for seed in seeds}

    def check(self, seed: int) -> None:
        """That the model of this seed is still the one from before the first trial.

        Raises:
            InvalidValue: it has other weights or buffers.
        """
        if _weights(self._task.fresh(seed)) != self._starts[seed]:
            raise InvalidValue(
                "a trial's initial weights must follow from its seed, got others than before the first trial. Each "
                "trial must be a training of its own: build the model from its seed alone, and load nothing that an "
                "earlier trial left"
            )


def _weights(model: nn.Module) -> bytes:
    return fingerprint(*model.parameters(), *model.buffers())
