"""The training loop: batch, clipped sum, noise, ledger, step. How much noise is decided elsewhere."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import nn

from decrescendo.budget import Guarantee
from decrescendo.clipping import Batch, Clipper, Diagnostics, Engine, EngineSettings, Loss
from decrescendo.clipping.batches import count_rows, map_rows
from decrescendo.clipping.clipped import check_clip_norm, trainable
from decrescendo.data.rows import Rows, rows
from decrescendo.errors import InvalidValue, PlanViolation, UnsupportedModel, check_instance
from decrescendo.ledger import Ledger, Release
from decrescendo.noise import NoiseStream, privatise
from decrescendo.optim import apply
from decrescendo.plan import Plan
from decrescendo.progress import Callback, Progress, Spending, bar
from decrescendo.rng import Secure, SecureStream, Streams
from decrescendo.run import History, Run, cpu_weights, judged
from decrescendo.sampling import PoissonSampling
from decrescendo.spent import Spent
from decrescendo.steering import Adaptive, Settings
from decrescendo.steering.steered import Steered
from decrescendo.terms import Terms


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step: what was released, and what the clipping saw (private, covered by no guarantee)."""

    step: int
    release: Release
    diagnostics: Diagnostics


@final
class Trainer:
    """The steps of a plan, for people who keep their own loop; `train` is the loop most people want.

    With an `Adaptive` in place of a plan, noise and clipping of each step are decided on the way: before a batch is
    drawn the policy is asked what to do and the filter whether it fits. When the filter refuses, `batches` ends: no
    batch was drawn, no gradient computed, no noise drawn, and `stopped` says why.

    Args:
        model: trained in place, in the mode (train or eval) it is in.
        loss: ``loss(model, batch)`` returns one loss an example, shape (batch,).
        plan: the noise multiplier and clip norm of every step; or an `Adaptive`, which decides them on the way.
        optimizer: any ``torch.optim`` optimiser over the model's parameters.
        seed: `Secure()` for weights that leave the house: batches and noise that nobody can predict or repeat. Or a
            whole number >= 0, as sensitive as the data; its streams "sampling" and "noise" are used.
        settings: of the clipping engine; they cannot change a guarantee.

    Guarantee:
        after n steps, the weights are as private as `ledger`, the first n releases of the plan (with an `Adaptive`:
        as its filter's whole budget, and no less), for neighbours that differ in one row of ``data``. A step
        takes exactly one batch that `batches` has drawn, the empty ones included: nothing else would be the
        Poisson sampling that the plan was judged for.

    Edge cases:
        an empty batch is yielded as ``None``, must be given to `step`, gets noise and counts.
        an error inside a step after its release was recorded leaves the release in the ledger: a step may be
            wasted, never hidden. What a filter granted is spent from then on, whatever happens in the step.
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
        plan: Plan | Adaptive,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int | Secure,
        settings: EngineSettings | None = None,
    ) -> None:
        if not isinstance(plan, Adaptive):
            check_instance(
                "plan", plan, Plan, "calibrate makes one; for noise decided on the way give an Adaptive"
            )
        parameters = trainable(model)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor.is_meta:
                raise UnsupportedModel(
                    f"the model must have values, got {name} on the meta device. Load or initialise it first"
                )
        check_instance("optimizer", optimizer, torch.optim.Optimizer)
        self._source: _Source = Steered(plan, model) if isinstance(plan, Adaptive) else _Planned(plan)
        self._model, self._optimizer = model, optimizer
        self._device = next(iter(parameters.values())).device
        self._engine: Clipper = Engine(model, loss, settings or EngineSettings())
        self._sampling, self._noise = _streams(seed)
        self._buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        # Frozen parameters may be many times what is trained: a checksum instead of a copy.
        self._frozen = {name: _checksum(value) for name, value in _frozen(model)}
        self._buffers_checked = False
        self._releases: list[Release] = []
        self._drawn: int | None = None
        self._settings: Settings | None = None
        self._columns: list[Diagnostics] = []
        self._start = time.monotonic()
        self.spent = self._source.spent

    def batches(self, data: object) -> Iterator[Batch | None]:
        """Draw the plan's remaining batches from ``data``, on the model's device; ``None`` is an empty batch.

        With an `Adaptive` each batch is drawn after its step was granted, and the batches end where the training does.

        Args:
            data: see `data.rows.rows`; as many rows as the plan's ``dataset_size``.
        """
        table = rows(data)
        size = self._source.sampling.dataset_size
        if table.count != size:
            raise InvalidValue(
                f"data must have the plan's {size} rows, got {table.count}. "
                "The sample rate was calibrated for that number: make a plan for this data"
            )
        return self._draw(table)

    def _draw(self, table: Rows) -> Iterator[Batch | None]:
        while True:
            if self._drawn is not None:
                raise PlanViolation(
                    f"every drawn batch must be given to step, got none for batch {len(self._releases) + 1}. "
                    "An empty batch (None) is a step too: its noise hides that it was empty"
                )
            # Decided, and paid for where a filter is asked, before anything is drawn or looked at.
            settings = self._source.following(len(self._releases))
            if settings is None:
                return
            (indices,) = self._source.sampling.batches(1, self._sampling)
            self._settings, self._drawn = settings, len(indices)
            yield None if not len(indices) else map_rows(self._to_device, table.take(indices))

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    def step(self, batch: Batch | None) -> StepResult:
        """Take the next step with the batch just drawn."""
        settings = self._check_batch(batch)
        clipped = self._engine.clipped_sum(batch, settings.clip_norm)
        for name in clipped.gradients:  # thawed since the last step: from now on it may change
            self._frozen.pop(name, None)
        if (
            batch is not None and not self._buffers_checked
        ):  # comparing large buffers at every step would cost
            self._check_buffers()
            self._buffers_checked = True
        noisy = privatise(clipped, settings.noise_multiplier, self._source.sampling, self._noise)
        # Recorded before anything of it can be seen: a crash may waste a release, never hide one.
        self._releases.append(noisy.release)
        self._columns.append(clipped.diagnostics)
        self._drawn = None
        apply(noisy, self._model, self._optimizer)
        return StepResult(len(self._releases), noisy.release, clipped.diagnostics)

    @property
    def ledger(self) -> Ledger:
        """What has been released so far."""
        return Ledger(self._releases)

    @property
    def steps(self) -> int:
        """The most steps this training can take: the plan's, or those an `Adaptive` allows."""
        return self._source.steps

    @property
    def stopped(self) -> str:
        """Why an adaptive training ended, in words; empty while it goes on, and with a plan."""
        return self._source.stopped

    def epsilon_spent(self) -> float:
        """Certified upper bound on the epsilon of `ledger` at the plan's delta.

        A guarantee for a number of steps fixed in advance; see `finish` for a number chosen on the way. With an
        `Adaptive` the whole budget, from the beginning: no part of it is a guarantee.
        """
        return self._source.epsilon_spent(self.ledger)

    def progress(self) -> Progress:
        """How far the training is; after at least one step."""
        seconds = time.monotonic() - self._start
        return Progress(len(self._releases), self._source.steps, seconds, self._columns[-1], self.spent)

    def finish(self) -> Run:
        """The run so far. Ending before the plan does is allowed, and said in the run.

        A run that took all its steps is judged by its own ledger. One that ended early is judged by the whole
        plan's: when to stop may have depended on what was released, and then the smaller epsilon of the steps
        taken is no guarantee (stopping is post-processing of the whole plan only). An adaptive run has its
        filter's whole budget as its guarantee, wherever it ended.

        Raises:
            PlanViolation: an adaptive run that released something else than was granted.
        """
        self._check_buffers()
        columns, ledger = self._columns, self.ledger
        return Run(
            plan=self._source.agreed,
            ledger=ledger,
            guarantee=self._source.guarantee(ledger),
            weights=cpu_weights(self._model),
            seconds=time.monotonic() - self._start,
            diagnostics=History(
                examples=tuple(d.examples for d in columns),
                nonfinite=tuple(d.nonfinite for d in columns),
                clipped=tuple(d.clipped for d in columns),
                loss_sum=tuple(d.loss_sum for d in columns),
            ),
            clip_norm=self._source.decided_clip_norm[: ledger.steps],
            stopped=self._source.ended,
        )

    def _check_batch(self, batch: Batch | None) -> Settings:
        if len(self._releases) >= self._source.steps:
            raise PlanViolation(
                f"a run must stay within the {self._source.steps} steps of its plan, got one more. "
                "Another step would spend more than was promised: make a longer plan before the start"
            )
        if self._source.stopped:
            raise PlanViolation(
                f"a training must end where its filter or policy ended it, got one more step: "
                f"{self._source.stopped}. "
                "Another step would spend what was not granted"
            )
        given = 0 if batch is None else count_rows(batch)
        if self._drawn is None or self._settings is None:
            raise PlanViolation(
                "each step must take a batch of its own, got a step without a draw from batches(data). "
                "Using a batch twice is not the sampling that the plan was judged for"
            )
        if given != self._drawn:
            raise PlanViolation(
                f"step must be given the batch just drawn, of {self._drawn} rows, got {given} rows. "
                "Transform rows as you like, but drop or add none"
            )
        return self._settings

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


