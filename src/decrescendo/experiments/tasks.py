"""Tasks with their data, model and the paper's settings, and one function that trains any of them."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn

from decrescendo.checkpoint import Checkpoints, Stateful
from decrescendo.clipping import Batch, EngineSettings
from decrescendo.data import (
    Dataset,
    chest_xray,
    digits,
    fashion_mnist,
    imdb,
    imdb_half,
    infinite_mnist,
    mnist,
    names,
    principal_mnist,
)
from decrescendo.errors import InvalidValue, check_real
from decrescendo.evaluate import accuracy
from decrescendo.models import digits_cnn, imdb_mlp, infinite_cnn, name_lstm, paper_cnn, vgg11, wide_mlp
from decrescendo.optim import AdamBC, MomentumBC, averaged
from decrescendo.plan import Plan
from decrescendo.progress import Callback, Progress
from decrescendo.rng import Secure
from decrescendo.run import Run
from decrescendo.store import Store
from decrescendo.training import train

Decay = Literal["none", "linear", "cosine"]


Build = Callable[[int], nn.Module]
PAPER = "paper"


@dataclass(frozen=True, slots=True)
class Task:
    """A data set, its models and the settings to start from.

    Args:
        name: as the command line says it.
        load: fetches the data.
        models: from a name to what makes a fresh model from a seed; ``paper`` is the paper's.
        clip: C_0.
        learning_rate: of plain SGD.
        batch: expected batch size B.
        epochs: expected passes over the data, steps = epochs N / B.
        rows: number of train rows N, known without loading.
        source: where the settings are from.
        optimizer: a key of `OPTIMIZERS`.
        cost: rough time of one example, in units of one of MNIST's: for telling how much is left.
        train_loss: the mean loss on the train rows is a score too. It is private data, covered by no guarantee: for
            published data sets only.
        records: rows a client holds where the unit is a client; 0: the unit is a row.
        images: inputs are images (rows, channels, height, width); models are then kept in torch's layout for them.
    """

    name: str
    load: Callable[[], Dataset]
    models: Mapping[str, Build]
    clip: float
    learning_rate: float
    batch: float
    epochs: float
    rows: int
    source: str
    optimizer: str = "sgd"
    cost: float = 1.0
    images: bool = True
    train_loss: bool = False
    records: int = 0

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return round(self.epochs * self.rows / self.batch)

    @property
    def delta(self) -> float:
        """1 / (10 N)."""
        return 1 / (10 * self.rows)

    def build(self, model: str, seed: int) -> nn.Module:
        """A fresh model.

        Raises:
            InvalidValue: the task has no model of that name.
        """
        if model not in self.models:
            raise InvalidValue(f"model must be one of {', '.join(self.models)}, got model={model!r}")
        built = self.models[model](seed)
        if self.images:
            # Pooling with a stride of one takes a tenth of the time in this layout; the function is the same.
            built = cast("nn.Module", built.to(memory_format=torch.channels_last))  # pyright: ignore[reportCallIssue]
        return built


def _image_models(build: Callable[[int, Callable[[], nn.Module]], nn.Module]) -> dict[str, Build]:
    return {PAPER: lambda seed: build(seed, nn.ReLU), "tanh": lambda seed: build(seed, nn.Tanh)}


def _wide_models(classes: int) -> dict[str, Build]:
    # Data of another length make the loss more or less curved: Hong et al. call it the data scale.
    scales = {PAPER: 1.0, "half-scale": 0.5, "double-scale": 2.0}
    return {
        name: lambda seed, factor=factor: wide_mlp(seed, classes=classes, factor=factor)
        for name, factor in scales.items()
    }


def _hong(name: str, digits: tuple[int, ...], rows: int) -> Task:
    """Full batches; runs take fewer rows, see `experiments.spec.Spec.rows`."""
    return Task(
        name, lambda: principal_mnist(digits), _wide_models(len(digits)), 4.0, 0.1, rows, 100, rows,
        "Hong et al.; components and scale fitted on public images", cost=0.25, images=False, train_loss=True,
    )  # fmt: skip


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("digits", digits, _image_models(digits_cnn), 1.0, 1.0, 256, 35, 1438, "chosen here", cost=0.1),
        Task("mnist", mnist, _image_models(paper_cnn), 1.5, 0.15, 250, 20, 60_000, "Du et al."),
        Task("fashion-mnist", fashion_mnist, _image_models(paper_cnn), 4.0, 0.15, 250, 20, 60_000, "Du et al."),
        Task(
            "imdb", imdb, {PAPER: imdb_mlp}, 2.0, 0.02, 512, 25, 25_000,
            "Du et al.; rate, batch, sizes and vocabulary from public examples", "adam", cost=0.25, images=False,
        ),
        # What a recipe found on the stand-in "imdb-public" is scored on. That stand-in is half of the official test
        # reviews: they helped to choose, so they may not be counted. Everything else is as in "imdb".
        Task(
            "imdb-half", imdb_half, {PAPER: imdb_mlp}, 2.0, 0.02, 512, 25, 25_000,
            "as imdb, tested on the half of the test reviews that is in no stand-in", "adam", cost=0.25, images=False,
        ),
        Task(
            "names", names, {PAPER: name_lstm}, 1.5, 2.0, 0.05 * 16_059, 50, 16_059,
            "Du et al.; sample rate and split chosen here", cost=1.7, images=False,
        ),
        Task(
            "xray", chest_xray, {PAPER: vgg11}, 1.0, 0.05, 128, 5, 5_232,
            "chosen here: Du et al. name a VGG-11 and no settings; the original split", cost=500.0,
        ),
        Task(
            "xray-random", lambda: chest_xray("random"), {PAPER: vgg11}, 1.0, 0.05, 128, 5, 4_978,
            "chosen here: Du et al. name a VGG-11 and no settings; a random 85/15 split", cost=500.0,
        ),
        Task(
            "infinite-mnist-250k", lambda: infinite_mnist(250_000), _image_models(infinite_cnn), 1.5, 0.15, 250, 5,
            250_000, "Du et al., one image a client", records=1,
        ),
        Task(
            "infinite-mnist-500k", lambda: infinite_mnist(500_000), _image_models(infinite_cnn), 1.5, 0.15, 250, 2.5,
            500_000, "Du et al., one image a client", records=1,
        ),
        _hong("mnist-pca", tuple(range(10)), 50_000),
        _hong("mnist35-pca", (3, 5), 9_607),
    )
}  # fmt: skip

# As a share of the noise's variance. What a coordinate's second moment is off by, with beta2 = 0.999, is about 0.03
# of it: a floor below that would divide by luck.
ADAM_BC_FLOOR = 0.1

OPTIMIZERS = ("sgd", "momentum-bc", "adam", "adam-bc")


def find_task(name: str) -> Task:
    """The task called ``name``.

    >>> find_task("mnist").steps
    4800
    """
    if name not in TASKS:
        raise InvalidValue(f"task must be one of {', '.join(TASKS)}, got task={name!r}")
    return TASKS[name]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """One cross-entropy loss an example, for batches (inputs, classes)."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def make_optimizer(
    model: nn.Module, name: str, learning_rate: float, momentum: float = 0.0
) -> torch.optim.Optimizer:
    """``sgd``, ``momentum-bc`` (`optim.MomentumBC`), ``adam`` or ``adam-bc`` (`optim.AdamBC`, for private runs only)
    over the model's parameters.

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


def decay_scheduler(
    optimizer: torch.optim.Optimizer, decay: str, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Learning rate constant (``none``), or falling to zero over ``steps`` along a line or half a cosine.

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
    plan: Plan,
    *,
    seed: int | Secure,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    momentum: float = 0.0,
    lr_decay: str = "none",
    callback: Callback | None = None,
    store: Store | None = None,
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Run:
    """Train the task's model by ``plan`` from the stream "init" of ``seed``; the run has its test accuracy.

    Args:
        task: from `find_task`.
        plan: for as many rows as the task has.
        seed: whole number >= 0, as sensitive as the data; or `Secure()`.
        optimizer: a key of `OPTIMIZERS`; the task's by default.
        learning_rate: > 0; the task's by default.
        momentum: in [0, 1), for sgd and momentum-bc.
        lr_decay: ``none``, ``linear`` or ``cosine``.
        callback: called after each step.
        store: the ledger on disk that the run is written into.
        checkpoints: folder to keep the run in.
        resume: go on with the run in ``checkpoints``.
        progress: draw a progress bar on standard error.
    """
    data, model = task.load(), task.build(PAPER, secrets.randbits(63) if isinstance(seed, Secure) else seed)
    run, _ = fit(
        model, data, plan, seed=seed, optimizer=optimizer or task.optimizer,
        learning_rate=task.learning_rate if learning_rate is None else learning_rate, momentum=momentum,
        lr_decay=lr_decay, callback=callback, store=store, checkpoints=checkpoints, resume=resume, progress=progress,
    )  # fmt: skip
    return run.with_metrics({"test_accuracy": accuracy(model, *data.test)})


def fit(
    model: nn.Module,
    data: Dataset,
    plan: Plan,
    *,
    seed: int | Secure,
    optimizer: str,
    learning_rate: float,
    momentum: float = 0.0,
    lr_decay: str = "none",
    averaging: float = 0.0,
    callback: Callback | None = None,
    settings: EngineSettings | None = None,
    store: Store | None = None,
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> tuple[Run, nn.Module]:
    """Train ``model`` in place on the train rows of ``data`` by ``plan``.

    Args:
        model: trained in place.
        data: as many train rows as the plan says.
        plan: from `calibrate`.
        seed: whole number >= 0, as sensitive as the data; or `Secure()`.
        optimizer: a key of `OPTIMIZERS`.
        learning_rate: > 0.
        momentum: in [0, 1), for sgd and momentum-bc.
        lr_decay: ``none``, ``linear`` or ``cosine``.
        averaging: in [0, 1): decay of the average of the iterates; 0 for none.
        callback: called after each step; true ends the training.
        settings: of the clipping engine.
        store: the ledger on disk that the run is written into.
        checkpoints: folder to keep the run in, with the learning rate and the average.
        resume: go on with the run in ``checkpoints``.
        progress: draw a progress bar on standard error.

    Returns:
        The run, and the model to test: the average where there is one.
    """
    chosen = make_optimizer(model, optimizer, learning_rate, momentum)
    scheduler = decay_scheduler(chosen, lr_decay, plan.steps)
    average = averaged(model, decay=averaging) if averaging else None
    also: dict[str, Stateful] = {"scheduler": scheduler}
    if average is not None:
        also["average"] = average
    kept = None if checkpoints is None else Checkpoints(checkpoints, also=also, resume=resume)

    def after_step(state: Progress) -> bool | None:
        scheduler.step()
        if average is not None:
            average.update_parameters(model)
        return None if callback is None else callback(state)

    run = train(
        model, cross_entropy, data.train, plan, chosen, seed=seed, callback=after_step, settings=settings,
        store=store, checkpoints=kept, progress=progress,
    )  # fmt: skip
    return run, model if average is None else average.module
