"""`Attack`: two data sets that differ in one record, and how to tell from the releases which one it was."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from decrescendo.audit.watch import watch
from decrescendo.base.rng import Secure
from decrescendo.clipping import Batch, Loss
from decrescendo.clipping.batches import count_rows, map_rows
from decrescendo.errors import InvalidValue
from decrescendo.plans import BatchSchedule, Plan, PoissonSampling
from decrescendo.training import Trainer

# The noisy sums of a whole run in units of C_t, one row a step.
Sums: TypeAlias = Float[np.ndarray, "steps coordinates"]


@dataclass(frozen=True, slots=True)
class Attack:
    """A record, the other records, a model, and the evidence.

    Args:
        name: as it is reported.
        plan: of the training with the record.
        data: the plan's rows; the last is the record.
        build: a fresh model, whose parameter ``probe`` is watched.
        loss: one loss an example.
        evidence: from the watched noisy sums of a run and its plan to a number, larger if the record is present.
        learning_rate: of the SGD that trains on the way.

    Raises:
        InvalidValue: another number of rows than the plan's.

    >>> from decrescendo.accounting import Budget
    >>> from decrescendo.audit.attacks import batch_size
    >>> attack = batch_size(Budget(4.0, 1e-5), steps=2)
    >>> attack.play(present=True, seed=0) == attack.play(present=True, seed=0)
    True
    """

    name: str
    plan: Plan
    data: Batch
    build: Callable[[], nn.Module]
    loss: Loss
    evidence: Callable[[Sums, Plan], float]
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        size, found = self.plan.sampling.dataset_size, count_rows(self.data)
        if found != size:
            raise InvalidValue(
                f"an attack must have the plan's {size} rows, the record among them, got {found}"
            )

    def play(self, *, present: bool, seed: int | Secure) -> float:
        """Train once, by the real `Trainer`, and return the evidence.

        Without the record the data have one row less, at the same sample rate: B = p N is public, and is that of the
        data that are trained on.
        """
        plan = self.plan if present else _one_row_less(self.plan)
        model = self.build()
        watched = model.get_parameter("probe")
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        seen = np.zeros((plan.steps, watched.numel()))

        def look(t: int, sums: Float[np.ndarray, " coordinates"]) -> None:
            seen[t] = sums

        watch(optimizer, watched, plan, look)
        trainer = Trainer(model, self.loss, plan, optimizer, seed=seed)
        data = self.data if present else map_rows(lambda leaf: leaf[:-1], self.data)
        for batch in trainer.batches(data):
            trainer.step(batch)
        return self.evidence(seen, plan)


def _one_row_less(plan: Plan) -> Plan:
    sampling, size = plan.sampling, plan.sampling.dataset_size
    if isinstance(sampling, PoissonSampling):
        return replace(
            plan, sampling=PoissonSampling(size - 1, sampling.expected_batch_size / size * (size - 1))
        )
    return replace(plan, sampling=BatchSchedule(size - 1, sampling.expected_batch_size / size * (size - 1)))