def _streams(seed: int | Secure) -> tuple[np.random.Generator | SecureStream, NoiseStream]:
    """Of batches and of noise."""
    if isinstance(seed, Secure):
        root = SecureStream.fresh()
        return root.child("sampling"), root.child("noise")
    streams = Streams(seed)
    return streams.numpy("sampling"), streams.torch("noise")


@runtime_checkable
class _Source(Protocol):
    """Where the settings of each step come from, and what may be promised for them."""

    @property
    def agreed(self) -> Plan | Terms:
        """What was fixed before the run."""
        ...

    @property
    def sampling(self) -> PoissonSampling:
        """How batches are drawn."""
        ...

    @property
    def steps(self) -> int:
        """The most steps."""
        ...

    @property
    def spent(self) -> Spending:
        """For progress."""
        ...

    @property
    def stopped(self) -> str:
        """Why no step follows, where that was decided on the way."""
        ...

    def following(self, taken: int) -> Settings | None:
        """Settings of the step after ``taken`` steps; ``None`` at the end."""
        ...

    def epsilon_spent(self, ledger: Ledger) -> float:
        """Of the first steps."""
        ...

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """Of a run that ends here."""
        ...

    @property
    def decided_clip_norm(self) -> tuple[float, ...]:
        """C_t of the steps granted, where nothing fixed before says them."""
        ...

    @property
    def ended(self) -> str:
        """Why a run that ends here does, where that was decided on the way."""
        ...


