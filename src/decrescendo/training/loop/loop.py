"""`train`: the whole training loop in one call; `Trainer` is for your own loop."""

import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import nn

from decrescendo.base.rng import Secure
from decrescendo.clipping import EngineSettings, Loss
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.plans.plan import Plan
from decrescendo.training.data.examples import Collate
from decrescendo.training.loop.progress import Callback, bar, callbacks_of, ends
from decrescendo.training.loop.schedulers import Scheduler
from decrescendo.training.loop.trainer import Trainer
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.processes.world import World, world_of
from decrescendo.training.run import Run
from decrescendo.training.steering import Adaptive, ClipController
from decrescendo.training.steering.plateau import Plateau
from decrescendo.training.store import Store


def train(
    model: nn.Module,
    loss: Loss,
    data: object,
    plan: Plan | Adaptive | ClipController,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    seed: int | Secure,
    collate_fn: Collate | None = None,
    num_workers: int = 0,
    people: object = None,
    strata: object = None,
    scheduler: Scheduler | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    settings: EngineSettings | None = None,
    store: Store | None = None,
    checkpoints: Checkpoints | None = None,
    name: str = "",
    world: World | None = None,
    progress: bool = False,
    require_finite: bool | None = None,
    telemetry: Telemetry | None = None,
) -> Run:
    """Train ``model`` in place by ``plan`` and report its privacy guarantee; see `Trainer` for what it
    guarantees.

    Args:
        model: trained in place, in the mode (train or eval) it is in.
        loss: ``loss(model, batch)`` returns one loss per example.
        data: a pytree of tensors with one row per example, or examples by index (a map-style torch Dataset, a
            ``datasets.Dataset``, a list of dicts, an array); as many rows as the plan says.
        plan: from `calibrate`; or an `Adaptive`: noise decided during the run, within a budget: when its privacy
            filter refuses a step, the training ends and ``run.stopped`` says so. Or from `Plan.without_privacy`:
            plain SGD, which protects nobody, and the run says so.
        optimizer: any ``torch.optim`` optimiser; or a list of several, each over its own parameters (Muon for matrices,
            AdamW for the rest), which together hold all that are trained.
        seed: `Secure()` for weights that are published, whose batches and noise nobody can predict or repeat; there is
            no default. Or a whole number >= 0, for experiments: as sensitive as the data, and not saved. Two trainings
            on the same data with one seed draw the same noise, which cancels in the difference of their weights:
            publish at most one of them. (With a store, its second and later runs have streams of their own.) The
            streams are "sampling", "noise", "model" for what the model draws itself (dropout) and "data" for
            transforms: global generators are neither read nor advanced.
        collate_fn: from a list of examples to a batch, as torch's `DataLoader` takes it, given one example at a time:
            see `Trainer.batches`.
        num_workers: processes that make batches ahead of their steps; the batches are the same.
        people: the id of each row's person (an array, a list, a column): for a plan of `Unit.PERSON`, and only for
            one. A person with more rows than the plan allows is refused before the first step.
        strata: the stratum of each row (its class, its source), for a plan of `StratifiedPoissonSampling`.
        scheduler: of the learning rate, stepped once a step: a torch scheduler over ``optimizer``, or a function that
            makes one for it. Its numbers (``T_max``, ``total_steps``) count steps, not epochs. Checkpoints keep it.
            If other code sets rates, the run lists that among its assumptions.
        callback: called with a `Progress` after every step (and the scheduler's), for example to evaluate on public
            data. A list of callbacks is called in its order. Returning ``True`` ends the training early. No decision
            of a callback may depend on the diagnostics, which are private and noise-free.
        settings: of the clipping engine; they cannot change a guarantee.
        store: the ledger on disk that records each release before its result can be seen. A run that fails before its
            first release gives back the budget that it reserved, unless it can resume from ``checkpoints``.
        checkpoints: where the run's state is saved, to resume after a crash with the same batches, dropout masks and
            noise: on a CPU the same bits. ``seed`` must then be of the same kind, and is not used. Each release's
            digest is recorded there before its result can be seen.
        name: of the run in the store's list, for people; only with a store. A resumed run keeps its first one.
        world: from `decrescendo.distributed.join`, in a script that ``torchrun`` started: every process clips its share
            of each batch, and the first adds the noise; ``None`` is one process.
        progress: draw a progress bar on standard error.
        require_finite: refuse data with a row of NaN or infinity whose gradient is not finite; ``None``: if the data
            are in memory. See `Trainer.batches`.
        telemetry: public numbers released with the gradients, under the same noise: the distribution of gradient
            norms costs nothing, loss and accuracy half a percent of C_t. They are in `Progress.telemetry`, the
            progress bar and ``run.telemetry``.

    >>> from decrescendo.accounting.budget import Budget
    >>> from decrescendo.plans.calibration import calibrate
    >>> from decrescendo.plans.curves import constant
    >>> from decrescendo.plans.sampling import PoissonSampling
    >>> plan = calibrate(
    ...     Budget(2.0, 1e-3), PoissonSampling(50, 10), steps=3, privacy=constant(1.0), clip=constant(1.0)
    ... )
    >>> model = nn.Linear(1, 1)
    >>> loss = lambda model, batch: (model(batch[0]) - batch[1]).square().sum(dim=1)
    >>> data = (torch.zeros(50, 1), torch.ones(50, 1))
    >>> run = train(model, loss, data, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
    >>> run.steps, run.guarantee.epsilon <= 2.0
    (3, True)
    """
    told = callbacks_of(callback)
    ranks = world_of(world)
    with ranks.watched():
        trainer = Trainer(
            model, loss, plan, optimizer, seed=seed, scheduler=scheduler, settings=settings, store=store,
            checkpoints=checkpoints, name=name, world=world, telemetry=telemetry,
        )  # fmt: skip
        trainer._between.is_straight = True
        if checkpoints is not None and checkpoints.resume and len(trainer.ledger) == trainer.steps:
            warnings.warn(
                f"the run in {os.fspath(checkpoints.folder)!r} is finished: its model is returned, without a step on "
                "these data. Name another folder for another run",
                UserWarning, stacklevel=2,
            )  # fmt: skip
        try:
            for one in told:
                if isinstance(one, Plateau):
                    one.check(trainer._telemetry)  # before anything is released
            with bar(trainer.steps) if progress and ranks.rank == 0 else nullcontext() as show:
                for batch in trainer.batches(
                    data, collate_fn, num_workers, people, require_finite=require_finite, strata=strata
                ):
                    trainer.step(batch)
                    now = trainer.progress()
                    if show is not None:
                        show(now)
                    if ends([trainer.ends(one) if isinstance(one, Plateau) else one(now) for one in told]):
                        break
            return trainer.finish()
        except BaseException:
            trainer.abandon()
            raise
