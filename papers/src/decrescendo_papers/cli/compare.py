"""The command that compares schedules of somebody's own with those of the papers, on a task of theirs."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli import one_line_errors, say
from decrescendo_papers.cli.options import PaperTask


@one_line_errors
def compare_command(
    task: PaperTask,
    epsilon: Annotated[float, typer.Option(help="Of every plan, certified.")],
    curve: Annotated[
        str,
        typer.Option(help="FILE.py:FUNCTION, from (budget, sampling, steps) to plans by name."),
    ],
    seeds: Annotated[int, typer.Option(help="Runs a plan, from seed 0.", min=1)] = 5,
    jobs: Annotated[int, typer.Option(help="Processes; each has one thread.", min=1)] = 2,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            help="Learning rate. Of several, each plan's is chosen on one half of the test rows, and scored on the "
            "other. Default: the paper's."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Default: the paper's.", min=1)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: compared/TASK-EPSILON.")] = None,
) -> None:
    """Train by plans of your own, by vanilla DP-SGD and by the dynamic method, with the paper's model and settings.

    The first plan of yours is what all others are compared with, seed by seed. Interrupted, it goes on from there:
    finished runs are kept in --out, with table.md and figure.png. Scores are those on the public test rows.

    Example: papers compare mnist --epsilon 1.2 --curve mine.py:plans
    """
    from decrescendo.training import ComparedRun, compare
    from decrescendo_papers.experiments.own_curves import beside, plans_of
    from decrescendo_papers.tasks import as_task

    vanilla, dynamic = beside(task.value, epsilon, steps)
    plans = {**plans_of(curve, vanilla), "vanilla": vanilla, "dynamic": dynamic}
    folder = Path("compared") / f"{task.value}-{epsilon:g}" if out is None else out

    def tell(run: ComparedRun) -> None:
        say(f"{run.seconds:7.1f} s  {run.plan}, seed {run.seed}, rate {run.learning_rate:g}: {run.scores[-1]:.4f}")

    if len(lr or ()) > 1:
        chosen = compare(
            plans,
            as_task(task.value, half=0),
            seeds=seeds,
            jobs=jobs,
            out=folder / "rates",
            learning_rate=lr,
            tell=tell,
        )
        rates, half = chosen.learning_rates, 1
        say("Rates were chosen on the test rows at even places. What follows is scored on those at odd places:")
    else:
        rates, half = lr or None, None
    found = compare(
        plans, as_task(task.value, half), seeds=seeds, jobs=jobs, out=folder, learning_rate=rates, tell=tell
    )
    say(found.table())
    say(f"written: {folder}")