@final
class _Planned:
    """The schedule of a plan."""

    stopped = ""

    def __init__(self, plan: Plan) -> None:
        # The engine would refuse a tiny one too, but at its step.
        check_clip_norm("clip_norm", float(plan.clip_norm.min()))
        self.agreed = plan
        self.sampling, self.steps = plan.sampling, plan.steps
        # Before any data are touched: a plan that cannot be judged must not be found out at the end.
        self._planned = judged(plan.ledger, plan.budget)
        _check_promise(plan, self._planned)
        self.spent = Spent(plan.ledger, plan.budget.delta)

    def following(self, taken: int) -> Settings | None:
        """The schedule's next step."""
        if taken >= self.steps:
            return None
        schedule = self.agreed.schedule
        return Settings(float(schedule.noise_multiplier[taken]), float(schedule.clip_norm[taken]))

    def epsilon_spent(self, ledger: Ledger) -> float:
        """Of a number of steps fixed in advance."""
        return judged(ledger, self.agreed.budget).epsilon

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """Of the ledger, or of the whole plan if the run ended early."""
        as_planned = ledger.steps < self.steps or ledger == self.agreed.ledger
        return self._planned if as_planned else judged(ledger, self.agreed.budget)

    @property
    def decided_clip_norm(self) -> tuple[float, ...]:
        """None: the plan says them."""
        return ()

    @property
    def ended(self) -> str:
        """Nothing: the plan says how long it was to be."""
        return ""


def _check_promise(plan: Plan, found: Guarantee) -> None:
    """A plan that was put together by hand, or by a wrong accountant, must not be what the weights are shown with."""
    spent = found.epsilon_lower or 0.0
    if plan.guarantee.kind != "estimate" and spent > plan.guarantee.epsilon * (1 + 1e-9):
        raise InvalidValue(
            f"a plan must promise what its releases spend, got epsilon={plan.guarantee.epsilon:.6g} by "
            f"{plan.guarantee.accountant} for releases that spend at least {spent:.6g}. Make plans with calibrate"
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
    plan: Plan | Adaptive,
    optimizer: torch.optim.Optimizer,
    *,
    seed: int | Secure,
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
        plan: from `calibrate`; or an `Adaptive`: noise decided on the way, within a filter's budget. When the filter
            refuses, the training ends and ``run.stopped`` says so.
        optimizer: any ``torch.optim`` optimiser.
        seed: `Secure()` for weights that leave the house; there is no default. Or a whole number >= 0, for
            experiments: as sensitive as the data, and not saved. Two trainings on the same data with one seed draw
            the same noise, which the difference of their weights cancels: publish at most one of them.
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
    with bar(trainer.steps) if progress else nullcontext() as show:
        for batch in trainer.batches(data):
            trainer.step(batch)
            if show is not None:
                show(trainer.progress())
            if callback is not None and callback(trainer.progress()):
                break
    return trainer.finish()
