"""The command line: decide a plan, train by it, judge it, check it, and a demonstration."""

import dataclasses
import functools
import inspect
import json
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape

from decrescendo.budget import rounded
from decrescendo.cli_options import (
    RHO_C,
    RHO_MU,
    AsJson,
    Batch,
    Clip,
    Decay,
    Delta,
    Epochs,
    Epsilon,
    OptimizerName,
    RhoC,
    RhoMu,
    Schedule,
    ScheduleName,
    Steps,
    TaskName,
)
from decrescendo.errors import AccountingError, DecrescendoError, InvalidValue, check_real

if TYPE_CHECKING:
    from decrescendo.plan import Plan

# Everything else is imported inside the commands: `plan`, `account` and `verify` then start without torch.

P = ParamSpec("P")
app = typer.Typer(
    name="decrescendo",
    help="Differentially private training whose noise and clipping move, with the promised epsilon kept.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out, err = Console(), Console(stderr=True)


def one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """The package's and the file system's errors as one line and exit code 2; others keep their traceback."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except DecrescendoError as error:
            err.print(f"[red]error:[/red] {escape(' '.join(str(error).split()))}", soft_wrap=True)
            raise typer.Exit(2) from None
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            err.print(f"[red]error:[/red] {escape(where + (error.strerror or str(error)))}", soft_wrap=True)
            raise typer.Exit(2) from None

    guarded.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    return guarded


@app.command("plan")
@one_line_errors
def plan_command(
    epsilon: Annotated[float, typer.Option(help="Budget: epsilon > 0 of the whole run.")],
    dataset_size: Annotated[int, typer.Option(help="Number of examples N; public.")],
    batch: Annotated[float, typer.Option(help="Expected batch size; Poisson sampling.")],
    delta: Delta = None,
    steps: Steps = None,
    epochs: Epochs = None,
    schedule: ScheduleName = None,
    clip: Annotated[float, typer.Option(help="Clip norm C_0 of one example's gradient.")] = 1.0,
    rho_mu: RhoMu = RHO_MU,
    rho_c: RhoC = RHO_C,
    save: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the schedules into this PNG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate noise so that the [bold]whole[/bold] moving schedule meets a budget.

    Example: decrescendo plan --epsilon 1.2 --delta 1e-6 --dataset-size 60000 --batch 250 --epochs 20
    --schedule dynamic --clip 1.5 --save plan.json
    """
    for option, path in (("--save", save), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():  # asked before the work, not after it
            raise InvalidValue(f"{option} must name a file in a folder that exists, got {str(path)!r}")
    made = make_plan(
        epsilon, delta, dataset_size, batch, steps, epochs, schedule, clip=clip, rho_mu=rho_mu, rho_c=rho_c
    )
    if save is not None:
        made.save(save)
    if plot is not None:
        from decrescendo.report.figure import draw_schedules

        draw_schedules({(schedule or Schedule.DYNAMIC).value: made}, plot)
    if as_json:
        print_json({**plan_facts(made), "saved": save, "plot": plot})
        return
    say(made.describe())
    for path in filter(None, (save, plot)):
        say(f"written: {path}")


@app.command("train")
@one_line_errors
def train_command(
    task: Annotated[TaskName, typer.Argument(help="What to train on.")],
    plan: Annotated[Path | None, typer.Option(help="A plan file; instead of the budget options.")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    batch: Batch = None,
    steps: Steps = None,
    epochs: Epochs = None,
    schedule: ScheduleName = None,
    clip: Clip = None,
    rho_mu: RhoMu = RHO_MU,
    rho_c: RhoC = RHO_C,
    optimizer: Annotated[OptimizerName, typer.Option(help="Optimiser.")] = OptimizerName.SGD,
    lr: Annotated[float | None, typer.Option(help="Learning rate. Default: the task's.")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum in [0, 1), for sgd.")] = 0.0,
    lr_decay: Annotated[Decay, typer.Option(help="Learning rate constant or falling to zero.")] = Decay.NONE,
    seed: Annotated[
        int | None,
        typer.Option(help="As sensitive as the data. Default: drawn from the operating system, and said."),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="New folder for the run.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Train a task privately.

    Settings not given are those of the paper (for digits: chosen here).

    Example: decrescendo train mnist --epsilon 1.2 --schedule dynamic --out runs/mnist
    """
    import torch

    from decrescendo.experiments.tasks import find_task, train_task
    from decrescendo.plan import Plan
    from decrescendo.run import check_free

    chosen = find_task(task.value)
    if folder is not None:
        check_free(folder)  # before the training, not after it
    if plan is not None:
        given = {"epsilon": epsilon, "delta": delta, "batch": batch, "steps": steps, "epochs": epochs}
        given |= {"schedule": schedule, "clip": clip}
        surplus = [f"--{name}" for name, value in given.items() if value is not None]
        if surplus:
            raise InvalidValue(
                f"a plan file says it all, got --plan and {', '.join(surplus)}. Give one or the other"
            )
        agreed = Plan.load(plan)
    elif epsilon is None:
        raise InvalidValue("train must be given --plan or --epsilon, got neither. A budget has no default")
    else:
        agreed = make_plan(
            epsilon,
            chosen.delta if delta is None else delta,
            chosen.rows,
            chosen.batch if batch is None else batch,
            steps,
            chosen.epochs if steps is None and epochs is None else epochs,
            schedule,
            clip=chosen.clip if clip is None else clip,
            rho_mu=rho_mu,
            rho_c=rho_c,
        )
    if threads is not None:
        torch.set_num_threads(threads)
    drawn = seed is None
    used = secrets.randbits(63) if seed is None else seed
    if not as_json:
        say(agreed.describe())
    if drawn:
        err.print(f"seed {used}, drawn from the operating system; as sensitive as the data, and not saved")
    run = train_task(
        chosen,
        agreed,
        seed=used,
        optimizer=optimizer.value,
        learning_rate=lr,
        momentum=momentum,
        lr_decay=lr_decay.value,
        progress=not as_json,
    )
    if folder is not None:
        run.save(folder)
    if as_json:
        facts = plan_facts(run.plan) | {"steps_taken": run.steps, "guarantee": guarantee_facts(run.guarantee)}
        print_json({**facts, "metrics": dict(run.metrics), "seconds": run.seconds, "saved": folder})
        return
    nonfinite = sum(run.diagnostics.nonfinite) if run.diagnostics is not None else 0
    if nonfinite:
        err.print(f"[yellow]warning:[/yellow] {nonfinite} gradients were not finite and counted as zero")
    say(run.describe())
    if folder is not None:
        say(f"written: {folder}")


@app.command("account")
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
    from decrescendo.report.ledgers import read_ledger

    ledger, planned = read_ledger(file, sample_rate=sample_rate)
    at = planned if delta is None else delta
    if at is None:
        raise InvalidValue(f"--delta must be given for {file}, which has none, got none")
    found = verdicts(ledger, at)
    if as_json:
        rows = [dataclasses.asdict(verdict) for verdict in found]
        print_json({"steps": ledger.steps, "delta": at, "accountants": rows})
        return
    out.print(verdict_table(found, ledger, at))


@app.command("verify")
@one_line_errors
def verify_command(file: Annotated[Path, typer.Argument(help="A plan file.")]) -> None:
    """Judge a plan file's numbers again, here and with an independent library."""
    from decrescendo.accounting import Pld
    from decrescendo.plan import Plan

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


@app.command("demo")
@one_line_errors
def demo_command(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path("demo-output"),
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 5,
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 200,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
) -> None:
    """Spend one budget two ways on real digits.

    Beside them: plain SGD, which is not private, and a control. About a minute.
    """
    import torch

    from decrescendo.experiments.demo import demonstrate

    torch.set_num_threads(threads)
    demonstrate(folder, out, seeds=range(seeds), steps=steps)


@app.command("reproduce")
@one_line_errors
def reproduce_command(
    tables: Annotated[list[str], typer.Argument(help="table1, table2, ..: as in the paper of Du et al.")],
    cells: Annotated[
        list[str] | None,
        typer.Option(help="Only these: task/epsilon/method, parts may be *. May be given several times."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.", min=1)] = 5,
    block: Annotated[
        list[str] | None, typer.Option(help="claimed (as the paper counts), certified. Default: both.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes, one thread each.", min=1)] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    results: Annotated[Path, typer.Option(help="Folder of finished runs.")] = Path("results/runs"),
    dry_run: Annotated[bool, typer.Option(help="Say what would run, and run nothing.")] = False,
) -> None:
    """Run what is missing of a table of the paper, and keep every finished run.

    Example: decrescendo reproduce table1 --cells "mnist/0.4/*" --seeds 3
    """
    from decrescendo.experiments.execute import execute, missing
    from decrescendo.experiments.reproduce import requested
    from decrescendo.experiments.table import BLOCKS

    specs = requested(tables, seeds, cells=cells or (), blocks=block or BLOCKS)
    todo = missing(specs, results)
    say(f"{len(set(specs))} runs, {len(todo)} missing")
    if dry_run:
        for spec in todo:
            say(spec.name)
        return
    outcome = execute(specs, results, jobs=jobs, device=device, console=err)
    say(f"{outcome.kept} were there, {outcome.done} done, {len(outcome.failed)} failed")
    if outcome.failed:
        raise typer.Exit(1)


def make_plan(
    epsilon: float,
    delta: float | None,
    dataset_size: int,
    batch: float,
    steps: int | None,
    epochs: float | None,
    schedule: Schedule | None,
    *,
    clip: float,
    rho_mu: float,
    rho_c: float,
) -> "Plan":
    """The plan that the options of `plan` and `train` describe."""
    from decrescendo.budget import Budget
    from decrescendo.calibration import calibrate
    from decrescendo.experiments.schedules import schedule_curves
    from decrescendo.sampling import PoissonSampling

    sampling = PoissonSampling(dataset_size, batch)
    budget = Budget(epsilon, 1 / (10 * dataset_size) if delta is None else delta)
    if steps is not None and epochs is None:
        total = steps
    elif epochs is not None and steps is None:
        total = max(1, round(check_real("epochs", epochs, above=0) / sampling.sample_rate))
    else:
        given = "neither" if steps is None else "both"
        raise InvalidValue(f"exactly one of --steps and --epochs must be given, got {given}")
    name = (schedule or Schedule.DYNAMIC).value
    privacy, norms = schedule_curves(name, clip=clip, rho_mu=rho_mu, rho_c=rho_c)
    with err.status("calibrating"):
        return calibrate(budget, sampling, steps=total, privacy=privacy, clip=norms)


def say(text: str) -> None:
    """Plain lines on standard output, as long as they are: people copy numbers and paths."""
    out.print(text, soft_wrap=True, highlight=False, markup=False)


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


def print_json(content: dict[str, Any]) -> None:
    """On standard output, without colour or wrapping; an infinite epsilon is the string "inf"."""
    typer.echo(json.dumps(_finite(content), indent=1, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def main() -> None:
    """Entry point of the command ``decrescendo``."""
    app()


if __name__ == "__main__":
    main()
