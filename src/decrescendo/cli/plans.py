"""Commands about plans: decide one, ask every accountant about one, check one.

Longer than most files: options are their own documentation.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decrescendo.cli import options
from decrescendo.cli.app import err, one_line_errors, out, print_json, say, working
from decrescendo.cli.asked import Asked, judge_of, population
from decrescendo.cli.optimal import Advice, Known, advise, say_optimal
from decrescendo.errors import InvalidValue, check_real

if TYPE_CHECKING:
    from decrescendo.plans.plan import Plan


@one_line_errors
def plan_command(
    epsilon: options.EpsilonNeeded,
    dataset_size: options.DatasetSize = None,
    batch: options.Batch = None,
    batch_end: options.BatchEnd = None,
    max_batch_size: options.MaxBatchSize = None,
    random_allocation: options.RandomAllocation = None,
    unit: options.UnitOf = options.UnitName.EXAMPLE,
    clients: options.Clients = None,
    clients_per_round: options.ClientsPerRound = None,
    examples_per_person: options.ExamplesPerPerson = None,
    delta: options.Delta = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    schedule: options.ScheduleName = None,
    clip: options.Clip = None,
    rho_mu: options.RhoMu = options.RHO_MU,
    rho_c: options.RhoC = options.RHO_C,
    lr_schedule: options.LrSchedule = None,
    lr: options.Lr = None,
    curvature: options.Curvature = None,
    momentum: options.Momentum = None,
    influence: options.Influence = None,
    influence_growth: options.InfluenceGrowth = None,
    compute: options.Compute = None,
    accountant: options.Accountant = None,
    save: options.SavePlan = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the schedules into this PNG file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Calibrate noise so that the [bold]whole[/bold] moving schedule meets a budget.

    Example: decrescendo plan --epsilon 1.2 --delta 1e-6 --dataset-size 60000 --batch 250 --epochs 20
    --schedule dynamic --clip 1.5 --save plan.json

    With --schedule optimal the noise follows from what is known of the training: --lr-schedule, --curvature with --lr,
    --momentum, or influences of your own.

    Over clients: decrescendo plan --epsilon 4 --delta 1e-4 --unit client --clients 2000 --clients-per-round 200
    --steps 30 --save plan.json

    Of people with up to 5 examples each: decrescendo plan --epsilon 4 --delta 1e-6 --unit person
    --examples-per-person 5 --dataset-size 60000 --batch 250 --epochs 10 --save plan.json
    """
    for option, path in (("--save", save), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():  # asked before the work, not after it
            raise InvalidValue(f"{option} must name a file in a folder that exists, got {str(path)!r}")
    known = Known(lr_schedule, lr, curvature, momentum, influence, influence_growth)
    known.check(schedule)
    if compute is not None:
        batch = _mean_batch(compute, schedule, steps, batch, batch_end, epochs, unit)
        if max_batch_size == "auto":
            raise InvalidValue(
                "--max-batch-size must be a number with --compute, which moves the batch, got auto"
            )
        if dataset_size is not None and batch > dataset_size:
            raise InvalidValue(
                f"--compute must be at most --steps times --dataset-size, got {compute:g}. Give fewer, or more steps"
            )
    size, expected = population(unit, dataset_size, batch, clients, clients_per_round)
    asked = Asked(
        epsilon=epsilon, delta=delta, batch=expected, batch_end=batch_end, max_batch_size=max_batch_size,
        random_allocation=random_allocation, steps=steps, epochs=epochs,
        schedule=schedule, clip=clip, rho_mu=rho_mu, rho_c=rho_c, accountant=accountant, unit=unit,
        examples_per_person=examples_per_person,
    )  # fmt: skip
    advice: Advice | None = None
    if known.given() and batch_end is not None:  # (never with --compute)
        raise InvalidValue(
            "--batch-end must be left out where the noise follows from what is known of the training, got "
            f"--batch-end {batch_end:g}. That search takes one expected batch size"
        )
    if random_allocation and (known.given() or compute is not None):
        raise InvalidValue(
            "--random-allocation must come without --compute and what is known of the training, got both. That search "
            "is of Poisson batches"
        )
    if known.given() or compute is not None:
        advice = advise(
            *asked.setting(size),
            known,
            clip=1.0 if clip is None else clip,
            rho_c=rho_c,
            judge=judge_of(accountant),
            compute=compute,
        )
        made = advice.plan
    else:
        made = asked.plan(size)
    if save is not None:
        made.save(save)
    if plot is not None:
        from decrescendo.report.figure import draw_schedules

        shown = {(schedule or options.Schedule.DYNAMIC).value: made}
        if advice is not None:
            shown["uniform"] = advice.uniform
        draw_schedules(shown, plot)
    if as_json:
        more = {} if advice is None else advice.facts()
        print_json({**plan_facts(made), **more, "saved": save, "plot": plot})
        return
    say(made.describe())
    if schedule is options.Schedule.OPTIMAL:
        say_optimal(made, advice)
    for path in filter(None, (save, plot)):
        say(f"written: {path}")


def _mean_batch(
    compute: float,
    schedule: options.Schedule | None,
    steps: int | None,
    batch: float | None,
    batch_end: float | None,
    epochs: float | None,
    unit: options.UnitName,
) -> float:
    """The expected batch size of a step, on average; the options that --compute cannot come with are refused."""
    if schedule is not options.Schedule.OPTIMAL or steps is None or unit is not options.UnitName.EXAMPLE:
        raise InvalidValue(
            "--compute must come with --schedule optimal and --steps, over examples: it decides how the batch moves"
        )
    others = {"--batch": batch, "--batch-end": batch_end, "--epochs": epochs}
    if given := [name for name, value in others.items() if value is not None]:
        raise InvalidValue(
            f"--compute must come without {', '.join(given)}: it says how many examples all steps together process"
        )
    return check_real("compute", compute, above=0) / max(1, steps)


@one_line_errors
def account_command(
    file: Annotated[
        Path, typer.Argument(help="A plan, a run's folder, or noise multipliers: JSON list, CSV.")
    ],
    delta: Annotated[float | None, typer.Option(help="Default: the plan's.")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="For a file that does not say it.")] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(help="Batches were cut to so many rows: what that costs, too.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="With --max-batch-size: number of records.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask every accountant what a list of noisy steps costs, and which answers are proofs.

    A CSV has one noise multiplier a line, or named columns noise_multiplier, sample_rate, count.

    Example: decrescendo account noise.csv --sample-rate 0.01 --delta 1e-5
    """
    from decrescendo.accounting.membership import ALARMS, membership, percent
    from decrescendo.report.judge import verdict_table, verdicts
    from decrescendo.report.ledgers import agreed_in, read_ledger

    ledger, planned = read_ledger(file, sample_rate=sample_rate)
    agreed = agreed_in(file)
    promised = agreed.guarantee if agreed is not None and agreed.planned is None else None
    at = planned if delta is None else delta
    if at is None:
        raise InvalidValue(f"--delta must be given for {file}, which has none, got none")
    if agreed is not None and rows not in (None, agreed.sampling.dataset_size):
        raise InvalidValue(
            f"--rows must be the plan's {agreed.sampling.dataset_size}, got {rows}. Leave it out"
        )
    if agreed is not None and agreed.sampling.max_batch_size is not None:
        if max_batch_size not in (None, agreed.sampling.max_batch_size):
            raise InvalidValue(
                f"--max-batch-size must be the plan's {agreed.sampling.max_batch_size}, got {max_batch_size}. Leave it "
                "out"
            )
        max_batch_size = agreed.sampling.max_batch_size
    if agreed is not None and max_batch_size is not None:
        rows = agreed.sampling.dataset_size
    if (rows is None) != (max_batch_size is None):
        raise InvalidValue(
            "--max-batch-size and --rows must be given together, got one of them. A plan says its rows itself"
        )
    group = 1 if agreed is None else agreed.budget.examples_per_person
    accounted = ledger if rows is None else ledger.cut(rows, max_batch_size)
    found = verdicts(accounted, at, group=group)
    told = None if agreed is None else agreed.guarantee
    tests = membership(None if promised is not None else accounted, told, ALARMS, group=group)
    if as_json:
        answers = [dataclasses.asdict(verdict) for verdict in found]
        facts: dict[str, Any] = {"steps": ledger.steps, "delta": at, "accountants": answers}
        facts["power_at_false_alarms"] = dict(
            zip([f"{alarms:g}" for alarms in ALARMS], tests.power.tolist(), strict=True)
        )
        facts["power_by"] = tests.by
        if max_batch_size is not None:
            facts |= {"max_batch_size": max_batch_size, "rows": rows}
        if agreed is not None:
            facts["unit"] = str(agreed.budget.unit)
        if promised is not None:
            facts["guarantee"] = guarantee_facts(promised)
        print_json(facts)
        return
    out.print(verdict_table(found, ledger, at))
    for alarms, power in zip(ALARMS, tests.power.tolist(), strict=True):
        say(
            f"a test of membership that is wrong about {100 * alarms:g} % of the others finds at most "
            f"{percent(power)} %"
        )
    say(f"which follows from {tests.by}")
    if max_batch_size is not None:
        say(f"batches cut to at most {max_batch_size} of {rows} rows")
    if agreed is not None:
        say(f"one {agreed.budget.protected} is protected")
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

    Of a run's folder, hold its privacy statement against the run, too; of a run whose noise was decided on the way, ask
    its filter again for every release.

    Example: decrescendo verify runs/patients
    """
    from decrescendo.base.assumption import assumption_lines
    from decrescendo.plans.plan import Plan

    run = None
    if file.is_dir():
        from decrescendo.training.run import Run  # needs torch

        run = Run.load(file)
        agreed, ledger, guarantee = run.plan, run.ledger, run.guarantee
    else:
        agreed = Plan.load(file)
        ledger, guarantee = agreed.ledger, agreed.guarantee
    say(f"promised: {agreed.guarantee}")
    if guarantee != agreed.guarantee:
        say(f"said by the run: {guarantee}")
    with working("judging"):
        for line in agreed.confirm(ledger, guarantee):
            say(line)
    if run is not None:
        if (said := run.check_statement(file)) is not None:
            say(said)
        for line in assumption_lines(run.assumptions):
            say(line)
    say("verified")


def guarantee_facts(guarantee: Any) -> dict[str, Any]:
    """A guarantee for JSON."""
    facts = dataclasses.asdict(guarantee) | {"unit": str(guarantee.unit)}
    if guarantee.examples_per_person == 1:
        del facts["examples_per_person"]
    return facts


def plan_facts(plan: "Plan") -> dict[str, Any]:
    """A plan for JSON, with the ends of its schedules; the arrays are in the saved file."""
    from decrescendo.plans import sampling

    schedule = plan.schedule
    return {
        "budget": {
            "epsilon": plan.budget.epsilon,
            "delta": plan.budget.delta,
            "unit": str(plan.budget.unit),
            **({"examples_per_person": several} if (several := plan.budget.examples_per_person) > 1 else {}),
        },
        "dataset_size": plan.sampling.dataset_size,
        "expected_batch_size": [float(plan.batch_size[0]), float(plan.batch_size[-1])]
        if isinstance(plan.sampling, sampling.BatchSchedule)
        else plan.sampling.expected_batch_size,
        "max_batch_size": plan.sampling.max_batch_size,
        **(
            {"steps_per_epoch": plan.sampling.steps_per_epoch}
            if isinstance(plan.sampling, sampling.RandomAllocation)
            else {}
        ),
        "steps": plan.steps,
        "noise_multiplier": [float(schedule.noise_multiplier[0]), float(schedule.noise_multiplier[-1])],
        "clip_norm": [float(schedule.clip_norm[0]), float(schedule.clip_norm[-1])],
        "guarantee": guarantee_facts(plan.guarantee),
    }
