"""The command that writes a run's privacy statement again, with what only its owner knows."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli.app import err, one_line_errors, out, say, working


@one_line_errors
def statement_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    declare: Annotated[
        Path | None, typer.Option(help="A TOML file: data, person, private_uses, tuning, public_data, ..")
    ] = None,
    audit: Annotated[Path | None, typer.Option(help="What `decrescendo audit --out` wrote.")] = None,
    spent: Annotated[int, typer.Option(help="At how many points the budget's way is shown.", min=0)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts, and write nothing.")] = False,
) -> None:
    """Write statement.md and statement.json of a run, and show the page.

    Earlier declarations and audits are kept until you pass new ones.

    Example: decrescendo statement runs/mnist --declare mnist.toml
    """
    from rich.markdown import Markdown
    from rich.markup import escape

    from decrescendo.audit import AuditResult
    from decrescendo.errors import FileRefused
    from decrescendo.training.run import Run
    from decrescendo.training.statement import Declaration
    from decrescendo.training.statement.beside import said_beside

    declaration = None if declare is None else Declaration.load(declare)
    found = None if audit is None else AuditResult.load(audit).facts()
    run = Run.load(folder)
    if declaration is None or found is None:
        try:
            kept, before = said_beside(folder)
            declaration, found = declaration or kept, found or before
        except FileRefused as refused:
            err.print(f"[yellow]warning:[/yellow] what was declared before is lost: {escape(str(refused))}")
    with working("counting"):
        statement = run.statement(declaration, audit=found, spent=spent)
    if as_json:
        typer.echo(statement.to_json(), nl=False)
        return
    statement.save(folder)
    page = statement.to_markdown()
    try:
        "\u2022".encode(out.encoding)
        out.print(Markdown(page))
    except UnicodeEncodeError:  # a list's dots are no letters of this terminal
        typer.echo(page.encode(out.encoding, "replace"))
    say(f"written: {folder}/statement.md, {folder}/statement.json")
