"""Rows of the user's data without a step: all of them for an evaluation, and none for an empty batch."""

from collections.abc import Callable, Generator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from decrescendo.base.batches import Batch, Ragged, map_rows
from decrescendo.errors import InvalidValue
from decrescendo.integrations.opacus.recording import LoopRecording
from decrescendo.training import rows as rows_of


def no_rows(loader: DataLoader[Any], collate: Any, module: nn.Module) -> Batch:
    """A batch of no rows, as the loop knows batches."""
    one = rows_of(loader.dataset, collate).take(np.zeros(1, dtype=np.int64))
    return map_rows(lambda rows: rows[:0].to(_device(module)), one)


def all_rows(
    loader: DataLoader[Any],
    collate: Any,
    module: nn.Module,
    most: int | None,
    tape: Callable[[int], LoopRecording],
) -> Generator[Batch]:
    """All rows in their order, in as many batches as the loader has, or in parts of at most ``most`` rows.

    None is drawn for a step. Their tensors are recorded on tapes that are closed: what the loop reads of them counts as
    read, and none may come into a loss.
    """
    rows = rows_of(loader.dataset, collate)
    count: int = len(loader.dataset)  # pyrefly: ignore[bad-argument-type]
    parts = len(loader) if most is None else -(-count // most)
    for start, stop in pairwise(np.linspace(0, count, parts + 1).round().astype(int).tolist()):
        batch = rows.take(np.arange(start, stop))
        check_one_shape(batch)
        now = tape(stop - start)
        recorded = now.batch(map_rows(lambda values: values.to(_device(module)), batch))
        now.close()
        yield recorded


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def check_one_shape(batch: object) -> None:
    """Refuse examples of several shapes.

    Raises:
        InvalidValue: there are some.
    """
    if isinstance(batch, Ragged):
        raise InvalidValue(
            "all examples must have one shape, got several in a batch. Pad each to one fixed length, whoever else is "
            "in the batch: in collate_fn, torch.nn.functional.pad(x, (0, 256 - len(x))) before pad_sequence or stack"
        )
