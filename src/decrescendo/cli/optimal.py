"""`plan --schedule optimal`: what is known of the training, the noise that suits it best, and what that rests on."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from decrescendo.cli.app import say, working
from decrescendo.cli.options import Decay, Schedule
from decrescendo.errors import FileRefused, InvalidValue, check_array, check_real

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from decrescendo.accounting import Accountant, Budget
    from decrescendo.plans.plan import Plan
    from decrescendo.plans.sampling import PoissonSampling
    from decrescendo.plans.workload import Workload


@dataclass(frozen=True, slots=True)
class Known:
    """The options that say how much the noise of each step matters; the names are theirs."""

    lr_schedule: Decay | None
    lr: float | None
    curvature: float | None
    momentum: float | None
    influence: Path | None
    influence_growth: float | None

    def given(self) -> list[str]:
        """The options that were given."""
        names = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return ["--" + name.replace("_", "-") for name in names]

    def check(self, schedule: Schedule | None) -> None:
        """Options that would have no effect, or contradict each other, are refused."""
        given = self.given()
        if given and schedule is not Schedule.OPTIMAL:
            other = "no --schedule" if schedule is None else f"--schedule {schedule}"
            raise InvalidValue(
                f"{given[0]} must come with --schedule optimal, the one whose noise follows it, got {other}"
            )
        own = [name for name in given if name.startswith("--influence")]
        if own and len(given) > 1:
            raise InvalidValue(
                f"{own[0]} must come alone: it already says how much each step's noise matters, got {', '.join(given)}"
            )
        if (self.curvature is None) != (self.lr is None):
            raise InvalidValue(
                "--curvature and --lr must come together: their product is how fast noise is forgotten, got only "
                f"{'--lr' if self.curvature is None else '--curvature'}"
            )

    def workload(self, steps: int) -> "Workload":
        """What the training makes of the noise."""
        from decrescendo.plans.workload import Workload

        if self.influence is not None or self.influence_growth is not None:
            return Workload.of_influence(self.influences(steps))
        return Workload(
            self._rates(steps),
            momentum=0.0 if self.momentum is None else self.momentum,
            weight_decay=0.0 if self.curvature is None else self.curvature,
        )

    def _rates(self, steps: int) -> "Float[np.ndarray, ' steps']":
        import numpy as np

        u = np.arange(1, steps + 1) / steps
        before = u - 1 / steps  # as the schedulers of `train`: the first step has the full rate
        shapes = {
            Decay.NONE: np.ones(steps),
            Decay.LINEAR: 1 - before,
            Decay.COSINE: (1 + np.cos(np.pi * before)) / 2,
        }
        rate = check_real("lr", 1.0 if self.lr is None else self.lr, above=0)
        return rate * shapes[self.lr_schedule or Decay.NONE]

    def influences(self, steps: int) -> "Float[np.ndarray, ' steps']":
        """q_t on the variance of the noise on the sum."""
        import numpy as np

        from decrescendo.plans.noise_influence import noise_influence

        if self.influence is not None:
            return _read(self.influence, steps)
        u = np.arange(1, steps + 1) / steps
        if self.influence_growth is not None:
            return check_real("influence_growth", self.influence_growth, above=0) ** u
        return noise_influence(
            self._rates(steps),
            curvature=0.0 if self.curvature is None else self.curvature,
            momentum=0.0 if self.momentum is None else self.momentum,
        )

    def rests_on(self) -> str:
        """One sentence: which influence, and what is assumed of the loss."""
        if self.influence is not None:
            return (
                f"rests on the influences in {self.influence}, of the variance of each step's noise: "
                "nothing else is assumed of the loss"
            )
        if self.influence_growth is not None:
            return (
                f"rests on an influence that grows exponentially by {self.influence_growth:g} over the run: nothing "
                "else is assumed of the loss"
            )
        falls = {None: "constant", Decay.NONE: "constant"}.get(self.lr_schedule, f"{self.lr_schedule} to zero")
        text = f"rests on a learning rate eta_t ({falls}): noise weighs eta_t^2"
        if self.curvature is None:
            text += ", and none of it is forgotten; of the loss only smoothness is assumed"
        else:
            text += (
                f" times what later steps leave of it, 1 - 2 m eta (1 - M eta/2) each; assumes a loss with PL constant "
                f"m = {self.curvature:g}, smoothness M = 1/lr = {1 / (self.lr or 1.0):g} and gradients that clipping "
                "leaves alone (Hong Theorem 4.1)"
            )
        if self.momentum:
            text += (
                f"; with momentum {self.momentum:g} noise is in all later steps too (Hong Theorem 4.5, whose proof "
                "has one constant rate)"
            )
        return text


@dataclass(frozen=True, slots=True)
class Advice:
    """The plan found, uniform noise within the same budget, and what the former leaves of the latter's noise term."""

    plan: "Plan"
    uniform: "Plan"
    left: float
    rests_on: str
    workload: "Workload | None" = None

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"rests_on": self.rests_on, "noise_term_over_uniform": self.left}


