"""Canaries: rows whose gradient is known beforehand, each along a weight of its own, in the real training.

The model gets ``slots`` more weights, the probe. A canary's loss is the weight of its slot, a thousand times steeper
than the clip norm: its gradient is clipped to exactly C along that coordinate, where no other row has any. That is the
worst case that accountants count with (the Dirac canary of Nasr et al. 2023 and Steinke et al. 2023), and it leaves the
training of all other weights alone, but for the canaries that are drawn: their own part of the loss is zero.
"""

from typing import cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from decrescendo.base.batches import Ragged, map_rows
from decrescendo.clipping import Batch, Loss
from decrescendo.clipping.clipped import losses_of
from decrescendo.errors import InvalidValue, check_integer
from decrescendo.training.data.rows import rows

STEEPNESS = 1e3


@final
class Probed(nn.Module):
    """``model`` with ``slots`` more weights, all zero, named ``probe``.

    Args:
        model: as it is, parameters included; ``None`` for the probe alone.
        slots: number of weights, >= 1.

    >>> Probed(nn.Linear(2, 1), 3).probe.shape
    torch.Size([3, 1])
    """

    def __init__(self, model: nn.Module | None, slots: int) -> None:
        super().__init__()
        self.model = model
        self.probe = nn.Parameter(torch.zeros(check_integer("slots", slots, at_least=1), 1))

    def forward(self, slot: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """The weights of the slots."""
        return nn.functional.embedding(slot, self.probe)[:, 0]


def probed_loss(loss: Loss) -> Loss:
    """For batches (rows, own, pull, slot): own times the row's loss, plus pull times the weight of its slot.

    Ordinary rows have own 1 and pull 0, canaries own 0 and a steep pull, absent canaries zero twice: no gradient.
    """

    def total(model: nn.Module, batch: Batch) -> Tensor:
        inner, own, pull, slot = batch
        probed = cast("Probed", model)
        return own * losses_of(loss, cast("nn.Module", probed.model), inner) + pull * probed(slot)

    return total


def probe_loss(model: nn.Module, batch: Batch) -> Tensor:
    """For batches (pull, slot): pull times the weight of the slot, for data sets that are nothing else."""
    pull, slot = batch
    return pull * cast("Probed", model)(slot)


def with_canaries(data: object, included: Tensor, clip_norm: float) -> Batch:
    """Rows for `probed_loss`: the last ``len(included)`` rows of ``data`` become canaries, one a slot.

    A canary that is not included stays as a row without gradient. For Poisson sampling that is the same as no row: the
    others are drawn by coins of their own, and zero adds nothing to a sum.

    Args:
        data: what `Trainer.batches` takes; read once, and held in memory.
        included: one Boolean a canary.
        clip_norm: the largest C_t.

    Raises:
        InvalidValue: no more rows than canaries, or rows of several shapes.

    >>> inner, own, pull, slot = with_canaries(torch.zeros(4, 1), torch.tensor([True, False]), 2.0)
    >>> own.tolist(), pull.tolist(), slot.tolist()
    ([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2000.0, 0.0], [0, 0, 0, 1])
    """
    table, canaries = rows(data), len(included)
    if not 0 < canaries < table.count:
        raise InvalidValue(
            f"canaries must be at least 1 and fewer than the {table.count} rows, got {canaries}. "
            "They take the places of rows, so that the plan's number of rows stays"
        )
    ordinary = table.count - canaries
    inner = table.take(torch.arange(table.count).numpy())
    if isinstance(inner, Ragged):
        raise InvalidValue(
            "the examples of an audit must all have one shape, as canaries lie among them in one batch, got several "
            "shapes. Pad them to one length"
        )
    own = torch.cat([torch.ones(ordinary), torch.zeros(canaries)])
    pull = torch.cat([torch.zeros(ordinary), included.float() * STEEPNESS * clip_norm])
    slot = torch.cat([torch.zeros(ordinary, dtype=torch.long), torch.arange(canaries)])
    return map_rows(lambda tensor: tensor, inner), own, pull, slot
