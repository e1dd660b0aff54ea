"""Commands that run what the papers report, and write pages of it."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli import err, one_line_errors, say
from decrescendo.errors import InvalidValue
from decrescendo_papers.cli.options import Curves, Device, Influences, Results


@one_line_errors
def reproduce_command(
    names: Annotated[
        list[str],
        typer.Argument(help="table1, .., figure1, ..: as in the paper of Du et al.; hong: section 5 of Hong et al."),
    ],
    cells: Annotated[
        list[str] | None,
        typer.Option(help="Only these: task/epsilon/method, with * for anything. May be given several times."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds, from 0. Default: 5; for hong 20.", min=1)] = None,
    block: Annotated[
        list[str] | None, typer.Option(help="claimed (as the paper counts), certified. Default: both.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes, one thread each.", min=1)] = 2,
    device: Device = "auto",
    results: Results = Path("results/runs"),
    curves: Curves = Path("results/figures"),
    influence: Influences = Path("results/influence"),
    dry_run: Annotated[bool, typer.Option(help="Say what would run, and run nothing.")] = False,
) -> None:
    """Run what is missing of a table or figure of the paper, and keep every finished run.

    Example: papers reproduce table1 --cells "mnist/0.4/*" --seeds 3
    """
    from decrescendo_papers.experiments import costs, persons
    from decrescendo_papers.experiments.execute import execute, missing
    from decrescendo_papers.experiments.hong import HONG, SEEDS
    from decrescendo_papers.experiments.reproduce import requested, requested_curves, requested_persons
    from decrescendo_papers.experiments.table import BLOCKS
    from decrescendo_papers.experiments.tuned import read_tuned

    if HONG in names:
        if len(names) > 1 or cells or block:
            raise InvalidValue(
                "hong must be asked for alone, without --cells and --block: its stages depend on each other"
            )
        _hong(results, influence, seeds or SEEDS, jobs, device, dry_run)
        return
    specs = requested(names, seeds or 5, cells=cells or (), blocks=block or BLOCKS, results=results)
    todo = missing(specs, results)
    wanted = requested_curves(names)
    absent = [(spec, points) for spec, points in wanted if costs.find(curves, spec, points) is None]
    behind = [spec for spec in requested_persons(names) if persons.find(curves, spec) is None]
    say(f"{len(set(specs))} runs, {len(todo)} missing")
    if "tuned" in names and (untried := read_tuned(results).untried(cells or ())):
        say(f"{untried} columns have no choice yet: run papers reproduce tuned-trials first, with the same --results")
    if wanted:
        say(f"{len(wanted)} cost curves, {len(absent)} missing")
    if dry_run:
        _say_where(results)
        for spec in (*todo, *(spec for spec, _ in absent), *behind):
            say(spec.name)
        return
    for spec, points in absent:
        with err.status(f"cost of {spec.name}"):
            costs.save(curves, spec, points, costs.compute(spec, points))
    for spec in behind:
        with err.status(f"other unit of {spec.name}"):
            persons.save(curves, spec, persons.compute(spec))
    outcome = execute(specs, results, jobs=jobs, device=device, console=err)
    say(f"{outcome.kept} were there, {outcome.done} done, {len(outcome.failed)} failed")
    if outcome.failed:
        raise typer.Exit(1)


def _say_where(results: Path) -> None:
    if not results.is_dir():
        err.print(
            f"warning: there is no folder {results} here, so no run counts as finished. Run this in the folder papers "
            "of the repository, or name the folder with --results",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


def _hong(runs: Path, folder: Path, seeds: int, jobs: int, device: str, dry_run: bool) -> None:
    import torch

    from decrescendo_papers.experiments.execute import execute
    from decrescendo_papers.experiments.hong import reproduce_hong, unfinished

    absent, todo = unfinished(runs, folder, seeds)
    say(f"{len(absent)} influences and {len(todo)} runs missing, as far as is known before earlier stages end")
    if dry_run:
        _say_where(runs)
        for name in (
            *(f"influence of {study.spec.name}, seed {seed}" for study, seed in absent),
            *(spec.name for spec in todo),
        ):
            say(name)
        return
    torch.set_num_threads(1)  # influences are measured in this process, as the runs are in theirs
    outcome = reproduce_hong(
        runs, folder, seeds=seeds, run=lambda specs: execute(specs, runs, jobs=jobs, device=device, console=err),
        console=err,
    )  # fmt: skip
    say(f"{outcome.kept} were there, {outcome.done} done, {len(outcome.failed)} failed")
    if outcome.failed:
        raise typer.Exit(1)


@one_line_errors
def report_command(
    results: Results = Path("results/runs"),
    curves: Curves = Path("results/figures"),
    recipes: Annotated[Path, typer.Option(help="File of recipes that searches found.")] = Path("results/recipes.jsonl"),
    influence: Influences = Path("results/influence"),
    folder: Annotated[Path, typer.Option("--out", help="Folder for pages and figures.")] = Path("docs/reproduction"),
) -> None:
    """Write a page for every table of the paper and draw its figures, from the runs that are finished.

    Example: papers report
    """
    from decrescendo_papers.experiments.pages.archive import Archive, Sources
    from decrescendo_papers.experiments.pages.write import write_report

    for option, path in (("--results", results), ("--curves", curves)):
        if not path.is_dir():
            raise InvalidValue(
                f"{option} must name a folder that exists, got {str(path)!r}. Run papers reproduce first"
            )
    archive = Archive.read(results)
    for reason in archive.damaged:
        err.print(f"[yellow]left out:[/yellow] {reason}", soft_wrap=True, highlight=False)
    for path in write_report(Sources(archive, curves, recipes, influence), folder):
        say(f"written: {path}")