def advise(
    budget: "Budget",
    sampling: "PoissonSampling",
    steps: int,
    known: Known,
    *,
    clip: float,
    rho_c: float,
    judge: "Accountant | None" = None,
    compute: float | None = None,
    bands: "int | Literal['auto']" = 1,
) -> Advice:
    """The plan whose noise matters least, by `plans.allocate`; with ``compute`` examples, whose batch moves too; with
    ``bands``, whose noise is correlated."""
    from decrescendo.plans import curves
    from decrescendo.plans.allocation import allocate
    from decrescendo.plans.calibration import calibrate
    from decrescendo.plans.compute import allocate_compute, mean_noise_cost
    from decrescendo.plans.schedule import check_steps

    count = check_steps(steps)
    norms = curves.sensitivity_decay(check_real("clip", clip, above=0), check_real("rho_c", rho_c, above=0))
    influence = known.influences(count)
    workload = None if bands == 1 else known.workload(count)
    with working("searching"):
        if workload is not None:
            plan = calibrate(
                budget, sampling, steps=count, clip=norms, accountant=judge, bands=bands, workload=workload
            )
        elif compute is None:
            plan = allocate(budget, sampling, steps=count, influence=influence, clip=norms, accountant=judge)
        else:
            plan = allocate_compute(
                budget, sampling.dataset_size, steps=count, compute=compute, max_batch_size=sampling.max_batch_size,
                influence=influence, clip=norms, accountant=judge,
            )  # fmt: skip
        even = calibrate(budget, sampling, steps=count, privacy=curves.constant(1.0), clip=norms, accountant=judge)
    if workload is None:
        left = mean_noise_cost(plan, influence) / mean_noise_cost(even, influence)
        return Advice(plan, even, left, known.rests_on())
    scale = plan.clip_norm / plan.batch_size
    costs = [workload.cost(one.correlation or one.noise_multiplier, scale) for one in (plan, even)]
    return Advice(plan, even, costs[0] / costs[1], f"{known.rests_on()}; noise is summed over all iterates", workload)


def say_optimal(plan: "Plan", advice: Advice | None) -> None:
    """The noise curve as text, and the sentence."""
    from decrescendo.report.text_plot import text_plot

    for line in text_plot(plan.noise_multiplier, title="noise multiplier z_t"):
        say(line)
    if plan.batch_size.min() < plan.batch_size.max():
        for line in text_plot(plan.batch_size, title="expected batch size B_t"):
            say(line)
    if advice is None:
        say(
            "rests on mu_t ~ sqrt(C_t), Du Eq. (52)-(55): noise of every step weighs the same, and mu_t is small. Give "
            "--lr-schedule, --curvature with --lr, --momentum or --influence for noise that suits the training"
        )
        return
    if advice.workload is not None:
        for name, one in (("this plan", plan), ("constant independent noise", advice.uniform)):
            own = advice.workload.noise_std(one.correlation or one.noise_multiplier, one.clip_norm / one.batch_size)
            for line in text_plot(own, title=f"noise that is still in the iterate: {name}"):
                say(line)
    say(advice.rests_on)
    felt = "felt at the end, by these influences" if advice.workload is None else "in the iterates, by these rates"
    say(
        f"noise {felt}: {1 - advice.left:.1%} below uniform noise in the same budget. "
        "That is a term of a bound, no promise of accuracy; the guarantee holds whatever the influences"
    )


def _read(path: Path, steps: int) -> "Float[np.ndarray, ' steps']":
    """One positive number a step, as a JSON list or a number a line."""
    from decrescendo.base import strict_json

    try:
        text = path.read_text(encoding="utf-8-sig").strip()
        values = strict_json.loads(text) if text.startswith("[") else [float(line) for line in text.split()]
        if "_" in text or any(isinstance(value, bool) for value in values):
            raise ValueError("true, false or 1_000 among them")
    except (OSError, ValueError) as error:
        raise FileRefused(f"{path} must be a JSON list of numbers or one number a line, got {error}") from None
    hint = f"{path} must have an influence for each of the {steps} steps"
    return check_array("influence", values, above=0, length=steps, hint=hint)
