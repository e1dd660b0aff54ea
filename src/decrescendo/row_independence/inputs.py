"""Inputs of a pass that checks row independence: a copy of the batch, labelled by row, and seeded generators."""

import random
from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.batches import Batch, copy_rows, map_rows
from decrescendo.base.rng import seeded
from decrescendo.row_independence.labels import Mixed, RowLayout
from decrescendo.row_independence.tracer import Tracer

# The bit generator that NumPy's global one uses in a pass.
_NUMPYS, _NUMPY = np.random.MT19937(0), cast("Any", np.random)


def labelled_rows(batch: Batch, rows: int, tracer: Tracer) -> Batch:
    """A copy of the batch, ``tracer.count`` rows long, labelled by row.

    The copy's strides are ordered as the batch's: otherwise compared passes could differ by layout.
    """
    index = None if rows == tracer.count else torch.arange(tracer.count, device="cpu") % rows

    def give(tensor: Tensor) -> Tensor:
        own = copy_rows(tensor.detach(), index)
        tracer.assign(tensor, Mixed("rows that are not part of the batch are used"))
        tracer.assign(own, RowLayout(0))
        return own.requires_grad_(tensor.requires_grad)

    with torch.inference_mode(False):
        return map_rows(give, batch)


@contextmanager
def drawing(devices: Collection[torch.device], seed: int) -> Generator[None]:
    """Seed torch's, Python's and NumPy's global generators for a pass and restore them afterwards: a continued
    stream would reveal how many numbers earlier passes drew."""
    python, numpys, own = random.getstate(), np.random.get_state(legacy=False), _NUMPY.get_bit_generator()
    with seeded(max(seed, 0), set(devices)):
        try:
            random.seed(seed)
            _NUMPY.set_bit_generator(_NUMPYS)
            np.random.seed([max(seed, 0) >> 32, max(seed, 0) & (2**32 - 1)])
            yield
        finally:
            random.setstate(python)
            _NUMPY.set_bit_generator(own)
            if numpys["has_gauss"]:  # a second normal (Box-Muller) is cached
                np.random.set_state(numpys)
