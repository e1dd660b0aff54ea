"""Trains with an optimiser, a learning-rate decay and a weight average chosen by name."""

import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from decrescendo.base.rng import Secure, Streams
from decrescendo.clipping import Batch, EngineSettings, Loss
from decrescendo.clipping.clipped import trainable
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidValue, check_real
from decrescendo.optim import AdamBC, MomentumBC, averaged
from decrescendo.plans.plan import Plan
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.training.data.examples import Collate
from decrescendo.training.loop.earlier_runs import BEGAN_WITHOUT_NOISE, note_trained
from decrescendo.training.loop.loop import train
from decrescendo.training.loop.progress import Callback, Progress, callbacks_of
from decrescendo.training.persistence.checkpoint import Checkpoints, Stateful
from decrescendo.training.run import Run, cpu_weights
from decrescendo.training.steering import ClipController
from decrescendo.training.store import Store
from decrescendo.training.tasks.task import Task

Decay = Literal["none", "linear", "cosine"]
OPTIMIZERS = ("sgd", "momentum-bc", "adam", "adam-bc")

# AdamBC's floor, as a share of the noise variance. With beta2 = 0.999 the estimate of a second moment has an error of
# about 0.03 of it: with a lower floor, AdamBC would divide by that error.
ADAM_BC_FLOOR = 0.1


