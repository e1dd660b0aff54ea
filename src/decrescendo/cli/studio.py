"""The command that opens the page."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli.app import one_line_errors, say


@one_line_errors
def studio_command(
    file: Annotated[
        Path | None,
        typer.Argument(help="A plan, the folder of a run, a store, or noise multipliers to show first."),
    ] = None,
    port: Annotated[int, typer.Option(help="Of this machine only; 0: any that is free.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Open a local web page for planning with sliders.

    Sliders set budget, data, noise and clip norm; the page shows the cost, what an attacker could find, two plans side
    by side, and saved plans, runs and stores. Only this machine can reach it, and it loads nothing. Ctrl-C ends it.

    Example: decrescendo studio plan.json
    """
    from decrescendo.base.extras import require

    require("uvicorn")
    require("starlette")
    # By name: the page is a sibling of the command line, not below it.
    studio = require("decrescendo.studio.server").Studio(port, file)
    say(f"studio: {studio.url}\nCtrl-C ends it")
    if browser:
        import webbrowser

        webbrowser.open(studio.url)
    try:
        studio.run()
    except KeyboardInterrupt:
        say("closed")
