"""The papers are a client: they use what anybody may use of the library, and nothing else."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import decrescendo as dc

PACKAGE = Path(__file__).resolve().parents[1] / "src/decrescendo_papers"
LIBRARY = "decrescendo"
# What `dc` names, and the command line, which speaks for the papers' commands too.
ROOMS = {name for name in dir(dc) if isinstance(getattr(dc, name), ModuleType)} | {"cli"}


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules of the library, and the names taken from them; a module as a whole takes the name ""."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if node.module.split(".")[0] == LIBRARY:
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == LIBRARY)


def refused(module: str, name: str) -> str:
    """Why this import is of something private; empty if it is not."""
    parts = module.split(".")[1:]
    if not parts:
        return "" if not name or name in (*dc.__all__, *ROOMS) else f"{name} is not in decrescendo.__all__"
    if parts[0] not in ROOMS:
        return f"{module} is no room"
    room = importlib.import_module(f"{LIBRARY}.{parts[0]}")
    if len(parts) > 2 or (len(parts) == 2 and parts[1] not in room.__all__):
        return f"{module} is inside of a room"
    found = importlib.import_module(module)
    public = getattr(found, "__all__", None) or [key for key in vars(found) if not key.startswith("_")]
    return "" if not name or name in public else f"{name} is not a public name of {module}"


def test_only_public_names_of_the_library_are_used() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {reason}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if (reason := refused(*name))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("from decrescendo.plans.calibration import calibrate", "inside of a room"),
        ("from decrescendo.training.run.files import read", "inside of a room"),
        ("from decrescendo.accounting import _digest", "not a public name"),
        ("from decrescendo import nothing", "not in decrescendo.__all__"),
        ("import decrescendo.clipping.engine", "inside of a room"),
        ("from decrescendo.secrets import key", "no room"),
    ],
)
def test_a_private_name_is_found(line: str, words: str) -> None:
    assert [words in refused(*found) for found in imported(ast.parse(line))] == [True]


def test_the_library_knows_nothing_of_the_papers() -> None:
    source = Path(dc.__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "decrescendo_papers" not in text, path
        assert "results/" not in text, path
