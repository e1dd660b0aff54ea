"""Commands that run experiments: the demonstration, and what the paper reports."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli.app import err, one_line_errors, out, say


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
