"""The command that runs somebody's training with observers, and says what is wrong with its privacy."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli import options
from decrescendo.cli.app import check_out, one_line_errors, say, working
from decrescendo.errors import InvalidValue


@one_line_errors
def doctor_command(
    what: Annotated[
        Path,
        typer.Argument(help="A script or a notebook, the folder of a run, or a checkpoint of Opacus."),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after --.", metavar="-- ARGUMENTS")
    ] = None,
    steps: Annotated[
        int,
        typer.Option(help="Steps of the optimiser to observe. 0: the script is read, and not run.", min=0),
    ] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds after which the script is stopped.", min=1)] = 180.0,
    fix: Annotated[
        Path | None,
        typer.Option(help="Write the same training for this library to this file.", metavar="FILE"),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A check whose findings are left out; may be given again.")
    ] = None,
    ci: Annotated[bool, typer.Option("--ci", help="Exit code 1 if a fault was found, or no step was reached.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write a page to read to this file, as Markdown.", metavar="FILE")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Find privacy bugs in a training script that you already have.

    The doctor runs your unmodified script for a few steps and observes Opacus and torch. Before the first private step
    it forks the process, and each copy continues with one record changed. Each finding has a line, a consequence, and a
    certainty: proven by a run, recomputed, or suspected. Do not use it on a script that you would not run yourself.

    Example: decrescendo doctor train.py -- --epochs 3
    """
    import dataclasses

    # By name: the doctor is a sibling of the command line, not below it.
    from decrescendo.base.extras import require

    doctor = require("decrescendo.doctor")
    check_out(page)
    check_out(fix)
    if unknown := sorted(set(ignore or []) - set(doctor.CHECKS)):
        raise InvalidValue(f"--ignore must be one of {', '.join(doctor.CHECKS)}, got {unknown[0]!r}")
    with working("running the training"):
        found = doctor.examine(what, arguments or [], steps=steps, timeout=timeout)
    kept = tuple(finding for finding in found.findings if finding.check not in (ignore or []))
    found = dataclasses.replace(found, findings=kept)
    if as_json:
        typer.echo(found.to_json())
    else:
        say(found.describe())
    if page is not None:
        page.write_text(found.to_markdown() + "\n", encoding="utf-8")
    if fix is not None:
        written = doctor.rewrite(what)
        fix.write_text(written.text, encoding="utf-8")
        if not as_json:
            say(f"written: {fix}" + "".join(f"\nnot carried over: {reason}" for reason in written.left))
    if ci and (kept or doctor.finding.UNREACHED in found.unseen):
        raise typer.Exit(1)
