"""The options that describe a plan, and the plan that they describe."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from decrescendo.accounting.table import OPTIONS
from decrescendo.cli.app import working
from decrescendo.cli.options import RHO_C, RHO_MU, AccountantName, Schedule, UnitName
from decrescendo.errors import InvalidValue, check_integer, check_real

if TYPE_CHECKING:
    from decrescendo.accounting import Accountant, Budget, Unit
    from decrescendo.plans import Curve, Plan, PoissonSampling, RandomAllocation, StratifiedPoissonSampling
    from decrescendo.training import Task


def judge_of(name: AccountantName | None) -> "Accountant | None":
    """The accountant of a plan; ``None`` for the default."""
    return None if name is None else OPTIONS[name].made()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options that describe a plan, as they were given; the names are theirs."""

    epsilon: float | None = None
    delta: float | None = None
    batch: float | None = None
    batch_end: float | None = None
    max_batch_size: str | None = None
    random_allocation: bool | None = None
    stratum: "StratifiedPoissonSampling | None" = None
    steps: int | None = None
    epochs: float | None = None
    schedule: Schedule | None = None
    clip: float | None = None
    rho_mu: float | None = None
    rho_c: float | None = None
    accountant: AccountantName | None = None
    unit: UnitName = UnitName.EXAMPLE
    examples_per_person: int | None = None

    def given(self) -> list[str]:
        """The options that were given, of those without a default."""
        names = [field.name for field in dataclasses.fields(self) if field.default is None]
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]

    def plan(self, dataset_size: int) -> "Plan":
        """The plan that they describe."""
        from decrescendo.plans import calibrate, schedule_curves

        budget, poisson, total = self.setting(dataset_size)
        sampling, total = self._allocated(poisson, total) if self.random_allocation else (poisson, total)
        sampling = self.stratum or sampling
        name = (self.schedule or Schedule.DYNAMIC).value
        passes = max(1, round(total * self._mean(poisson) / dataset_size))
        clip = 1.0 if self.clip is None else self.clip
        rho_mu, rho_c = self.factors()
        privacy, norms = schedule_curves(name, clip=clip, rho_mu=rho_mu, rho_c=rho_c, epochs=passes)
        with working("calibrating"):
            return calibrate(
                budget,
                sampling,
                steps=total,
                privacy=privacy,
                clip=norms,
                batch=self._sizes(poisson),
                accountant=judge_of(self.accountant),
            )

    def factors(self) -> tuple[float, float]:
        """By how much mu grows and the clip norm falls; one that the schedule does not use is refused."""
        name = self.schedule or Schedule.DYNAMIC
        fixed_noise = (Schedule.CONSTANT, Schedule.SENSITIVITY_DECAY, Schedule.OPTIMAL)
        moving_clip = (Schedule.SENSITIVITY_DECAY, Schedule.DYNAMIC, Schedule.OPTIMAL)
        for option, value, used in (
            ("--rho-mu", self.rho_mu, name not in fixed_noise), ("--rho-c", self.rho_c, name in moving_clip),
        ):  # fmt: skip
            if value is not None and not used:
                raise InvalidValue(f"{option} must be left out with --schedule {name.value}, which does not use it")
        return RHO_MU if self.rho_mu is None else self.rho_mu, RHO_C if self.rho_c is None else self.rho_c

    def _allocated(self, sampling: "PoissonSampling", steps: int) -> "tuple[RandomAllocation, int]":
        """Each example once an epoch, in batches about as large as asked for; whole epochs where these were asked."""
        from decrescendo.plans.sampling import RandomAllocation

        if self.unit is UnitName.CLIENT:
            raise InvalidValue("--random-allocation must be of examples, got --unit client, whose rounds are Poisson")
        each = max(2, round(1 / sampling.sample_rate))
        drawn = RandomAllocation(sampling.dataset_size, each, sampling.max_batch_size)
        return drawn, steps if self.epochs is None else each * max(1, round(self.epochs))

    def _mean(self, sampling: "PoissonSampling") -> float:
        """The expected batch size of a step, on average over the run."""
        if self.batch_end is None:
            return sampling.expected_batch_size
        last = check_real("batch_end", self.batch_end, above=0, at_most=sampling.dataset_size)
        return (sampling.expected_batch_size + last) / 2

    def setting(self, dataset_size: int) -> "tuple[Budget, PoissonSampling, int]":
        """Budget, sampling and number of steps that they describe."""
        from decrescendo.accounting.budget import Budget
        from decrescendo.plans.sampling import PoissonSampling

        if self.epsilon is None or self.batch is None:
            raise InvalidValue("--epsilon and --batch must be given, got less. A budget has no default")
        sampling = PoissonSampling(dataset_size, self.batch)
        delta = 1 / (10 * dataset_size) if self.delta is None else self.delta
        budget = Budget(self.epsilon, delta, *whom(self.unit, self.examples_per_person))
        total = self._steps(sampling)
        cap = self._cap(budget, sampling, total)
        return budget, PoissonSampling(dataset_size, self.batch, cap), total

    def _sizes(self, sampling: "PoissonSampling") -> "Curve | None":
        from decrescendo.plans.curves import linear

        return None if self.batch_end is None else linear(sampling.expected_batch_size, self.batch_end)

    def _cap(self, budget: "Budget", sampling: "PoissonSampling", steps: int) -> int | None:
        from decrescendo.plans.passes import usual_cap

        asked = self.max_batch_size
        if asked is None or (asked.isdecimal() and len(asked) < 20):
            return None if asked is None else int(asked)
        if asked != "auto":
            raise InvalidValue(f"--max-batch-size must be a whole number or auto, got {asked!r}")
        return usual_cap(sampling, steps, budget, self._sizes(sampling))

    def _steps(self, sampling: "PoissonSampling") -> int:
        from decrescendo.plans.schedule import LARGEST_STEPS, check_steps

        if self.steps is not None and self.epochs is None:
            return check_steps(self.steps)
        if self.epochs is not None and self.steps is None:
            rate = self._mean(sampling) / sampling.dataset_size
            most = LARGEST_STEPS * rate
            hint = "Each step takes time and memory"
            passes = check_real("epochs", self.epochs, above=0, at_most=most, hint=hint)
            return max(1, round(passes / rate))
        given = "neither" if self.steps is None else "both"
        raise InvalidValue(f"exactly one of --steps and --epochs must be given, got {given}")


