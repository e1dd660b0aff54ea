"""Telemetry tells what one record adds to it, if it has no noise, and all of the data, if its bounds are theirs."""

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.accounting.budget import Budget
from decrescendo.audit.attack import Attack, Sums, pulled
from decrescendo.audit.probe import probe_loss
from decrescendo.clipping import Batch, Telemetry
from decrescendo.plans import Plan, PoissonSampling

_OTHERS, _AGAINST = 50, 0.5
_TELEMETRY = Telemetry(norms=4, loss=True, accuracy=True, loss_range=(0.0, 1.0))


def _told_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Rows without gradient, whose pull is their loss; each is right."""
    pull, slot = batch
    return pull + probe_loss(model, (0 * pull, slot)), torch.ones_like(pull)


def told(budget: Budget, *, steps: int = 3) -> Attack:
    """50 rows whose loss is a tenth of the bound, and a record whose loss is the bound; all are in every batch.

    None has a gradient, so the record fills all of the room beside it: what it adds is C long. If losses were measured
    by the largest of the batch, the others would seem to have ten times less with the record among them.

    Args:
        budget: of the plan, whose noise is constant.
        steps: T >= 1.

    >>> told(Budget(2.0, 1e-5)).telemetry.size
    6
    """
    rows = _OTHERS + 1
    losses = torch.full((rows,), 0.1)
    losses[-1] = 1.0
    name, sampling = "numbers beside the gradients", PoissonSampling(rows, rows)
    return pulled(name, budget, sampling, losses, _evidence, steps=steps, telemetry=_TELEMETRY, loss=_told_loss)


def _evidence(sums: Sums, plan: Plan) -> float:
    """How much more there is than the others alone add, mostly along what the record adds. The loss, of which it adds
    little, counts against it: without the record, a bound taken from the batch lets all others seem to have more."""
    del plan
    norm, unit = _TELEMETRY.units(1.0)
    alone = np.array([norm] * _TELEMETRY.norms + [unit * (0.1 - 0.5), unit * 0.5])
    along = np.array([norm] * _TELEMETRY.norms + [-_AGAINST, unit * 0.5])
    return float(((sums[:, -_TELEMETRY.size :] - _OTHERS * alone) @ along).sum())
