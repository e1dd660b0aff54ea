"""Callbacks for `train` that log to TensorBoard, MLflow and Weights & Biases: what is public, and nothing else unasked.

=================  ==============================================================================================
name               what
=================  ==============================================================================================
``public/...``     noise_multiplier z_t, clip_norm C_t, expected_batch_size B_t, learning_rate, epsilon_spent: known
                   before the training, or computed from what was
``telemetry/...``  loss, accuracy, clipped_share with their standard errors, where the training has telemetry: released
                   by it, under noise, for anybody to see
``private/...``    loss (mean over the batch), clipped_share, nonfinite: of the raw batch, covered by no guarantee. Only
                   with ``private=True``; then whoever sees the log sees the data through them
=================  ==============================================================================================

>>> from decrescendo import Budget, PoissonSampling, calibrate, curves
>>> from decrescendo.training import Progress
>>> flat = curves.constant(1.0)
>>> plan = calibrate(Budget(2.0, 1e-3), PoissonSampling(50, 10), steps=3, privacy=flat, clip=flat)
>>> log = Log(plan, lambda values, step: print(step, values["public/clip_norm"]))
>>> # dc.train(model, loss, data, plan, optimizer, seed=dc.Secure(), callback=log)
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch

from decrescendo.errors import InvalidType, InvalidValue, check_instance
from decrescendo.plans import Plan
from decrescendo.training.loop.progress import Progress

Write = Callable[[Mapping[str, float], int], None]


@final
class Log:
    """A callback of `train` that hands the values of each step, by name, to ``write``.

    Args:
        plan: that the training follows.
        write: takes values by name, and the step, from 1.
        optimizer: for the learning rate of its first group; without it none is logged.
        private: also what the clipping saw of the raw batch. It is covered by no guarantee.

    Guarantee: with ``private=False`` nothing that is written depends on the data but through the learning rate, which
        is whatever the caller made it depend on, and through telemetry, which the run's guarantee covers.

    >>> from decrescendo.plans.plan import _EXAMPLE, Plan
    >>> log = Log(Plan.from_json(_EXAMPLE), lambda values, step: print(step, dict(values)))
    >>> log.public(2)
    {'public/noise_multiplier': 1.0, 'public/clip_norm': 0.5, 'public/expected_batch_size': 10.0}
    """

    def __init__(
        self,
        plan: Plan,
        write: Write,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        private: bool = False,
    ) -> None:
        check_instance("plan", plan, Plan, "The noise of an adaptive run is not known beforehand")
        if optimizer is not None:
            check_instance("optimizer", optimizer, torch.optim.Optimizer)
        check_instance("private", private, bool)  # "no" would be taken for yes
        self._batch = np.broadcast_to(np.asarray(plan.sampling.expected_batch_size, dtype=np.float64), plan.steps)
        self._plan, self._write, self._optimizer, self._private = plan, write, optimizer, private

    def public(self, step: int) -> dict[str, float]:
        """What the plan says of ``step``, from 1."""
        return {
            "public/noise_multiplier": float(self._plan.noise_multiplier[step - 1]),
            "public/clip_norm": float(self._plan.clip_norm[step - 1]),
            "public/expected_batch_size": float(self._batch[step - 1]),
        }

    def __call__(self, progress: Progress) -> None:
        """Log the step.

        Raises:
            InvalidValue: the training is of another plan, as far as the number of steps tells.
        """
        if progress.steps != self._plan.steps:
            raise InvalidValue(
                f"plan must be the training's own, got one of {self._plan.steps} steps for a training of "
                f"{progress.steps}"
            )
        values = self.public(progress.step) | {"public/epsilon_spent": progress.epsilon_spent}
        if progress.clip_norm is not None:
            values["public/clip_norm"] = progress.clip_norm
        if self._optimizer is not None:
            values["public/learning_rate"] = float(self._optimizer.param_groups[0]["lr"])
        for name, estimate in progress.telemetry.shown().items() if progress.telemetry else ():
            values[f"telemetry/{name}"] = estimate.value
            values[f"telemetry/{name}_standard_error"] = estimate.standard_error
        if self._private:
            seen = progress.diagnostics  # what writes may decide by it, too
            values["private/nonfinite"] = float(seen.nonfinite)
            if seen.examples:
                values["private/clipped_share"] = seen.clipped / seen.examples
            if finite := seen.examples - seen.nonfinite:
                values["private/loss"] = seen.loss_sum / finite
        self._write(values, progress.step)


@runtime_checkable
class SummaryWriter(Protocol):
    """``torch.utils.tensorboard.SummaryWriter``."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """One value of one step."""
        ...


def tensorboard(
    writer: SummaryWriter,
    plan: Plan,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    private: bool = False,
) -> Log:
    """To TensorBoard; the other arguments are `Log`'s.

    >>> from decrescendo.plans.plan import _EXAMPLE, Plan
    >>> class Writer:
    ...     def add_scalar(self, tag, scalar_value, global_step): ...
    >>> tensorboard(Writer(), Plan.from_json(_EXAMPLE)).public(1)["public/clip_norm"]
    1.0
    """

    if not isinstance(writer, SummaryWriter):
        raise InvalidType(
            f"writer must have add_scalar, got {_shown(writer)}. Give a SummaryWriter(folder) of TensorBoard"
        )

    def write(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return Log(plan, write, optimizer=optimizer, private=private)


def mlflow(plan: Plan, *, optimizer: torch.optim.Optimizer | None = None, private: bool = False) -> Log:
    """To MLflow's active run. Switch its autologging off: it logs raw losses.

    Raises:
        MissingExtra: mlflow is not installed.
    """
    from decrescendo.base.extras import require

    log_metrics: Callable[..., Any] = require("mlflow").log_metrics
    return Log(plan, lambda values, step: log_metrics(dict(values), step=step), optimizer=optimizer, private=private)


@runtime_checkable
class WandbRun(Protocol):
    """What ``wandb.init`` returns."""

    def log(self, data: dict[str, Any], step: int) -> Any:
        """Values of one step."""
        ...


def wandb(run: WandbRun, plan: Plan, *, optimizer: torch.optim.Optimizer | None = None, private: bool = False) -> Log:
    """To Weights & Biases; the other arguments are `Log`'s.

    >>> from decrescendo.plans.plan import _EXAMPLE, Plan
    >>> class Run:
    ...     def log(self, data, step): ...
    >>> wandb(Run(), Plan.from_json(_EXAMPLE)).public(1)["public/noise_multiplier"]
    2.0
    """
    if not isinstance(run, WandbRun):
        raise InvalidType(f"run must have log, got {_shown(run)}. Give what wandb.init() returned")
    return Log(plan, lambda values, step: run.log(dict(values), step=step), optimizer=optimizer, private=private)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else type(value).__name__
