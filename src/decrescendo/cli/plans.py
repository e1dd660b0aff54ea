"""Commands about plans: decide one, ask every accountant about one, check one."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decrescendo.accounting.budget import rounded
from decrescendo.cli.app import err, one_line_errors, out, print_json, say
from decrescendo.cli.optimal import Advice, Known, advise, say_optimal
from decrescendo.cli.options import (
    RHO_C,
    RHO_MU,
    Accountant,
    AccountantName,
    AsJson,
    BatchNeeded,
    Clip,
    Curvature,
    Delta,
    Epochs,
    EpsilonNeeded,
    Influence,
    InfluenceGrowth,
    Lr,
    LrSchedule,
    Momentum,
    RhoC,
    RhoMu,
    SavePlan,
    Schedule,
    ScheduleName,
    Steps,
)
from decrescendo.errors import AccountingError, InvalidValue, check_real

if TYPE_CHECKING:
    from decrescendo import accounting
    from decrescendo.accounting.budget import Budget
    from decrescendo.accounting.ledger import Ledger
    from decrescendo.plans.plan import Plan
    from decrescendo.plans.sampling import PoissonSampling
    from decrescendo.plans.terms import Terms
    from decrescendo.training import Task


@one_line_errors
def plan_command(
    epsilon: EpsilonNeeded,
    dataset_size: Annotated[int, typer.Option(help="Number of examples N; public.")],
    batch: BatchNeeded,
    delta: Delta = None,
    steps: Steps = None,
    epochs: Epochs = None,
    schedule: ScheduleName = None,
    clip: Clip = None,
    rho_mu: RhoMu = RHO_MU,
    rho_c: RhoC = RHO_C,
    lr_schedule: LrSchedule = None,
    lr: Lr = None,
    curvature: Curvature = None,
    momentum: Momentum = None,
    influence: Influence = None,
    influence_growth: InfluenceGrowth = None,
    accountant: Accountant = None,
    save: SavePlan = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the schedules into this PNG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate noise so that the [bold]whole[/bold] moving schedule meets a budget.

    Example: decrescendo plan --epsilon 1.2 --delta 1e-6 --dataset-size 60000 --batch 250 --epochs 20
    --schedule dynamic --clip 1.5 --save plan.json

    With --schedule optimal the noise follows from what is known of the training: --lr-schedule, --curvature with --lr,
    --momentum, or weights of your own.
    """
    for option, path in (("--save", save), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():  # asked before the work, not after it
            raise InvalidValue(f"{option} must name a file in a folder that exists, got {str(path)!r}")
    known = Known(lr_schedule, lr, curvature, momentum, influence, influence_growth)
    known.check(schedule)
    asked = Asked(
        epsilon=epsilon, delta=delta, batch=batch, steps=steps, epochs=epochs, schedule=schedule, clip=clip,
        rho_mu=rho_mu, rho_c=rho_c, accountant=accountant,
    )  # fmt: skip
    advice: Advice | None = None
    if known.anything:
        advice = advise(
            *asked.setting(dataset_size),
            known,
            clip=1.0 if clip is None else clip,
            rho_c=rho_c,
            judge=judge_of(accountant),
        )
        made = advice.plan
    else:
        made = asked.plan(dataset_size)
    if save is not None:
        made.save(save)
    if plot is not None:
        from decrescendo.report.figure import draw_schedules

        shown = {(schedule or Schedule.DYNAMIC).value: made}
        if advice is not None:
            shown["uniform"] = advice.uniform
        draw_schedules(shown, plot)
    if as_json:
        more = {} if advice is None else advice.facts()
        print_json({**plan_facts(made), **more, "saved": save, "plot": plot})
        return
    say(made.describe())
    if schedule is Schedule.OPTIMAL:
        say_optimal(made, advice)
    for path in filter(None, (save, plot)):
        say(f"written: {path}")


@one_line_errors
def account_command(
    file: Annotated[
        Path, typer.Argument(help="A plan, a run's folder, or noise multipliers: JSON list, CSV.")
    ],
    delta: Annotated[float | None, typer.Option(help="Default: the plan's.")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="For a file that does not say it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask every accountant what a list of noisy steps costs, and which answers are proofs.

    A CSV has one noise multiplier a line, or named columns noise_multiplier, sample_rate, count.
    """
    from decrescendo.report.judge import verdict_table, verdicts
    from decrescendo.report.ledgers import filtered, read_ledger

    promised = filtered(file)
    ledger, planned = read_ledger(file, sample_rate=sample_rate)
    at = planned if delta is None else delta
    if at is None:
        raise InvalidValue(f"--delta must be given for {file}, which has none, got none")
    found = verdicts(ledger, at)
    if as_json:
        rows = [dataclasses.asdict(verdict) for verdict in found]
        facts: dict[str, Any] = {"steps": ledger.steps, "delta": at, "accountants": rows}
        if promised is not None:
            facts["guarantee"] = guarantee_facts(promised)
        print_json(facts)
        return
    out.print(verdict_table(found, ledger, at))
    if promised is not None:
        say(f"guarantee: {promised}")
        err.print(
            "[yellow]warning:[/yellow] this noise was decided on the way. The answers above are for noise fixed in "
            "advance and guarantee nothing here: the filter's budget does"
        )


@one_line_errors
def verify_command(
    file: Annotated[Path, typer.Argument(help="A plan file, or the folder of a run.")],
) -> None:
    """Judge a plan file's numbers again, here and with an independent library.

    Of a run whose noise was decided on the way, ask its filter again for every release.
    """
    from decrescendo.accounting import Pld
    from decrescendo.plans.plan import Plan

    if file.is_dir():
        from decrescendo.plans.terms import Terms
        from decrescendo.training.run import PLAN, Run  # needs torch

        run = Run.load(file)
        if isinstance(run.plan, Terms):
            _verify_terms(run.plan, run.ledger)
            return
        file = file / PLAN
    plan = Plan.load(file)
    with err.status("judging"):
        lower, upper = Pld().bracket(plan.ledger, plan.budget.delta)
        opinion = plan.verify()
    say(f"promised: {plan.guarantee}")
    say(f"Pld again: epsilon in [{rounded(lower, 'down', 6)}, {rounded(upper, 'up', 6)}]")
    say(str(opinion))
    proved = max(lower, opinion.lower)
    if plan.guarantee.epsilon < proved:
        raise AccountingError(
            f"the guarantee in {file} must not be below the true epsilon, which is at least {proved:.6g}, "
            f"got epsilon={plan.guarantee.epsilon:.6g}. Calibrate again"
        )
    say("verified")


def _verify_terms(terms: "Terms", ledger: "Ledger") -> None:
    say(f"promised: {terms.guarantee}")
    guard = terms.replay(ledger)
    if guard is None:
        raise AccountingError(
            f"a filter must be one of this package to be asked again, got {terms.filter}. Ask where it came from"
        )
    share = guard.spent / guard.limit
    say(f"{terms.filter} again: {ledger.steps} releases granted, {share:.4%} of the budget spent")
    say("verified")


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


def guarantee_facts(guarantee: Any) -> dict[str, Any]:
    """A guarantee for JSON."""
    return dataclasses.asdict(guarantee) | {"unit": str(guarantee.unit)}


def plan_facts(plan: "Plan") -> dict[str, Any]:
    """A plan for JSON, with the ends of its schedules; the arrays are in the saved file."""
    schedule = plan.schedule
    return {
        "budget": {"epsilon": plan.budget.epsilon, "delta": plan.budget.delta, "unit": str(plan.budget.unit)},
        "dataset_size": plan.sampling.dataset_size,
        "expected_batch_size": plan.sampling.expected_batch_size,
        "steps": plan.steps,
        "noise_multiplier": [float(schedule.noise_multiplier[0]), float(schedule.noise_multiplier[-1])],
        "clip_norm": [float(schedule.clip_norm[0]), float(schedule.clip_norm[-1])],
        "guarantee": guarantee_facts(plan.guarantee),
    }