def whom(unit: UnitName, examples_per_person: int | None) -> "tuple[Unit, int]":
    """Unit and number of examples of a budget; an example unless something else was said.

    Raises:
        InvalidValue: people without a number, or a number for clients.
    """
    from decrescendo.accounting.budget import Unit

    if examples_per_person is None:
        if unit is UnitName.PERSON:
            raise InvalidValue(
                "--unit person must come with --examples-per-person, got none. How many has one person, at most?"
            )
        return Unit(unit.value), 1
    if unit is UnitName.CLIENT:
        raise InvalidValue("--examples-per-person must come without --unit client, got both")
    return Unit.PERSON, examples_per_person


def population(
    unit: UnitName,
    dataset_size: int | None,
    batch: float | None,
    clients: int | None,
    clients_per_round: float | None,
) -> tuple[int, float]:
    """(N, B) of the unit: how many there are, and how many a step is expected to have.

    Raises:
        InvalidValue: one is missing, or counts the other unit: a plan never is for another unit than was meant.
    """
    rows = UnitName.EXAMPLE if unit is UnitName.PERSON else unit  # people have examples
    counts = {
        UnitName.EXAMPLE: {"--dataset-size": dataset_size, "--batch": batch},
        UnitName.CLIENT: {"--clients": clients, "--clients-per-round": clients_per_round},
    }
    own, (meant, others) = counts.pop(rows), counts.popitem()
    names = " and ".join(own)
    if surplus := [name for name, value in others.items() if value is not None]:
        raise InvalidValue(
            f"--unit {unit} must come with {names}, got {', '.join(surplus)} for {meant}s. Give what there is of "
            f"{unit}s, or --unit {meant}"
        )
    if missing := [name for name, value in own.items() if value is None]:
        raise InvalidValue(f"--unit {unit} must come with {names}, got no {' and no '.join(missing)}")
    many, few = own.values()
    if unit is UnitName.CLIENT:  # in the words of its own options: what follows speaks of rows
        check_integer("clients", many, at_least=1)
        check_real("clients_per_round", few, above=0, at_most=cast(int, many), hint="At most all clients take part")
    return cast(int, many), cast(float, few)


def strata_of(given: list[str], **others: object) -> "StratifiedPoissonSampling":
    """The sampling that NAME:RECORDS:EXPECTED describe, one text a stratum; ``others`` are options that say who is in a
    batch too.

    >>> strata_of(["common:900:9", "rare:100:10"], batch=None).stratum_rates
    {'common': 0.01, 'rare': 0.1}

    Raises:
        InvalidValue: another form, a name that comes twice, a number outside its range, or another option.
    """
    from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling

    if surplus := [name for name, value in others.items() if value is not None]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in surplus)
        raise InvalidValue(f"--stratum must come without {names}: it says who is in a batch")
    strata: dict[str, tuple[int, float]] = {}
    for text in given:
        try:
            name, records, expected = text.rsplit(":", 2)
            found = int(records), float(expected)
        except ValueError:
            raise InvalidValue(f"--stratum must be NAME:RECORDS:EXPECTED, as in rare:100:10, got {text!r}") from None
        if name in strata:
            raise InvalidValue(f"--stratum must name each stratum once, got {name!r} twice")
        strata[name] = found
    return StratifiedPoissonSampling(strata)


def agreed_plan(task: "Task | None", file: Path | None, asked: Asked) -> "Plan":
    """The plan in ``file``, or the one that the options of `train` and `audit` describe: what is not given is the
    task's own.

    Raises:
        InvalidValue: both, or neither, or a plan for clients: these commands train on examples.
    """
    from decrescendo.accounting.budget import Unit
    from decrescendo.plans.plan import Plan

    if file is not None and asked.given():
        raise InvalidValue(f"a plan file says it all, got --plan and {', '.join(asked.given())}. Give one or the other")
    if file is not None:
        found = Plan.load(file)
        if found.budget.unit is Unit.CLIENT:
            raise InvalidValue(
                f"a plan for training must protect examples or people, got unit={found.budget.unit} in {file}: here "
                "each row is clipped, not each client. Use decrescendo.federated, or plan with --unit example"
            )
        return found
    if asked.epsilon is None or task is None:
        raise InvalidValue("--plan or --epsilon must be given, got neither. A budget has no default")
    batch = task.expected_batch if asked.batch is None else asked.batch
    if asked.stratum is not None:
        batch = asked.stratum.expected_batch_size
        if asked.stratum.dataset_size != task.count:
            raise InvalidValue(
                f"--stratum must name all {task.count} rows of the task, got {asked.stratum.dataset_size}"
            )
    whole = dataclasses.replace(
        asked,
        delta=task.delta if asked.delta is None else asked.delta,
        batch=batch,
        epochs=task.epochs if asked.steps is None and asked.epochs is None else asked.epochs,
        clip=task.clip if asked.clip is None else asked.clip,
    )
    return whole.plan(task.count)
