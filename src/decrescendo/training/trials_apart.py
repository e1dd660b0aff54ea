"""Trials of a private search that start from their seeds: what one leaves behind does not reach another.

The price of a search is that of trials that are independent, given the data. A model that "goes on from the best so
far" makes one long training of them, whose weights tell more than the best of so many.
"""

from collections.abc import Iterable
from typing import final

from torch import nn

from decrescendo.errors import InvalidValue
from decrescendo.row_independence.python_state import Numbers, moved, numbers_of
from decrescendo.training.bits import fingerprint
from decrescendo.training.task import Task, first_of

KEPT = (
    "nothing that the task's model, loss, score or collate_fn keeps of one trial reaches another (they keep something: "
    "seen before the first trial)"
)
_TEACH = (
    "Each trial must be a training of its own: build the model from its seed alone, and keep nothing of one trial (its "
    "weights, its score, a counter) in what model, loss, score or collate_fn reach"
)

_NO_MODEL = nn.Module()


@final
class TrialsApart:
    """A task's functions, and where its trials start, as they are before the first.

    Args:
        task: what is searched for. Its score is called twice, on one model that saw no data: what is loaded by the
            first call is there from then on; what the second changes, or says otherwise, is `supposed` to reach no
            other trial.

    Attributes:
        supposed: what of this is not compared; empty where all is. The same however many trials there are.

    >>> from decrescendo.training import find_task
    >>> trials = TrialsApart(find_task("digits"))
    >>> trials.begin([1, 2])
    >>> trials.check(1)
    >>> trials.supposed
    ''
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._starts: dict[int, bytes] = {}
        model, same = task.fresh(0), task.fresh(0)
        start, first = _weights(model), task.scores(model)
        self._note()
        first_of(first)
        again = task.scores(same)
        alike = repr(first) == repr(again) and start == _weights(model) == _weights(same)
        self.supposed = "" if alike and not self._changed() else KEPT

    def begin(self, seeds: Iterable[int]) -> None:
        """Where trials with initial weights of these seeds will start. Call it before the first."""
        self._starts = {seed: self._start(seed) for seed in seeds}
        self._note()

    def check(self, seed: int) -> None:
        """Nothing of the trials before is in the one that begins.

        Raises:
            InvalidValue: something is.
        """
        if self._start(seed) != self._starts[seed]:
            raise InvalidValue(
                f"a trial's initial weights must follow from its seed, got others than before the first trial. {_TEACH}"
            )
        if not self.supposed and self._changed():
            raise InvalidValue(
                "what a task's functions keep must stay as it is from trial to trial, got something that an earlier "
                f"trial changed. {_TEACH}"
            )

    def _note(self) -> None:
        self._kept = self._now()

    def _changed(self) -> bool:
        return bool(moved(self._kept, self._now()))

    def _now(self) -> Numbers:
        """What the functions reach, as the engine looks at a loss's: classes, slots, sets and keys among it."""
        made = () if isinstance(self._task.model, nn.Module) else (self._task.model,)
        return numbers_of(_NO_MODEL, (*made, self._task.loss, self._task.score, self._task.collate_fn), ())

    def _start(self, seed: int) -> bytes:
        return _weights(self._task.fresh(seed))


def _weights(model: nn.Module) -> bytes:
    return fingerprint(*model.parameters(), *model.buffers())
