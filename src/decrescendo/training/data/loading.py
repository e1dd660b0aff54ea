"""Makes batches ahead of their steps in worker processes of torch's `DataLoader`; draws are made in this
process."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from decrescendo.clipping.clipped import Batch
from decrescendo.errors import DecrescendoError
from decrescendo.training.data.examples import Draw, Examples
from decrescendo.training.data.rows import Rows, check_apart


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error of this library raised in a worker, passed as a value: `DataLoader` would turn it into a
    traceback."""

    error: DecrescendoError


class _Maker(TorchDataset[Any]):
    """Makes the batch of a draw; ``None`` for an empty one."""

    def __init__(self, table: Rows | Examples) -> None:
        self._table, self._looked = table, False

    def __getitem__(self, index: Draw) -> Batch | None:
        if not len(index.indices):
            return None
        if isinstance(self._table, Examples):
            return self._table.take(index)
        if not self._looked and len(index.indices) > 1:
            check_apart(self._table, index.indices)
            self._looked = True
        return self._table.take(index.indices)


class _WorkerMaker(_Maker):
    """A `_Maker` for worker processes: returns this library's errors as values."""

    def __getitem__(self, index: Draw) -> Batch | None:
        try:
            return super().__getitem__(index)
        except DecrescendoError as error:
            return _Failed(error)


class _Draws(Sampler[Any]):
    """The draws in order, as a sampler: `DataLoader` takes some of them ahead."""

    def __init__(self, draws: Iterator[Draw]) -> None:
        self._draws = draws

    def __iter__(self) -> Iterator[Draw]:
        return self._draws


def made(
    table: Rows | Examples, draws: Iterator[Draw], num_workers: int, device: torch.device
) -> Generator[Batch | None]:
    """The batch of each draw in order, ``None`` for an empty one.

    Without workers a draw is taken when its batch is asked for; with ``num_workers`` processes up to two for each
    are taken, and made, ahead. The batches are the same.
    """
    if not num_workers:
        yield from map(_Maker(table).__getitem__, draws)
        return
    loader = DataLoader(
        _WorkerMaker(table),
        sampler=_Draws(draws),
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # else the loader draws a number from the global one
    )
    for batch in loader:
        if isinstance(batch, _Failed):
            raise batch.error
        yield batch


def _as_it_is(batch: Any) -> Any:
    return batch
