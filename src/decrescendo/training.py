"""The training loop: batch, clipped sum, noise, ledger, step. How much noise is decided elsewhere."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from decrescendo.budget import Guarantee, Unit
from decrescendo.clipping import Batch, Clipper, Diagnostics, Engine, EngineSettings, Loss
from decrescendo.clipping.batches import count_rows, map_rows
from decrescendo.clipping.clipped import check_clip_norm, trainable
from decrescendo.data.rows import Rows, rows
from decrescendo.errors import InvalidValue, PlanViolation, UnsupportedModel, check_instance
from decrescendo.ledger import Ledger, Release
from decrescendo.noise import privatise
from decrescendo.optim import apply
from decrescendo.plan import Plan
from decrescendo.progress import Callback, Progress, bar
from decrescendo.rng import Streams
from decrescendo.run import History, Run, cpu_weights, judged
from decrescendo.spent import Spent


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step: what was released, and what the clipping saw (private, covered by no guarantee)."""

    step: int
    release: Release
    diagnostics: Diagnostics


@final
class Trainer:
    """The steps of a plan, for people who keep their own loop; `train` is the loop most people want.

    Args:
        model: trained in place, in the mode (train or eval) it is in.
        loss: ``loss(model, batch)`` returns one loss an example, shape (batch,).
        plan: the noise multiplier and clip norm of every step.
        optimizer: any ``torch.optim`` optimiser over the model's parameters.
        seed: whole number >= 0, as sensitive as the data; its streams "sampling" and "noise" are used.
        settings: of the clipping engine; they cannot change a guarantee.

    Guarantee:
        after n steps, the weights are as private as `ledger` (the first n releases of the plan), for
        neighbours that differ in one row of ``data``. A step takes exactly one batch that `batches` has
        drawn, the empty ones included: nothing else would be the Poisson sampling that the plan was judged
        for.

    Edge cases:
        an empty batch is yielded as ``None``, must be given to `step`, gets noise and counts.
        an error inside a step after its release was recorded leaves the release in the ledger: a step may be
            wasted, never hidden.
        buffers and frozen parameters that a forward pass changes (running statistics, code books) hold raw
        data without noise: refused.

    Raises:
        PlanViolation: more steps than the plan has, a batch that was not drawn, a drawn batch that was
            skipped.
        UnsupportedModel: a model on the meta device, or with buffers that training changes.
        InvalidValue: data of another length than the plan's ``dataset_size``; a plan that promises less than
            its releases spend.

    >>> from decrescendo.budget import Budget
    >>> from decrescendo.calibration import calibrate
    >>> from decrescendo.curves import constant
    >>> from decrescendo.sampling import PoissonSampling
    >>> plan = calibrate(
    ...     Budget(2.0, 1e-3), PoissonSampling(50, 10), steps=3, privacy=constant(1.0), clip=constant(1.0)
    ... )
    >>> model = nn.Linear(1, 1)
    >>> loss = lambda model, batch: (model(batch[0]) - batch[1]).square().sum(dim=1)
    >>> trainer = Trainer(model, loss, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
    >>> for batch in trainer.batches((torch.zeros(50, 1), torch.ones(50, 1))):
    ...     result = trainer.step(batch)
    >>> trainer.ledger == plan.ledger
    True
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        plan: Plan,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        settings: EngineSettings | None = None,
    ) -> None:
        check_instance("plan", plan, Plan)
        _check_unit(plan)
        parameters = trainable(model)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor.is_meta:
                raise UnsupportedModel(
                    f"the model must have values, got {name} on the meta device. Load or initialise it first"
                )
        check_instance("optimizer", optimizer, torch.optim.Optimizer)
        # The engine would refuse a tiny one too, but at its step.
        check_clip_norm("clip_norm", float(plan.clip_norm.min()))
        streams = Streams(seed)
        self._model, self._plan, self._optimizer = model, plan, optimizer
        self._device = next(iter(parameters.values())).device
        self._engine: Clipper = Engine(model, loss, settings or EngineSettings())
        self._sampling = streams.numpy("sampling")
        self._noise = streams.torch("noise")
        self._buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        # Frozen parameters may be many times what is trained: a checksum instead of a copy.
        self._frozen = {name: _checksum(value) for name, value in _frozen(model)}
        self._buffers_checked = False
        self._releases: list[Release] = []
        self._drawn: int | None = None
        self._columns: list[Diagnostics] = []
        # Before any data are touched: a plan that cannot be judged must not be found out at the end.
        self._planned = judged(plan.ledger, plan.budget)
        check_promise(plan, self._planned)
        self._start = time.monotonic()
        self.spent = Spent(plan.ledger, plan.budget.delta)

    def batches(self, data: object) -> Iterator[Batch | None]:
        """Draw the plan's remaining batches from ``data``, on the model's device; ``None`` is an empty batch.

        Args:
            data: see `data.rows.rows`; as many rows as the plan's ``dataset_size``.
        """
        table = rows(data)
        size = self._plan.sampling.dataset_size
        if table.count != size:
            raise InvalidValue(
                f"data must have the plan's {size} rows, got {table.count}. "
                "The sample rate was calibrated for that number: make a plan for this data"
            )
        return self._draw(table)

    def _draw(self, table: Rows) -> Iterator[Batch | None]:
        for indices in self._plan.sampling.batches(self._plan.steps - len(self._releases), self._sampling):
            if self._drawn is not None:
                raise PlanViolation(
                    f"every drawn batch must be given to step, got none for batch {len(self._releases) + 1}. "
                    "An empty batch (None) is a step too: its noise hides that it was empty"
                )
            self._drawn = len(indices)
            yield None if not len(indices) else map_rows(self._to_device, table.take(indices))

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    def step(self, batch: Batch | None) -> StepResult:
        """Take the next step of the plan with the batch just drawn."""
        self._check_batch(batch)
        index = len(self._releases)
        clip_norm = float(self._plan.schedule.clip_norm[index])
        noise_multiplier = float(self._plan.schedule.noise_multiplier[index])
        clipped = self._engine.clipped_sum(batch, clip_norm)
        for name in clipped.gradients:  # thawed since the last step: from now on it may change
            self._frozen.pop(name, None)
        if (
            batch is not None and not self._buffers_checked
        ):  # comparing large buffers at every step would cost
            self._check_buffers()
            self._buffers_checked = True
        noisy = privatise(clipped, noise_multiplier, self._plan.sampling, self._noise)
        # Recorded before anything of it can be seen: a crash may waste a release, never hide one.
        self._releases.append(noisy.release)
        self._columns.append(clipped.diagnostics)
        self._drawn = None
        apply(noisy, self._model, self._optimizer)
        return StepResult(index + 1, noisy.release, clipped.diagnostics)

    @property
    def ledger(self) -> Ledger:
        """What has been released so far."""
        return Ledger(self._releases)

    def epsilon_spent(self) -> float:
        """Certified upper bound on the epsilon of `ledger` at the plan's delta.

        A guarantee for a number of steps fixed in advance; see `finish` for a number chosen on the way.
        """
        return judged(self.ledger, self._plan.budget).epsilon

    def progress(self) -> Progress:
        """How far the training is; after at least one step."""
        seconds = time.monotonic() - self._start
        return Progress(len(self._releases), self._plan.steps, seconds, self._columns[-1], self.spent)

    def finish(self) -> Run:
        """The run so far. Ending before the plan does is allowed, and said in the run.

        A run that took all its steps is judged by its own ledger. One that ended early is judged by the whole
        plan's: when to stop may have depended on what was released, and then the smaller epsilon of the steps
        taken is no guarantee (stopping is post-processing of the whole plan only).
        """
        self._check_buffers()
        columns, ledger = self._columns, self.ledger
        as_planned = ledger.steps < self._plan.steps or ledger == self._plan.ledger
        return Run(
            plan=self._plan,
            ledger=ledger,
            guarantee=self._planned if as_planned else judged(ledger, self._plan.budget),
            weights=cpu_weights(self._model),
            seconds=time.monotonic() - self._start,
            diagnostics=History(
                examples=tuple(d.examples for d in columns),
                nonfinite=tuple(d.nonfinite for d in columns),
                clipped=tuple(d.clipped for d in columns),
                loss_sum=tuple(d.loss_sum for d in columns),
            ),
        )

    def _check_batch(self, batch: Batch | None) -> None:
        if len(self._releases) >= self._plan.steps:
            raise PlanViolation(
                f"a run must stay within the {self._plan.steps} steps of its plan, got one more. "
                "Another step would spend more than was promised: make a longer plan before the start"
            )
        given = 0 if batch is None else count_rows(batch)
        if self._drawn is None:
            raise PlanViolation(
                "each step must take a batch of its own, got a step without a draw from batches(data). "
                "Using a batch twice is not the sampling that the plan was judged for"
            )
        if given != self._drawn:
            raise PlanViolation(
                f"step must be given the batch just drawn, of {self._drawn} rows, got {given} rows. "
                "Transform rows as you like, but drop or add none"
            )

    def _check_buffers(self) -> None:
        for name, buffer in self._model.named_buffers():
            before = self._buffers.get(name)
            if before is None or before.shape != buffer.shape or not torch.equal(before, buffer):
                raise UnsupportedModel(
                    f"buffers must not change in training, got a change of {name}. It holds statistics of "
                    "the raw data without noise: freeze it (eval mode), or use GroupNorm or LayerNorm"
                )
        for name, value in _frozen(self._model):
            if name in self._frozen and self._frozen[name] != _checksum(value):
                raise UnsupportedModel(
                    f"frozen parameters must not change in training, got a change of {name}. What a forward "
                    "pass writes to it is raw data without noise: train it by its gradient, or leave it alone"
                )


def check_promise(plan: Plan, found: Guarantee) -> None:
    """A plan that was put together by hand, or by a wrong accountant, must not be what the weights are shown with."""
    spent = found.epsilon_lower or 0.0
    if plan.guarantee.kind != "estimate" and spent > plan.guarantee.epsilon * (1 + 1e-9):
        raise InvalidValue(
            f"a plan must promise what its releases spend, got epsilon={plan.guarantee.epsilon:.6g} by "
            f"{plan.guarantee.accountant} for releases that spend at least {spent:.6g}. Make plans with calibrate"
        )


def _check_unit(plan: Plan) -> None:
    if plan.budget.unit is not Unit.EXAMPLE:
        raise InvalidValue(
            f"a plan for training must protect examples, got unit={plan.budget.unit}: here each row is clipped, not "
            "each client. Use decrescendo.federated, or calibrate for examples"
        )


def _frozen(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in model.named_parameters() if not value.requires_grad]


def _checksum(value: torch.Tensor) -> bytes:
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(content.numpy().tobytes()).digest()


def train(
    model: nn.Module,
    loss: Loss,
    data: object,
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    *,
    seed: int,
    callback: Callback | None = None,
    settings: EngineSettings | None = None,
    progress: bool = False,
) -> Run:
    """Train ``model`` in place by ``plan``, and say what it cost; see `Trainer` for the arguments and
    guarantee.

    Args:
        model: trained in place.
        loss: ``loss(model, batch)`` returns one loss an example.
        data: a pytree of tensors with one row an example, or a map-style torch Dataset; as many rows as the
            plan says.
        plan: from `calibrate`.
        optimizer: any ``torch.optim`` optimiser.
        seed: whole number >= 0; there is no default. As sensitive as the data, and not saved. Two trainings
            on the same data with one seed draw the same noise, which the difference of their weights cancels:
            publish at most one of them.
        callback: called after every step with a `Progress`; the place for a learning-rate scheduler and for
            scores on public data. Returning ``True`` ends the training early. Nothing it decides may depend
            on the diagnostics, which are private and noise-free.
        settings: of the clipping engine; they cannot change a guarantee.
        progress: draw a progress bar on standard error.

    >>> from decrescendo.budget import Budget
    >>> from decrescendo.calibration import calibrate
    >>> from decrescendo.curves import constant
    >>> from decrescendo.sampling import PoissonSampling
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
    trainer = Trainer(model, loss, plan, optimizer, seed=seed, settings=settings)
    with bar(plan.steps) if progress else nullcontext() as show:
        for batch in trainer.batches(data):
            trainer.step(batch)
            if show is not None:
                show(trainer.progress())
            if callback is not None and callback(trainer.progress()):
                break
    return trainer.finish()
