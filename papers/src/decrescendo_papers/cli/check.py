"""The command that runs finished lines again and compares."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli import one_line_errors, say
from decrescendo.errors import InvalidValue, check_real
from decrescendo_papers.cli.options import Results


@one_line_errors
def check_command(
    sample: Annotated[int, typer.Option(help="How many lines, drawn at random.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="By which they are drawn.")] = 0,
    task: Annotated[list[str] | None, typer.Option(help="Only of these tasks. May be given several times.")] = None,
    tolerance: Annotated[
        float,
        typer.Option(help="How far a score may be off: sums are rounded otherwise on other processors.", min=0),
    ] = 0.002,
    results: Results = Path("results/runs"),
) -> None:
    """Run some finished runs again, one after the other, and compare their scores with what the lines say. Exit status
    1: a score is further off than the tolerance.

    Example: papers check --sample 5 --task imdb
    """
    import torch

    from decrescendo_papers.experiments import recheck

    check_real("--tolerance", tolerance, at_least=0)
    lines = recheck.sample(results, sample, seed, task or ())
    if not lines:
        of = f" of {', '.join(task)}" if task else ""
        raise InvalidValue(
            f"--results must have runs{of} of today's revision (earlier ones drew other noise), got none in "
            f"{str(results)!r}"
        )
    torch.set_num_threads(1)  # as they were made
    off = 0
    for line in lines:
        difference = recheck.repeat(line).difference
        off += not difference <= tolerance  # nor is a score that is no number within it
        say(f"{'equal' if difference == 0 else f'off by {difference:.4f}'}  {line.spec.name}")
    say(f"{len(lines)} runs again, {off} off by more than {tolerance:g}")
    if off:
        raise typer.Exit(1)
