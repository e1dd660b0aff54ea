"""The one table of accountants: complete, and the only one."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from decrescendo import accounting
from decrescendo.accounting.table import KNOWN, OPTIONS, accountant_named, judges_releases

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "src/decrescendo"
# The table itself, and the room's door, whose names must stand there for type checkers.
MAY_LIST = {"accounting/table.py", "accounting/__init__.py"}
TITLES = {known.title for known in KNOWN.values()}


def test_it_has_every_accountant_of_the_package_and_nothing_else() -> None:
    public = {name: getattr(accounting, name) for name in accounting.__all__}
    accountants = {
        name
        for name, thing in public.items()
        if thing is not accounting.Accountant and {"epsilon", "delta", "certify"} <= set(dir(thing))
    }
    assert set(KNOWN) == accountants
    for name, known in KNOWN.items():
        assert known.made is public[name]


def test_names_options_and_titles_are_each_ones_own() -> None:
    assert len(TITLES) == len(KNOWN)
    assert len(OPTIONS) == sum(bool(known.option) for known in KNOWN.values())
    assert [known.name for known in OPTIONS.values() if known.needs] == []


@pytest.mark.parametrize("name", [name for name, known in KNOWN.items() if not known.needs])
def test_a_guarantees_name_makes_its_accountant_again(name: str) -> None:
    made = KNOWN[name].made()
    for said in (made.name, f"Truncated({made.name})"):
        assert accountant_named(said) == made
        assert judges_releases(said)


@pytest.mark.parametrize(
    "name", ["Selection", "Truncated", "Accountant", "mine", "Rdp()", "Zcdp(batches_per_epoch=0)", ""]
)
def test_other_names_make_none(name: str) -> None:
    assert accountant_named(name) is None


def listed(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """Line and names of what a collection, the body of a class or a text says."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        match node:
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                parts = [*elements]
            case ast.Dict(keys=keys, values=values):
                parts = [*keys, *values]
            case ast.ClassDef(body=body):
                parts = [line.value for line in body if isinstance(line, ast.Assign)]
            case ast.Constant(value=str(text)):
                yield node.lineno, set(re.findall(r"\w+", text))
        words: set[str] = set()
        for part in parts:
            match part.func if isinstance(part, ast.Call) else part:
                case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Constant(value=str(word)):
                    words.add(word)
        yield getattr(node, "lineno", 0), words


def docstrings(tree: ast.AST) -> set[int]:
    """First lines of the docstrings: prose may name what it likes."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return {
        node.body[0].value.lineno
        for node in ast.walk(tree)
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr)
    }


def lists(source: str) -> list[int]:
    """Lines of ``source`` with a list of accountants: three of them or more, by name or by option."""
    words = set(re.findall(r"\w+", source))
    if max(len(words & set(KNOWN)), len(words & set(OPTIONS))) < 3:
        return []
    tree = ast.parse(source)
    prose = docstrings(tree)
    return [
        line
        for line, words in listed(tree)
        if line not in prose and max(len(words & set(KNOWN)), len(words & set(OPTIONS))) > 2
    ]


def test_nothing_else_in_the_library_lists_accountants() -> None:
    files = [path for path in LIBRARY.rglob("*.py") if path.relative_to(LIBRARY).as_posix() not in MAY_LIST]
    assert len(files) > 100
    found = {str(path.relative_to(ROOT)): lists(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "others = (accounting.Gaussian(), Rdp(), Zcdp())",
        "NAMES = {'Pld': 1, 'Rdp': 2, 'Tcdp': 3}",
        "OF = re.compile('(Pld|Rdp|Gaussian)')",
        "class Name(StrEnum):\n    PLD = 'pld'\n    RDP = 'rdp'\n    CLT = 'clt'",
        "raise TypeError(f'accountant must be Pld, Gaussian or Zcdp, got {x}')",
    ],
)
def test_a_second_list_would_be_found(source: str) -> None:
    assert lists(source)


def rows(text: str, after: str) -> dict[str, str]:
    """Accountant and kind in the first table behind ``after``."""
    found: dict[str, str] = {}
    for line in text[text.index(after) :].splitlines():
        if row := re.match(r"\| `(?:dc\.accounting\.)?(\w+)` \| ([^|]*) \|", line):
            found[row[1]] = row[2]
        elif found:
            break
    return found


@pytest.mark.parametrize(
    ("page", "after"),
    [
        ("docs/reference/glossary.md", "## Accountants"),
        ("docs/explanation/accounting.md", "## The other accountants"),
    ],
)
def test_the_pages_tables_name_all_with_their_kinds(page: str, after: str) -> None:
    found = rows((ROOT / page).read_text(encoding="utf-8"), after)
    assert set(found) == set(KNOWN)
    for name, known in KNOWN.items():
        assert found[name].startswith(known.kind or "that of the wrapped accountant"), name


def test_the_rooms_docstring_names_all_with_their_kinds() -> None:
    found = dict(re.findall(r"^`(\w+)` +(\w+)", inspect.getdoc(accounting) or "", re.MULTILINE))
    assert found == {name: known.kind or "any" for name, known in KNOWN.items()}


@pytest.mark.slow
def test_the_rooms_names_are_what_they_say_whatever_was_loaded_before() -> None:
    """Names load when they are touched: a file of the same name must not take a function's place."""
    code = (
        "import decrescendo.accounting.membership, decrescendo.plans, inspect\n"
        "from decrescendo import accounting\n"
        "modules = [name for name in accounting.__all__ if inspect.ismodule(getattr(accounting, name))]\n"
        "assert not modules, modules\n"
        "assert inspect.ismodule(accounting.filters) and inspect.ismodule(accounting.verify)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_table_loads_no_numpy() -> None:
    code = (
        "import sys\nfrom decrescendo.accounting.table import KNOWN, OPTIONS\n"
        "print([known.shown for known in KNOWN.values()])\nassert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
