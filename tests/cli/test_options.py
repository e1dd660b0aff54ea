"""Facts: what several commands share is declared once, and every way to a plan can choose who judges it."""

import ast
from collections import Counter
from pathlib import Path

import pytest
import typer

from decrescendo import cli
from decrescendo.accounting import Unit
from decrescendo.training import OPTIMIZERS
from decrescendo_papers import cli as papers

FOLDERS = [Path(found.__file__).parent for found in (cli, papers)]
COMMANDS = {
    f"{app.info.name} {name}": command
    for app in (cli.app, papers.app)
    for name, command in typer.main.get_command(app).commands.items()
}


def declared(path: Path) -> list[str]:
    """The help of every option and argument that a file declares."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [
        ast.unparse(word.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("Option", "Argument")
        for word in call.keywords
        if word.arg == "help"
    ]


def test_no_option_is_declared_twice() -> None:
    found = Counter(words for folder in FOLDERS for path in folder.glob("*.py") for words in declared(path))
    assert len(found) > 50
    assert [words for words, count in found.items() if count > 1] == []


@pytest.mark.parametrize(
    "name",
    ["decrescendo plan", "decrescendo train", "decrescendo audit", "decrescendo tune", "papers influence"],
)
def test_whoever_makes_a_plan_can_say_who_judges_it(name: str) -> None:
    assert "--accountant" in {opt for parameter in COMMANDS[name].params for opt in parameter.opts}


def test_the_units_are_those_there_are() -> None:
    assert [name.value for name in cli.options.UnitName] == [unit.value for unit in Unit]


def test_the_names_of_optimisers_are_those_there_are() -> None:
    assert [name.value for name in cli.options.OptimizerName] == list(OPTIMIZERS)
