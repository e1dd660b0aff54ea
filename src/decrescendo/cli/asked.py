"""The options that describe a plan, and the plan that they describe."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decrescendo.cli.app import err
from decrescendo.cli.options import RHO_C, RHO_MU, AccountantName, Schedule
from decrescendo.errors import InvalidValue, check_real

if TYPE_CHECKING:
    from decrescendo import accounting
    from decrescendo.accounting import Budget
    from decrescendo.plans import Plan, PoissonSampling
    from decrescendo.training import Task


def judge_of(name: AccountantName | None) -> "accounting.Accountant | None":
    """The accountant of a plan; ``None`` for the default."""
    from decrescendo import accounting

    if name is None:
        return None
    known: dict[AccountantName, type[Any]] = {
        AccountantName.PLD: accounting.Pld,
        AccountantName.RDP: accounting.Rdp,
        AccountantName.GAUSSIAN: accounting.Gaussian,
        AccountantName.ZCDP: accounting.Zcdp,
        AccountantName.TCDP: accounting.Tcdp,
        AccountantName.CLT: accounting.GdpClt,
    }
    return known[name]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options that describe a plan, as they were given; the names are theirs."""

    epsilon: float | None = None
    delta: float | None = None
    batch: float | None = None
    steps: int | None = None
    epochs: float | None = None
    schedule: Schedule | None = None
    clip: float | None = None
    rho_mu: float = RHO_MU
    rho_c: float = RHO_C
    accountant: AccountantName | None = None

    def given(self) -> list[str]:
        """The options that were given, of those without a default."""
        names = [field.name for field in dataclasses.fields(self) if field.default is None]
        return [f"--{name}" for name in names if getattr(self, name) is not None]

    def plan(self, dataset_size: int) -> "Plan":
        """The plan that they describe."""
        from decrescendo.plans import calibrate, schedule_curves

        budget, sampling, total = self.setting(dataset_size)
        name = (self.schedule or Schedule.DYNAMIC).value
        passes = max(1, round(total * sampling.sample_rate))
        clip = 1.0 if self.clip is None else self.clip
        privacy, norms = schedule_curves(name, clip=clip, rho_mu=self.rho_mu, rho_c=self.rho_c, epochs=passes)
        with err.status("calibrating"):
            return calibrate(
                budget,
                sampling,
                steps=total,
                privacy=privacy,
                clip=norms,
                accountant=judge_of(self.accountant),
            )

    def setting(self, dataset_size: int) -> "tuple[Budget, PoissonSampling, int]":
        """Budget, sampling and number of steps that they describe."""
        from decrescendo.accounting.budget import Budget
        from decrescendo.plans.sampling import PoissonSampling
        from decrescendo.plans.schedule import LARGEST_STEPS, check_steps

        if self.epsilon is None or self.batch is None:
            raise InvalidValue("--epsilon and --batch must be given, got less. A budget has no default")
        sampling = PoissonSampling(dataset_size, self.batch)
        budget = Budget(self.epsilon, 1 / (10 * dataset_size) if self.delta is None else self.delta)
        if self.steps is not None and self.epochs is None:
            return budget, sampling, check_steps(self.steps)
        if self.epochs is not None and self.steps is None:
            most = LARGEST_STEPS * sampling.sample_rate
            hint = "Each step takes time and memory"
            passes = check_real("epochs", self.epochs, above=0, at_most=most, hint=hint)
            return budget, sampling, max(1, round(passes / sampling.sample_rate))
        given = "neither" if self.steps is None else "both"
        raise InvalidValue(f"exactly one of --steps and --epochs must be given, got {given}")


def agreed_plan(task: "Task | None", file: Path | None, asked: Asked) -> "Plan":
    """The plan in ``file``, or the one that the options of `train` and `audit` describe: what is not given is the
    task's own.

    Raises:
        InvalidValue: both, or neither.
    """
    from decrescendo.plans.plan import Plan

    if file is not None and asked.given():
        raise InvalidValue(
            f"a plan file says it all, got --plan and {', '.join(asked.given())}. Give one or the other"
        )
    if file is not None:
        return Plan.load(file)
    if asked.epsilon is None or task is None:
        raise InvalidValue("--plan or --epsilon must be given, got neither. A budget has no default")
    whole = dataclasses.replace(
        asked,
        delta=task.delta if asked.delta is None else asked.delta,
        batch=task.expected_batch if asked.batch is None else asked.batch,
        epochs=task.epochs if asked.steps is None and asked.epochs is None else asked.epochs,
        clip=task.clip if asked.clip is None else asked.clip,
    )
    return whole.plan(task.count)
