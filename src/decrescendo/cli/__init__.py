"""The command line: decide a plan, train by it, judge it, check it, attack it.

Commands import what they need when they are called: `--help`, `plan`, `account` and `verify` start without torch.
"""

from typing import Annotated

import typer

from decrescendo import __version__
from decrescendo.cli import options
from decrescendo.cli.account import account_command
from decrescendo.cli.app import app, err, listen, make_app, one_line_errors, out, print_json, say
from decrescendo.cli.asked import judge_of
from decrescendo.cli.audit import audit_command
from decrescendo.cli.demo_command import demo_command
from decrescendo.cli.doctor import doctor_command
from decrescendo.cli.facts import plan_facts
from decrescendo.cli.ledger import ledger_command
from decrescendo.cli.new import new_command
from decrescendo.cli.plans import plan_command, verify_command
from decrescendo.cli.statement import statement_command
from decrescendo.cli.studio import studio_command
from decrescendo.cli.train import train_command
from decrescendo.cli.tune import tune_command

__all__ = [
    "COMMANDS", "app", "err", "judge_of", "listen", "main", "make_app", "one_line_errors", "options", "out",
    "plan_facts", "print_json", "say",
]  # fmt: skip

# In the order of the help.
COMMANDS = {
    "plan": plan_command,
    "studio": studio_command,
    "new": new_command,
    "train": train_command,
    "account": account_command,
    "verify": verify_command,
    "demo": demo_command,
    "tune": tune_command,
    "ledger": ledger_command,
    "audit": audit_command,
    "doctor": doctor_command,
    "statement": statement_command,
}


def _tell_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"decrescendo {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _about(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and end."),
    ] = False,
) -> None:
    pass


for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main() -> None:
    """Entry point of the command ``decrescendo``."""
    listen()
    app()
