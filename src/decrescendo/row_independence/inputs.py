"""The inputs of each checked pass: a labelled copy of the batch's rows, and random generators with a fixed
seed."""

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

# What numpy's global generator draws from inside of a pass.
_NUMPYS, _NUMPY = np.random.MT19937(0), cast("Any", np.random)


def labelled_rows(batch: Batch, rows: int, tracer: Tracer) -> Batch:
    """The tracer's number of rows, in fresh memory whose labels it knows.

    Their memory format is the batch's for any number of rows, or passes that are compared would differ by it.
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
    """Inside, torch's, Python's and NumPy's global generators are seeded for a pass; they are restored
    afterwards. If they continued from pass to pass, later numbers would show how many were drawn before."""
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
            if numpys["has_gauss"]:  # a normal number that was made and not given yet
                np.random.set_state(numpys)
