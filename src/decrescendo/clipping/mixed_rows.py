"""Checks by values that a batch loss is a sum of one term per example; otherwise single-example passes would
train another loss.

Weights divided by their sum in the batch, masked means over it, mixup, contrastive losses and statistics of the batch
are no such sums: an example alone has another loss there, without an error.
"""

import random
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.base.batches import Batch, OneByOne, count_rows, joined, map_rows, parts_of, select_rows
from decrescendo.base.storages import DispatchMode
from decrescendo.clipping.clipped import Loss, losses_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.passes import eager
from decrescendo.clipping.restored import gradients_kept, unchanged
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import Stored, drawing

# The most rows that are compared, and the relative rounding of differences that are zero for a sum of parts.
_ROWS, _ROUNDING = 8, 1e-4

OWN_LOSS = (
    "What it computes mixes rows, so that an example alone has another loss: give each example a loss of its own "
    "(divide weights and masks by a constant, not by their sum in the batch; make what is mixed, compared or "
    "contrasted one record of the data set; take GroupNorm or LayerNorm instead of statistics of the batch)"
)
ANOTHER_LOSS = (
    "the loss of a batch should be a sum of one part an example, got one that is not: one_example_a_pass=True trains "
    f"another loss. {OWN_LOSS}. A loss that is written for one example can stay as it is"
)


def mixes_rows(model: nn.Module, loss: Loss, batch: Batch) -> bool:
    """Whether the loss of some rows of ``batch`` was seen to be no sum of one part a row.

    Exchanging some rows for others changes a sum of parts by the same amount, whatever the other rows are. This is
    compared with the same random numbers. False also where nothing can be compared: a single row, examples of several
    forms, a loss that raises an error or is not finite, branches of Python by the data, random numbers whose count
    depends on the data. Model, loss and generators are afterwards as they were.
    """
    # An error on rearranged rows says nothing about the rows that were given.
    with suppress(Exception), Stored(model, loss).restored():
        rows = _rows(batch)
        return rows is not None and _mixed(model, loss, rows)
    return False


def _rows(batch: Batch) -> Batch | None:
    """At most `_ROWS` rows of one form; ``None`` if there are no two."""
    if isinstance(batch, OneByOne):
        if any(count_rows(example) != 1 for example in batch.examples):
            return None  # one image in a list is no row
        batch = joined(batch.examples)
    part = max(parts_of(batch), key=count_rows)
    rows = min(count_rows(part), _ROWS)
    return map_rows(lambda tensor: tensor[:rows].detach(), part) if rows > 1 else None


def _mixed(model: nn.Module, loss: Loss, rows: Batch) -> bool:
    count = count_rows(rows)
    own = torch.arange(count, device="cpu")

    def losses(order: Tensor, seed: int, reads: _Reads | None = None) -> tuple[Tensor, tuple[object, ...]]:
        return _losses(model, loss, select_rows(rows, order), seed, reads or _Reads())

    for seed, other in enumerate((own.flip(0), own.roll(1))):
        (one, took), (four, last), (again, _) = (losses(order, seed) for order in (own, other, own))
        # The indices of any two rows differ in a bit: for that bit one is exchanged, and the other is not.
        for bit in range((count - 1).bit_length()):
            chosen = (own >> bit & 1).bool()
            two, other_way = losses(torch.where(chosen, other, own), seed)
            three, one_way = losses(torch.where(chosen, own, other), seed)
            rounding = max(_ROUNDING, 4 * torch.finfo(one.dtype).eps)
            most = rounding * torch.stack([one, two, three, four]).abs().max()
            comparable = took == last == one_way == other_way and bool(((one - again).abs() <= most).all())
            if comparable and bool(((one - two - three + four).abs() > most).any()):
                # Floats that Python reads, and whose change leaves the loss equal, may be what it branches by.
                values, _ = losses(own, seed, reads := _Reads(other=True))
                return not (reads.floats and torch.equal(values, one))
    return False


class _Reads(DispatchMode):
    """Records what Python reads of tensors. ``other``: floats are returned larger than they are."""

    def __init__(self, *, other: bool = False) -> None:
        super().__init__()
        self._other, self.floats, self.answers = other, False, list[bool]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if isinstance(output, bool):
            self.answers.append(output)
        elif isinstance(output, float):
            self.floats = True
            if self._other:
                return output + 1 if output and output.is_integer() else output * (1 + _ROUNDING)
        return output


def _losses(model: nn.Module, loss: Loss, rows: Batch, seed: int, reads: _Reads) -> tuple[Tensor, tuple[object, ...]]:
    """The losses; and the truth values that Python read, with the next random numbers, by which passes are
    comparable. The model is restored."""
    held = Inventory.of(model)
    stored = [(buffer, buffer.detach().clone()) for buffer in held.buffers.values()]
    devices = {torch.device("cpu"), *(tensor.device for _, tensor in held.tensors())}
    found = torch.zeros(())
    try:
        with drawing(devices, seed), torch.enable_grad(), eager(), gradients_kept(held.parameters.values()):
            # No error for batch statistics that move: they are put back, and their effect on the losses counts.
            with suppress(UnsupportedModel), unchanged(model, held), reads:
                found = losses_of(loss, model, rows).detach()
            torchs = [float(torch.rand((), device=device)) for device in devices]
            return found, (*reads.answers, *torchs, random.random(), float(np.random.rand()))
    finally:
        with torch.no_grad():
            for buffer, values in stored:
                if not torch.equal(buffer, values):  # whoever compares versions takes a write for a change
                    buffer.copy_(values)
