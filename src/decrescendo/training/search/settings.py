"""The settings of one run, which a search may vary within the ranges of a `space`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from decrescendo.errors import FileRefused, InvalidValue, check_instance, check_integer, check_real, within
from decrescendo.plans import SCHEDULES, Curve, schedule_curves
from decrescendo.plans.schedule import check_steps
from decrescendo.training.tasks.fitting import decay_scheduler, make_optimizer
from decrescendo.training.tasks.task import Task

RHO_MU, RHO_C = 1.25, 3.3  # the values released by Du et al.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a run except its task and its budget.

    Args:
        schedule: what moves, a key of `plans.SCHEDULES`.
        batch: expected batch size.
        steps: number of steps.
        clip: C_0.
        learning_rate: at the start.
        rho_mu: for schedules that move the noise.
        rho_c: for schedules that move the clip norm.
        optimizer: one of `training.OPTIMIZERS`.
        momentum: in [0, 1).
        lr_decay: ``none``, ``linear`` or ``cosine``, to zero at the last step.
        averaging: decay of the moving average of the weights that is scored, in [0, 1); 0: none.
        seed: whole number >= 0; as sensitive as the data where these are private.

    >>> Settings(batch=10, steps=30, clip=1.0, learning_rate=0.1).schedule
    'dynamic'
    """

    batch: float
    steps: int
    clip: float
    learning_rate: float
    schedule: str = "dynamic"
    rho_mu: float = RHO_MU
    rho_c: float = RHO_C
    optimizer: str = "sgd"
    momentum: float = 0.0
    lr_decay: str = "none"
    averaging: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("schedule", "optimizer", "lr_decay"):
            check_instance(name, getattr(self, name), str)
        if self.schedule not in SCHEDULES:
            raise InvalidValue(f"schedule must be one of {', '.join(SCHEDULES)}, got schedule={self.schedule!r}")
        for name in ("batch", "clip", "learning_rate", "rho_mu", "rho_c"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), above=0))
        for name in ("momentum", "averaging"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), at_least=0, below=1))
        object.__setattr__(self, "steps", check_steps(self.steps))
        object.__setattr__(self, "seed", check_integer("seed", self.seed, at_least=0))

    @classmethod
    def of(cls, task: Task, values: Mapping[str, Any]) -> "Settings":
        """The task's own settings, changed by ``values``; ``epochs`` may be given in place of steps, and
        ``stride`` = learning_rate clip / (1 - momentum) in place of the learning rate.

        Raises:
            InvalidValue, InvalidType: a value outside its range, or an unknown setting.
        """
        given = dict(values)
        unknown = given.keys() - set(NAMES)
        if unknown:
            raise InvalidValue(f"a setting must be one of {', '.join(NAMES)}, got {sorted(unknown)[0]!r}")
        batch = check_real("batch", given.get("batch", task.expected_batch), above=0)
        epochs = check_real("epochs", given.pop("epochs", task.epochs), above=0)
        stride = given.pop("stride", None)
        whole: dict[str, Any] = {
            "batch": batch, "steps": max(1, round(epochs * task.count / batch)), "clip": task.clip,
            "learning_rate": task.learning_rate, "optimizer": task.optimizer,
        }  # fmt: skip
        settings = cls(**{**whole, **given})
        if stride is None:
            return settings
        rate = check_real("stride", stride, above=0) * (1 - settings.momentum) / settings.clip
        return dataclasses.replace(settings, learning_rate=rate)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Settings":
        """Settings from the output of `written`.

        Raises:
            FileRefused: an entry is missing, unknown or out of range.
        """
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise FileRefused(within("settings must be those of a run", error)) from None

    def written(self) -> dict[str, Any]:
        """The settings as plain values, without the seed."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "seed"}

    def seeded(self, seed: int) -> "Settings":
        """The same settings with another seed."""
        return dataclasses.replace(self, seed=seed)

    def curves(self, rows: int) -> tuple[Curve, Curve]:
        """The privacy curve and the clip curve of a run on that many rows."""
        epochs = max(1, round(self.steps * self.batch / rows))
        return schedule_curves(self.schedule, clip=self.clip, rho_mu=self.rho_mu, rho_c=self.rho_c, epochs=epochs)

    def check(self, task: Task) -> None:
        """Check that a run on ``task`` could start with these settings; its data are not loaded.

        Raises:
            InvalidValue: an unknown schedule, optimiser or decay, a value outside its range, a batch too large.
        """
        if self.batch > task.count:
            raise InvalidValue(f"batch must be at most the {task.count} rows, got batch={self.batch:g}")
        self.curves(task.count)
        optimizer = make_optimizer(torch.nn.Linear(1, 1), self.optimizer, self.learning_rate, self.momentum)
        decay_scheduler(optimizer, self.lr_decay, self.steps)

    def describe(self) -> str:
        """The settings in one line."""
        return (
            f"{self.schedule}, batch {self.batch:g}, {self.steps} steps, clip {self.clip:.4g}, {self.optimizer} "
            f"{self.learning_rate:.4g}, decay {self.lr_decay}, momentum {self.momentum:g}, averaging {self.averaging:g}"
        )


TYPES: dict[str, Any] = {
    **{field.name: field.type for field in dataclasses.fields(Settings) if field.name != "seed"},
    "epochs": float, "stride": float,
}  # fmt: skip
NAMES = tuple(TYPES)
