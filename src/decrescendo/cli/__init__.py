"""The command line: decide a plan, train by it, judge it, check it, and run experiments.

Commands import what they need when they are called: `--help`, `plan`, `account` and `verify` start without torch.
"""

import signal

from decrescendo.cli.app import app, terminate
from decrescendo.cli.audit import audit_command
from decrescendo.cli.experiments import demo_command, report_command, reproduce_command
from decrescendo.cli.influence import influence_command
from decrescendo.cli.ledger import ledger_command
from decrescendo.cli.plans import account_command, plan_command, verify_command
from decrescendo.cli.statement import statement_command
from decrescendo.cli.train import train_command
from decrescendo.cli.tune import tune_command

__all__ = ["COMMANDS", "app", "main"]

# In the order of the help.
COMMANDS = {
    "plan": plan_command,
    "train": train_command,
    "account": account_command,
    "verify": verify_command,
    "demo": demo_command,
    "reproduce": reproduce_command,
    "report": report_command,
    "tune": tune_command,
    "influence": influence_command,
    "ledger": ledger_command,
    "audit": audit_command,
    "statement": statement_command,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main() -> None:
    """Entry point of the command ``decrescendo``."""
    signal.signal(
        signal.SIGTERM, terminate
    )  # else it would end at once, and leave half of what it was writing
    app()
