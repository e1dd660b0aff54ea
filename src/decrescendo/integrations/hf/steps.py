"""What a Hugging Face trainer has for a loader: as many steps as there are, whose batches it may not look at."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from decrescendo.clipping import Batch


class Step(dict[str, Any]):
    """An empty batch for the trainer to look at, and the one that it may not."""

    batch: Batch | None = None


def _identity(value: Any) -> Any:
    return value


class Steps(IterableDataset[Any]):
    """In place of the trainer's loader: the plan's batches, hidden. ``length`` of them are called an epoch.

    A training that is gone on with in an epoch's midst has the loader's first batches skipped (by Accelerate, which
    makes a loader of ``dataset``): they are empty, and no batches of the plan's.
    """

    batch_size, drop_last, prefetch_factor, collate_fn = None, False, None, staticmethod(_identity)

    def __init__(
        self,
        begin: Callable[[], Iterator[Batch | None]],
        end: Callable[[], None],
        taken: Callable[[], int],
        data: Any,
        length: int,
    ) -> None:
        self._begin, self._end, self._taken, self._length = begin, end, taken, length
        self.rows = data
        self._batches: Iterator[Batch | None] | None = None

    @property
    def dataset(self) -> "Steps":
        return self

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Step]:
        skipped = 0
        if self._batches is None:  # now that the optimiser is made
            self._batches, skipped = self._begin(), self._taken() % self._length
        for _ in range(skipped):
            yield Step()
        for _ in range(self._length - skipped):
            step = Step()
            try:
                step.batch = next(self._batches)
            except StopIteration:  # a filter that refuses ends the training
                self._end()
                return
            yield step
