"""Commands about plans: decide one, check one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from decrescendo.cli import options
from decrescendo.cli.app import one_line_errors, print_json, say, working
from decrescendo.cli.asked import Asked, judge_of, population, strata_of
from decrescendo.cli.facts import plan_facts
from decrescendo.cli.optimal import Advice, Known, advise, say_optimal
from decrescendo.errors import InvalidValue, check_real


@one_line_errors
def plan_command(
    epsilon: options.EpsilonNeeded,
    dataset_size: options.DatasetSize = None,
    batch: options.Batch = None,
    batch_end: options.BatchEnd = None,
    max_batch_size: options.MaxBatchSize = None,
    random_allocation: options.RandomAllocation = None,
    stratum: options.Strata = None,
    unit: options.UnitOf = options.UnitName.EXAMPLE,
    clients: options.Clients = None,
    clients_per_round: options.ClientsPerRound = None,
    examples_per_person: options.ExamplesPerPerson = None,
    delta: options.Delta = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    schedule: options.ScheduleName = None,
    clip: options.Clip = None,
    rho_mu: options.RhoMu = None,
    rho_c: options.RhoC = None,
    lr_schedule: options.LrSchedule = None,
    lr: options.Lr = None,
    curvature: options.Curvature = None,
    momentum: options.Momentum = None,
    influence: options.Influence = None,
    influence_growth: options.InfluenceGrowth = None,
    bands: options.Bands = None,
    compute: options.Compute = None,
    accountant: options.Accountant = None,
    save: options.SavePlan = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the schedules into this PNG file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Calibrate noise so that the [bold]whole[/bold] schedule meets a budget.

    Example: decrescendo plan --epsilon 1.2 --delta 1e-6 --dataset-size 60000 --batch 250 --epochs 20
    --schedule dynamic --clip 1.5 --save plan.json

    With --schedule optimal the noise follows from facts about the training: --lr-schedule, --curvature with --lr,
    --momentum, or your own influences.

    For clients: decrescendo plan --epsilon 4 --delta 1e-4 --unit client --clients 2000 --clients-per-round 200
    --steps 30 --save plan.json

    For people with up to 5 examples each: decrescendo plan --epsilon 4 --delta 1e-6 --unit person
    --examples-per-person 5 --dataset-size 60000 --batch 250 --epochs 10 --save plan.json
    """
    for option, path in (("--save", save), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():  # asked before the work, not after it
            raise InvalidValue(f"{option} must name a file in a folder that exists, got {str(path)!r}")
    known = Known(lr_schedule, lr, curvature, momentum, influence, influence_growth)
    known.check(schedule)
    several = _bands(bands, schedule, compute)
    strata = None
    if stratum:
        strata = strata_of(
            stratum, dataset_size=dataset_size, batch=batch, batch_end=batch_end, compute=compute,
            max_batch_size=max_batch_size, random_allocation=random_allocation, bands=bands,
            **{name.removeprefix("--"): True for name in known.given()},
        )  # fmt: skip
        dataset_size, batch = strata.dataset_size, strata.expected_batch_size
    if compute is not None:
        batch = _mean_batch(compute, schedule, steps, batch, batch_end, epochs, unit)
        if max_batch_size == "auto":
            raise InvalidValue("--max-batch-size must be a number with --compute, which moves the batch, got auto")
        if dataset_size is not None and batch > dataset_size:
            raise InvalidValue(
                f"--compute must be at most --steps times --dataset-size, got {compute:g}. Give fewer, or more steps"
            )
    size, expected = population(unit, dataset_size, batch, clients, clients_per_round)
    asked = Asked(
        epsilon=epsilon, delta=delta, batch=expected, batch_end=batch_end, max_batch_size=max_batch_size,
        random_allocation=random_allocation, stratum=strata, steps=steps, epochs=epochs,
        schedule=schedule, clip=clip, rho_mu=rho_mu, rho_c=rho_c, accountant=accountant, unit=unit,
        examples_per_person=examples_per_person,
    )  # fmt: skip
    advice = _advice(asked, known, size, compute, several)
    made = asked.plan(size) if advice is None else advice.plan
    if save is not None:
        if save.is_file() and save.read_bytes() != made.to_json().encode():
            raise InvalidValue(f"--save must name a new file, got {str(save)!r}, which holds something else")
        made.save(save)
    if plot is not None:
        from decrescendo.report.figure import draw_schedules

        shown = {(schedule or options.Schedule.DYNAMIC).value: made}
        if advice is not None:
            shown["uniform"] = advice.uniform
        draw_schedules(shown, plot, workload=None if advice is None else advice.workload)
    if as_json:
        more = {} if advice is None else advice.facts()
        print_json({**plan_facts(made), **more, "saved": save, "plot": plot})
        return
    say(made.describe())
    if schedule is options.Schedule.OPTIMAL:
        say_optimal(made, advice)
    for path in filter(None, (save, plot)):
        say(f"written: {path}")


def _bands(bands: str | None, schedule: options.Schedule | None, compute: float | None) -> "int | Literal['auto']":
    """How many bands the noise has; an option that would have no effect is refused."""
    if bands is None:
        return 1
    if schedule is not options.Schedule.OPTIMAL or compute is not None:
        raise InvalidValue(
            "--bands must come with --schedule optimal and without --compute, got others: correlated noise follows "
            "from the training"
        )
    if bands == "auto":
        return "auto"
    if not (bands.isdecimal() and len(bands) < 20 and int(bands)):
        raise InvalidValue(f"--bands must be a whole number from 1 on or auto, got {bands!r}")
    return int(bands)


def _advice(
    asked: Asked, known: Known, size: int, compute: float | None, bands: "int | Literal['auto']"
) -> Advice | None:
    """The plan that follows from what is known of the training, if anything is."""
    if not known.given() and compute is None and bands == 1:
        return None
    if (known.given() or bands != 1) and asked.batch_end is not None:  # (never with --compute)
        raise InvalidValue(
            "--batch-end must be left out where the noise follows from what is known of the training, got "
            f"--batch-end {asked.batch_end:g}. That search takes one expected batch size"
        )
    if asked.random_allocation:
        raise InvalidValue(
            "--random-allocation must come without --compute and what is known of the training, got both. That search "
            "is of Poisson batches"
        )
    return advise(
        *asked.setting(size),
        known,
        clip=1.0 if asked.clip is None else asked.clip,
        rho_c=asked.factors()[1],
        judge=judge_of(asked.accountant),
        compute=compute,
        bands=bands,
    )


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
def verify_command(
    file: Annotated[Path, typer.Argument(help="A plan file, or the folder of a run.")],
) -> None:
    """Recompute the epsilon of a plan or run, also with an independent library.

    For a run's folder, it also compares the privacy statement with the run. If the noise was decided during the run, it
    passes every release through the filter again.

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
