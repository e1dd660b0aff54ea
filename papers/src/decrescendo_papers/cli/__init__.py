"""The command line of the reproduction: run what the papers report, write its pages, search, measure.

Folders are looked for in the folder that the command runs in: ``papers`` of the repository has them.
"""

from decrescendo.cli import listen, make_app
from decrescendo_papers.cli.check import check_command
from decrescendo_papers.cli.compare import compare_command
from decrescendo_papers.cli.influence import influence_command
from decrescendo_papers.cli.reproduce import report_command, reproduce_command
from decrescendo_papers.cli.search import search_command

__all__ = ["COMMANDS", "app", "main"]

# In the order of the help.
COMMANDS = {
    "reproduce": reproduce_command,
    "report": report_command,
    "check": check_command,
    "search": search_command,
    "compare": compare_command,
    "influence": influence_command,
}
app = make_app("papers", "The tables and figures of the papers behind decrescendo, run again and certified.")
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main() -> None:
    """Entry point of the command ``papers``."""
    listen()
    app()
