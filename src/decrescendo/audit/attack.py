"""`Attack`: two data sets that differ in one record, and how to tell from the releases which one it was."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from decrescendo.accounting import Budget, Unit
from decrescendo.audit.probe import Probed, probe_loss
from decrescendo.audit.watch import watch
from decrescendo.base.batches import count_rows, map_rows
from decrescendo.base.rng import Secure
from decrescendo.clipping import Batch, EngineSettings, Loss, Telemetry
from decrescendo.errors import InvalidValue
from decrescendo.plans import (
    BatchSchedule,
    CyclicPoissonSampling,
    Plan,
    PoissonSampling,
    RandomAllocation,
    Schedule,
    calibrate,
)
from decrescendo.training import Trainer
from decrescendo.training.steering import ClipController

# The noisy sums of a whole run in units of C_t, one row a step; coordinates beside the gradients come last.
Sums: TypeAlias = Float[np.ndarray, "steps coordinates"]


# Modules with weights that runs have moved.
_BUILT: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True, slots=True)
class Attack:
    """A record, the other records, a model, and the evidence.

    Under a plan for people with several examples it is about a person: the last k rows are theirs.

    Args:
        name: as it is reported.
        plan: of the training with the record.
        data: the plan's rows; the last is the record.
        build: a fresh model, whose parameter ``probe`` is watched.
        loss: one loss per example.
        evidence: from the watched noisy sums of a run and its plan to a number, larger if the record is present.
        learning_rate: of the SGD that trains on the way.
        settings: of the clipping engine; those of the training that is attacked, whose ``gamma`` is another mechanism.
        follow: for a training whose clip norm follows the gradients: from the plan to what is trained with. The plan
            that ``evidence`` is given then has the clip norms that were used, which such a training publishes.
        telemetry: what is released beside the gradients.

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
    settings: EngineSettings | None = None
    follow: Callable[[Plan], ClipController] | None = None
    telemetry: Telemetry | None = None

    def __post_init__(self) -> None:
        size, found = self.plan.sampling.dataset_size, count_rows(self.data)
        if found != size:
            raise InvalidValue(f"an attack must have the plan's {size} rows, the record among them, got {found}")

    def play(self, *, present: bool, seed: int | Secure) -> float:
        """Train once, by the real `Trainer`, and return the evidence.

        Without the record the data have one row less, at the same sample rate: B = p N is public, and is that of the
        data that are trained on.
        """
        away = self.plan.budget.examples_per_person
        plan = self.plan if present else _without(self.plan, away)
        model = self.build()
        trained = [part for part in model.modules() if any(p.requires_grad for p in part.parameters(recurse=False))]
        if any(part in _BUILT for part in trained):
            raise InvalidValue(
                "an attack must build a new model for each run, got one that an earlier run has moved: runs that go on "
                "from each other are one long training, whose epsilon is larger"
            )
        _BUILT.update(trained)
        watched = model.get_parameter("probe")
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        beside = 0 if self.telemetry is None else self.telemetry.size
        seen = np.zeros((plan.steps, watched.numel() + beside))

        def look(t: int, sums: Float[np.ndarray, " coordinates"]) -> None:
            seen[t, : len(sums)] = sums

        watch(optimizer, watched, plan, look)
        given = plan if self.follow is None else self.follow(plan)
        trainer = Trainer(
            model, self.loss, given, optimizer, seed=seed, settings=self.settings, telemetry=self.telemetry
        )
        data = self.data if present else map_rows(lambda leaf: leaf[:-away], self.data)
        size = self.plan.sampling.dataset_size
        # Everybody has one row, but for the person who has the last ones.
        whose = np.minimum(np.arange(plan.sampling.dataset_size), size - away)
        for batch in trainer.batches(data, people=whose if plan.budget.unit is Unit.PERSON else None):
            told = trainer.step(batch).telemetry
            if told is not None and beside:
                size = told.expected_batch_size / told.clip_norm
                seen[told.step - 1, -beside:] = size * np.asarray(told.sums)
        if self.follow is not None:
            plan = replace(plan, schedule=Schedule(plan.noise_multiplier, trainer.finish().clip_norm))
        return self.evidence(seen, plan)


def pulled(
    name: str,
    budget: Budget,
    sampling: PoissonSampling | RandomAllocation,
    pull: Float[Tensor, " rows"],
    evidence: Callable[[Sums, Plan], float],
    *,
    steps: int,
    follow: Callable[[Plan], ClipController] | None = None,
    telemetry: Telemetry | None = None,
    loss: Loss = probe_loss,
) -> Attack:
    """An attack on rows that do nothing but pull at one weight, each as ``pull`` says, under constant noise."""
    plan = calibrate(budget, sampling, steps=steps, privacy=[1.0] * steps, clip=[1.0] * steps)
    data = (pull, torch.zeros(len(pull), dtype=torch.long))
    build = partial(Probed, None, 1)
    return Attack(name, plan, data, build, loss, evidence, follow=follow, telemetry=telemetry)


def _without(plan: Plan, rows: int) -> Plan:
    """The plan of so many rows less, at the same rates."""
    sampling, size = plan.sampling, plan.sampling.dataset_size
    if isinstance(sampling, RandomAllocation):
        return replace(plan, sampling=replace(sampling, dataset_size=size - rows))
    if isinstance(sampling, CyclicPoissonSampling):
        now: Any = sampling.expected_batch_size / size * (size - rows)
        return replace(plan, sampling=CyclicPoissonSampling(size - rows, now, sampling.bands))
    form = PoissonSampling if isinstance(sampling, PoissonSampling) else BatchSchedule
    fewer: Any = sampling.expected_batch_size / size * (size - rows)
    return replace(plan, sampling=form(size - rows, fewer, sampling.max_batch_size))
