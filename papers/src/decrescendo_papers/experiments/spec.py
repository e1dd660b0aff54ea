"""What one run of an experiment is, down to the last setting, and the name that follows from it."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decrescendo.errors import FileRefused, InvalidValue, check_instance, check_integer, check_real

NOT_PRIVATE = "none"
ACCOUNTANTS = ("pld", "clt", "zcdp", "tcdp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One run. Two runs with equal specs compute the same; whatever changes a result is in here.

    Args:
        task: a key of `experiments.tasks.TASKS`.
        method: ``none`` (not private), or a key of `plans.named.SCHEDULES`.
        accountant: whose word the noise is calibrated by: ``pld`` (certified), ``clt`` (the paper's estimate),
            ``zcdp`` and ``tcdp`` (the baselines'); ``none`` if not private.
        epsilon: budget; 0 if not private.
        delta: budget, in (0, 1).
        steps: number of steps.
        batch: expected batch size.
        seed: whole number >= 0; initial weights, batches and noise. Runs of different methods with one seed start
            from the same weights and see the same batches.
        clip: C_0.
        rho_mu: for schedules that move the noise.
        rho_c: for schedules that move the clip norm.
        optimizer: a key of `experiments.tasks.OPTIMIZERS`.
        learning_rate: at the start.
        momentum: in [0, 1).
        lr_decay: ``none``, ``linear`` or ``cosine``, to zero at the last step.
        averaging: decay of the exponential moving average of the weights that is tested, in [0, 1); 0: none.
        model: a key of the task's models.
        trace: at how many steps, evenly spread, gradient lengths and test accuracy are recorded, and at steps 1, 2,
            4, .. before the first of them; 0: none.
        stand_in: public data used in place of the task's own, a key of `experiments.stand_ins.STAND_INS`; empty: the
            task's own data. Everything else, the noise included, stays as it would be on the task's own.
        start: public data that the model is trained on, without privacy, before the run, a key of
            `experiments.stand_ins.STAND_INS`; see `experiments.pretrain`. Empty: fresh weights.
        rows: only so many of the task's rows (or of the stand-in's) are trained on, drawn anew for each seed; 0: all.
        records: rows a client holds: the plan then protects clients, a cohort has ``batch`` of them, and the run is
            federated (`federated.simulate`); 0: rows are the unit.
        noise: noise multiplier of the first epoch, where it is fixed and nothing is calibrated: ``steps`` is then the
            most, and the run ends before the step that its accountant finds too much for the budget. With
            ``exponential-decay`` only; 0: calibrated.
        noise_decay: with ``noise``, the k of its fall by the factor e^k an epoch, >= 0.

    >>> spec = Spec(task="mnist", method="dynamic", accountant="pld", epsilon=0.4, delta=1e-6, steps=4800,
    ...             batch=250, seed=0, clip=1.5, rho_mu=1.25, rho_c=3.3, learning_rate=0.15)
    >>> spec.name
    'mnist/dynamic-pld-0.4-seed0-...'
    >>> Spec.of(spec.settings()) == spec
    True
    """

    task: str
    method: str
    accountant: str
    epsilon: float
    delta: float
    steps: int
    batch: float
    seed: int
    clip: float
    learning_rate: float
    rho_mu: float = 1.0
    rho_c: float = 1.0
    optimizer: str = "sgd"
    momentum: float = 0.0
    lr_decay: str = "none"
    averaging: float = 0.0
    model: str = "paper"
    trace: int = 0
    stand_in: str = ""
    start: str = ""
    rows: int = 0
    records: int = 0
    noise: float = 0.0
    noise_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("task", "method", "accountant", "optimizer", "lr_decay", "model", "stand_in", "start"):
            check_instance(name, getattr(self, name), str)
        for name in ("epsilon", "momentum", "averaging", "noise", "noise_decay"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), at_least=0))
        for name in ("momentum", "averaging"):
            check_real(name, getattr(self, name), below=1)
        for name in ("delta", "batch", "clip", "learning_rate", "rho_mu", "rho_c"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), above=0))
        for name, least in (
            ("steps", 1),
            ("seed", 0),
            ("trace", 0),
            ("rows", 0),
            ("records", 0),
        ):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), at_least=least))
        if self.private and (self.epsilon == 0 or self.accountant not in ACCOUNTANTS):
            raise InvalidValue(
                f"a private run must have epsilon > 0 and an accountant of {', '.join(ACCOUNTANTS)}, "
                f"got epsilon={self.epsilon}, accountant={self.accountant!r}"
            )
        if self.records and not self.private:
            raise InvalidValue(f"records must be 0 without privacy, which has no unit, got {self.records}")
        if self.noise and not self.private:
            raise InvalidValue(f"noise must be 0 without privacy, got noise={self.noise:g}")
        if self.start and self.start == self.stand_in:
            raise InvalidValue(
                "start must be other public data than stand_in: the weights would have seen the data that the run "
                f"is searched on, and the score would be one of pre-training, got {self.start!r} for both"
            )

    @property
    def private(self) -> bool:
        """Whether there is a budget at all."""
        return self.method != NOT_PRIVATE

    def settings(self) -> dict[str, Any]:
        """As plain values, for JSON. What is at its default is left out: a setting that a later version adds does not
        rename older results."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in dataclasses.asdict(self).items() if value != defaults[name]}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Spec":
        """The spec with these settings.

        Raises:
            FileRefused: an entry is missing, unknown or out of range.
        """
        try:
            return cls(**settings)
        except (TypeError, ValueError) as error:
            raise FileRefused(f"settings must be those of a Spec, got {error}") from None

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of the settings."""
        text = json.dumps(self.settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """File name of the result, without suffix: readable in front, unique at the end."""
        budget = f"-{self.accountant}-{self.epsilon:g}" if self.private else ""
        return f"{self.task}/{self.method}{budget}-seed{self.seed}-{self.hash}"

    def seeded(self, seed: int) -> "Spec":
        """The same with another seed."""
        return dataclasses.replace(self, seed=seed)