def initialised(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The model from ``build``, with initial weights drawn from the stream "init" of ``seed``.

    torch's modules draw from the global CPU generator, so it is set for the time of the call, then put back.

    >>> build = lambda: nn.Linear(2, 1)
    >>> bool((initialised(build, 0).weight == initialised(build, 0).weight).all())
    True
    >>> bool((initialised(build, 0).weight == initialised(build, 1).weight).any())
    False
    """
    init = Streams(seed).seed_of("init")
    with torch.random.fork_rng(devices=[]):  # no devices: a GPU is neither woken nor seeded
        torch.default_generator.manual_seed(init)
        return build()


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """One cross-entropy loss per example, for batches (inputs, classes)."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def cross_entropy_and_accuracy(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """`cross_entropy`, and for each example whether the largest output is at its class: for
    ``Telemetry(accuracy=True)``."""
    inputs, targets = batch
    outputs = model(inputs)
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return losses, outputs.argmax(dim=1) == targets


def loss_of(task: Task, telemetry: Telemetry | None) -> Loss:
    """The task's loss; with accuracy in ``telemetry``, `cross_entropy_and_accuracy` for `cross_entropy`."""
    with_score = telemetry is not None and telemetry.accuracy and task.loss is cross_entropy
    return cross_entropy_and_accuracy if with_score else task.loss


def make_optimizer(model: nn.Module, name: str, learning_rate: float, momentum: float = 0.0) -> torch.optim.Optimizer:
    """An optimiser over the model's parameters: ``sgd``, ``momentum-bc`` (`optim.MomentumBC`), ``adam`` or
    ``adam-bc`` (`optim.AdamBC`, for private runs only).

    Raises:
        InvalidValue: another name, a learning rate that is not above 0, a momentum outside [0, 1).
    """
    rate = check_real("learning_rate", learning_rate, above=0)
    inertia = check_real("momentum", momentum, at_least=0, below=1)
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=inertia)
    if name == "momentum-bc":
        return MomentumBC(model.parameters(), lr=rate, momentum=inertia)
    if name in ("adam", "adam-bc"):
        if inertia:
            raise InvalidValue(f"momentum must be 0 with {name}, which has its own, got momentum={inertia}")
        if name == "adam-bc":
            return AdamBC(model.parameters(), lr=rate, relative_floor=ADAM_BC_FLOOR)
        return torch.optim.Adam(model.parameters(), lr=rate)
    raise InvalidValue(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got optimizer={name!r}")


def decay_scheduler(optimizer: torch.optim.Optimizer, decay: str, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """A constant learning rate (``none``), or one that falls to zero over ``steps`` linearly or as a half
    cosine.

    >>> sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> decay_scheduler(sgd, "linear", 4).get_last_lr()
    [1.0]
    """
    if decay == "none":
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    if decay == "linear":
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    if decay == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    raise InvalidValue(f"lr_decay must be none, linear or cosine, got lr_decay={decay!r}")


def train_task(
    task: Task,
    plan: Plan | ClipController,
    *,
    seed: int | Secure,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    momentum: float = 0.0,
    lr_decay: str = "none",
    averaging: float = 0.0,
    callback: Callback | Sequence[Callback] | None = None,
    settings: EngineSettings | None = None,
    store: Store | None = None,
    name: str = "",
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: bool = False,
    telemetry: Telemetry | None = None,
) -> Run:
    """Train the task's model by ``plan`` with initial weights from the stream "init" of ``seed``; the run has
    the task's scores.

    Args as in `fit`. Optimiser, learning rate and settings of the engine are the task's by default; with
    ``averaging``, the averaged weights are returned and scored. With accuracy in ``telemetry`` the loss
    `cross_entropy` is replaced by `cross_entropy_and_accuracy`. The score is tried before the budget is spent; if it
    fails after the training, the run has no scores.
    """
    data = task.load()
    model = task.fresh(secrets.randbits(32) if isinstance(seed, Secure) else seed, data)
    task.scores(model, data)
    run, tested = fit(
        model, loss_of(task, telemetry), data, plan, seed=seed, optimizer=optimizer or task.optimizer,
        learning_rate=task.learning_rate if learning_rate is None else learning_rate, momentum=momentum,
        lr_decay=lr_decay, averaging=averaging, callback=callback, settings=settings or task.engine, store=store,
        name=name, checkpoints=checkpoints, resume=resume, progress=progress, people=task.load_people(),
        collate_fn=task.collate_fn, telemetry=telemetry,
        strata=task.load_strata() if isinstance(plan.sampling, StratifiedPoissonSampling) else None,
    )  # fmt: skip
    if averaging:
        run = replace(run, weights=cpu_weights(tested))
    try:
        return run.with_metrics(task.scores(tested))
    except Exception as error:
        why = f"the task's score failed, and the run has none: {type(error).__name__}: {error}"
        warnings.warn(why, UserWarning, stacklevel=2)
        return run


def fit(
    model: nn.Module,
    loss: Loss,
    data: object,
    plan: Plan | ClipController,
    *,
    seed: int | Secure,
    optimizer: str,
    learning_rate: float,
    momentum: float = 0.0,
    lr_decay: str = "none",
    averaging: float = 0.0,
    callback: Callback | Sequence[Callback] | None = None,
    settings: EngineSettings | None = None,
    store: Store | None = None,
    name: str = "",
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: bool = False,
    people: object = None,
    collate_fn: Collate | None = None,
    require_finite: bool | None = None,
    telemetry: Telemetry | None = None,
    strata: object = None,
) -> tuple[Run, nn.Module]:
    """Train ``model`` in place on ``data`` by ``plan``, with optimiser, learning-rate decay and weight
    average by name.

    Args as in `train`, and:
        optimizer: one of `OPTIMIZERS`.
        learning_rate: > 0.
        momentum: in [0, 1), for sgd and momentum-bc.
        lr_decay: ``none``, ``linear`` or ``cosine``.
        averaging: in [0, 1): decay of the average of the iterates; 0 for none.
        checkpoints: folder for the run's checkpoints, with its learning-rate scheduler and average.
        resume: resume the run in ``checkpoints``.

    Returns:
        The run, and the model to test: the averaged one with ``averaging``.
    """
    chosen = make_optimizer(model, optimizer, learning_rate, momentum)
    scheduler = decay_scheduler(chosen, lr_decay, plan.steps)
    average = averaged(model, decay=averaging) if averaging else None
    also: dict[str, Stateful] = {} if average is None else {"average": average}
    kept = None if checkpoints is None else Checkpoints(checkpoints, also=also, resume=resume)

    def follow(_: Progress) -> None:
        if average is not None:
            average.update_parameters(model)

    run = train(
        model, loss, data, plan, chosen, seed=seed, scheduler=scheduler, settings=settings, store=store,
        callback=[follow, *callbacks_of(callback)], name=name, checkpoints=kept, progress=progress, people=people,
        collate_fn=collate_fn, require_finite=require_finite, telemetry=telemetry, strata=strata,
    )  # fmt: skip
    if average is None:
        return run, model
    noisy = bool((run.ledger.noise_multiplier > 0).all()) and BEGAN_WITHOUT_NOISE not in run.assumptions
    note_trained(trainable(average.module).values(), noisy=noisy)
    return run, average.module
